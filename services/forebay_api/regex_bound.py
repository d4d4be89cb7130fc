"""Which `stop_regex` patterns may run beside other people's streams, and how much text a match can span.

Python's `re` backtracks: a hostile pattern keeps a process busy for ever. So a pattern is refused when it nests
unbounded repeats, repeats more than 1,000 times or something empty, refers back, or leaves the matcher too many ways
through one text (`regex_ways`). Everything is read off the parse tree; no pattern is ever run here.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from forebay.errors import RequestError
from forebay_api.regex_ways import LOOKS, MAX_WAYS, REPEATS, SINGLES, Nodes, Ways, children, starts

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
        raise RequestError(f"stop_regex is {size} bytes, over the {MAX_BYTES}-byte limit")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints about style, for the author of a program
            re.compile(pattern)
            tree = list(_parser.parse(pattern))
        fault = _fault(tree, bool(_IGNORES_CASE.search(pattern)))
    except (re.error, OverflowError, RecursionError) as error:
        raise RequestError(f"stop_regex '{pattern}' is not a valid regular expression: {error}") from error
    if fault is not None:
        raise RequestError(f"stop_regex '{pattern}' {fault}")
    return min(_longest(tree), UNBOUNDED)


def _fault(tree: list[Any], ignores_case: bool) -> str | None:
    for name, args, depth in _walk(tree, 0):
        if name in ("GROUPREF", "GROUPREF_EXISTS"):
            return "uses a back-reference, which is not supported"
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
    if name in SINGLES:
        return 1
    if name in LOOKS:
        return UNBOUNDED
    if name in REPEATS:
        return UNBOUNDED if args[1] == _parser.MAXREPEAT else args[1] * _longest(args[2])
    return max((_longest(child) for child in children(name, args)), default=0)
