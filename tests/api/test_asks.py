"""Control calls that wait for their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from forebay.errors import RequestError
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.frames import Kind, kind_of
from forebay_api.asks import Asks

ENGINE = Peer("engine", 0)


class Room:
    """Asks with a peer that only listens."""

    def __init__(self, takes: bool = True) -> None:
        self.sent: list[bytes] = []
        self.takes = takes
        self.asks = Asks(3, self.send, asyncio.get_running_loop())

    def send(self, peer: Peer, frame: bytes) -> bool:
        self.sent.append(frame)
        return self.takes

    def ask(self, reachable: bool = True) -> asyncio.Future[Any]:
        return self.asks.ask(ENGINE, "Dance", {"steps": 2}, "c1", reachable=reachable, exclusive=True)


def run(story: Awaitable[None]) -> None:
    async def told() -> None:
        await story

    asyncio.run(told())


def test_a_call_travels_with_its_fields_and_gets_its_answer() -> None:
    async def story() -> None:
        room = Room()
        future = room.ask()
        call = control.decode_control(room.sent[0])
        assert (call.rid, call.api, call.type, call.fields, call.exclusive) == ("c1", 3, "Dance", {"steps": 2}, True)
        room.asks.answer("c1", {"success": True})
        assert await future == {"success": True}
        await asyncio.sleep(0)
        assert len(room.asks) == 0

    run(story())


@pytest.mark.parametrize(("takes", "reachable"), [(False, True), (True, False)])
def test_a_peer_that_is_away_is_503_at_once(takes: bool, reachable: bool) -> None:
    async def story() -> None:
        with pytest.raises(RequestError) as caught:
            await Room(takes).ask(reachable)
        assert (caught.value.status, caught.value.message) == (503, "engine is not connected")

    run(story())


def test_a_peer_that_dies_is_503() -> None:
    async def story() -> None:
        room = Room()
        future = room.ask()
        room.asks.lost(ENGINE)
        with pytest.raises(RequestError, match="engine-0 went away"):
            await future

    run(story())


def test_an_error_in_place_of_an_answer_is_raised() -> None:
    async def story() -> None:
        room = Room()
        future = room.ask()
        room.asks.answer("c1", RequestError("no", 418))
        with pytest.raises(RequestError, match="no"):
            await future

    run(story())


def test_a_call_that_takes_too_long_is_taken_back() -> None:
    async def story() -> None:
        room = Room()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(room.ask(), 0.001)
        await asyncio.sleep(0)
        assert [kind_of(frame) for frame in room.sent] == [Kind.CONTROL, Kind.ABORT]
        assert control.decode_aborts(room.sent[1])[0].rid == "c1"
        room.asks.answer("c1", {"success": True})  # too late, and harmless

    run(story())


def test_fields_that_have_no_place_on_the_wire_are_the_callers_fault_and_leave_nothing() -> None:
    async def story() -> None:
        room = Room()
        with pytest.raises(RequestError) as caught:
            room.asks.ask(ENGINE, "Dance", {"steps": 1 << 70}, "c1", reachable=True)
        assert (caught.value.status, len(room.asks), room.sent) == (400, 0, [])

    run(story())
