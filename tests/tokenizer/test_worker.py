"""The tokenizer with its threads: results of each kind, order, a full queue, cancelled requests, the end."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forebay.facts import LaunchFacts
from forebay.settings import Settings
from forebay.wire.messages import ControlRequest, Ids, WorkItem
from forebay_tokenizer import worker
from forebay_tokenizer.admission import Admission, Admitter
from forebay_tokenizer.lanes import SMALL
from forebay_tokenizer.worker import (
    FAST_CHAT,
    FAST_INLINE,
    HUGE,
    INLINE,
    INLINE_COUNT,
    Answer,
    Refusal,
    Result,
    Tokenizer,
    limits_of,
)
from tests.tokenizer.samples import LOG, admitter, chat, plain, user, work

NONE: Ids = array("q")


class Bench:
    """A tokenizer whose encoder can be held at a gate, and a way to wait for its results."""

    def __init__(self, **options: Any) -> None:
        self.woken = threading.Event()
        self.wakes = 0
        self.admitter: Admitter = admitter(context=None)
        self.tokenizer = Tokenizer(self.admitter, log=LOG, wake=self._wake, **options)

    def _wake(self) -> None:
        self.wakes += 1
        self.woken.set()

    def fetch(self, count: int) -> list[Result]:
        """Wait for this many results."""
        out: list[Result] = self.tokenizer.results()
        deadline = time.monotonic() + 10
        while len(out) < count:
            assert self.woken.wait(deadline - time.monotonic()), f"{len(out)} of {count} results"
            self.woken.clear()
            out += self.tokenizer.results()
        return out


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(*, start: bool = True, **options: Any) -> Bench:
        bench = Bench(**options)
        if start:
            bench.tokenizer.start()
        made.append(bench)
        return bench

    yield build
    for bench in made:
        if bench.tokenizer._threads[0].ident is not None:
            assert bench.tokenizer.stop(5)


def rids(results: list[Result]) -> list[str]:
    return [result.heads[0].rid for result in results if isinstance(result, Admission)]


def test_an_admission_comes_back(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.tokenizer.submit(work(text="hello"), NONE)
    (result,) = bench.fetch(1)
    assert isinstance(result, Admission)
    assert result.ids.tolist() == plain().encode("hello").ids


def test_a_refusal_names_every_sample_and_its_api(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.tokenizer.submit(work(text="", rids=["a", "b"]), NONE)
    (result,) = bench.fetch(1)
    assert isinstance(result, Refusal)
    assert result.api == 2
    assert [(f.rid, f.status, f.message, f.type, f.param) for f in result.faults] == [
        (rid, 400, "input_ids cannot be empty.", "invalid_request_error", "input_ids") for rid in "ab"
    ]


def test_a_call_is_answered_or_refused(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.tokenizer.call(ControlRequest("c1", 3, "Detokenize", {"tokens": [72]}))
    assert bench.fetch(1) == [Answer(3, "c1", {"text": "H", "prompt": "H"})]
    bench.tokenizer.call(ControlRequest("c2", 3, "Detokenize", {"tokens": [-1]}))
    (result,) = bench.fetch(1)
    assert isinstance(result, Refusal)
    assert (result.api, result.faults[0].rid, result.faults[0].status) == (3, "c2", 400)


def test_a_tiny_request_in_a_quiet_moment_is_done_at_once(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    assert bench.tokenizer.results() == []
    bench.tokenizer.submit(work(text="hello", rids=["a"]), NONE)
    assert rids(bench.tokenizer.results()) == ["a"]
    assert bench.wakes == 0
    assert bench.tokenizer._by_rid == {}


def test_the_second_request_of_a_burst_goes_to_the_threads(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    bench.tokenizer.results()
    for name in ("a", "b"):
        bench.tokenizer.submit(work(text="hello", rids=[name]), NONE)
    assert rids(bench.tokenizer.results()) == ["a"]
    assert bench.tokenizer.waiting() == 1


@pytest.mark.parametrize(
    "item",
    [
        work(text="x" * INLINE),
        work(text="x", rids=["a", "b"]),
        work(chat=chat(user(), chat_template="{{ 1 }}")),
        work(chat=chat(user(), chat_template_kwargs={"chat_template": "{{ 1 }}"})),
    ],
    ids=["not tiny", "several samples", "own template", "own template among the variables"],
)
def test_what_may_take_longer_is_never_done_by_the_thread_of_the_sockets(
    make: Callable[..., Bench], item: WorkItem
) -> None:
    bench = make(start=False)
    bench.tokenizer.results()
    bench.tokenizer.submit(item, NONE)
    assert bench.tokenizer.results() == []
    assert bench.tokenizer.waiting() == 1


def test_a_tiny_request_does_not_pass_one_that_is_at_work(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    bench.tokenizer.submit(work(text="hello", rids=["a"]), NONE)
    bench.tokenizer.results()
    bench.tokenizer.submit(work(text="hello", rids=["b"]), NONE)
    assert bench.tokenizer.results() == []
    bench.tokenizer.start()
    assert rids(bench.fetch(2)) == ["a", "b"]


def test_a_fault_of_ours_in_a_tiny_request_ends_that_request_only(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(start=False)
    bench.tokenizer.results()
    monkeypatch.setattr(bench.admitter, "admit_many", lambda work: 1 / 0)
    bench.tokenizer.submit(work(text="hello", rids=["a"]), NONE)
    (result,) = bench.tokenizer.results()
    assert isinstance(result, Refusal)
    assert result.faults[0].status == 500


@pytest.mark.parametrize(("size", "times"), [(HUGE - 1, 0), (HUGE, 1)])
def test_the_memory_of_a_huge_request_is_given_back_before_its_result_leaves(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, size: int, times: int
) -> None:
    bench = make(start=False)
    calls: list[int] = []
    monkeypatch.setattr(worker, "give_back", lambda: calls.append(bench.wakes))
    bench.tokenizer.submit(work(text="x" * size), NONE)
    bench.tokenizer.start()
    bench.fetch(1)
    assert calls == [0] * times


def test_results_keep_the_order_of_submission(make: Callable[..., Bench]) -> None:
    bench = make(threads=3)
    names = [f"r{n}" for n in range(300)]
    for name in names:
        bench.tokenizer.submit(work(text="hello", rids=[name]), NONE)
    assert rids(bench.fetch(300)) == names


def test_a_small_request_passes_a_big_one_at_work(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(start=False)
    gate, encode = threading.Event(), bench.admitter.encoder.encode_many

    def held(texts: list[str], **options: Any) -> Any:
        if len(texts[0]) >= SMALL:
            assert gate.wait(10)
        return encode(texts, **options)

    monkeypatch.setattr(bench.admitter.encoder, "encode_many", held)
    bench.tokenizer.start()
    bench.tokenizer.submit(work(text="x" * SMALL, rids=["big"]), NONE)
    bench.tokenizer.submit(work(text="x" * SMALL, rids=["big 2"]), NONE)
    bench.tokenizer.submit(work(text="hello", rids=["small"]), NONE)
    assert rids(bench.fetch(1)) == ["small"]
    gate.set()
    assert rids(bench.fetch(2)) == ["big", "big 2"]


def test_over_the_limit_requests_are_refused_with_503(make: Callable[..., Bench]) -> None:
    bench = make(start=False, max_queue=2)
    for name in ("a", "b", "c"):
        bench.tokenizer.submit(work(text="hello", rids=[name]), NONE)
    (result,) = bench.fetch(1)
    assert isinstance(result, Refusal)
    assert (result.faults[0].rid, result.faults[0].status) == ("c", 503)
    assert bench.tokenizer.waiting() == 2


def test_over_the_limit_of_bytes_requests_are_refused_with_503(make: Callable[..., Bench]) -> None:
    bench = make(start=False, max_bytes=1000)
    bench.tokenizer.submit(work(has_ids=True, rids=["ids"]), array("q", [1] * 200))
    bench.tokenizer.submit(work(text="hello", rids=["b"]), NONE)
    (result,) = bench.fetch(1)
    assert isinstance(result, Refusal)
    assert (result.faults[0].rid, result.faults[0].status) == ("b", 503)


def test_a_cancelled_request_gives_nothing(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    bench.tokenizer.submit(work(text="hello", rids=["a"]), NONE)
    bench.tokenizer.submit(work(text="", rids=["b"]), NONE)
    bench.tokenizer.submit(work(text="hello", rids=["c"]), NONE)
    assert bench.tokenizer.cancel("a")
    assert bench.tokenizer.cancel("b")
    bench.tokenizer.start()
    assert rids(bench.fetch(1)) == ["c"]


def test_a_cancelled_sample_leaves_the_others(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    bench.tokenizer.submit(work(text="hello", rids=["a", "b", "c"]), NONE)
    assert bench.tokenizer.cancel("b")
    bench.tokenizer.start()
    (result,) = bench.fetch(1)
    assert isinstance(result, Admission)
    assert [head.rid for head in result.heads] == [one.rid for one in result.opens] == ["a", "c"]


def test_a_finished_request_can_be_cancelled_until_it_is_fetched(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.tokenizer.submit(work(text="hello", rids=["a"]), NONE)
    assert bench.woken.wait(10)
    assert bench.tokenizer.cancel("a")
    assert bench.tokenizer.results() == []


def test_what_has_been_fetched_cannot_be_cancelled(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.tokenizer.submit(work(text="hello", rids=["a"]), NONE)
    bench.fetch(1)
    assert not bench.tokenizer.cancel("a")
    assert not bench.tokenizer.cancel("never seen")


def test_nothing_is_remembered_of_requests_that_have_left(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.tokenizer.submit(work(text="hello", rids=["a", "b"]), NONE)
    bench.tokenizer.cancel("a")
    bench.fetch(1)
    assert bench.tokenizer._by_rid == {}


def test_one_wake_stands_for_all_results_that_wait(make: Callable[..., Bench]) -> None:
    bench = make(start=False, max_queue=1)
    for name in "abcd":
        bench.tokenizer.submit(work(text="hello", rids=[name]), NONE)
    assert bench.wakes == 1
    assert len(bench.tokenizer.results()) == 3
    assert bench.tokenizer.results() == []


def test_a_thread_survives_a_fault_of_ours(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(start=False)
    monkeypatch.setattr(bench.admitter, "admit_many", lambda work: 1 / 0)
    bench.tokenizer.submit(work(text="hello", rids=["a"]), NONE)
    bench.tokenizer.start()
    (result,) = bench.fetch(1)
    assert isinstance(result, Refusal)
    assert (result.faults[0].status, result.faults[0].message) == (500, "Internal server error")
    monkeypatch.undo()
    bench.tokenizer.submit(work(text="hello", rids=["b"]), NONE)
    assert rids(bench.fetch(1)) == ["b"]


def test_stopping_finishes_what_waits(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    for n in range(100):
        bench.tokenizer.submit(work(text="x" * (SMALL if n % 7 == 0 else 5), rids=[f"r{n}"]), NONE)
    bench.tokenizer.start()
    assert bench.tokenizer.stop(10)
    assert len(bench.tokenizer.results()) == 100


def test_stopping_gives_up_at_its_deadline(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(start=False)
    gate = threading.Event()
    monkeypatch.setattr(bench.admitter, "admit_many", lambda work: gate.wait(10) and [])
    bench.tokenizer.submit(work(text="hello"), NONE)
    bench.tokenizer.start()
    assert not bench.tokenizer.stop(0.01)
    gate.set()


@pytest.mark.parametrize(
    ("ours", "engines", "length"), [(None, None, None), (10, None, 10), (None, 20, 20), (10, 20, 10), (30, 20, 20)]
)
def test_the_operator_can_only_shorten_the_context(ours: int | None, engines: int | None, length: int | None) -> None:
    facts = LaunchFacts(context_length=engines, vocab_size=7, num_reserved_tokens=2)
    limits = limits_of(admitter().encoder, Settings(context_length=ours, allow_auto_truncate=True), facts)
    assert limits.context_length == length
    assert (limits.vocab_size, limits.reserved, limits.allow_auto_truncate) == (7, 2, True)


def test_before_the_engine_has_said_anything_the_tokenizers_vocabulary_counts() -> None:
    encoder = admitter().encoder
    assert limits_of(encoder, Settings(), None).vocab_size == encoder.vocab_size


def test_a_model_folder_is_loaded_and_later_facts_count(tmp_path: Any) -> None:
    plain().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    tokenizer = Tokenizer.load(str(tmp_path), Settings(), None, log=LOG, wake=lambda: None)
    tokenizer.learn(Settings(), LaunchFacts(context_length=3))
    tokenizer.submit(work(text="xyz"), NONE)
    tokenizer.start()
    assert tokenizer.stop(10)
    (result,) = tokenizer.results()
    assert isinstance(result, Refusal)
    assert "context length (3 tokens)" in result.faults[0].message


def test_what_came_together_is_done_at_once_and_together(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(start=False)
    bench.tokenizer.results()
    calls = []
    admit_many = bench.admitter.admit_many

    def counted(items: Any) -> Any:
        calls.append(len(items))
        return admit_many(items)

    monkeypatch.setattr(bench.admitter, "admit_many", counted)
    bench.tokenizer.submit_many([(work(text="hello", rids=[name]), NONE) for name in "abc"])
    assert rids(bench.tokenizer.results()) == ["a", "b", "c"]
    assert calls == [3]
    assert bench.tokenizer.waiting() == 0


@pytest.mark.parametrize(
    ("items", "fit"),
    [
        ([work(text="x" * (INLINE // 3), rids=[f"n{at}"]) for at in range(5)], 3),
        ([work(text="hello", rids=[f"n{at}"]) for at in range(100)], INLINE_COUNT),
        ([work(chat=chat(user("hi")), rids=[f"n{at}"]) for at in range(100)], INLINE_COUNT),
    ],
    ids=["more characters", "more texts", "more chats"],
)
def test_more_than_fits_goes_to_the_threads_in_order(
    make: Callable[..., Bench], items: list[WorkItem], fit: int
) -> None:
    bench = make(start=False)
    bench.tokenizer.results()
    names = [item.rids[0] for item in items]
    bench.tokenizer.submit_many([(item, NONE) for item in items])
    done = rids(bench.tokenizer.results())
    assert len(done) == fit
    assert bench.tokenizer.waiting() == len(names) - len(done)
    bench.tokenizer.start()
    assert done + rids(bench.fetch(len(names) - len(done))) == names


@pytest.mark.parametrize(("size", "waits"), [(FAST_INLINE // FAST_CHAT - 100, 0), (FAST_INLINE // FAST_CHAT, 1)])
def test_the_fast_encoder_has_more_done_at_once_but_a_chat_counts_for_its_template(size: int, waits: int) -> None:
    with_fast: Any = admitter(context=None)
    with_fast.encoder.fast = object()
    tokenizer = Tokenizer(with_fast, log=LOG, wake=lambda: None)
    with_fast.encoder.fast = None  # the ids are the same
    tokenizer.results()
    tokenizer.submit(work(chat=chat(user("x" * size))), NONE)
    assert tokenizer.waiting() == waits
    assert len(tokenizer.results()) == 1 - waits


def test_what_is_behind_a_request_for_the_threads_does_not_pass_it(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    bench.tokenizer.results()
    items = [work(text="hello", rids=["a"]), work(text="hello", rids=["b", "b2"]), work(text="hello", rids=["c"])]
    bench.tokenizer.submit_many([(item, NONE) for item in items])
    assert rids(bench.tokenizer.results()) == ["a"]
    assert bench.tokenizer.waiting() == 2


def test_what_finds_no_room_is_refused_and_the_rest_of_its_lot_is_not(make: Callable[..., Bench]) -> None:
    bench = make(start=False, max_queue=2)
    bench.tokenizer.submit_many([(work(text="hello", rids=[name]), NONE) for name in "abc"])
    (refused,) = bench.tokenizer.results()
    assert isinstance(refused, Refusal)
    assert (refused.faults[0].rid, refused.faults[0].status) == ("c", 503)
    bench.tokenizer.start()
    assert rids(bench.fetch(2)) == ["a", "b"]


def test_a_bad_request_does_not_harm_the_others_of_its_lot(make: Callable[..., Bench]) -> None:
    bench = make(start=False)
    bench.tokenizer.results()
    bench.tokenizer.submit_many([(work(text=text, rids=[text or "bad"]), NONE) for text in ("a", "", "c")])
    results = bench.tokenizer.results()
    assert [type(result) for result in results] == [Admission, Refusal, Admission]
