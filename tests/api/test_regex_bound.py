"""Which stop patterns may run in a shared process, and how much text they can span."""

from __future__ import annotations

import pytest

from forebay_api.regex_bound import UNBOUNDED, stop_regex_bound
from tests.api.samples import said

TOO_MANY = "can match one text in too many ways, which can take endless time"
NESTED = "has nested unbounded repeats, which can take endless time"
EMPTY = "repeats a part that can be empty, which can take endless time"
BACK = "uses a back-reference, which is not supported"
LOOK = "uses look-around, which is not supported"
LARGE = "is too large: with its repeats written out it has over 2000 states"
OFTEN = "repeats more than 1000 times"


@pytest.mark.parametrize(
    ("pattern", "bound"),
    [
        ("abc", 3),
        ("a|bcd", 3),
        ("a{2,5}", 5),
        ("[0-9]{3}-x?", 5),
        ("^foo$", 3),
        (r"\bfoo\b", 3),
        ("(ab){3}", 6),
        ("(?:ab|c){2}", 4),
        ("[^a]", 1),
        ("a.c", 3),
        ("(?P<name>ab)", 2),
        ("a{1000}", 1000),
        ("a+", UNBOUNDED),
        ("a*b", UNBOUNDED),
        ("a{3,}", UNBOUNDED),
        ("a+?b", UNBOUNDED),
        ("é" * 128, 128),
    ],
)
def test_the_length_of_a_match_is_bounded(pattern: str, bound: int) -> None:
    assert stop_regex_bound(pattern) == bound


@pytest.mark.parametrize(
    "pattern",
    [
        r"\n\s*User\s*:\s*",
        r"(?:\r?\n)+",
        r"\d{1,3}(?:,\d{3})*",
        ".*foo",
        "(?:foo|far)+x",
        "(?:a|b)*c",
        "(?:ab?)+c",
        "</?[a-z]+>",
        "(?i)stop|(?i:halt)",
        r"[^\W\d]+\(",
        r"```\w*\n",
    ],
)
def test_a_pattern_whose_next_step_the_text_decides_is_accepted(pattern: str) -> None:
    assert stop_regex_bound(pattern) > 0


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("(a+)+", NESTED),
        ("(?:a+b)*", NESTED),
        ("(?:x(?:a{2,})y)+", NESTED),
        ("a{1001}", OFTEN),
        ("a{0,1001}", OFTEN),
        ("a{1001,}", OFTEN),
        (r"(a)\1", BACK),
        ("(?P<x>a)(?P=x)", BACK),
        ("(a)?(?(1)b|c)", "uses a condition on a group, which is not supported"),
        ("(?=a)b", LOOK),
        ("(?!a)b", LOOK),
        ("(?<=a)b", LOOK),
        ("(?<!a)b", LOOK),
        ("(?!)b", LOOK),
        ("(?>ab|a)c", "uses an atomic group, which is not supported"),
        ("a++b", "uses a possessive repeat, which is not supported"),
        ("(?:ab){1000}", LARGE),
        ("(a{1000}){1000}", LARGE),
        ("(a?)*", EMPTY),
        ("(?:a?){50}", EMPTY),
        ("(?:(?:a{0}){1000}){1000}", EMPTY),
        ("(?:a|ab|b)*c", TOO_MANY),
        ("(?:[^a]|A)*b", TOO_MANY),
        ("(?i)(?:aa|Ab|.)*c", TOO_MANY),
        (r"(?:\d|0x)*y", TOO_MANY),
        ("a?" * 40 + "a" * 40, TOO_MANY),
        (".*a.*b", TOO_MANY),
        ("(?:ab?b?){20}c", TOO_MANY),
        ("(?:\\dx|[\u0600-\u06ff]y)*z", TOO_MANY),
    ],
)
def test_a_pattern_that_can_take_endless_time_or_cannot_be_walked_is_refused(pattern: str, fault: str) -> None:
    assert said(stop_regex_bound, pattern) == (400, f"stop_regex '{pattern}' {fault}", "stop_regex")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing ), unterminated subpattern at position 0"),
        ("*a", "nothing to repeat at position 0"),
        ("a{99999999999}", "the repetition number is too large"),
    ],
)
def test_what_does_not_compile_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    expected = f"stop_regex '{pattern}' is not a valid regular expression: {reason}"
    assert said(stop_regex_bound, pattern) == (400, expected, "stop_regex")


@pytest.mark.parametrize(("pattern", "size"), [("a" * 257, 257), ("é" * 129, 258)])
def test_the_length_of_a_pattern_is_limited_in_bytes(pattern: str, size: int) -> None:
    assert said(stop_regex_bound, pattern)[1] == f"stop_regex is {size} bytes, over the 256-byte limit"


def test_the_longest_pattern_is_accepted() -> None:
    assert stop_regex_bound("a" * 256) == 256


def test_the_deepest_pattern_that_fits_is_judged() -> None:
    assert stop_regex_bound("(" * 127 + "a" + ")" * 127) == 1


def test_a_pattern_that_only_hints_at_a_mistake_is_accepted_without_a_warning() -> None:
    assert stop_regex_bound("[[a]") == 1
