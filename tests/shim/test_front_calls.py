"""The engine link, answers beside the output: control calls, errors, signs of life."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from forebay import ControlRequest, LinkError, WireError
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.frames import Kind
from forebay.wire.messages import ControlReply, RequestFault
from tests.shim.front_rig import TOKENIZER, head, rig


class State(msgspec.Struct, array_like=True):
    """An answer as a struct."""

    running: int
    name: str = "s"


@dataclass
class Device:
    """A value in an answer that is no plain data."""

    index: int


class Level(enum.StrEnum):
    """A value that is a text of its own kind."""

    HIGH = "high"


def test_struct_is_answered_as_a_map_of_its_fields() -> None:
    with rig() as r:
        r.front.push_control_output(r.call("c"), State(3))
        assert r.reply() == ControlReply("c", {"running": 3, "name": "s"})


def test_foreign_values_are_answered_as_texts() -> None:
    with rig() as r:
        output = {"path": Path("/x"), 7: {Device(1).index}, "device": Device(2), "big": 1 << 70, "level": Level.HIGH}
        r.front.push_control_output(r.call(), output)
        assert r.reply().payload == {
            "path": "/x",
            "7": [1],
            "device": {"index": 2},
            "big": str(1 << 70),
            "level": "high",
        }


def test_text_that_utf_8_has_no_place_for_is_answered_all_the_same() -> None:
    with rig() as r:
        r.front.push_control_output(r.call(), {"file": "a\udcff"})
        assert r.reply().payload == {"file": "a?"}


def test_answer_goes_to_the_api_process_that_asked() -> None:
    with rig(apis=2) as r:
        r.front.push_control_output(r.call("c", api=1), True)
        assert r.reply(api=1).payload is True
        assert r.hears_nothing(Kind.REPLY, api=0)


def test_answer_without_a_rid_is_a_programming_error() -> None:
    with rig() as r, pytest.raises(ValueError, match="no rid"):
        r.front.push_control_output(ControlRequest("", 0, "FlushCache"), {})


def test_answer_that_contains_itself_is_refused() -> None:
    with rig() as r:
        call = r.call()
        output: list[object] = []
        output.append(output)
        with pytest.raises(WireError, match="contains itself"):
            r.front.push_control_output(call, output)


@pytest.mark.parametrize("api", [0, 7], ids=["gone", "unknown"])
def test_answer_to_an_api_process_that_is_away_is_an_error(api: int) -> None:
    with rig() as r:
        r.stop(Peer("api", 0))
        r.wait_down(Peer("api", 0))
        with pytest.raises(LinkError, match=f"api-{api}"):
            r.front.push_control_output(ControlRequest("c", api, "FlushCache"), {})


def test_error_of_one_request_reaches_its_own_api_process() -> None:
    with rig(apis=2) as r:
        r.run(head("a", api=1))
        r.front.push_error("a", "too long", 413, "input_ids")
        assert r.faults(api=1) == [RequestFault("a", 413, "too long", None, "input_ids")]
        assert r.hears_nothing(Kind.ERROR, api=0)


def test_error_with_a_text_that_utf_8_has_no_place_for_is_sent() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_error("a", "\ud800 is no character")
        assert r.faults()[0].message == "? is no character"


def test_error_of_a_request_that_is_over_is_not_sent() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_error("a", "no")
        r.front.push_error("a", "no")
        r.front.push_error("nobody", "no")
        assert len(r.faults()) == 1
        assert r.hears_nothing(Kind.ERROR)


def test_error_for_an_api_process_that_is_away_says_so() -> None:
    with rig(connected=False) as r:
        r.stop(Peer("api", 0))
        r.connect()
        r.wait_up(TOKENIZER)
        r.run(head("a"))
        with pytest.raises(LinkError, match="api-0 is away"):
            r.front.push_error("a", "no")


def test_health_ack_reaches_every_api_process() -> None:
    with rig(apis=2) as r:
        r.front.push_health_ack()
        found = [control.decode_hello(r.next(Peer("api", number), Kind.HELLO)) for number in (0, 1)]
        assert [hello.role for hello in found] == ["engine", "engine"]


def test_health_ack_after_the_end_is_nothing() -> None:
    with rig() as r:
        r.front.close()
        r.front.push_health_ack()
        assert not r.front.wait_ingress(0)
