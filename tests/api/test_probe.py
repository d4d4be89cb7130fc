"""The health probe without processes: what is a sign of life, and what is left behind."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from forebay.errors import RequestError
from forebay_api.mailbox import Mailbox
from forebay_api.probe import Prober, probe_rid


def mailbox() -> Mailbox:
    """A request table whose frames arrive nowhere."""
    return Mailbox(0, 1, lambda peer, frame: False, asyncio.get_running_loop())


def test_an_engine_that_works_for_others_is_alive() -> None:
    async def probe() -> int:
        box, steps = mailbox(), count()
        await asyncio.wait_for(Prober(box, lambda: next(steps)).run(), 5)
        return len(box)

    assert asyncio.run(probe()) == 0


def test_a_silent_engine_gives_no_sign_and_the_probe_is_withdrawn() -> None:
    async def probe() -> int:
        box = mailbox()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Prober(box, lambda: 7).run(), 0.3)
        return len(box)

    assert asyncio.run(probe()) == 0


def test_a_process_that_dies_meanwhile_ends_the_probe() -> None:
    async def probe() -> int:
        with pytest.raises(RequestError, match="detokenizer-0 is not running") as caught:
            await asyncio.wait_for(Prober(mailbox(), lambda: 7).run(lambda: "detokenizer-0 is not running"), 5)
        return caught.value.status

    assert asyncio.run(probe()) == 503


def test_ids_of_probes_are_known_to_engines_and_never_the_same() -> None:
    assert len({probe_rid() for _ in range(100)}) == 100
    assert probe_rid().startswith("HEALTH_CHECK_")
