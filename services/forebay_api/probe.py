"""The health probe: a request of one token through all processes, answered by any sign of life of the engine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from forebay.errors import RequestError
from forebay.wire.messages import OpenItem, RequestHead, SamplingParams, WorkItem
from forebay_api.calls import Call, Choice
from forebay_api.mailbox import Mailbox
from forebay_api.plan import Plan

PAUSE = 0.05
"""Seconds between two probes when the first was refused on its way."""
LOOK_EVERY = 0.2
"""Seconds between looks at whether the engine works for others."""


def probe_head(rid: str) -> RequestHead:
    """The smallest request there is: one prompt token, one new token, greedy."""
    return RequestHead(rid=rid, sampling=SamplingParams(max_new_tokens=1, top_k=1))


def probe_rid() -> str:
    """A request id that engines know as a health probe, and that no other probe ever has."""
    return f"HEALTH_CHECK_{uuid.uuid4().hex}"


class Prober:
    """Probes the engine for one api process."""

    def __init__(self, mailbox: Mailbox, steps: Callable[[], float]) -> None:
        """`steps` counts the steps of the engine that the detokenizers have read. Answers that do not stream show
        there only: an engine full of them may leave the probe waiting and is alive all the same."""
        self._mailbox = mailbox
        self._steps = steps

    async def run(self, problem: Callable[[], str | None] = lambda: None) -> None:
        """Send one-token requests until there is a sign of life of the engine. The caller sets the time limit.

        Raises `RequestError` (503) as soon as `problem` has one: a process that died meanwhile is not waited for.
        """
        while not await self._once(problem):
            # Refused on the way: two processes that both are up may not have found each other yet.
            await asyncio.sleep(PAUSE)

    async def _once(self, problem: Callable[[], str | None]) -> bool:
        mailbox = self._mailbox
        heard, steps = mailbox.probe(), self._steps()
        call, choice = self._call()
        mailbox.submit(call, [choice], call.plan.ids)
        try:
            while not (heard.done() or call.done.done()):
                await asyncio.wait({heard, call.done}, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
                found = problem()
                if found is not None:
                    raise RequestError(found, 503)
                if self._steps() > steps:
                    return True
            return heard.done()
        finally:
            heard.cancel()
            mailbox.abandon(call)
            call.close()

    def _call(self) -> tuple[Call, Choice]:
        rid, api = probe_rid(), self._mailbox.number
        plan = Plan.probe()
        item = WorkItem(head=probe_head(rid), rids=[rid], open=OpenItem(rid=rid, api=api), has_ids=True)
        item.head.api = api
        plan.items.append(item)
        call = Call(plan, asyncio.get_running_loop(), rid)
        return call, Choice(call, rid, 0, item, 0)
