"""Rows that came before their `OpenItem`, and requests that are over while the engine may still send rows."""

from __future__ import annotations

import enum
from typing import NamedTuple

from forebay_detokenizer.sessions import Row

MAX_ROWS = 65_536
"""Rows kept for requests that have not been announced; over it the oldest of these requests is given up."""
MAX_CLOSED = 16_384
"""Ended requests that are remembered. Late rows come within a few steps; an older one is taken for an unknown one."""


class Closed(enum.Enum):
    """Why rows of a request are dropped without a word."""

    STOPPED = enum.auto()
    """It has its end or its error, and the engine was told to stop it."""
    ABORTED = enum.auto()
    """The api aborted it; an `OpenItem` that comes late is dropped, too."""
    LOST = enum.auto()
    """It was given up; an `OpenItem` that comes late is answered with an error."""
    REFUSED = enum.auto()
    """Answered with an error before its first row; the engine hears of it again with that row."""


class ClosedRids:
    """The last requests that were closed while the engine may still send rows for them."""

    def __init__(self, limit: int = MAX_CLOSED) -> None:
        self._limit = limit
        self._why: dict[str, Closed] = {}

    def __len__(self) -> int:
        return len(self._why)

    def add(self, rid: str, why: Closed) -> None:
        """Remember a request; forgets the oldest one above the limit."""
        self._why.pop(rid, None)
        self._why[rid] = why
        if len(self._why) > self._limit:
            del self._why[next(iter(self._why))]

    def clear(self) -> None:
        """Forget all of them."""
        self._why.clear()

    def discard(self, rid: str) -> None:
        """Forget a request, if it is remembered."""
        self._why.pop(rid, None)

    def get(self, rid: str) -> Closed | None:
        """Why the request was closed, None if it is not remembered."""
        return self._why.get(rid)


class _Kept(NamedTuple):
    deadline: float
    rows: list[Row]


class WaitingRows:
    """The rows of requests that have not been announced, for a bounded time and in bounded memory."""

    def __init__(self, patience: float, limit: int = MAX_ROWS) -> None:
        """`patience`: seconds from a request's first row until it is given up."""
        self._patience = patience
        self._limit = limit
        self._kept: dict[str, _Kept] = {}
        self._rows = 0

    def __contains__(self, rid: str) -> bool:
        return rid in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, rid: str, row: Row, now: float) -> list[str]:
        """Keep one more row; the requests that had to be given up for it."""
        kept = self._kept.get(rid)
        if kept is None:
            kept = self._kept[rid] = _Kept(now + self._patience, [])
        kept.rows.append(row)
        self._rows += 1
        given_up = []
        while self._rows > self._limit:
            oldest = next(iter(self._kept))
            self.take(oldest)
            given_up.append(oldest)
        return given_up

    def take(self, rid: str) -> list[Row]:
        """The rows of a request, in order; they are no longer kept."""
        kept = self._kept.pop(rid, None)
        if kept is None:
            return []
        self._rows -= len(kept.rows)
        return kept.rows

    def take_all(self) -> list[str]:
        """The requests that wait; their rows are dropped."""
        rids = list(self._kept)
        self.clear()
        return rids

    def clear(self) -> None:
        """Drop everything."""
        self._kept.clear()
        self._rows = 0

    def expired(self, now: float) -> list[str]:
        """The requests whose time is over; their rows are dropped."""
        over = []
        for rid, kept in self._kept.items():  # in the order of their deadlines
            if kept.deadline > now:
                break
            over.append(rid)
        for rid in over:
            self.take(rid)
        return over
