"""Requests that come whole: answered without a task, and exactly as those that come in pieces."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from forebay.errors import RequestError
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.frames import Kind
from forebay.wire.messages import RequestFault
from forebay_api.streams import StreamCall
from tests.api.connected import Connected, answer, completion, connected, post, settle

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
VARYING = re.compile(
    rb"[0-9a-f]{32}|(?<=\r\n)[0-9a-f]+(?=\r\n)|(?<=content-length: )\d+"
    rb'|(?<="created":)\d+|(?<="e2e_latency":)[^,}]*|(?<="ttft":)[^,}]*'
)
"""Ids, times, and the sizes that follow from them."""


def run(test: Callable[[Connected], Awaitable[None]], **settings: Any) -> None:
    async def go() -> None:
        async with connected(**settings) as rig:
            await test(rig)

    asyncio.run(go())


async def conversation(rig: Connected, request: bytes, pieces: int) -> bytes:
    """All that a client reads which sends its request in so many pieces."""
    connection, pipe = rig.connect()
    size = -(-len(request) // pieces)
    for at in range(0, len(request), size):
        connection.data_received(request[at : at + size])
        await settle()
    rids = [rid for item in rig.work() for rid in item.rids]
    if rids:
        if b'"stream": true' in request:
            rig.text(rids, "a")
            rig.text(rids, "b")
        rig.end(rids, "c")
    await settle()
    assert rig.api.open_calls == 0
    assert len(rig.mailbox) == 0
    return VARYING.sub(b"*", pipe.written)


def test_a_request_that_comes_whole_needs_no_task() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion())
        (item,) = rig.work()
        assert rig.tasks == 0
        assert rig.api.open_calls == 1
        rig.end([item.head.rid], "text")
        await settle()
        status, headers, body = answer(pipe.take())
        assert (status, headers[b"content-type"]) == (200, b"application/json")
        assert body["choices"][0]["text"] == "text"
        assert rig.api.open_calls == 0

    run(test)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", CHAT), ("/generate", {"text": "hi"})],
)
def test_the_answer_is_the_same_when_a_request_comes_in_pieces(path: str, body: dict[str, Any], stream: bool) -> None:
    async def test(rig: Connected) -> None:
        request = post(path, {**body, "rid": "r", "stream": stream})
        at_once, in_pieces = [await conversation(rig, request, pieces) for pieces in (1, 3)]
        assert b"200 OK" in at_once
        assert at_once == in_pieces

    run(test)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post("/v1/completions", b"{"), 400),
        (post("/v1/completions", {"prompt": "hi", "temperature": -1}), 400),
        (post("/v1/completions", {}), 400),
        (post("/generate", {"text": "hi", "rid": ""}), 400),
        (completion().replace(b"application/json", b"text/plain"), 400),
        (completion().replace(b"host: x", b"host: x\r\nx-request-timeout-s: no"), 400),
        (post("/v1/completions", {"prompt": "hi" * 600}), 413),
        (post("/v1/completions", {"prompt": "hi", "n": 9}), 400),
    ],
)
def test_a_refusal_is_the_same_when_a_request_comes_in_pieces(request_: bytes, status: int) -> None:
    async def test(rig: Connected) -> None:
        at_once, in_pieces = [await conversation(rig, request_, pieces) for pieces in (1, 3)]
        assert at_once.startswith(b"HTTP/1.1 %d " % status)
        assert at_once == in_pieces

    run(test, max_body_bytes=1000, max_n=8)


@pytest.mark.parametrize(("key", "status"), [("", 401), ("authorization: Bearer secret", 200)])
def test_the_key_is_looked_at(key: str, status: int) -> None:
    async def test(rig: Connected) -> None:
        request = post("/v1/completions", {"prompt": "hi"}, *([key] if key else []))
        assert (await conversation(rig, request, 1)).startswith(b"HTTP/1.1 %d " % status)

    run(test, api_key="secret")


def test_too_many_requests_are_refused_with_a_time_to_come_back() -> None:
    async def test(rig: Connected) -> None:
        first, _ = rig.connect()
        first.data_received(completion())
        second, pipe = rig.connect()
        second.data_received(completion())
        status, headers, _ = answer(pipe.take())
        assert (status, headers[b"retry-after"]) == (429, b"1")
        assert rig.api.open_calls == 1

    run(test, max_inflight=1)


def test_a_body_that_finds_no_room_is_refused_and_its_connection_closed() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion())
        await settle()
        status, headers, _ = answer(pipe.take())
        assert (status, headers[b"connection"]) == (503, b"close")

    run(test, max_bodies_bytes=10)


def test_the_room_of_a_body_is_free_when_its_request_is_over() -> None:
    async def test(rig: Connected) -> None:
        for _ in range(3):
            assert (await conversation(rig, completion(), 1)).startswith(b"HTTP/1.1 200")

    run(test, max_bodies_bytes=100)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_is_aborted_and_counted(stream: bool) -> None:
    async def test(rig: Connected) -> None:
        connection, _ = rig.connect()
        connection.data_received(completion(stream=stream))
        (item,) = rig.work()
        connection.connection_lost(None)
        await settle()
        aborted = [abort.rid for frame in rig.frames(Kind.ABORT) for abort in control.decode_aborts(frame)]
        assert set(aborted) == {item.head.rid}
        assert (rig.api.open_calls, len(rig.mailbox)) == (0, 0)

    run(test)


def test_a_failure_before_the_first_event_has_its_own_status() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(stream=True))
        (item,) = rig.work()
        rig.end([item.head.rid], reason={"type": "abort", "message": "no", "status_code": 503})
        await settle()
        status, _, body = answer(pipe.take())
        assert (status, body["error"]["message"]) == (503, "no")

    run(test)


def test_a_failure_after_the_first_event_ends_the_stream_with_an_error_event() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(stream=True))
        (item,) = rig.work()
        rig.text([item.head.rid], "a")
        rig.mailbox.link_changed(Peer("engine", 0), False)
        await settle()
        assert b'data: {"error"' in pipe.written
        assert pipe.written.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    run(test)


def test_a_fault_of_ours_is_a_500_without_insides(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan: object) -> None:
        raise ZeroDivisionError("inside")

    async def test(rig: Connected) -> None:
        monkeypatch.setattr(rig.api, "check_plan", broken)
        connection, pipe = rig.connect()
        connection.data_received(completion())
        status, _, body = answer(pipe.take())
        assert (status, body["error"]["message"]) == (500, "Internal server error")
        assert rig.api.open_calls == 0

    run(test)


def test_a_fault_of_ours_at_the_end_of_a_stream_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: object) -> bytes:
        raise ZeroDivisionError("inside")

    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(stream=True))
        (item,) = rig.work()
        rig.text([item.head.rid], "a")
        monkeypatch.setattr(StreamCall, "last_events", broken)
        rig.end([item.head.rid], "b")
        await settle()
        assert pipe.closed
        assert b"inside" not in pipe.written
        assert (rig.api.open_calls, len(rig.mailbox)) == (0, 0)

    run(test)


def test_the_next_request_of_a_connection_is_answered() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        for _ in range(2):
            connection.data_received(completion())
            rig.end([item.head.rid for item in rig.work()], "x")
            await settle()
            assert answer(pipe.take())[0] == 200
        assert not pipe.closed

    run(test)


def test_requests_that_come_in_one_read_are_answered_in_order() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(rid="a") + completion(rid="b"))
        for name in ("a", "b"):
            await settle()
            (item,) = rig.work()
            assert item.head.public_rid == name
            rig.end([item.head.rid], name)
            await settle()
            assert answer(pipe.take())[2]["choices"][0]["text"] == name

    run(test)


@pytest.mark.parametrize(
    "request_",
    [
        post("/v1/completions", {"prompt": "hi"}, "connection: close"),
        post("/v1/completions", {"prompt": "hi"}, version="1.0"),
        post("/v1/completions", {"prompt": "hi", "stream": True}, "connection: close"),
    ],
    ids=["close", "1.0", "stream"],
)
def test_a_connection_that_is_not_kept_closes_after_the_answer(request_: bytes) -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(request_)
        rig.end([item.head.rid for item in rig.work()], "x")
        await settle()
        assert b"connection: close\r\n" in pipe.written
        assert pipe.closed

    run(test)


def test_a_client_that_waits_for_100_gets_it() -> None:
    async def test(rig: Connected) -> None:
        request = post("/v1/completions", {"prompt": "hi"}, "expect: 100-continue")
        head, _, body = request.partition(b"\r\n\r\n")
        connection, pipe = rig.connect()
        connection.data_received(head + b"\r\n\r\n")
        await settle()
        assert pipe.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.data_received(body)
        await settle()
        rig.end([item.head.rid for item in rig.work()], "x")
        await settle()
        assert answer(pipe.take())[0] == 200

    run(test)


def test_a_time_limit_ends_the_request() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(post("/v1/completions", {"prompt": "hi"}, "x-request-timeout-s: 0.001"))
        deadline = asyncio.get_running_loop().time() + 10
        while not pipe.written and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.001)
        assert answer(pipe.take())[0] == 504

    run(test)


def test_prompts_that_go_ahead_of_their_samples_do_so() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(n=2))
        await settle()
        (ahead,) = rig.work()
        assert ahead.head.sampling.max_new_tokens == 0
        rig.end([ahead.head.rid])
        await settle()
        (item,) = rig.work()
        rig.end(item.rids, "x")
        await settle()
        assert len(answer(pipe.take())[2]["choices"]) == 2
        assert rig.api.open_calls == 0

    run(test, prefix_warmup=True)


def test_the_end_of_a_stream_waits_for_a_client_that_does_not_read() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(stream=True))
        (item,) = rig.work()
        rig.text([item.head.rid], "a")
        connection.pause_writing()
        rig.text([item.head.rid], "b")
        rig.end([item.head.rid], "c")
        await settle()
        assert b"[DONE]" not in pipe.written
        connection.resume_writing()
        await settle()
        events = re.findall(rb"data: (\{.*\})", pipe.written)
        assert "".join(json.loads(one)["choices"][0]["text"] for one in events) == "abc"
        assert pipe.written.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert rig.api.open_calls == 0

    run(test)


@pytest.mark.parametrize("more", [{}, {"temperature": -1}], ids=["answer", "refusal"])
def test_a_whole_answer_waits_for_a_client_that_does_not_read(more: dict[str, Any]) -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.pause_writing()
        connection.data_received(completion(**more))
        rig.end([item.head.rid for item in rig.work()], "x")
        await settle()
        assert (pipe.written, rig.api.open_calls) == (b"", 1)
        connection.resume_writing()
        await settle()
        assert answer(pipe.take())[0] == (400 if more else 200)
        assert rig.api.open_calls == 0

    run(test)


def test_a_client_that_leaves_without_reading_its_answer_ends_the_request() -> None:
    async def test(rig: Connected) -> None:
        connection, _ = rig.connect()
        connection.pause_writing()
        connection.data_received(completion())
        rig.end([item.head.rid for item in rig.work()], "x")
        await settle()
        connection.connection_lost(None)
        await settle()
        assert rig.api.open_calls == 0

    run(test)


def test_an_exchange_that_breaks_off_takes_its_request_along() -> None:
    async def test(rig: Connected) -> None:
        connection, _ = rig.connect()
        request = completion(stream=True)
        connection.data_received(request[:-5])
        connection.data_received(request[-5:])
        await settle()
        (item,) = rig.work()
        (task,) = rig.server.server_state.tasks
        task.cancel()
        await settle()
        aborted = [abort.rid for frame in rig.frames(Kind.ABORT) for abort in control.decode_aborts(frame)]
        assert set(aborted) == {item.head.rid}
        assert (rig.api.open_calls, len(rig.mailbox)) == (0, 0)

    run(test)


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize(("size", "status"), [(900, 200), (1100, 431)])
def test_the_limit_of_a_head_counts_from_where_it_begins(reads: int, size: int, status: int) -> None:
    """Behind the end of a body, in one read with it or in two, as alone."""

    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        first = completion(prompt="x" * 3000)
        connection.data_received(first[:-100])
        await settle()
        second = post("/v1/completions", {"prompt": "hi"}, "x-long: " + "x" * size)
        rest = first[-100:] + second
        if reads == 2:
            half = 100 + size // 2
            connection.data_received(rest[:half])
            rest = rest[half:]
        connection.data_received(rest)
        await settle()
        if status == 431:
            # The first answer is under way: nothing can be said, only closed.
            assert pipe.closed
            return
        for _ in range(2):
            rig.end([item.head.rid for item in rig.work()], "x")
            await settle()
            assert answer(pipe.take())[0] == 200

    run(test, max_header_bytes=1050)


ODD = {"cut": b'{"prompt": "hello', "deep": b"[" * 100_000, "not UTF-8": b'{"prompt": "\xff"}'}
"""Bodies that cannot be read."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fate", ["answered", "refused", "not taken", "cut", "deep", "not UTF-8"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_nothing_of_a_request_is_left_for_the_garbage_collector(stream: bool, fate: str, pieces: int) -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        more: dict[str, Any] = {"temperature": -1} if fate == "refused" else {}
        rig.full = {Peer("tokenizer", 0)} if fate == "not taken" else set()
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                request = post("/v1/completions", ODD[fate]) if fate in ODD else completion(stream=stream, **more)
                for piece in [request] if pieces == 1 else [request[:-5], request[-5:]]:
                    connection.data_received(piece)
                    await settle()
                rig.end([item.head.rid for item in rig.work()], "x")
                await settle()
                assert pipe.take()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [type(one) for one in gc.garbage if type(one).__module__.startswith(("forebay", "uvicorn"))]
            left += [type(one) for one in gc.garbage if isinstance(one, FrameType)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert left == []

    run(test)


def test_a_refusal_says_what_it_is() -> None:
    """The kind of error that the tests above compare only with itself."""

    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(temperature=-1))
        status, _, body = answer(pipe.take())
        assert status == RequestError("x").status
        assert body["error"]["param"] == "temperature"

    run(test)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("split", [0, 150], ids=["one read", "head first"])
def test_a_client_with_a_long_prompt_is_heard_when_it_leaves(stream: bool, split: int) -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        request = completion(prompt="x" * 100_000, stream=stream)
        for piece in (request[:split], request[split:]) if split else (request,):
            connection.data_received(piece)
            await settle()
        assert len(rig.mailbox) == 1
        assert not pipe.paused
        connection.connection_lost(None)
        await settle()
        assert (len(rig.mailbox), rig.api.open_calls, len(rig.frames(Kind.ABORT)) > 0) == (0, 0, True)

    run(test)


def test_a_client_that_sends_ahead_is_heard_when_it_leaves() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion() * 3)
        await settle()
        assert not pipe.paused
        connection.connection_lost(None)
        await settle()
        assert (len(rig.mailbox), rig.api.open_calls) == (0, 0)

    run(test)


