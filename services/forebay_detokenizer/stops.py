"""Stop strings in a text that comes in pieces: what may be shown now, and where the text ends.

Held back is only the longest end of the text that may still become a stop string. The match that completes first in
the text ends it; of several that complete at the same character the first of the list counts. An Aho-Corasick
automaton finds them in one walk over the text, however many there are and however the pieces are cut.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

SHARED_CHARS = 1024
"""Lists of stop strings up to this many characters share their automaton (about 0.3 KB a character)."""
SHARED_LISTS = 256


class Automaton:
    """All stop strings of one list as a trie with failure links. Immutable, so that requests can share it.

    State 0 is "nothing matches". For each state: `first[s]` is the number of the first string in the list that ends
    here (-1: none does), `depth[s]` the length of the longest beginning of a stop string that the text ends with,
    whole strings included, and `hold[s]` the same without those that nothing continues.
    """

    __slots__ = ("depth", "fail", "first", "goto", "hold", "starts", "stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self.starts = frozenset(stop[0] for stop in stops)
        self.goto: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.first = [-1]
        for number, stop in enumerate(stops):
            self._add(number, stop)
        self.fail = [0] * len(self.goto)
        self.hold = [0] * len(self.goto)
        self._link()

    def _add(self, number: int, stop: str) -> None:
        state = 0
        for depth, char in enumerate(stop, 1):
            after = self.goto[state].get(char)
            if after is None:
                after = self.goto[state][char] = len(self.goto)
                self.goto.append({})
                self.depth.append(depth)
                self.first.append(-1)
            state = after
        if self.first[state] < 0:
            self.first[state] = number

    def _link(self) -> None:
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for char, after in self.goto[state].items():
                fail = self.step(self.fail[state], char) if state else 0
                self.fail[after] = fail
                here, there = self.first[after], self.first[fail]
                if there >= 0 and (here < 0 or there < here):
                    self.first[after] = there
                self.hold[after] = self.depth[after] if self.goto[after] else self.hold[fail]
                queue.append(after)

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while char not in self.goto[state]:
            if not state:
                return 0
            state = self.fail[state]
        return self.goto[state][char]


_shared = lru_cache(maxsize=SHARED_LISTS)(Automaton)


def automaton(stops: tuple[str, ...]) -> Automaton:
    """The automaton of a list of stop strings, none of them empty."""
    return _shared(stops) if sum(map(len, stops)) <= SHARED_CHARS else Automaton(stops)


class StopMatcher:
    """The stop strings of one request.

    `keep`: the stop string stays at the end of the text (`no_stop_trim`). `ends`: a match ends the text; else the
    engine finds matches and says so with its finish, and here they are only held back until the next piece.
    """

    __slots__ = ("_auto", "_ends", "_keep", "_state", "held", "starts")

    def __init__(self, stops: tuple[str, ...], *, keep: bool = False, ends: bool = True) -> None:
        self._auto = automaton(stops)
        self.starts = self._auto.starts
        """The characters with which a stop string begins."""
        self._keep = keep
        self._ends = ends
        self._state = 0
        self.held = ""
        """The end of the text that is not shown yet."""

    def feed(self, text: str, ripe: bool = True) -> tuple[str, str | None]:
        """What may be shown after this piece, and the stop string that it completed (nothing may follow then).

        Not `ripe` (below `min_new_tokens`): strings completed by this piece are ordinary text.
        """
        auto = self._auto
        if not self.held and self.starts.isdisjoint(text):
            self._state = 0
            return text, None
        held, state, first = self.held, self._state, auto.first
        ends = ripe and self._ends
        for at, char in enumerate(text):
            state = auto.step(state, char)
            if ends and first[state] >= 0:
                stop = auto.stops[first[state]]
                end = len(held) + at + 1
                self._state, self.held = 0, ""
                return (held + text)[: end if self._keep else end - len(stop)], stop
        self._state = state
        text = held + text
        shown = len(text) - (auto.hold if self._ends else auto.depth)[state]
        self.held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """The text has ended without a stop string: what is held belongs to it."""
        text, self.held, self._state = self.held, "", 0
        return text

    def cut(self, text: str, stop: str) -> str:
        """The end of the text when the engine says that its last token, which gave `text`, completed `stop`.

        The occurrence that the last token completed is the one that goes. Without one, what is held may end with
        it; if the string is nowhere, nothing is cut.
        """
        before = len(self.held)
        return cut(self.flush() + text, before, stop, self._keep)


def cut(text: str, before: int, stop: str, keep: bool) -> str:
    """`text` up to the first occurrence of `stop` that ends behind position `before` (else up to its last one).

    `keep`: the occurrence stays. A text without the string is left as it is.
    """
    at = text.find(stop, max(0, before - len(stop) + 1))
    if at < 0:
        at = text.rfind(stop)
    if at < 0 or not stop:
        return text
    return text[: at + len(stop) if keep else at]
