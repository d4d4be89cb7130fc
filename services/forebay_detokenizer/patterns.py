"""`stop_regex`: Python's `re` syntax, matched in time linear in the text, piece by piece.

`re` itself backtracks: `(a|a){30}b` costs 2**30 steps, and one client could stop every stream of this process. Here
a pattern becomes a small automaton (one state a character of the pattern, repeats written out) that is walked once
over the text; transitions are kept. Only whether a match ends in a piece is asked, never where it began, since the
text of a request that a pattern ends is not trimmed. Which patterns there are is `forebay.stop_patterns`' to say.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from forebay.stop_patterns import LEAVES, REPEATS, check_together, parse, states_of

MAX_KEPT = 20_000
"""States in the transitions that a pattern remembers before it starts again (about 1 MB)."""

# The parse tree of `re` has no public name; these two modules are the same from Python 3.11 on.
_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")

_ALPHABETS = re.ASCII | re.UNICODE


class _Op(NamedTuple):
    """One state: a character test, an anchor (`at`), a jump to any of `to`, or the end of a match (nothing set)."""

    test: Callable[[str], Any] | None = None
    at: str | None = None
    ascii: bool = False
    to: tuple[int, ...] = ()


class Place(NamedTuple):
    """How far the automaton is: the states reached, and the character before (kept only where anchors ask)."""

    states: frozenset[int]
    before: str | None


class StopPattern:
    """One compiled pattern; shared by the requests that have it."""

    def __init__(self, source: str) -> None:
        """Raises `RequestError` (400) for a pattern that is wrong, refused or too large."""
        states_of(source)
        self.source = source
        self._ops: list[_Op] = []
        self._leaves: dict[tuple[str, str, int], Callable[[str], Any]] = {}
        tree = parse(source)
        self._emit(tree, tree.state.flags)
        self._add(_Op())
        self._anchored = any(op.at for op in self._ops)
        self._kept: dict[tuple[Place, str, bool], tuple[Place, bool]] = {}
        self._ends: dict[Place, bool] = {}
        self._weight = 0
        self.start = Place(frozenset(), None)

    def __len__(self) -> int:
        """The number of states."""
        return len(self._ops)

    def _add(self, op: _Op) -> int:
        self._ops.append(op)
        return len(self._ops) - 1

    def _emit(self, items: Any, flags: int) -> None:
        for op, value in items:
            name = str(op)
            if name in LEAVES:
                self._add(_Op(test=self._leaf(op, value, flags)))
            elif name == "AT":
                self._add(_Op(at=_anchor(str(value), flags), ascii=bool(flags & re.ASCII)))
            elif name == "SUBPATTERN":
                _, added, removed, inner = value
                if added & _ALPHABETS:  # they exclude each other
                    flags &= ~_ALPHABETS
                self._emit(inner, (flags | added) & ~removed)
            elif name == "BRANCH":
                self._branch(value[1], flags)
            else:
                assert name in REPEATS, name  # `states_of` has refused all others
                least, most, repeated = value
                self._repeat(least, most, repeated, flags)

    def _leaf(self, op: Any, value: Any, flags: int) -> Callable[[str], Any]:
        """The test of one character, exactly as `re` does it under these flags."""
        key = (str(op), repr(value), flags)
        if key not in self._leaves:
            state = _parser.State()
            state.flags = flags
            self._leaves[key] = _compiler.compile(_parser.SubPattern(state, [(op, value)]), flags).match
        return self._leaves[key]

    def _branch(self, choices: Sequence[Any], flags: int) -> None:
        fork, starts, ends = self._add(_Op()), [], []
        for items in choices:
            starts.append(len(self._ops))
            self._emit(items, flags)
            ends.append(self._add(_Op()))
        self._ops[fork] = _Op(to=tuple(starts))
        for end in ends:
            self._ops[end] = _Op(to=(len(self._ops),))

    def _repeat(self, least: int, most: Any, items: Any, flags: int) -> None:
        for _ in range(least):
            before = len(self._ops)
            self._emit(items, flags)
            if len(self._ops) == before:  # nothing, however often: `(?:){1000}`
                return
        if most is _parser.MAXREPEAT:
            fork = self._add(_Op())
            self._emit(items, flags)
            self._add(_Op(to=(fork,)))
            self._ops[fork] = _Op(to=(fork + 1, len(self._ops)))
            return
        forks = []
        for _ in range(most - least):
            forks.append(self._add(_Op()))
            self._emit(items, flags)
        for fork in forks:
            self._ops[fork] = _Op(to=(fork + 1, len(self._ops)))

    def step(self, place: Place, char: str, last: bool) -> tuple[Place, bool]:
        """Where one more character leads, and whether a match ends right before it.

        `last`: no character follows yet, so that `$` fits before a line end.
        """
        key = (place, char, last and self._anchored)
        found = self._kept.get(key)
        if found is None:
            found = self._walk(place, char, last)
            self._make_room(1 + len(found[0].states))
            self._kept[key] = found
        return found

    def _make_room(self, weight: int) -> None:
        self._weight += weight
        if self._weight > MAX_KEPT:
            self._kept.clear()
            self._ends.clear()
            self._weight = weight

    def _walk(self, place: Place, char: str, last: bool) -> tuple[Place, bool]:
        reached, ended = self._reach(place, char, last)
        after = frozenset(s + 1 for s in reached if (test := self._ops[s].test) is not None and test(char))
        return Place(after, char if self._anchored else None), ended

    def ends(self, place: Place) -> bool:
        """Whether a match ends here if the text does."""
        found = self._ends.get(place)
        if found is None:
            self._make_room(1 + len(place.states))
            found = self._ends[place] = self._reach(place, None, True)[1]
        return found

    def _reach(self, place: Place, after: str | None, last: bool) -> tuple[set[int], bool]:
        """All states that need no further character, a new start included, and whether the end is one of them."""
        seen: set[int] = set()
        todo = [0, *place.states]
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            op = self._ops[state]
            todo.extend(op.to)
            if op.at is not None and _holds(op, place.before, after, last):
                todo.append(state + 1)
        return seen, len(self._ops) - 1 in seen


def _anchor(name: str, flags: int) -> str:
    line = flags & re.MULTILINE and name in ("AT_BEGINNING", "AT_END")
    return f"{name}_LINE" if line else name


def _holds(op: _Op, before: str | None, after: str | None, last: bool) -> bool:
    match op.at:
        case "AT_BEGINNING" | "AT_BEGINNING_STRING":
            return before is None
        case "AT_BEGINNING_LINE":
            return before in (None, "\n")
        case "AT_END":
            return after is None or (after == "\n" and last)
        case "AT_END_LINE":
            return after in (None, "\n")
        case "AT_END_STRING":
            return after is None
        case _:
            edge = _is_word(before, op.ascii) != _is_word(after, op.ascii)
            return edge == (op.at == "AT_BOUNDARY")


def _is_word(char: str | None, ascii_only: bool) -> bool:
    return char is not None and (char == "_" or (char.isalnum() and (char.isascii() or not ascii_only)))


pattern = lru_cache(maxsize=64)(StopPattern)
"""A compiled pattern by its source, shared; raises `RequestError` (400)."""


class PatternMatcher:
    """The patterns of one request."""

    __slots__ = ("_patterns", "_places")

    def __init__(self, sources: Sequence[str]) -> None:
        """Raises `RequestError` (400) for a pattern that is wrong, refused, or too large together with the others."""
        check_together(sources)
        self._patterns = [pattern(source) for source in sources]
        self._places = [p.start for p in self._patterns]

    def feed(self, text: str, ripe: bool = True) -> str | None:
        """The first pattern of the list of which a match ends in this piece; None while not `ripe`."""
        if not text:
            return None
        found = None
        for number, compiled in enumerate(self._patterns):
            place, ended = self._walk(compiled, self._places[number], text)
            self._places[number] = place
            if found is None and ripe and (ended or compiled.ends(place)):
                found = compiled.source
        return found

    @staticmethod
    def _walk(compiled: StopPattern, place: Place, text: str) -> tuple[Place, bool]:
        """Where the piece leads, and whether a match ends in front of one of its characters."""
        old = place != compiled.start and compiled.ends(place)  # a match that the piece before completed
        final, ended = len(text) - 1, False
        for at, char in enumerate(text):
            place, hit = compiled.step(place, char, at == final)
            ended = ended or (hit and not (old and at == 0))
        return place, ended
