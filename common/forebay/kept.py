"""What the link to the engine keeps for a detokenizer that has to start anew: the latest frames of steps, and what
each request was announced with. Pure, no sockets.

Keeping a frame is keeping a reference to bytes that exist anyway. Frames are dropped as soon as no request needs them;
over the limit the oldest go first, and the requests that began in them can no longer be taken up again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from forebay.wire.egress import names_rows

LINGER = 3.0
"""Seconds that an ended request is kept: its end may still be on its way through the detokenizer to its client."""
ENTRY = 48
"""Bytes that a kept frame costs beside its own."""
WORTH = 64
"""Frames that are dropped at once, at least, while there are others to keep."""


Record = tuple[int, int, bytes]
"""One request that can be told again from its first row: its api process, the number of a frame before which it has no
row, and the packed announcements of the requests that came with it, its own among them. A plain tuple: one with names
costs 0.3 us a request."""


class Kept:
    """The frames since the first row of the oldest request that is kept, and these requests in their order."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of frames."""
        self._limit = limit
        self._frames: list[bytes] = []
        self.records: dict[str, Record] = {}
        """The requests that can be told again; in the order of their first frames."""
        self.size = 0
        """Bytes of the kept frames."""
        self.first = 0
        """The number of the first kept frame; if there is none, of no meaning."""
        self._over: list[str] = []
        """Requests that have ended since the last look."""
        self._lingering: deque[tuple[float, list[str]]] = deque()

    def __len__(self) -> int:
        """Kept frames."""
        return len(self._frames)

    # ---------------------------------------------------------------- requests
    def begin(self, rid: str, record: Record) -> None:
        """A request that can be told again."""
        if not self.records:
            self.clear()
        self.records[rid] = record

    def end(self, rid: str) -> None:
        """A request is over; it is kept a while longer."""
        self._over.append(rid)

    def forget(self, rids: Iterable[str]) -> None:
        """Requests that will not be told again."""
        for rid in rids:
            self.records.pop(rid, None)

    def forget_api(self, api: int) -> None:
        """All requests of an api process."""
        self.forget([rid for rid, (owner, _, _) in self.records.items() if owner == api])

    def look(self, now: float, hold: bool) -> None:
        """Drop what nobody needs any more. `hold`: nothing, because a detokenizer has not caught up."""
        if hold:
            self._over = [*chain.from_iterable(rids for _, rids in self._lingering), *self._over]
            self._lingering.clear()
            return
        if self._over:
            self._lingering.append((now + LINGER, self._over))
            self._over = []
        while self._lingering and self._lingering[0][0] <= now:
            self.forget(self._lingering.popleft()[1])
        if not self.records:
            self.clear()
            return
        _, needed, _ = next(iter(self.records.values()))
        drop = needed - self.first
        if drop >= max(WORTH, len(self._frames) // 8):
            self._drop(self._start(drop))

    # ---------------------------------------------------------------- frames
    def add(self, frame: bytes, seq: int) -> bool:
        """Keep the next frame; True when there are more now than may be kept (`shrink`)."""
        if not self._frames:
            self.first = seq
        self._frames.append(frame)
        self.size += len(frame) + ENTRY
        return self.size > self._limit

    def shrink(self) -> list[str]:
        """Drop the oldest quarter; the requests that cannot be told again any more."""
        drop, size = 0, self.size
        while size > self._limit * 3 // 4 and drop < len(self._frames):
            size -= len(self._frames[drop]) + ENTRY
            drop += 1
        last = self.first + len(self._frames)
        self._drop(self._start(drop))
        first = self.first if self._frames else last
        gone = []
        for rid, (_, needed, _) in self.records.items():
            if needed >= first:
                break
            gone.append(rid)
        self.forget(gone)
        return gone

    def clear(self) -> None:
        """Drop all frames."""
        self._frames.clear()
        self.size = 0

    def start(self, seq: int) -> int | None:
        """The number of the first frame from `seq` on that names its rows, so that one can begin with it."""
        at = self._start(max(0, seq - self.first))
        return self.first + at if at < len(self._frames) else None

    def since(self, seq: int, count: int) -> Iterator[bytes]:
        """At most `count` frames from the one with the number `seq` on."""
        at = seq - self.first
        return iter(self._frames[at : at + count])

    def _start(self, at: int) -> int:
        frames = self._frames
        while at < len(frames) and not names_rows(frames[at]):
            at += 1
        return at

    def _drop(self, count: int) -> None:
        self.size -= sum(map(len, islice(self._frames, count))) + ENTRY * min(count, len(self._frames))
        del self._frames[:count]
        self.first += count
