"""What children write: whole lines, the last ones remembered, and no waiting for a reader that is stuck."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from forebay.relay import LARGEST_BACKLOG, LONGEST_LINE, Lines, Relay


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """The reading and the writing end; an end that a test closes is taken out of the list."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def test_half_a_line_waits_for_its_other_half(pipe: list[int]) -> None:
    lines = Lines(pipe[0])
    os.write(pipe[1], b"one\ntw")
    assert lines.read() == (b"one\n", True)
    os.write(pipe[1], b"o\n")
    assert lines.read() == (b"two\n", True)


def test_reading_never_waits(pipe: list[int]) -> None:
    lines = Lines(pipe[0])
    assert lines.read() == (b"", False)
    assert not lines.closed


def test_last_words_without_a_line_end_are_a_line(pipe: list[int]) -> None:
    lines = Lines(pipe[0])
    os.write(pipe[1], b"Segmentation fault")
    os.close(pipe.pop())
    assert [lines.read(), lines.read()] == [(b"", True), (b"Segmentation fault\n", False)]
    assert lines.closed


def test_only_the_last_lines_are_remembered(pipe: list[int]) -> None:
    lines = Lines(pipe[0])
    os.write(pipe[1], b"".join(b"%d\n" % number for number in range(20)))
    lines.read()
    assert lines.last() == [str(number) for number in range(12, 20)]


def test_line_without_end_is_cut_and_not_kept_for_ever(pipe: list[int]) -> None:
    lines = Lines(pipe[0])
    os.write(pipe[1], b"x" * LONGEST_LINE)
    assert lines.read()[0] == b"x" * LONGEST_LINE + b"\n"


def test_relay_writes_through_when_the_reader_reads(pipe: list[int]) -> None:
    relay = Relay(pipe[1])
    relay.put(b"one\n")
    assert (os.read(pipe[0], 100), relay.waiting) == (b"one\n", False)


def test_stuck_reader_gets_everything_later_in_order(pipe: list[int]) -> None:
    relay = Relay(pipe[1])
    sent = b"".join(b"%06d\n" % number for number in range(20_000))
    relay.put(sent)
    assert relay.waiting
    got = b""
    while len(got) < len(sent):
        got += os.read(pipe[0], 1 << 16)
        relay.flush()
    assert got == sent


def test_lines_over_the_backlog_are_dropped_and_counted(pipe: list[int]) -> None:
    relay = Relay(pipe[1])
    relay.put(b"x" * (LARGEST_BACKLOG - 1) + b"\n")
    relay.put(b"y" * 200_000 + b"\n" + b"z\n")
    got = b""
    while not got.endswith(b"stuck\n"):
        got += os.read(pipe[0], 1 << 16)
        relay.flush()
    assert got.endswith(b"x\nforebay: 2 log lines were dropped, their reader was stuck\n")


def test_reader_that_is_gone_is_no_error(pipe: list[int]) -> None:
    os.close(pipe.pop(0))
    relay = Relay(pipe[0])
    relay.put(b"one\n")
    assert not relay.waiting
