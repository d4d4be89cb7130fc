"""In how many ways a backtracking matcher can go through one text: the number that makes a pattern dear.

Works on the parse tree of `re`. A choice (alternation, optional part, end of a repeat) costs nothing when the next
character decides it; otherwise it multiplies. The answer is an upper bound, so a harmless pattern may be refused,
but none that blows up is let through.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forebay.stop_patterns import LEAVES, REPEATS

MAX_WAYS = 10_000
"""Ways from one start of the search, each tried in the worst case: some milliseconds."""
ENDLESS_WAYS = 1000
"""What an unbounded repeat counts for when the next character does not decide where it ends, as in `.*x`: one such
repeat may stand in a pattern, two that multiply may not."""
_TOO_MANY = MAX_WAYS * MAX_WAYS
_SAMPLES = "0a_ \n\t"
_WIDE_SAMPLES = "é\u0660\u3000"
"""A letter, digit and space beyond ASCII. A range that reaches there counts as having them all."""

Nodes = Iterable[tuple[Any, Any]]
Starts = tuple[list[tuple[str, Any]], bool]
"""The single-character nodes that a match can begin with, and whether it can be empty."""


def children(name: str, args: Any) -> list[Any]:
    """The sequences of nodes within a node."""
    if name in REPEATS:
        return [args[2]]
    if name == "SUBPATTERN":
        return [args[3]]
    return list(args[1]) if name == "BRANCH" else []


def starts(nodes: Nodes) -> Starts:
    """What a match of a sequence can begin with."""
    result: Starts = ([], True)
    for op, args in reversed(list(nodes)):
        result = _then(_starts_of(str(op), args), result)
    return result


class Ways:
    """Counts the ways through a pattern; `ignores_case` when any part of the pattern does."""

    def __init__(self, ignores_case: bool) -> None:
        self._folds = ignores_case

    def count(self, nodes: Nodes, after: Starts = ([], True)) -> int:
        """Upper bound of the ways to match one text, when `after` is what may follow."""
        total = 1
        for op, args in reversed(list(nodes)):
            total = min(total * self._of(str(op), args, after), _TOO_MANY)
            after = _then(_starts_of(str(op), args), after)
        return total

    def _of(self, name: str, args: Any, after: Starts) -> int:
        if name == "BRANCH":
            ways = [self.count(child, after) for child in args[1]]
            decided = not self._overlap([_then(starts(child), after) for child in args[1]])
            return max(ways) if decided else sum(ways)
        if name in REPEATS:
            return self._of_repeat(int(args[0]), int(args[1]), args[2], after)
        inner = children(name, args)
        return self.count(inner[0], after) if inner else 1

    def _of_repeat(self, low: int, high: int, body: Any, after: Starts) -> int:
        first = starts(body)
        inner = self.count(body, after if high == 1 else (first[0] + after[0], after[1]))
        rounds = min(high, ENDLESS_WAYS)
        total = _TOO_MANY if inner > 1 and rounds > _TOO_MANY.bit_length() else min(inner**rounds, _TOO_MANY)
        decided = low == high or not (first[1] or self._overlap([(first[0], False), (after[0], False)]))
        return total if decided else total * min(high - low + 1, ENDLESS_WAYS)

    def _overlap(self, choices: list[Starts]) -> bool:
        """Whether one next character can begin two of the choices, or two of them can be empty."""
        if sum(empty for _, empty in choices) > 1:
            return True
        codes = _codes(node for first, _ in choices for node in first)
        if self._folds and max(codes, default=0) > 0x80:
            return True  # letters with more than two cases
        chars = {chr(code) for code in codes if 0 <= code < 0x110000} | set(_SAMPLES + _WIDE_SAMPLES)
        return any(sum(self._begins(first, char) for first, _ in choices) > 1 for char in chars)

    def _begins(self, first: list[tuple[str, Any]], char: str) -> bool:
        forms = {char, char.swapcase()} if self._folds else {char}
        return any(_takes(name, args, form) for name, args in first for form in forms)


def _starts_of(name: str, args: Any) -> Starts:
    if name in LEAVES:
        return [(name, args)], False
    parts = [starts(child) for child in children(name, args)]
    empty = not parts or any(part[1] for part in parts) or (name in REPEATS and args[0] == 0)
    return [node for first, _ in parts for node in first], empty


def _then(head: Starts, tail: Starts) -> Starts:
    """What a sequence begins with: `head`, or what follows it if it can be empty."""
    return (head[0] + tail[0], tail[1]) if head[1] else head


def _codes(nodes: Iterable[tuple[str, Any]]) -> set[int]:
    """Code points on both sides of every border that the nodes draw."""
    codes: set[int] = set()
    for name, args in nodes:
        for op, value in args if name == "IN" else [(name, args)]:
            if str(op) in ("LITERAL", "NOT_LITERAL"):
                codes.update((value - 1, value, value + 1))
            elif str(op) == "RANGE":
                codes.update((value[0] - 1, *value, value[1] + 1))
    return codes


def _takes(name: str, args: Any, char: str) -> bool:
    """Whether a single-character node matches `char`."""
    if name == "ANY":
        return True
    if name != "IN":
        return (ord(char[0]) == int(args)) == (name == "LITERAL")
    negated = str(args[0][0]) == "NEGATE"
    if negated and char in _WIDE_SAMPLES:
        return True
    return any(_in_set(str(op), value, char) for op, value in args[negated:]) != negated


def _in_set(name: str, value: Any, char: str) -> bool:
    if name == "CATEGORY":
        kind = str(value).removeprefix("CATEGORY_")
        plain = kind.removeprefix("NOT_")
        inside = {"DIGIT": char.isdecimal(), "SPACE": char.isspace(), "WORD": char.isalnum() or char == "_"}
        return inside[plain] == (plain == kind)
    if name == "LITERAL":
        return ord(char[0]) == int(value)
    return int(value[0]) <= ord(char[0]) <= int(value[1]) or (int(value[1]) > 0x80 and char in _WIDE_SAMPLES)