def test_a_client_that_sends_very_much_ahead_has_to_wait() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion() * 8)
        await settle()
        assert pipe.paused
        for _ in range(8):
            rig.end([item.head.rid for item in rig.work()], "x")
            await settle()
        assert pipe.take().count(b"HTTP/1.1 200") == 8
        assert not pipe.paused

    run(test)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_request_of_a_client_that_has_left_already_is_not_sent(stream: bool) -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion(n=2, stream=stream))
        pipe.closed = True  # it left before the task of this request, whose prompt is to go ahead, has run
        connection.connection_lost(None)
        await settle()
        assert (len(rig.mailbox), rig.api.open_calls, rig.frames(Kind.WORK)) == (0, 0, [])

    run(test, prefix_warmup=True)


def test_what_comes_behind_a_refused_request_is_not_answered() -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(post("/v1/completions", b"x" * 10, "x-long: " + "x" * 2000))
        assert answer(pipe.take())[0] == 431
        connection.data_received(completion())
        await settle()
        assert (pipe.take(), len(rig.mailbox)) == (b"", 0)

    run(test, max_header_bytes=1024)


@pytest.mark.parametrize("status", [0, 200, 399, 600, 999])
def test_an_error_of_the_engine_with_a_status_of_no_error_is_a_500(status: int) -> None:
    async def test(rig: Connected) -> None:
        connection, pipe = rig.connect()
        connection.data_received(completion())
        await settle()
        (item,) = rig.work()
        rig.mailbox.take([control.encode_faults([RequestFault(item.head.rid, status, "odd")])])
        await settle()
        assert answer(pipe.take())[0] == 500

    run(test)
