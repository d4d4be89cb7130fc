"""The loop between a front and an engine, with a front that only records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from forebay import AbortRequest, ControlRequest, Front, GenerationBatch, LinkError
from forebay_engine.answers import answer
from forebay_engine.echo import EchoEngine
from forebay_engine.loop import run
from tests.engine.collect import request


class RecordingFront:
    """Hands out entries once, and remembers what it is given."""

    def __init__(self, entries: list[Any], away: bool = False) -> None:
        self.entries = entries
        self.away = away
        self.waits: list[int] = []
        self.batches: list[GenerationBatch] = []
        self.errors: list[tuple[str, str, int, str | None]] = []
        self.replies: list[Any] = []

    def wait_ingress(self, timeout_ms: int) -> bool:
        self.waits.append(timeout_ms)
        return True

    def drain(self) -> list[Any]:
        entries, self.entries = self.entries, []
        return entries

    def push_generation(self, batch: GenerationBatch) -> bool:
        self.batches.append(batch)
        return len(self.batches) < 4

    def push_error(self, rid: str, text: str, status: int, param: str | None) -> None:
        self.errors.append((rid, text, status, param))
        if self.away:
            raise LinkError("api-0 is away")

    def push_control_output(self, asked: ControlRequest, output: Any) -> None:
        if self.away:
            raise LinkError("api-0 is away")
        self.replies.append((asked.rid, output))


def after(turns: int) -> Callable[[], bool]:
    left = iter(range(turns))
    return lambda: next(left, None) is None


def drive(*entries: Any, turns: int = 10, away: bool = False) -> RecordingFront:
    front = RecordingFront(list(entries), away)
    run(cast(Front, front), EchoEngine(vocab=256, context=100), after(turns))
    return front


def test_request_is_answered_step_by_step() -> None:
    front = drive(request("a", "x", sampling={"max_new_tokens": 3}))
    assert [batch.rids for batch in front.batches] == [["a"]] * 3
    assert front.batches[-1].finish_reasons == [{"type": "length", "length": 3}]


def test_idle_engine_sleeps_until_something_comes() -> None:
    assert drive(turns=3).waits == [100] * 3


def test_busy_engine_does_not_wait() -> None:
    assert drive(request("a", "x"), turns=3).waits == [100]


def test_loop_ends_when_the_front_is_closed() -> None:
    assert len(drive(request("a", "x"), turns=1000).batches) == 4


def test_refused_request_is_answered_with_field_and_status() -> None:
    front = drive(request("a", "x", lora_path="l"), request("b", "x"), turns=2)
    assert front.errors == [("a", "lora_path is not supported by this engine", 400, "lora_path")]
    assert front.batches[0].rids == ["b"]


def test_abort_reaches_the_engine() -> None:
    front = drive(request("a", "x"), AbortRequest("a", "user"))
    assert [batch.finish_reasons for batch in front.batches] == [
        [{"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}]
    ]


def test_control_request_is_answered() -> None:
    assert drive(ControlRequest("c", 0, "FlushCache")).replies == [
        ("c", {"success": True, "message": "Cache flushed."})
    ]


@pytest.mark.parametrize("entry", [ControlRequest("c", 0, "FlushCache"), request("a", "x", lora_path="l")])
def test_answer_that_cannot_be_sent_does_not_end_the_loop(entry: Any) -> None:
    front = drive(entry, turns=3, away=True)
    assert len(front.waits) == 3


def test_unknown_control_request_is_refused_by_name() -> None:
    engine = EchoEngine(vocab=256, context=100)
    assert answer(engine, ControlRequest("c", 0, "Dance")) == {
        "success": False,
        "message": "this engine does not support Dance",
    }


def test_state_is_a_map_of_facts() -> None:
    engine = EchoEngine(vocab=256, context=100)
    assert answer(engine, ControlRequest("c", 0, "GetInternalState"))["num_running_reqs"] == 0
