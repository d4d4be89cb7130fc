"""Work on its way to the tokenizers: what comes in one turn of the loop travels together; nobody is lost by that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forebay.topology import Peer
from forebay.wire import control, ingress
from forebay.wire.frames import Kind
from forebay.wire.messages import Hello, WorkItem
from forebay_api.dispatch import GATHER, GATHER_SIZE
from tests.api.connected import Connected, answer, completion, connected, settle

TOKENIZER, DETOKENIZER = Peer("tokenizer", 0), Peer("detokenizer", 0)


def run(test: Callable[[Connected], Awaitable[None]]) -> None:
    async def go() -> None:
        async with connected() as rig:
            await test(rig)

    asyncio.run(go())


def sizes(rig: Connected) -> list[int]:
    """How many items each Work frame has brought."""
    return [len(ingress.decode_work(frame)) for frame in rig.frames(Kind.WORK)]


def test_a_request_alone_is_sent_at_once() -> None:
    async def test(rig: Connected) -> None:
        rig.connect()[0].data_received(completion())
        assert sizes(rig) == [1]
        await settle()
        rig.connect()[0].data_received(completion())
        assert sizes(rig) == [1]

    run(test)


def test_the_others_of_a_turn_travel_together() -> None:
    async def test(rig: Connected) -> None:
        for _ in range(2 + GATHER):
            rig.connect()[0].data_received(completion())
        assert sizes(rig) == [1, GATHER]
        await settle()
        assert sizes(rig) == [1]

    run(test)


def test_a_big_prompt_waits_for_no_more() -> None:
    async def test(rig: Connected) -> None:
        rig.connect()[0].data_received(completion())
        rig.connect()[0].data_received(completion(prompt="x" * GATHER_SIZE))
        assert sizes(rig) == [1, 1]

    run(test)


def test_each_request_of_a_frame_is_answered() -> None:
    async def test(rig: Connected) -> None:
        pipes = []
        for name in "abc":
            connection, pipe = rig.connect()
            connection.data_received(completion(rid=name))
            pipes.append(pipe)
        await settle()
        for item in rig.work():
            rig.end([item.head.rid], item.head.public_rid or "")
        await settle()
        assert [answer(pipe.take())[2]["choices"][0]["text"] for pipe in pipes] == ["a", "b", "c"]

    run(test)


def test_a_client_that_leaves_before_its_frame_is_sent_is_not_in_it() -> None:
    async def test(rig: Connected) -> None:
        rig.connect()[0].data_received(completion(rid="a"))
        gone, _ = rig.connect()
        gone.data_received(completion(rid="b"))
        rig.connect()[0].data_received(completion(rid="c"))
        gone.connection_lost(None)
        await settle()
        assert [item.head.public_rid for item in rig.work()] == ["a", "c"]

    run(test)


def test_a_sample_that_ended_before_its_frame_is_sent_is_ended_elsewhere_too() -> None:
    async def test(rig: Connected) -> None:
        rig.connect()[0].data_received(completion())
        rig.connect()[0].data_received(completion(n=2, rid="b"))
        first, second = rig.mailbox._named("b")
        rig.end([first.rid])
        rig.frames(Kind.ABORT)
        await settle()
        aborted = {abort.rid for frame in rig.frames(Kind.ABORT) for abort in control.decode_aborts(frame)}
        assert aborted == {first.rid}
        assert not second.ended

    run(test)


def test_a_tokenizer_that_is_gone_when_the_frame_is_full_leaves_it_waiting_for_the_next_one() -> None:
    async def test(rig: Connected) -> None:
        for _ in range(3):
            rig.connect()[0].data_received(completion())
        rig.frames(Kind.WORK)
        rig.mailbox.link_changed(TOKENIZER, False)
        await settle()
        assert sizes(rig) == []
        rig.mailbox.link_changed(TOKENIZER, True)
        rig.mailbox.take([control.encode_hello(Hello(role="tokenizer", index=0, incarnation=2, pid=1, version="0"))])
        assert sum(sizes(rig)) == 3

    run(test)


def test_a_tokenizer_that_takes_nothing_fails_all_of_the_frame() -> None:
    async def test(rig: Connected) -> None:
        rig.full = {TOKENIZER}
        pipes = []
        for _ in range(3):
            connection, pipe = rig.connect()
            connection.data_received(completion())
            pipes.append(pipe)
        await settle()
        assert [answer(pipe.take())[0] for pipe in pipes] == [503] * 3
        assert len(rig.mailbox) == 0

    run(test)


def test_a_tokenizer_that_dies_has_all_of_its_frame_sent_again() -> None:
    async def test(rig: Connected) -> None:
        for _ in range(3):
            rig.connect()[0].data_received(completion())
        await settle()
        assert sum(sizes(rig)) == 3
        rig.mailbox.link_changed(TOKENIZER, False)
        rig.mailbox.link_changed(TOKENIZER, True)
        rig.mailbox.take([control.encode_hello(Hello(role="tokenizer", index=0, incarnation=2, pid=1, version="0"))])
        items = rig.work()
        assert len(items) == 3
        assert all(item.head.attempt > 0 for item in items)

    run(test)


def test_work_that_cannot_be_encoded_is_no_trouble_of_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = ingress.encode_work

    def broken(items: list[WorkItem], ids: list[Any]) -> bytes:
        if any(item.text == "bad" for item in items):
            raise ValueError("cannot be encoded")
        return encode(items, ids)

    monkeypatch.setattr(ingress, "encode_work", broken)

    async def test(rig: Connected) -> None:
        pipes = []
        for prompt in ("first", "one", "bad", "two"):
            connection, pipe = rig.connect()
            connection.data_received(completion(prompt=prompt))
            pipes.append(pipe)
        await settle()
        rig.end([item.head.rid for item in rig.work()], "x")
        await settle()
        assert [answer(pipe.take())[0] for pipe in pipes] == [200, 200, 500, 200]
        assert len(rig.mailbox) == 0

    run(test)
