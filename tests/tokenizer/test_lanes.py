"""Who is next: small work never behind big work, batches that stay small, order within a lane."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_tokenizer.lanes import BATCH_JOBS, BATCH_SIZE, SMALL, Lanes, Ticket


def jobs(batch: list[Ticket[str]]) -> list[str]:
    return [ticket.job for ticket in batch]


def lanes_with(*work: tuple[str, int], workers: int = 2) -> Lanes[str]:
    lanes: Lanes[str] = Lanes(workers, 1000)
    for job, size in work:
        assert lanes.add(job, size)
    return lanes


def test_a_small_request_starts_while_a_big_one_is_at_work() -> None:
    lanes = lanes_with(("big", SMALL), ("small", 1))
    assert jobs(lanes.take()) == ["big"]
    assert jobs(lanes.take()) == ["small"]


def test_big_requests_leave_one_thread_free() -> None:
    lanes = lanes_with(("a", SMALL), ("b", SMALL), ("c", SMALL), workers=3)
    assert [jobs(lanes.take()) for _ in range(3)] == [["a"], ["b"], []]


def test_the_next_big_request_starts_when_one_is_done() -> None:
    lanes = lanes_with(("a", SMALL), ("b", SMALL))
    first = lanes.take()
    assert lanes.take() == []
    lanes.finish(first)
    assert jobs(lanes.take()) == ["b"]


def test_a_big_request_is_not_passed_by_small_ones_for_ever() -> None:
    lanes = lanes_with(("s1", 1), ("big", SMALL), ("s2", 1))
    assert jobs(lanes.take()) == ["s1", "s2"]
    lanes.add("s3", 1)
    assert jobs(lanes.take()) == ["big"]


def test_small_requests_are_taken_together() -> None:
    lanes = lanes_with(*((str(n), 1) for n in range(BATCH_JOBS + 1)))
    assert len(lanes.take()) == BATCH_JOBS
    assert len(lanes.take()) == 1


def test_a_batch_of_small_requests_stays_small() -> None:
    size = SMALL - 1
    lanes = lanes_with(*((str(n), size) for n in range(10)))
    assert len(lanes.take()) == BATCH_SIZE // size


def test_what_is_done_early_waits_for_those_before_it() -> None:
    lanes = lanes_with(*((str(n), SMALL - 1) for n in range(6)))
    first, second = lanes.take(), lanes.take()
    assert lanes.finish(second) == []
    assert lanes.finish(first) == jobs(first) + jobs(second)


def test_lanes_do_not_wait_for_each_other() -> None:
    lanes = lanes_with(("big", SMALL), ("small", 1))
    lanes.take()
    assert lanes.finish(lanes.take()) == ["small"]


def test_a_full_queue_takes_no_more_until_somebody_starts() -> None:
    lanes: Lanes[str] = Lanes(2, 2)
    assert lanes.add("a", 1)
    assert lanes.add("b", SMALL)
    assert not lanes.add("c", 1)
    lanes.take()
    assert lanes.add("c", 1)


def test_a_heavy_queue_takes_no_more_until_somebody_starts() -> None:
    lanes: Lanes[str] = Lanes(2, 1000, 100)
    assert lanes.add("a", SMALL, weight=150)
    assert not lanes.add("b", 1, weight=1)
    lanes.take()
    assert lanes.add("b", 1, weight=1)


def test_it_is_calm_until_a_small_job_comes_and_after_all_have_left() -> None:
    lanes = lanes_with(("big", SMALL))
    assert lanes.calm
    lanes.add("small", 1)
    assert not lanes.calm
    batches = [lanes.take(), lanes.take()]
    assert not lanes.calm
    for batch in batches:
        lanes.finish(batch)
    assert lanes.calm


def test_one_thread_is_not_enough() -> None:
    with pytest.raises(ValueError, match="two are needed"):
        Lanes(1, 10)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.booleans(), max_size=80), st.integers(2, 4), st.randoms(use_true_random=False))
def test_everything_leaves_once_and_in_the_order_of_its_lane(bigs: list[bool], workers: int, random: Random) -> None:
    lanes: Lanes[tuple[bool, int]] = Lanes(workers, 1000)
    for number, big in enumerate(bigs):
        lanes.add((big, number), SMALL if big else 1)
    running: list[list[Ticket[tuple[bool, int]]]] = []
    out: list[tuple[bool, int]] = []
    while len(lanes) or running:
        batch = lanes.take() if len(running) < workers else []
        if batch:
            running.append(batch)
            continue
        out += lanes.finish(running.pop(random.randrange(len(running))))
    for big in (True, False):
        assert [number for is_big, number in out if is_big == big] == [n for n, b in enumerate(bigs) if b == big]
