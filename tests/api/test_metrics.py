"""What one api process counts: each thing once, normal ends never as aborts, labels from fixed sets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.counters import Counters, counts_path, read_counts
from forebay.topology import Peer
from forebay.wire.deltas import Deltas
from forebay.wire.messages import End, OpenItem, RequestFault, RequestHead, SamplingParams, WorkItem
from forebay_api.calls import Call, Choice
from forebay_api.metrics import Metrics
from forebay_api.pace import Pace
from forebay_api.plan import Plan


class Rig:
    """Metrics with a file, and calls that end in all ways."""

    def __init__(self, folder: Path) -> None:
        self.path = counts_path(folder, Peer("api", 0))
        self.pace = Pace()
        self.metrics = Metrics(Counters(self.path), self.pace, ["/generate", "/health"])

    def value(self, name: str, **labels: str) -> float:
        """A counter, or the number of values of a histogram."""
        for sample in read_counts(self.path)[1]:
            if sample.name == name and dict(sample.labels) == labels:
                return sum(sample.values[:-1]) if sample.kind == "histogram" else sample.values[0]
        return 0.0

    def series(self) -> int:
        return len(read_counts(self.path)[1])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def call_of(loop: asyncio.AbstractEventLoop, prompts: int = 1, n: int = 1, **plan: Any) -> Call:
    """A call whose samples all run."""
    sampling = plan.pop("sampling", SamplingParams())
    extra = plan.pop("extra", None)
    call = Call(Plan(kind="generate", n=n, **plan), loop, "r")
    for prompt in range(prompts):
        rids = [f"{prompt}-{sample}" for sample in range(n)]
        head = RequestHead(rid=rids[0], sampling=sampling, extra=extra)
        item = WorkItem(head=head, rids=rids, open=OpenItem(rid=rids[0]))
        call.plan.items.append(item)
        call.choices += [Choice(call, rid, len(call.choices) + at, item, prompt) for at, rid in enumerate(rids)]
    return call


def end(choice: Choice, reason: str = "length", tokens: int = 3) -> None:
    choice.ended = True
    choice.first_at, choice.ended_at = choice.call.began + 0.05, choice.call.began + 0.15
    choice.call.ends[choice.index] = End(
        rid=choice.rid, reason={"type": reason}, prompt_tokens=7, completion_tokens=tokens, cached_tokens=2
    )


def finished(rig: Rig, call: Call, reason: str = "length") -> None:
    rig.metrics.call_began(call)
    for choice in call.choices:
        end(choice, reason)
    rig.metrics.call_ended(call)


def test_a_batch_counts_its_prompts_and_samples_only_their_tokens(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    finished(rig, call_of(loop, prompts=3, n=2))
    assert rig.value("num_requests_total", is_streaming="false") == 3
    assert rig.value("prompt_tokens_total") == 3 * 7
    assert rig.value("cached_tokens_total", cache_source="device") == 3 * 2
    assert rig.value("generation_tokens_total") == 3 * 2 * 3
    assert rig.value("e2e_request_latency_seconds", is_streaming="false") == 3
    assert rig.value("finished_samples_total", finished_reason="length") == 6


@pytest.mark.parametrize("reason", ["stop", "length", "tool_use"])
def test_a_normal_end_is_no_abort(rig: Rig, loop: asyncio.AbstractEventLoop, reason: str) -> None:
    finished(rig, call_of(loop), reason)
    assert rig.value("num_aborted_requests_total") == 0


def test_an_end_by_abort_is_counted_and_kept_out_of_the_times(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    finished(rig, call_of(loop, stream=True), "abort")
    assert rig.value("num_aborted_requests_total") == 1
    assert rig.value("generation_tokens_total") == 3
    assert rig.value("time_to_first_token_seconds", is_streaming="true") == 0


def test_a_client_that_left_is_one_abort(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    call = call_of(loop, n=3)
    rig.metrics.call_began(call)
    end(call.choices[0])
    rig.metrics.call_ended(call)
    assert rig.value("num_aborted_requests_total") == 1
    assert rig.value("finished_samples_total", finished_reason="abort") == 2
    assert rig.value("num_requests_total", is_streaming="false") == 1


def test_a_failure_is_an_error_and_no_abort(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    call = call_of(loop)
    rig.metrics.call_began(call)
    call.faults[0] = RequestFault("0-0", 503, "gone")
    rig.metrics.call_ended(call)
    assert rig.value("num_aborted_requests_total") == 0
    assert rig.value("finished_samples_total", finished_reason="error") == 1


def test_an_expired_time_limit_is_an_abort(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    call = call_of(loop)
    rig.metrics.call_began(call)
    call.expired, call.faults[0] = True, RequestFault("0-0", 504, "late")
    rig.metrics.call_ended(call)
    assert rig.value("num_aborted_requests_total") == 1


def test_a_request_may_be_left_out(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    before = rig.series()
    finished(rig, call_of(loop, log_metrics=False))
    assert rig.series() == before
    assert rig.pace.unmeasured == 0


def test_structured_output_is_counted_besides(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    finished(rig, call_of(loop, sampling=SamplingParams(regex="a+")))
    finished(rig, call_of(loop))
    assert rig.value("num_so_requests_total") == 1


def test_different_routing_keys_are_counted_while_they_run(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    calls = [call_of(loop, extra={"routing_key": key}) for key in ("a", "a", "b")]
    for call in calls:
        rig.metrics.call_began(call)
    assert rig.value("routing_keys_active") == 2
    for call in calls:
        rig.metrics.call_ended(call)
    assert rig.value("routing_keys_active") == 0


def test_no_text_of_a_client_becomes_a_label(rig: Rig) -> None:
    for number in range(1000):
        rig.metrics.went(rig.metrics.came(f"/x/{number}", f"M{number}"), 404)
    assert rig.value("http_requests_total", endpoint="other", method="other") == 1000
    assert rig.series() < 20


def test_an_http_request_is_active_until_its_answer(rig: Rig) -> None:
    labels = rig.metrics.came("/generate", "POST")
    assert rig.value("http_requests_active", endpoint="/generate", method="POST") == 1
    rig.metrics.went(labels, 0)
    assert rig.value("http_requests_active", endpoint="/generate", method="POST") == 0
    assert rig.value("http_responses_total", endpoint="/generate", method="POST", status_code="499") == 1


# ---------------------------------------------------------------- between tokens
def frame(rows: int, starts: int = 0, lens: list[int] | None = None, source: int = 0) -> Deltas:
    return Deltas(
        source=source,
        epoch=1,
        seq=1,
        texts=["x"] * rows,
        lens=lens,
        has_ids=False,
        extras=[],
        ids=b"",
        starts=[(row, 1, 0) for row in range(starts)],
    )


def rows(loop: asyncio.AbstractEventLoop, *measured: bool) -> list[Choice | None]:
    return [call_of(loop, log_metrics=wanted).choices[0] for wanted in measured]


def test_each_row_that_was_there_before_counts_one_wait(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    three = rows(loop, True, True, True)
    rig.pace.step(frame(3, starts=3), three, 10.0)
    rig.pace.step(frame(3), three, 10.03)
    rig.pace.step(frame(3, starts=1), three, 10.06)
    assert rig.value("inter_token_latency_seconds") == 5


def test_several_tokens_of_one_step_share_its_time(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    two = rows(loop, True, True)
    rig.pace.step(frame(2, starts=2), two, 10.0)
    rig.pace.step(frame(2, lens=[4, 4]), two, 10.1)
    sample = next(s for s in read_counts(rig.path)[1] if s.name == "inter_token_latency_seconds")
    assert sum(sample.values[:-1]) == 8
    assert sample.values[-1] == pytest.approx(2 * 0.1)


def test_detokenizers_are_timed_apart(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    one = rows(loop, True)
    rig.pace.step(frame(1), one, 10.0)
    rig.pace.step(frame(1, source=1), one, 10.01)
    assert rig.value("inter_token_latency_seconds") == 0


def test_rows_that_want_no_metrics_are_left_out(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    two = rows(loop, True, False)
    rig.pace.unmeasured = 1
    rig.pace.step(frame(2), two, 10.0)
    rig.pace.step(frame(2), two, 10.1)
    assert rig.value("inter_token_latency_seconds") == 1
