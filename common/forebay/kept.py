"""What the link to the engine keeps for a detokenizer that has to start anew: the latest frames of steps, and what
each request was announced with. Pure, no sockets.

Frames are copied into a ring that is used again and again: memory that is fresh for each step costs the scheduler's
thread a page fault every 4 KiB, 13 us a step of 4,096 rows, and the copy less than can be measured. Frames are dropped
as soon as no request needs them; when the ring is full the oldest go first, and the requests that began in them can no
longer be taken up again.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

from forebay.wire.egress import names_rows

LINGER = 3.0
"""Seconds that an ended request is kept: its end may still be on its way through the detokenizer to its client."""
WORTH = 64
"""Frames that are dropped at once, at least, while there are others to keep."""


Record = tuple[int, int, bytes]
"""One request that can be told again from its first row: its api process, the number of a frame before which it has no
row, and the packed announcements of the requests that came with it, its own among them. A plain tuple: one with names
costs 0.3 us a request."""


class Kept:
    """The frames since the first row of the oldest request that is kept, and these requests in their order."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of frames. They are mapped when the first frame comes, and become real as they are used."""
        self._limit = limit
        self._ring: memoryview | None = None
        self._starts: list[int] = []
        """Where the kept frames begin in the ring, and where they end."""
        self._ends: list[int] = []
        self._at = 0
        """Where the next frame begins."""
        self._edge = limit
        """Where the room behind that ends."""
        self.records: dict[str, Record] = {}
        """The requests that can be told again; in the order of their first frames."""
        self.first = 0
        """The number of the first kept frame; if there is none, of no meaning."""
        self._over: list[str] = []
        """Requests that have ended since the last look."""
        self._lingering: deque[tuple[float, list[str]]] = deque()

    def __len__(self) -> int:
        """Kept frames."""
        return len(self._ends)

    @property
    def size(self) -> int:
        """Bytes of the ring that are in use."""
        if not self._starts:
            return 0
        used = self._at - self._starts[0]
        return used if used > 0 else used + self._limit

    # ---------------------------------------------------------------- requests
    def begin(self, rid: str, record: Record) -> None:
        """A request that can be told again."""
        self.records[rid] = record

    def end(self, rid: str, said: bool) -> None:
        """A request is over. `said`: its detokenizer says so to its client, so it is kept a while longer."""
        if said:
            self._over.append(rid)
        else:
            self.records.pop(rid, None)

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
        if drop >= max(WORTH, len(self) // 8):
            self._drop(self._start(drop))

    # ---------------------------------------------------------------- frames
    def add(self, frame: bytes, seq: int) -> bool:
        """Keep the next frame; False when there is no room for it (`shrink`). Those before it go if one in between was
        not kept, since nobody needed it."""
        if seq != self.first + len(self._ends):
            self.clear()
        at = self._at
        end = at + len(frame)
        if end > self._edge:
            if not self._wrap(len(frame)):
                return False
            at, end = 0, len(frame)
        ring = self._ring
        if ring is None:
            ring = self._ring = _mapped(self._limit)
        ring[at:end] = frame
        if not self._ends:
            self.first = seq
        self._starts.append(at)
        self._ends.append(end)
        self._at = end
        return True

    def _wrap(self, size: int) -> bool:
        """Go on at the beginning of the ring, if there is room for a frame."""
        room = self._starts[0] if self._starts else self._limit
        if self._edge < self._limit or room < size:
            return False
        self._at, self._edge = 0, room
        return True

    def shrink(self) -> list[str]:
        """Drop the oldest quarter; the requests that cannot be told again any more."""
        drop, size = 0, 0
        while size < self._limit // 4 and drop < len(self):
            size += self._ends[drop] - self._starts[drop]
            drop += 1
        self._drop(self._start(drop))
        gone = []
        for rid, (_, needed, _) in self.records.items():
            if needed >= self.first:
                break
            gone.append(rid)
        self.forget(gone)
        return gone

    def clear(self) -> None:
        """Drop all frames."""
        self._starts.clear()
        self._ends.clear()
        self._at, self._edge = 0, self._limit

    def start(self, seq: int) -> int | None:
        """The number of the first frame from `seq` on that names its rows, so that one can begin with it."""
        at = self._start(max(0, seq - self.first))
        return self.first + at if at < len(self) else None

    def since(self, seq: int, count: int) -> Iterator[bytes]:
        """At most `count` frames from the one with the number `seq` on."""
        at = seq - self.first
        return map(self._frame, range(at, min(at + count, len(self))))

    def _frame(self, at: int) -> bytes:
        assert self._ring is not None
        return bytes(self._ring[self._starts[at] : self._ends[at]])

    def _start(self, at: int) -> int:
        while at < len(self) and not names_rows(self._frame(at)):
            at += 1
        return at

    def _drop(self, count: int) -> None:
        del self._starts[:count]
        del self._ends[:count]
        self.first += count
        if not self._starts:
            self.clear()
        else:
            oldest = self._starts[0]
            self._edge = oldest if oldest >= self._at else self._limit


def _mapped(size: int) -> memoryview:
    """Memory that takes no room until it is written; in large pages where there are some, which come cheaper."""
    ring = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            ring.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(ring)
