"""What a `stop_regex` may be: one rule for the api, which refuses the others, and for the detokenizer, which runs it.

The detokenizer walks a small automaton once over the text, one state a character of the pattern with repeats written
out, so the patterns are those of Python's `re` that such an automaton can do, up to a size. Nothing is run here.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from forebay.errors import RequestError

MAX_STATES = 2000
"""Size of the automata of one request, repeats written out: a character never costs more than a visit to each state."""

# The parse tree of `re` has no public name; this module is the same from Python 3.11 on.
_parser: Any = importlib.import_module("re._parser")

LEAVES = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
"""The nodes that take one character."""
REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
_REFUSED = {
    "ASSERT": "look-around",
    "ASSERT_NOT": "look-around",
    "FAILURE": "look-around",
    "GROUPREF": "a back-reference",
    "GROUPREF_EXISTS": "a condition on a group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


def refusal(source: str, fault: str) -> RequestError:
    """The 400 for a pattern; `fault` goes on where "stop_regex 'source'" ends."""
    return RequestError(f"stop_regex '{source}' {fault}", param="stop_regex")


def parse(source: str) -> Any:
    """The parse tree of a pattern; raises `RequestError` (400) for one that is no regular expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints about style, for the author of a program
            return _parser.parse(source)
    except (re.error, RecursionError, OverflowError) as error:
        raise refusal(source, f"is not a valid regular expression: {error}") from error


@lru_cache(maxsize=1024)
def count_states(source: str) -> int:
    """The number of states of a pattern's automaton, however large.

    Raises `RequestError` (400) naming what is wrong, or what no automaton can do.
    """
    try:
        return 1 + _count(source, parse(source))
    except RecursionError as error:
        raise refusal(source, "is nested too deeply") from error


def states_of(source: str) -> int:
    """`count_states` of a pattern that may be run; raises `RequestError` (400) also for one that is too large."""
    count = count_states(source)
    if count > MAX_STATES:
        raise refusal(source, f"is too large: with its repeats written out it has over {MAX_STATES} states")
    return count


def check_together(sources: Sequence[str]) -> None:
    """Raises `RequestError` (400) unless the patterns of one request can be run side by side."""
    if sum(map(states_of, sources)) > MAX_STATES:
        raise RequestError(f"the stop_regex patterns have over {MAX_STATES} states together", param="stop_regex")


def _count(source: str, nodes: Iterable[tuple[Any, Any]]) -> int:
    total = 0
    for op, value in nodes:
        name = str(op)
        if name in LEAVES or name == "AT":
            total += 1
        elif name == "SUBPATTERN":
            total += _count(source, value[3])
        elif name == "BRANCH":
            total += 1 + sum(1 + _count(source, choice) for choice in value[1])
        elif name in REPEATS:
            total += _repeated(int(value[0]), value[1], _count(source, value[2]))
        else:
            raise refusal(source, f"uses {_REFUSED.get(name, name.lower())}, which is not supported")
    return total


def _repeated(least: int, most: Any, inner: int) -> int:
    if least and not inner:  # nothing, however often: `(?:){1000}`
        return 0
    return least * inner + (inner + 2 if most is _parser.MAXREPEAT else (int(most) - least) * (inner + 1))
