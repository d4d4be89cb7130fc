"""Which waiting work a free thread takes next: two lanes, so that a small request never waits behind a big one.

Small requests may use every thread and are taken several at a time; big ones may use all but one, one at a time.
What a lane finishes leaves it in the order of arrival. Pure: no threads and no locks; the caller holds one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from forebay.backlog import LINK_BYTES

J = TypeVar("J")
SMALL = 16 << 10
"""From this size on, in characters or bytes, a request is big: it takes 10 ms and more to encode."""
BATCH_JOBS = 32
BATCH_SIZE = 64 << 10
"""A batch of small requests stays small itself."""


@dataclass(slots=True, eq=False)
class Ticket(Generic[J]):
    """One job in its lane."""

    job: J
    size: int
    weight: int
    arrival: int
    done: bool = False


class _Lane(Generic[J]):
    __slots__ = ("running", "unreleased", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Ticket[J]] = deque()
        self.unreleased: deque[Ticket[J]] = deque()
        self.running = 0
        """Threads at work on this lane."""

    def release(self) -> list[J]:
        out = []
        while self.unreleased and self.unreleased[0].done:
            out.append(self.unreleased.popleft().job)
        return out


class Lanes(Generic[J]):
    """The waiting work of `workers` threads; `limit` is how many jobs may wait, `limit_bytes` what they may weigh."""

    def __init__(self, workers: int, limit: int, limit_bytes: int = LINK_BYTES) -> None:
        if workers < 2:
            raise ValueError(f"{workers} workers: two are needed to keep small requests from waiting behind big ones")
        self._workers = workers
        self._limit, self._limit_bytes = limit, limit_bytes
        self._weight = 0
        """Bytes of the waiting jobs."""
        self._small: _Lane[J] = _Lane()
        self._big: _Lane[J] = _Lane()
        self._arrivals = 0

    def __len__(self) -> int:
        """How many jobs wait for a thread."""
        return len(self._small.waiting) + len(self._big.waiting)

    @property
    def calm(self) -> bool:
        """Whether no small job waits, is at work or waits for one before it: the next one would overtake nobody."""
        return not self._small.unreleased

    def add(self, job: J, size: int, weight: int = 0) -> bool:
        """Let a job wait its turn; False when too many wait already. `size`: what it costs, `weight`: bytes that it
        holds."""
        if len(self) >= self._limit or self._weight >= self._limit_bytes:
            return False
        self._weight += weight
        ticket = Ticket(job, size, weight, self._arrivals)
        self._arrivals += 1
        lane = self._small if size < SMALL else self._big
        lane.waiting.append(ticket)
        lane.unreleased.append(ticket)
        return True

    def take(self) -> list[Ticket[J]]:
        """Work for one free thread: one big job, or small ones; empty when nothing may start now."""
        batch = self._take()
        self._weight -= sum(ticket.weight for ticket in batch)
        return batch

    def _take(self) -> list[Ticket[J]]:
        small, big = self._small.waiting, self._big.waiting
        big_may = bool(big) and self._big.running < self._workers - 1
        if big_may and (not small or big[0].arrival < small[0].arrival):
            self._big.running += 1
            return [big.popleft()]
        if not small:
            return []
        self._small.running += 1
        batch = [small.popleft()]
        size = batch[0].size
        while small and len(batch) < BATCH_JOBS and size + small[0].size <= BATCH_SIZE:
            size += small[0].size
            batch.append(small.popleft())
        return batch

    def finish(self, batch: list[Ticket[J]]) -> list[J]:
        """Take back what `take` gave. Returns the jobs that may leave now, in the order in which they came."""
        lane = self._small if batch[0].size < SMALL else self._big
        lane.running -= 1
        for ticket in batch:
            ticket.done = True
        return lane.release()
