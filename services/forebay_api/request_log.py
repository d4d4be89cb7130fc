"""The one log line of a finished request (setting `log_requests`): what was asked, how it ended, how long it took."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.wire.messages import WorkItem
from forebay_api.metrics import LEFT

if TYPE_CHECKING:
    from forebay_api.calls import Call
    from forebay_api.http import Exchange

MAX_TEXT = 2000
"""Characters of a prompt in a line."""
MAX_REASONS = 8
SILENT_TAGS = frozenset({"health"})
"""Routes of these tags are not logged: probes come every second."""

log = logging.getLogger("forebay.requests")


def write_line(http: Exchange, now: float, *, as_json: bool, with_text: bool) -> None:
    """Log a finished exchange; `now` as `time.perf_counter`."""
    facts = facts_of(http, now, with_text=with_text)
    if as_json:
        log.info("request", extra=facts)
    else:
        log.info("request %s", " ".join(f"{name}={_word(value)}" for name, value in facts.items()))


def facts_of(http: Exchange, now: float, *, with_text: bool) -> dict[str, Any]:
    """What is known of an exchange, without what is unknown."""
    facts: dict[str, Any] = {
        "request_id": http.request_id.decode(),
        "route": http.scope["path"],
        "method": http.scope["method"],
        "status": http.status or LEFT,
    }
    if http.call is not None:
        facts |= _call_facts(http.call)
        if with_text and not http.call.plan.no_logs:
            facts["prompt"] = [_prompt(item)[:MAX_TEXT] for item in http.call.plan.items[:MAX_REASONS]]
    facts["e2e_s"] = round(now - http.began, 4)
    return {name: value for name, value in facts.items() if value is not None}


def _call_facts(call: Call) -> dict[str, Any]:
    ends = [call.ends[index] for index in sorted(call.ends)]
    firsts = [choice.first_at for choice in call.choices if choice.first_at]
    queued = next((end.trailing["queue_time"] for end in ends if end.trailing and "queue_time" in end.trailing), None)
    prompts = {choice.prompt: end for choice in call.choices if (end := call.ends.get(choice.index)) is not None}
    reasons = [
        call.ends[c.index].reason.get("type") if c.index in call.ends else _failure(call, c.index) for c in call.choices
    ]
    return {
        "rid": call.choices[0].rid if call.choices else None,
        "stream": call.plan.stream,
        "prompt_tokens": sum(end.prompt_tokens for end in prompts.values()),
        "cached_tokens": sum(end.cached_tokens for end in prompts.values()),
        "completion_tokens": sum(end.completion_tokens for end in ends),
        "finish_reason": reasons[0] if len(reasons) == 1 else reasons[:MAX_REASONS],
        "queue_s": queued if isinstance(queued, (int, float)) else None,
        "ttft_s": round(min(firsts) - call.began, 4) if firsts else None,
    }


def _failure(call: Call, index: int) -> str:
    return f"error {call.faults[index].status}" if index in call.faults else "abort"


def _prompt(item: WorkItem) -> str:
    if item.text is not None:
        return item.text
    return item.chat.messages[: 4 * MAX_TEXT].decode("utf-8", "replace") if item.chat is not None else "(token ids)"


def _word(value: Any) -> str:
    """A value in a line of words: a text is quoted unless it is one plain word."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain or not isinstance(value, str) else msgspec.json.encode(value).decode()
