"""Which `stop_regex` patterns may run beside other people's streams, and how much text a match can span.

What the detokenizer's automaton cannot do is refused first (`forebay.stop_patterns`). An engine that looks for stops
itself may use Python's `re`, which backtracks: a hostile pattern keeps it busy for ever. So a pattern is refused, too,
when it nests unbounded repeats, repeats more than 1,000 times or something empty, or leaves the matcher too many ways
through one text (`regex_ways`). Everything is read off the parse tree; no pattern is ever run here.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from forebay.errors import RequestError
from forebay.stop_patterns import LEAVES, REPEATS, count_states, parse, refusal, states_of
from forebay_api.regex_ways import MAX_WAYS, Nodes, Ways, children, starts

UNBOUNDED = 1 << 30
"""The length bound of a pattern that can match any amount of text; the engine then decodes all of its output."""
MAX_BYTES = 256
MAX_REPEAT = 1000

_parser: Any = importlib.import_module("re._parser")  # private, but the only reader of the dialect that is spoken
_IGNORES_CASE = re.compile(r"\(\?[a-zA-Z]*i")


@lru_cache(maxsize=512)
def stop_regex_bound(pattern: str) -> int:
    """The longest text that `pattern` can match, in characters; at most `UNBOUNDED`.

    Raises `RequestError` (400) for a pattern that is too long, does not compile, or is too dear to run.
    """
    size = len(pattern.encode())
    if size > MAX_BYTES:
        raise RequestError(f"stop_regex is {size} bytes, over the {MAX_BYTES}-byte limit", param="stop_regex")
    tree = list(parse(pattern))
    count_states(pattern)  # what cannot be walked at all is said first, what is only too large last
    try:
        fault = _fault(tree, bool(_IGNORES_CASE.search(pattern)))
    except RecursionError as error:
        raise refusal(pattern, "is nested too deeply") from error
    if fault is not None:
        raise refusal(pattern, fault)
    states_of(pattern)
    return min(_longest(tree), UNBOUNDED)


def _fault(tree: list[Any], ignores_case: bool) -> str | None:
    for name, args, depth in _walk(tree, 0):
        if name in REPEATS and (fault := _fault_of_repeat(args[0], args[1], args[2], depth)) is not None:
            return fault
    if Ways(ignores_case).count(tree) > MAX_WAYS:
        return "can match one text in too many ways, which can take endless time"
    return None


def _fault_of_repeat(low: int, high: int, body: Any, depth: int) -> str | None:
    if low > MAX_REPEAT or MAX_REPEAT < high < _parser.MAXREPEAT:
        return f"repeats more than {MAX_REPEAT} times"
    if depth and high == _parser.MAXREPEAT:
        return "has nested unbounded repeats, which can take endless time"
    if high > 1 and starts(body)[1]:
        return "repeats a part that can be empty, which can take endless time"
    return None


def _walk(nodes: Nodes, depth: int) -> Iterable[tuple[str, Any, int]]:
    """Every node with the number of unbounded repeats around it."""
    for op, args in nodes:
        name = str(op)
        yield name, args, depth
        endless = name in REPEATS and args[1] == _parser.MAXREPEAT
        for inner in children(name, args):
            yield from _walk(inner, depth + endless)


def _longest(nodes: Nodes) -> int:
    """Upper bound of the length of a match in characters, not yet cut to `UNBOUNDED`."""
    return sum(_longest_of(str(op), args) for op, args in nodes)


def _longest_of(name: str, args: Any) -> int:
    if name in LEAVES:
        return 1
    if name in REPEATS:
        return UNBOUNDED if args[1] == _parser.MAXREPEAT else args[1] * _longest(args[2])
    return max((_longest(child) for child in children(name, args)), default=0)
