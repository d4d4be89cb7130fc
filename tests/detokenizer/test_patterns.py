"""Patterns against Python's own `re`, and what is refused."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import RequestError
from forebay_detokenizer.patterns import PatternMatcher

FAST = settings(max_examples=60, deadline=None, database=None)
SOURCES = [
    "abc",
    "a|bcd",
    "a{2,5}b",
    "[0-9]{3}-x?",
    "^foo$",
    "(ab){3}",
    "(?:ab|c){2}",
    "a+b",
    "(?i)AB",
    "(?i:a)b",
    "[^a]b",
    r"\bfoo\b",
    r"o\B",
    "x.*y",
    "(?m)^ab$",
    "(?s)a.b",
    r"\A\w\d\s",
    r"a\Z",
    "b$",
    "a??b",
    "(a|b|)*c",
    "(?a:\\w)-",
    "",
]


@FAST
@pytest.mark.parametrize("source", SOURCES)
@given(text=st.text("abcfoxy01- \nAé", max_size=12), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_a_pattern_ends_where_re_finds_a_match(source: str, text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    matcher = PatternMatcher([source])
    found = [end for start, end in pairwise(edges) if matcher.feed(text[start:end]) is not None]
    expected = [end for _, end in pairwise(edges) if re.search(source, text[:end])]
    assert found[:1] == expected[:1]


def test_the_first_pattern_of_the_list_is_named() -> None:
    assert PatternMatcher(["x", "b", "ab"]).feed("ab") == "b"


def test_a_match_may_lie_over_many_pieces() -> None:
    matcher = PatternMatcher(["a[0-9]+b"])
    assert [matcher.feed(piece) for piece in ("a", "1", "2", "b")] == [None, None, None, "a[0-9]+b"]


@pytest.mark.parametrize("source", ["(a|a){30}b", "a+a+a+b", "(a|aa)+b"])
def test_a_pattern_that_makes_re_backtrack_costs_linear_time(source: str) -> None:
    matcher = PatternMatcher([source])
    start = time.process_time()
    assert matcher.feed("a" * 20_000) is None
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "a back-reference"),
        ("(a)?(?(1)b|c)", "a condition on a group"),
        ("(?>a)b", "an atomic group"),
        ("a*+b", "a possessive repeat"),
        ("(a{1000}){1000}", "too large"),
        ("(", "not a valid regular expression"),
    ],
)
def test_what_cannot_be_walked_is_refused_by_name(source: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        PatternMatcher([source])


def test_patterns_that_are_too_large_together_are_refused() -> None:
    with pytest.raises(RequestError, match="together"):
        PatternMatcher([f"{letter}{{900}}" for letter in "abc"])


def test_repeats_of_nothing_end() -> None:
    assert PatternMatcher(["(?:(?:){1000}){1000}a"]).feed("a") is not None
