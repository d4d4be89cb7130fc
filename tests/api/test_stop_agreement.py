"""What the api accepts as `stop_regex`, the detokenizer runs: no request may fail after it was admitted."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.errors import RequestError
from forebay.stop_patterns import MAX_STATES, check_together, states_of
from forebay_api.regex_bound import stop_regex_bound
from forebay_detokenizer.patterns import PatternMatcher, StopPattern

_ATOMS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "[^a]",
        "[a-z0-9]",
        r"\d",
        r"\W",
        "^",
        "$",
        r"\b",
        r"\Z",
        "(?:)",
        "é",
        r"\1",
        "(?=a)",
        "(?<!b)",
        "[[a]",
    ]
)
_REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{3}", "{2,5}", "{0}", "{500}", "{2,}", "{1,900}", "*+"])
_GROUPS = st.sampled_from(["({})", "(?:{})", "(?i:{})", "(?a:{})", "(?>{})", "(?P<x>{})", "(?-i:{})", "(?u:{})"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.builds(lambda shape, text: shape.format(text), _GROUPS, inner)
    repeated = st.builds(lambda text, often: f"(?:{text}){often}", inner, _REPEATS)
    listed = st.lists(inner, min_size=1, max_size=4)
    return group | repeated | listed.map("".join) | listed.map("|".join)


PATTERNS = st.recursive(_ATOMS, _grown, max_leaves=10)
FAST = settings(max_examples=300, deadline=None, database=None)


@FAST
@given(PATTERNS | st.text("ab(|)[^]?*+{1,2}\\dbx:#im", max_size=24))
@example("(" * 127 + "a" + ")" * 127)
@example("(?:" * 63 + "a" + "|)" * 63)
@example("(?x) a # b")
@example("[[a]")
def test_every_pattern_that_the_api_accepts_the_detokenizer_runs(pattern: str) -> None:
    try:
        stop_regex_bound(pattern)
    except RequestError:
        return
    PatternMatcher([pattern]).feed("ab é1 a")


@FAST
@given(PATTERNS)
def test_a_pattern_has_as_many_states_as_the_api_has_counted(pattern: str) -> None:
    try:
        expected = states_of(pattern)
    except RequestError:
        return
    assert len(StopPattern(pattern)) == expected


@FAST
@given(st.lists(PATTERNS, min_size=1, max_size=4))
def test_patterns_that_the_api_accepts_together_the_detokenizer_runs_together(patterns: list[str]) -> None:
    try:
        for pattern in patterns:
            stop_regex_bound(pattern)
        check_together(patterns)
    except RequestError:
        return
    PatternMatcher(patterns).feed("ab")


def test_the_largest_automaton_is_built_and_one_more_state_is_refused() -> None:
    assert len(StopPattern(f"a{{{MAX_STATES - 1}}}")) == MAX_STATES
    with pytest.raises(RequestError, match="too large"):
        states_of(f"a{{{MAX_STATES}}}")
