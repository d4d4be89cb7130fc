"""The matcher of stop strings against a plain search over the whole text."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_detokenizer.stops import StopMatcher, automaton

FAST = settings(max_examples=150, deadline=None, database=None)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)
PIECES = st.lists(st.text("abc", max_size=4), max_size=10)


def searched(stops: list[str], pieces: list[str], ripe_from: int, keep: bool) -> tuple[str, str | None]:
    """Text and match by a plain search: the first end of any stop string within a piece that counts."""
    text = "".join(pieces)
    end = 0
    for number, piece in enumerate(pieces):
        for _ in piece:
            end += 1
            for stop in stops:
                if number >= ripe_from and text[:end].endswith(stop):
                    return text[: end if keep else end - len(stop)], stop
    return text, None


def fed(stops: list[str], pieces: list[str], ripe_from: int = 0, **options: bool) -> tuple[str, str | None]:
    """Text and match of a matcher that gets the text in pieces."""
    matcher, out = StopMatcher(tuple(stops), **options), ""
    for number, piece in enumerate(pieces):
        shown, stop = matcher.feed(piece, number >= ripe_from)
        out += shown
        if stop is not None:
            return out, stop
    return out + matcher.flush(), None


@FAST
@given(STOPS, PIECES, st.integers(0, 6), st.booleans())
def test_a_matcher_finds_what_a_plain_search_finds(
    stops: list[str], pieces: list[str], ripe_from: int, keep: bool
) -> None:
    assert fed(stops, pieces, ripe_from, keep=keep) == searched(stops, pieces, ripe_from, keep)


@FAST
@given(STOPS, PIECES)
def test_only_what_may_become_a_stop_string_is_held(stops: list[str], pieces: list[str]) -> None:
    matcher, text = StopMatcher(tuple(stops)), ""
    for piece in pieces:
        text += piece
        if matcher.feed(piece, ripe=False)[1] is None:
            starts = [n for n in range(len(text) + 1) if any(_begins(stop, text[len(text) - n :]) for stop in stops)]
            assert len(matcher.held) == max(starts)


def _begins(stop: str, tail: str) -> bool:
    return stop.startswith(tail) and stop != tail


@FAST
@given(STOPS, PIECES)
def test_without_ending_a_matcher_gives_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    assert fed(stops, pieces, ends=False) == ("".join(pieces), None)


def test_a_whole_stop_string_is_held_until_the_engine_has_spoken() -> None:
    matcher = StopMatcher(("END",), ends=False)
    assert (matcher.feed("a END")[0], matcher.held) == ("a ", "END")


def test_the_occurrence_of_the_last_token_is_cut() -> None:
    matcher = StopMatcher(("END",), ends=False)
    shown = matcher.feed("a END b E")[0]
    assert shown + matcher.cut("ND", "END") == "a END b "


def test_a_string_that_is_nowhere_cuts_nothing() -> None:
    matcher = StopMatcher(("END",), ends=False)
    assert matcher.feed("a E")[0] + matcher.cut("x", "NaN happened") == "a Ex"


def test_what_is_held_may_end_with_the_string() -> None:
    matcher = StopMatcher(("END",), keep=True, ends=False)
    assert matcher.feed("a END")[0] + matcher.cut("", "END") == "a END"


def test_equal_lists_share_their_automaton() -> None:
    assert automaton(("x", "yz")) is automaton(("x", "yz"))


def test_long_lists_are_not_kept() -> None:
    long = ("x" * 600, "y" * 600)
    assert automaton(long) is not automaton(long)


def test_a_hostile_text_costs_linear_time() -> None:
    matcher = StopMatcher(("a" * 2000 + "b",))
    start = time.process_time()
    for _ in range(10_000):
        matcher.feed("a")
    assert time.process_time() - start < 2.0
