"""The rows of a step, sorted once and used until they change: who streams to which api, who needs its own code.

Finding 4,096 sessions and sorting them costs 0.1 us a row, so it happens only when the engine's rows or our sessions
change. Tokens of rows that the batch serves are not counted a row at a time either: a step raises one number, and
the sessions get theirs when the row set is settled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any

from forebay_detokenizer.sessions import ABSENT, API_SHIFT, BUSY, EAGER, FRESH, IDS, STREAM, Session

MAX_NOTED = 64
"""Steps whose ids are noted for requests that do not stream before they are handed to the sessions."""

_kind = attrgetter("kind")


def where(column: Sequence[Any], value: Any) -> list[int]:
    """The places of a value in a column, ascending. Where they are few, this costs 10 ns an entry of the column."""
    found = column.count(value)
    if found > len(column) // 16:
        return [place for place, entry in enumerate(column) if entry == value]
    places, at = [], -1
    for _ in range(found):
        at = column.index(value, at + 1)
        places.append(at)
    return places


class Absent(Session):
    """Stands for a row without a session, so that a pass over the rows meets sessions only."""

    __slots__ = ()

    def __init__(self, number: int, wants: bool) -> None:
        self.kind = number << API_SHIFT | ABSENT | EAGER
        self.want_logprobs = self.want_hidden = wants


NOBODY = Absent(0, False)
"""A row of another shard, or of a request that has ended."""
EXPECTED = Absent(1, True)
"""A row whose `OpenItem` has not come."""


class Group:
    """The streaming rows of one api process, ascending."""

    __slots__ = ("_pick", "api", "fresh", "rids", "rows", "wants_ids", "whole")

    def __init__(self, api: int, rows: Sequence[int], rids: list[str], wants_ids: bool, fresh: list[int]) -> None:
        """`rids`: of all rows of the step; `fresh`: the rows that have not been announced to the api."""
        self.api = api
        self.rows = rows
        self.wants_ids = wants_ids
        self.fresh = fresh
        self.whole = len(rows) == len(rids)
        self._pick = itemgetter(*rows) if len(rows) > 1 and not self.whole else None
        self.rids = rids if self.whole else self.pick(rids)

    def pick(self, column: list[Any]) -> list[Any]:
        """This group's entries of a column of the step."""
        if self.whole:
            return column
        return [column[self.rows[0]]] if self._pick is None else list(self._pick(column))

    def place(self, row: int) -> int | None:
        """The place of a row of the step among the group's rows, None if it is not one of them."""
        if self.whole:
            return row
        at = bisect_left(self.rows, row)
        return at if at < len(self.rows) and self.rows[at] == row else None


class RowSet:
    """The rows of a step and the sessions behind them, for as long as both stay the same."""

    __slots__ = (
        "_counted",
        "_deferred",
        "_noted",
        "_pick",
        "_steps",
        "busy",
        "eager",
        "expected",
        "groups",
        "plain",
        "rids",
        "sessions",
    )

    def __init__(self, rids: list[str], sessions: list[Session]) -> None:
        self.rids = rids
        self.sessions = sessions
        self.groups: list[Group] = []
        self.eager: list[int] = []
        """Rows that always come to their session."""
        self.busy: set[int] = set()
        """Streaming rows that do so for now, because their decoder holds something."""
        self.expected: list[int] = []
        """Rows that wait for their `OpenItem`."""
        self._deferred: list[int] = []
        self._steps = 0
        self._noted: list[tuple[int, ...]] = []
        self._counted: list[Session] = []
        """The sessions whose tokens are counted here."""
        self._sort()
        self.plain = not (self.eager or self.expected or any(group.wants_ids for group in self.groups))
        """Whether no row needs more than the table, while none is busy or fresh."""
        self._pick = itemgetter(*self._deferred) if len(self._deferred) > 1 else None

    def _sort(self) -> None:
        kinds = list(map(_kind, self.sessions))
        present = set(kinds)
        streams: defaultdict[int, list[int]] = defaultdict(list)
        for kind in present:
            if kind & STREAM:
                streams[kind >> API_SHIFT].append(kind)
                if kind & BUSY and not kind & EAGER:
                    self.busy.update(where(kinds, kind))
            elif not kind & EAGER:
                self._deferred += where(kinds, kind)
            if kind & EAGER and not kind & ABSENT:
                self.eager += where(kinds, kind)
        if any(kind & EAGER for kind in present):
            self.expected = where(kinds, EXPECTED.kind)
            self._counted = [session for session in self.sessions if not session.kind & EAGER]
        else:
            self._counted = self.sessions.copy()
        for api, own in sorted(streams.items()):
            self.groups.append(self._group(api, own, kinds))

    def _group(self, api: int, own: list[int], kinds: list[int]) -> Group:
        rows: Sequence[int] = range(len(kinds))
        if sum(map(kinds.count, own)) < len(kinds):
            rows = sorted(chain.from_iterable(where(kinds, kind) for kind in own))
        fresh = sorted(chain.from_iterable(where(kinds, kind) for kind in own if kind & FRESH))
        return Group(api, rows, self.rids, any(kind & IDS for kind in own), fresh)

    def count(self, ids: Sequence[int]) -> None:
        """One more step with one token a row."""
        self._steps += 1
        if self._deferred:
            self._noted.append(self._pick(ids) if self._pick is not None else (ids[self._deferred[0]],))
            if len(self._noted) >= MAX_NOTED:
                self._hand_over()

    def count_ragged(self, ids: list[int], ends: Sequence[int], each: int) -> None:
        """One more step with any number of tokens a row; `ends[r]:ends[r + 1]` are those of row `r`.

        `each`: the number of tokens of every row, 0 where they differ.
        """
        self._steps += each
        if not each:
            self._count_each(ends)
        self._hand_over()
        for row in self._deferred:
            self._hand(row, ids[ends[row] : ends[row + 1]])

    def _count_each(self, ends: Sequence[int]) -> None:
        start = 0
        for session, end in zip(self.sessions, islice(ends, 1, None), strict=True):
            if not session.kind & EAGER:
                session.tokens += end - start
            start = end

    def settle(self) -> None:
        """Give every session the tokens of its steps."""
        steps, self._steps = self._steps, 0
        if steps:
            for session in self._counted:
                session.tokens += steps
        self._hand_over()

    def _hand_over(self) -> None:
        if self._noted:
            for row, ids in zip(self._deferred, zip(*self._noted, strict=True), strict=True):
                self._hand(row, ids)
            self._noted.clear()

    def _hand(self, row: int, ids: Sequence[int]) -> None:
        noted = self.sessions[row].ids
        if noted is not None:
            noted.extend(ids)
