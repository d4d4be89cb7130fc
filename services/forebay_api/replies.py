"""The JSON of answers: whole answers of each API family, and the chunk objects that the streams fill in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.wire.messages import End, Extra
from forebay_api import errorbody, logprobs
from forebay_api.calls import Call, Choice, as_error, ids_of

if TYPE_CHECKING:
    from forebay_api.plan import Plan

MARK = "\ue000forebay\ue000"
"""Stands for the text in a chunk while its constant parts are made (private-use characters)."""

_encode = msgspec.json.Encoder().encode


def split_at_text(chunk: dict[str, Any]) -> tuple[bytes, bytes]:
    """The bytes of an event before and behind its text, from a chunk whose text is `MARK`."""
    before, mark, after = _encode(chunk).partition(_encode(MARK))
    if not mark:
        raise ValueError("the chunk does not hold the mark")
    return b"data: " + before, after + b"\n\n"


# ---------------------------------------------------------------- usage
def usage(prompt: int, completion: int, cached: int, reasoning: int, plan: Plan) -> dict[str, Any]:
    """The usage object; the details only when they say something (spec: OpenAI API 1.4)."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached} if plan.cache_report else None,
        "completion_tokens_details": {"reasoning_tokens": reasoning} if reasoning else None,
        "reasoning_tokens": reasoning,
    }


def usage_of(call: Call) -> dict[str, Any]:
    """Usage of a finished call: each prompt counted once, the tokens of all choices added up."""
    first_of_prompt: dict[int, End] = {}
    for choice in call.choices:
        end = call.ends.get(choice.index)
        if end is not None:
            first_of_prompt.setdefault(choice.prompt, end)
    return usage(
        sum(end.prompt_tokens for end in first_of_prompt.values()),
        sum(end.completion_tokens for end in call.ends.values()),
        sum(end.cached_tokens for end in first_of_prompt.values()),
        sum(end.reasoning_tokens for end in call.ends.values()),
        call.plan,
    )


# ---------------------------------------------------------------- OpenAI
def openai_finish(end: End) -> tuple[str, Any]:
    """`finish_reason` and `matched_stop` of an end."""
    kind = end.reason.get("type")
    return (kind if kind in ("stop", "length", "abort") else "stop"), end.reason.get("matched")


def envelope(call: Call) -> dict[str, Any]:
    """The fields that every chunk of a stream shares."""
    kind = "chat.completion.chunk" if call.plan.kind == "chat" else "text_completion"
    return {"id": call.plan.id, "object": kind, "created": call.created, "model": call.plan.model}


def _chunk(call: Call, choice: dict[str, Any], end: End | None) -> dict[str, Any]:
    reason, matched = (None, None) if end is None else openai_finish(end)
    choice["finish_reason"] = reason
    choice["matched_stop"] = matched
    if end is not None:
        choice["stop_reason"] = matched  # the name that vLLM's clients look for
    body = {**envelope(call), "choices": [choice]}
    if call.plan.include_usage:
        body["usage"] = None
    return body


def completion_chunk(call: Call, index: int, text: str, end: End | None) -> dict[str, Any]:
    """One chunk of a completions stream."""
    return _chunk(call, {"index": index, "text": text, "logprobs": None}, end)


def chat_chunk(call: Call, index: int, delta: dict[str, Any], end: End | None) -> dict[str, Any]:
    """One chunk of a chat stream."""
    return _chunk(call, {"index": index, "delta": delta, "logprobs": None}, end)


def prompt_ids(choice: Choice) -> list[int]:
    """The prompt of a choice as the engine got it."""
    admitted = choice.call.prompt_of(choice)
    return ids_of(admitted.prompt_ids) if admitted is not None else []


def prompt_text(choice: Choice) -> str:
    """The prompt of a choice as text, for echo."""
    if choice.item.text is not None:
        return choice.item.text
    admitted = choice.call.prompt_of(choice)
    return (admitted.prompt_text or "") if admitted is not None else ""


def _hidden(end: End, plan: Plan) -> list[Any]:
    return logprobs.nested(None if end.extra is None else end.extra.hidden_states, plan.hidden_size)


def _metadata(call: Call) -> dict[str, Any]:
    """The `metadata` member of a whole answer, when there is something to say."""
    if call.plan.weight_version is None:
        return {}
    metadata: dict[str, Any] = {"weight_version": call.plan.weight_version}
    for end in call.ends.values():
        if end.trailing and "weight_versions" in end.trailing:
            metadata["weight_versions"] = end.trailing["weight_versions"]
    return {"metadata": metadata}


