"""The line of a finished request: what it holds, and what it never holds."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from forebay.wire.messages import ChatPrompt, End, OpenItem, RequestFault, RequestHead, WorkItem
from forebay_api.calls import Call, Choice
from forebay_api.http import Exchange
from forebay_api.plan import Plan
from forebay_api.request_log import MAX_TEXT, facts_of, write_line


async def _nothing(*_: Any) -> Any:
    raise AssertionError("nobody reads or writes")


def exchange(path: str = "/generate", headers: list[tuple[bytes, bytes]] | None = None) -> Exchange:
    scope = {"path": path, "method": "POST", "headers": headers or [], "query_string": b""}
    return Exchange(scope, _nothing, _nothing, [])


def with_call(http: Exchange, *, text: str | None = "hello", n: int = 1, **plan: Any) -> Call:
    loop = asyncio.new_event_loop()
    call = http.call = Call(Plan(kind="generate", n=n, **plan), loop, "r")
    loop.close()
    chat = None if text is not None else ChatPrompt(messages=b'[{"role": "user"}]')
    rids = [f"w{sample}" for sample in range(n)]
    item = WorkItem(head=RequestHead(rid="w"), rids=rids, open=OpenItem(rid="w"), text=text, chat=chat)
    call.plan.items.append(item)
    call.choices = [Choice(call, rid, at, item, 0) for at, rid in enumerate(rids)]
    return call


def ended(call: Call, index: int = 0, **more: Any) -> None:
    call.ends[index] = End(rid="w", reason={"type": "stop"}, prompt_tokens=4, completion_tokens=6, **more)


def test_a_finished_call_shows_counts_times_and_reason() -> None:
    http = exchange()
    call = with_call(http)
    call.began, call.choices[0].first_at = 10.0, 10.25
    ended(call, cached_tokens=2, trailing={"queue_time": 0.5})
    http.status, http.began = 200, 10.0
    facts = facts_of(http, 11.0, with_text=False)
    del facts["request_id"]
    assert facts == {
        "route": "/generate",
        "method": "POST",
        "status": 200,
        "rid": "w0",
        "stream": False,
        "prompt_tokens": 4,
        "cached_tokens": 2,
        "completion_tokens": 6,
        "finish_reason": "stop",
        "queue_s": 0.5,
        "ttft_s": 0.25,
        "e2e_s": 1.0,
    }


def test_samples_share_their_prompt_and_each_has_a_reason() -> None:
    http = exchange()
    call = with_call(http, n=3)
    ended(call, 0)
    call.faults[1] = RequestFault("w1", 503, "gone")
    facts = facts_of(http, 1.0, with_text=False)
    assert facts["prompt_tokens"] == 4
    assert facts["finish_reason"] == ["stop", "error 503", "abort"]


def test_an_exchange_whose_client_left_has_status_499() -> None:
    assert facts_of(exchange(), 1.0, with_text=False)["status"] == 499


def test_the_prompt_is_shown_only_on_request_and_cut() -> None:
    http = exchange()
    with_call(http, text="a" * 5000)
    assert "prompt" not in facts_of(http, 1.0, with_text=False)
    assert facts_of(http, 1.0, with_text=True)["prompt"] == ["a" * MAX_TEXT]


def test_a_chat_is_shown_as_the_client_sent_it() -> None:
    http = exchange()
    with_call(http, text=None)
    assert facts_of(http, 1.0, with_text=True)["prompt"] == ['[{"role": "user"}]']


def test_no_logs_wins_over_the_setting() -> None:
    http = exchange()
    with_call(http, no_logs=True)
    assert "prompt" not in facts_of(http, 1.0, with_text=True)


def test_text_of_a_client_cannot_forge_a_second_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    http = exchange("/x\nrequest status=200 a=b")
    http.status = 404
    write_line(http, 1.0, as_json=False, with_text=False)
    message = caplog.records[0].getMessage()
    assert "\n" not in message
    assert 'route="/x\\nrequest status=200 a=b" method=POST status=404' in message
