"""The object that SGLang's scheduler calls, over a front that writes down what it is told."""

from __future__ import annotations

import importlib
import os
import sys
from array import array
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forebay import AbortRequest, ControlRequest, Front, GenerationBatch, LinkError, WireError
from forebay_engine.adapters import sglang as adapter
from forebay_engine.adapters.sglang import SGLangFront
from forebay_engine.adapters.sglang_requests import Requests
from tests.engine import sglang_types as sglang
from tests.engine.test_sglang_outputs import payload


class Told:
    """A front that gives what it is given, and keeps what it is told."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []
        self.batches: list[GenerationBatch] = []
        self.answers: list[tuple[ControlRequest, Any]] = []
        self.errors: list[tuple[str, str, int]] = []
        self.acks = 0
        self.fails: Exception | None = None

    def drain(self, max_recv: int) -> list[Any]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def push_generation(self, batch: GenerationBatch) -> bool:
        if self.fails is not None:
            raise self.fails
        self.batches.append(batch)
        return True

    def push_control_output(self, request: ControlRequest, output: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.answers.append((request, output))

    def push_error(self, rid: str, text: str, status: int) -> None:
        self.errors.append((rid, text, status))

    def push_health_ack(self) -> None:
        self.acks += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def front(told: Told) -> SGLangFront:
    return SGLangFront(cast(Front, told), Requests(sglang.TYPES, {}), 30000)


FLUSH = ControlRequest("c1", 2, "FlushCache", {"timeout": 0})


def test_the_plug_in_does_nothing_without_its_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(adapter.SWITCH, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", None)
    adapter.register()


def test_the_plug_in_replaces_one_method_and_asks_for_the_embedded_server(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[tuple[str, Any, str]] = []
    registry = SimpleNamespace(register=lambda place, made, kind: hooks.append((place, made, kind)))
    module = SimpleNamespace(HookRegistry=registry, HookType=SimpleNamespace(REPLACE="replace"))
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    monkeypatch.setenv(adapter.SWITCH, "1")
    monkeypatch.setenv("SGLANG_RUST_SERVER", "0")
    adapter.register()
    [(place, made, kind)] = hooks
    assert (place, kind, made(None)) == (adapter.REPLACED, "replace", SGLangFront)
    assert os.environ["SGLANG_RUST_SERVER"] == "1"


def test_entries_come_as_sglangs_types_in_their_order(front: SGLangFront, told: Told) -> None:
    typed = object()
    told.arrived = [AbortRequest("a", "client"), typed, FLUSH]
    assert front.drain(-1) == [
        sglang.AbortReq(rid="a"),
        typed,
        sglang.FlushCacheReqInput(rid="c1", timeout_s=0.0),
    ]


def test_an_answer_goes_to_the_api_that_asked(front: SGLangFront, told: Told) -> None:
    told.arrived = [FLUSH]
    [request] = front.drain(-1)
    front.push_control_output(request, sglang.FlushCacheReqOutput(success=True))
    assert told.answers == [(FLUSH, {"success": True, "message": ""})]


def test_a_second_answer_is_dropped(front: SGLangFront, told: Told) -> None:
    told.arrived = [FLUSH]
    [request] = front.drain(-1)
    for _ in range(2):
        front.push_control_output(request, sglang.FlushCacheReqOutput(success=True))
    assert len(told.answers) == 1


def test_a_control_request_that_sglang_never_answers_is_answered_at_once(front: SGLangFront, told: Told) -> None:
    told.arrived = [ControlRequest("c2", 0, "FreezeGC")]
    assert front.drain(-1) == [sglang.FreezeGCReq(rid="c2")]
    assert told.answers[0][1] == {"success": True}


def test_an_unknown_control_request_is_answered_and_kept_from_the_scheduler(front: SGLangFront, told: Told) -> None:
    told.arrived = [ControlRequest("c3", 0, "Nonsense")]
    assert front.drain(-1) == []
    assert told.answers[0][1] == {"success": False, "message": "SGLang has no control request Nonsense"}


def test_an_answer_that_cannot_be_sent_does_not_end_the_scheduler(front: SGLangFront, told: Told) -> None:
    told.arrived, told.fails = [FLUSH], LinkError("api-2 is away")
    [request] = front.drain(-1)
    front.push_control_output(request, sglang.FlushCacheReqOutput(success=True))
    assert told.answers == []


def test_questions_without_an_answer_do_not_pile_up(front: SGLangFront, told: Told) -> None:
    told.arrived = [ControlRequest(f"c{at}", 0, "GetInternalState") for at in range(adapter.UNANSWERED + 1)]
    first, *_, last = front.drain(-1)
    for request in (first, last):
        front.push_control_output(request, sglang.GetInternalStateReqOutput(internal_state={"a": 1}))
    assert [request.rid for request, _ in told.answers] == [f"c{adapter.UNANSWERED}"]


def test_the_internal_state_tells_how_busy_the_scheduler_is(told: Told) -> None:
    busy = sglang.FlushCacheReqOutput(success=True, message="2 running")  # any struct of SGLang's will do
    front = SGLangFront(cast(Front, told), Requests(sglang.TYPES, {}), 30000, lambda: busy)
    told.arrived = [ControlRequest("c4", 0, "GetInternalState")]
    [request] = front.drain(-1)
    front.push_control_output(request, sglang.GetInternalStateReqOutput(internal_state={"a": 1}))
    assert told.answers[0][1] == {"a": 1, "success": True, "message": "2 running"}


def test_an_idle_step_sends_nothing(front: SGLangFront, told: Told) -> None:
    front.push_generation(payload())
    assert told.batches == []


def test_an_abort_outside_the_stream_is_a_last_row_with_the_counts_of_its_request(
    front: SGLangFront, told: Told
) -> None:
    abort = SimpleNamespace(rid="a", finished_reason=None, abort_message=None, weight_versions=None)
    request = SimpleNamespace(origin_input_ids=[1, 2, 3], cached_tokens=2, reasoning_tokens=0)
    front.push_abort(abort, request)
    [batch] = told.batches
    assert (batch.rids, batch.output_ids, batch.prompt_tokens, batch.cached_tokens) == (["a"], [array("q")], [3], [2])
    assert batch.finish_reasons is not None
    assert batch.finish_reasons[0] is not None
    assert (batch.finish_reasons[0]["type"], batch.finish_reasons[0]["message"]) == ("abort", "Abort in waiting queue")


def test_a_refusal_of_the_scheduler_keeps_its_status(front: SGLangFront, told: Told) -> None:
    reason = {"type": "abort", "message": "The request queue is full.", "status_code": 503, "err_type": None}
    abort = SimpleNamespace(rid="a", finished_reason=reason, abort_message=None, weight_versions=None)
    front.push_abort(abort, SimpleNamespace(origin_input_ids=[1], cached_tokens=0, reasoning_tokens=0))
    assert told.batches[0].finish_reasons == [reason]


def test_a_step_that_cannot_be_encoded_ends_its_requests_and_not_the_scheduler(front: SGLangFront, told: Told) -> None:
    told.fails = WireError("columns do not fit")
    front.push_generation(payload("a", "b"))
    assert [(rid, status) for rid, _, status in told.errors] == [("a", 500), ("b", 500)]
    assert front.drain(-1) == [sglang.AbortReq(rid="a"), sglang.AbortReq(rid="b")]
    assert front.drain(-1) == []


def test_a_busy_engine_says_that_it_is_alive(front: SGLangFront, told: Told) -> None:
    front.push_health_ack()
    assert told.acks == 1
