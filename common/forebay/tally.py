"""Copies what the links of a process have counted into its published counters, now and then.

The links count anyway, in plain integers; a copy costs some microseconds and happens about twice a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from forebay._version import __version__
from forebay.counters import Cell, Counters
from forebay.links import Links
from forebay.topology import Peer

EVERY = 0.5
"""Seconds between two copies."""
INTRODUCTION = "introduction"
"""The gauge whose labels say who a process is; it is 1 for the present life, 0 for earlier ones."""


class Tally:
    """The copier of one process. `copy` from the thread that owns the links."""

    def __init__(self, counters: Counters, links: Links, bad_frames: Callable[[], int]) -> None:
        """`bad_frames` tells how many frames could not be read."""
        self.counters = counters
        self.due = 0.0
        self._pairs: list[tuple[Callable[[], int], Cell]] = []
        self._seen: list[int] = []
        self._gauges: list[tuple[Callable[[], int], Cell]] = []
        self._watch_links(links)
        self.watch(bad_frames, counters.counter("dropped_frames_total", reason="unreadable"))

    def _watch_links(self, links: Links) -> None:
        counter = self.counters.counter
        inbox = {"link": f"{links.me.role}_inbox", "direction": "received"}
        self.watch(lambda: links.received, counter("frames_total", **inbox))
        self.watch(lambda: links.received_bytes, counter("frame_bytes_total", **inbox))
        for role in sorted({peer.role for peer in links.links}):
            ends = [link for peer, link in links.links.items() if peer.role == role]
            way = {"link": f"{links.me.role}_to_{role}", "direction": "sent"}
            self.watch(lambda ends=ends: sum(e.sent for e in ends), counter("frames_total", **way))  # type: ignore[misc]
            self.watch(lambda ends=ends: sum(e.sent_bytes for e in ends), counter("frame_bytes_total", **way))  # type: ignore[misc]
            self.watch(
                lambda ends=ends: sum(e.refused for e in ends),  # type: ignore[misc]
                counter("dropped_frames_total", reason=f"{role}_away_or_full"),
            )

    def watch(self, total: Callable[[], int], cell: Cell) -> None:
        """Publish a total that somebody counts in a plain integer since the start of this process."""
        self._pairs.append((total, cell))
        self._seen.append(0)

    def show(self, present: Callable[[], int], stage: str) -> None:
        """Publish how much waits or runs at a stage."""
        self._gauges.append((present, self.counters.gauge("queue_depth", stage=stage)))

    def gauge(self, present: Callable[[], int], cell: Cell) -> None:
        """Publish a size that somebody keeps in a plain integer."""
        self._gauges.append((present, cell))

    def introduce(self, me: Peer, cores: Sequence[int]) -> None:
        """Say who we are to processes that have no link to us."""
        facts = {"pid": str(os.getpid()), "cores": ",".join(map(str, cores)), "version": __version__}
        self.counters.gauge(INTRODUCTION, name=str(me), **facts).set(1)

    def copy(self, now: float) -> None:
        """Copy, and leave a sign of life; `now` of the monotonic clock."""
        self.due = now + EVERY
        for at, (total, cell) in enumerate(self._pairs):
            value = total()
            if value != self._seen[at]:
                cell.add(value - self._seen[at])
                self._seen[at] = value
        for present, cell in self._gauges:
            cell.set(present())
        self.counters.alive(time.monotonic())  # one clock for all processes of a machine
