"""The bound in bytes of what is on its way to a peer."""

from __future__ import annotations

from forebay.backlog import AGAIN_SECONDS, MARKS, Backlog

LIMIT = 1600
EVERY = LIMIT // MARKS


def test_a_mark_is_due_after_each_part_of_the_limit() -> None:
    one = Backlog(7, LIMIT)
    assert one.attend_at == EVERY
    assert not one.wants_mark(EVERY - 1, 0.0)
    assert one.wants_mark(EVERY, 0.0)
    one.marked(EVERY, 0.0)
    assert not one.wants_mark(EVERY, 0.0)
    assert one.attend_at == 2 * EVERY


def test_it_is_full_until_a_mark_comes_back() -> None:
    one = Backlog(7, LIMIT)
    one.marked(LIMIT, 0.0)
    assert one.full(LIMIT)
    assert one.attend_at <= LIMIT
    one.returned(7, EVERY, LIMIT)
    assert not one.full(LIMIT)
    assert one.attend_at == LIMIT + EVERY


def test_a_full_link_asks_again_after_a_while() -> None:
    one = Backlog(7, LIMIT)
    one.marked(LIMIT, 5.0)
    assert not one.wants_mark(LIMIT, 5.0 + AGAIN_SECONDS / 2)
    assert one.wants_mark(LIMIT, 5.0 + AGAIN_SECONDS)


def test_marks_of_another_link_or_of_the_future_or_the_past_count_for_nothing() -> None:
    one = Backlog(7, LIMIT)
    one.marked(LIMIT, 0.0)
    one.returned(8, LIMIT, LIMIT)
    one.returned(7, LIMIT + 1, LIMIT)
    assert one.full(LIMIT)
    one.returned(7, LIMIT, LIMIT)
    one.returned(7, EVERY, LIMIT)
    assert not one.full(2 * LIMIT - 1)


def test_a_broken_connection_takes_along_what_was_on_its_way() -> None:
    one = Backlog(7, LIMIT)
    one.marked(LIMIT, 0.0)
    one.broken(LIMIT)
    assert not one.full(LIMIT)
    assert one.attend_at == LIMIT + EVERY


def test_a_mark_that_could_not_be_sent_is_due_with_the_next_frame() -> None:
    one = Backlog(7, LIMIT)
    assert one.wants_mark(EVERY, 0.0)
    assert one.attend_at <= EVERY + 1
    assert one.wants_mark(EVERY + 1, 0.0)