def _whole_choice(choice: Choice, end: End, plan: Plan, said: dict[str, Any], ids_name: str) -> dict[str, Any]:
    """One of the choices of a whole answer: what was said, why it ended, and what was asked for besides."""
    reason, matched = openai_finish(end)
    finish = {"finish_reason": reason, "matched_stop": matched, "stop_reason": matched}
    body = {"index": choice.index, **said, **finish}
    if plan.return_token_ids:
        body |= {ids_name: ids_of(end.ids), "prompt_token_ids": prompt_ids(choice)}
    if plan.return_hidden_states:
        body["hidden_states"] = _hidden(end, plan)
    return body


def completion(call: Call) -> dict[str, Any]:
    """The whole answer of `/v1/completions`."""
    plan = call.plan
    choices = []
    for choice in call.choices:
        end = call.ends[choice.index]
        text = (prompt_text(choice) if plan.echo else "") + end.text
        scores = logprobs.completions(end.extra, plan.top_logprobs, 0, plan.echo)[0] if plan.return_logprob else None
        choices.append(_whole_choice(choice, end, plan, {"text": text, "logprobs": scores}, "token_ids"))
    return {**envelope(call), "choices": choices, "usage": usage_of(call), **_metadata(call)}


def chat(call: Call) -> dict[str, Any]:
    """The whole answer of `/v1/chat/completions`."""
    plan = call.plan
    choices = []
    for choice in call.choices:
        end = call.ends[choice.index]
        message = {"role": "assistant", "content": end.text, "reasoning_content": None}
        scores = logprobs.chat(end.extra, plan.top_logprobs) if plan.return_logprob else None
        choices.append(_whole_choice(choice, end, plan, {"message": message, "logprobs": scores}, "response_token_ids"))
    return {
        **envelope(call),
        "object": "chat.completion",
        "choices": choices,
        "usage": usage_of(call),
        **_metadata(call),
    }


# ---------------------------------------------------------------- native
def meta_info(choice: Choice, counts: tuple[int, int, int], end: End | None) -> dict[str, Any]:
    """The counts and the finish of `meta_info` (`end` None: still running).

    `counts`: prompt, completion and cached tokens. What the engine says besides by name is passed on.
    """
    plan = choice.call.plan
    meta: dict[str, Any] = {
        "id": public_id(choice),
        "finish_reason": None if end is None else end.reason,
        "prompt_tokens": counts[0],
        "completion_tokens": counts[1],
        "cached_tokens": counts[2],
        "reasoning_tokens": 0 if end is None else end.reasoning_tokens,
    }
    if plan.weight_version is not None:
        meta["weight_version"] = plan.weight_version
    if end is not None:
        meta["e2e_latency"] = time.perf_counter() - choice.call.began
        meta.update(end.trailing or {})
    return meta


def native_logprobs(choice: Choice, extra: Extra | None, *, prompt: bool) -> dict[str, Any]:
    """The logprob entries of `meta_info` for one delta; `prompt`: with those of the prompt."""
    head = choice.item.head
    return logprobs.native(
        extra,
        top=head.top_logprobs_num > 0,
        token_ids=head.token_ids_logprob is not None,
        text=choice.call.plan.text_in_logprobs,
        prompt=prompt,
    )


def generate_body(choice: Choice, text: Any, ids: Any, meta: Any) -> dict[str, Any]:
    """The answer object of one item; in a stream, one frame of it."""
    call, plan = choice.call, choice.call.plan
    body: dict[str, Any] = {"text": text, "output_ids": ids}
    if plan.return_prompt_token_ids:
        body["prompt_token_ids"] = prompt_ids(choice)
    body["meta_info"] = meta
    if plan.stream and (plan.batch or len(call.choices) > 1):
        body["index"] = choice.index
    return body


def _generated(choice: Choice, end: End) -> dict[str, Any]:
    """One item of a whole answer."""
    head = choice.item.head
    meta = meta_info(choice, (end.prompt_tokens, end.completion_tokens, end.cached_tokens), end)
    if head.return_logprob:
        meta.update(native_logprobs(choice, end.extra, prompt=True))
    if head.return_hidden_states:
        rows = None if end.extra is None else end.extra.hidden_states
        meta["hidden_states"] = logprobs.nested(rows, choice.call.plan.hidden_size)
    return generate_body(choice, end.text, ids_of(end.ids), meta)


def public_id(choice: Choice) -> str:
    """What the client knows the item by."""
    return choice.item.head.public_rid or choice.rid


def generate(call: Call) -> Any:
    """The whole answer of `/generate`: an object, or a list for a batch or several samples.

    An item that failed after it was admitted stands in a batch's list as its error.
    """
    items = []
    for choice in call.choices:
        end = call.ends.get(choice.index)
        if end is None:
            error = as_error(call.faults[choice.index])
            items.append({**errorbody.native_error(error), "index": choice.index})
            continue
        items.append(_generated(choice, end))
    return items if call.plan.batch or len(items) > 1 else items[0]


def whole(call: Call) -> bytes:
    """The body of a finished call that does not stream."""
    return _encode({"generate": generate, "completion": completion, "chat": chat}[call.plan.kind](call))
