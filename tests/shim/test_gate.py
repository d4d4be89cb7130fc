"""The gate in the link: pauses, exclusive calls, calls of one type in turn."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.gate import AGAIN_SECONDS, Gate
from forebay.wire.messages import AbortRequest, ControlRequest

REFUSED = {"success": False, "message": "no"}
DONE = {"success": True, "message": "done"}


def call(rid: str, type_: str = "Any", *, exclusive: bool = False, api: int = 0, **fields: Any) -> ControlRequest:
    return ControlRequest(rid, api, type_, fields, exclusive)


def pause(mode: str, rid: str = "p") -> ControlRequest:
    return call(rid, "PauseGeneration", mode=mode)


def out(gate: Gate) -> list[Any]:
    found = [entry.rid if isinstance(entry, ControlRequest) else entry for entry in gate.out]
    gate.out.clear()
    return found


def told(gate: Gate) -> list[str]:
    found = [reply.call.rid for reply in gate.replies]
    gate.replies.clear()
    return found


# ---------------------------------------------------------------- pause
def test_pause_by_abort_of_an_idle_engine_is_answered_at_once() -> None:
    gate = Gate()
    gate.call(pause("abort"), inside=0, now=0.0)
    assert (told(gate), out(gate), gate.closed) == (["p"], [], True)


def test_pause_by_abort_waits_until_the_engine_is_empty() -> None:
    gate = Gate()
    gate.call(pause("abort"), inside=2, now=0.0)
    assert [entry.abort_all for entry in out(gate)] == [True]
    assert told(gate) == []
    gate.look(0, 0.1)
    assert told(gate) == ["p"]


def test_abort_is_repeated_while_requests_remain() -> None:
    gate = Gate()
    gate.call(pause("abort"), inside=1, now=0.0)
    out(gate)
    gate.look(1, AGAIN_SECONDS / 2)
    assert out(gate) == []
    gate.look(1, AGAIN_SECONDS)
    assert [type(entry) for entry in out(gate)] == [AbortRequest]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_other_modes_are_the_engines_business(mode: str) -> None:
    gate = Gate()
    gate.call(pause(mode), inside=2, now=0.0)
    assert (out(gate), gate.mode) == (["p"], mode)


def test_a_refused_pause_is_none() -> None:
    gate = Gate()
    asked = pause("retract")
    gate.call(asked, inside=1, now=0.0)
    gate.held["r"] = "request"
    assert gate.answered(asked, REFUSED) == REFUSED
    assert not gate.closed
    assert out(gate)[-1] == "request"


def test_continue_goes_to_the_engine_before_requests_are_released() -> None:
    gate = Gate()
    gate.call(pause("in_place"), inside=0, now=0.0)
    gate.held |= {"a": "first", "b": "second"}
    resume = call("c", "ContinueGeneration")
    gate.call(resume, inside=0, now=1.0)
    assert out(gate) == ["p", "c"]
    gate.answered(resume, DONE)
    assert (out(gate), gate.closed, gate.held) == (["first", "second"], False, {})


def test_an_engine_that_knows_no_pause_cannot_refuse_the_links_own() -> None:
    gate = Gate()
    gate.call(pause("abort"), inside=0, now=0.0)
    resume = call("c", "ContinueGeneration")
    gate.call(resume, inside=0, now=1.0)
    answer = gate.answered(resume, REFUSED)
    assert answer["success"] is True
    assert not gate.closed


def test_a_refused_continue_leaves_an_engines_pause() -> None:
    gate = Gate()
    gate.call(pause("retract"), inside=0, now=0.0)
    resume = call("c", "ContinueGeneration")
    gate.call(resume, inside=0, now=1.0)
    assert gate.answered(resume, REFUSED) == REFUSED
    assert gate.mode == "retract"


# ---------------------------------------------------------------- in turn
def test_calls_of_one_type_go_one_after_the_other() -> None:
    gate = Gate()
    first, second = call("1"), call("2")
    gate.call(first, 0, 0.0)
    gate.call(second, 0, 0.0)
    assert out(gate) == ["1"]
    gate.answered(first, DONE)
    assert out(gate) == ["2"]


def test_calls_of_other_types_do_not_wait() -> None:
    gate = Gate()
    gate.call(call("1", "A"), 0, 0.0)
    gate.call(call("2", "B"), 0, 0.0)
    assert out(gate) == ["1", "2"]


def test_a_call_that_was_taken_back_gives_up_its_turn() -> None:
    gate = Gate()
    for rid in "123":
        gate.call(call(rid), 0, 0.0)
    assert out(gate) == ["1"]
    assert gate.cancel("2")
    assert gate.cancel("1")
    assert out(gate) == ["3"]
    assert not gate.cancel("1")


def test_calls_of_an_api_process_that_is_gone_are_dropped() -> None:
    gate = Gate()
    gate.call(call("1", api=1), 0, 0.0)
    gate.call(call("2", api=1), 0, 0.0)
    gate.call(call("3", api=0), 0, 0.0)
    out(gate)
    gate.cancel_api(1)
    assert out(gate)[-1] == "3"


# ---------------------------------------------------------------- exclusive
def test_an_exclusive_call_waits_for_an_empty_engine_and_holds_requests() -> None:
    gate = Gate()
    weights = call("w", "Weights", exclusive=True)
    gate.call(weights, inside=1, now=0.0)
    assert (out(gate), gate.closed, gate.waits) == ([], True, True)
    gate.held["r"] = "request"
    gate.look(0, 1.0)
    assert (out(gate), gate.closed, gate.waits) == (["w"], True, False)
    gate.answered(weights, DONE)
    assert (out(gate), gate.closed) == (["request"], False)


def test_an_exclusive_call_may_abort_what_runs() -> None:
    gate = Gate()
    gate.call(call("w", "Weights", exclusive=True, abort_all_requests=True), inside=1, now=0.0)
    assert [entry.abort_all for entry in out(gate)] == [True]


def test_while_paused_an_exclusive_call_goes_at_once() -> None:
    gate = Gate()
    gate.call(pause("in_place"), inside=2, now=0.0)
    gate.call(call("w", "Weights", exclusive=True), inside=2, now=0.0)
    assert out(gate) == ["p", "w"]


def test_two_exclusive_calls_go_one_after_the_other() -> None:
    gate = Gate()
    first, second = call("1", "A", exclusive=True), call("2", "B", exclusive=True)
    gate.call(first, 0, 0.0)
    gate.call(second, 0, 0.0)
    assert out(gate) == ["1"]
    gate.answered(first, DONE)
    gate.look(0, 1.0)
    assert out(gate) == ["2"]
    gate.answered(second, REFUSED)
    assert not gate.closed


def test_an_exclusive_call_that_was_taken_back_lets_requests_go_on() -> None:
    gate = Gate()
    gate.call(call("w", "Weights", exclusive=True), inside=1, now=0.0)
    gate.held["r"] = "request"
    gate.cancel("w")
    assert out(gate) == ["request"]
