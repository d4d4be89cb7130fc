"""Prefix warm-up: with several samples of a prompt, the prompt is computed once before they start.

Only worth it with an engine that keeps prefixes: there the samples find the prompt in its cache instead of each
computing it. It costs one more pass through the engine's queue, so a single sample never waits for it.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING

import msgspec

from forebay.wire.messages import End, SamplingParams, WorkItem
from forebay_api.calls import Call, Choice
from forebay_api.plan import Plan

if TYPE_CHECKING:
    from forebay_api.app import Api


async def warm_prefixes(api: Api, call: Call) -> None:
    """Send each prompt of a call ahead, without output, and wait until the engine has it.

    A prompt that the engine refuses is left to the samples, which will say why. An abort meanwhile ends the samples.
    The tokens that came of a prompt are used by the samples: it is tokenised once.
    """
    plan = Plan(kind="generate", parent_rid=call.plan.parent_rid, log_metrics=False, no_logs=True, ids=call.plan.ids)
    ahead = Call(plan, asyncio.get_running_loop(), call.request_id)
    plan.items = [_without_output(api, item) for item in call.plan.items]
    plan.public_rids = call.plan.public_rids
    choices = [Choice(ahead, item.rids[0], at, item, at) for at, item in enumerate(plan.items)]
    api.mailbox.submit(ahead, choices, plan.ids)
    try:
        await asyncio.wait({ahead.done, call.done}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        api.mailbox.abandon(ahead)
    for at, end in ahead.ends.items():
        if end.reason.get("type") == "abort":
            _end_samples(call, at, end)
        elif not call.plan.echo:  # echo shows the prompt's own text
            _use_ids(ahead, call, at)
    ahead.close()


def _without_output(api: Api, item: WorkItem) -> WorkItem:
    rid = api.new_rid(item.head.public_rid)
    replace = msgspec.structs.replace
    head = replace(
        item.head,
        rid=rid,
        stream=False,
        sampling=SamplingParams(max_new_tokens=0, top_k=1),
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        return_hidden_states=False,
    )
    opened = replace(
        item.open,
        rid=rid,
        stream=False,
        stop=[],
        stop_regex=[],
        want_ids=False,
        want_prompt_ids=True,
        want_prompt_text=False,
        return_logprob=False,
        return_hidden_states=False,
    )
    return replace(item, head=head, rids=[rid], open=opened)


def _end_samples(call: Call, prompt: int, end: End) -> None:
    for choice in call.choices:
        if choice.prompt == prompt and not choice.ended:
            choice.close()
            choice.finish(End(rid=choice.rid, reason=end.reason, prompt_tokens=end.prompt_tokens))


def _use_ids(ahead: Call, call: Call, prompt: int) -> None:
    admitted = ahead.prompts.get(ahead.plan.items[prompt].rids[0])
    if admitted is not None:
        ids = array("q")
        ids.frombytes(admitted.prompt_ids)
        item = call.plan.items[prompt]
        item.text, item.chat, item.has_ids = None, None, True
        call.plan.ids[prompt] = ids
