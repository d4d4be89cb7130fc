"""Numbers that one process counts and any other may read: one mapped file a process, changed in place.

Counting is an addition to an 8-byte double in memory, without a lock, a call to the system or a message. The file
outlives its process, so what a dead one has counted stays in the sum, and the restarted one counts on.

    0   magic "FBC1" | u32 bytes used | f64 time of the last sign of life (monotonic seconds)
    16  record | record | ...
    record   u16 bytes of the key | u16 number of doubles | u32 0 | key, padded to 8 bytes | doubles
    key      JSON: [kind, name, [[label, value], ...]]
A histogram has one double for each bucket (not cumulative), one for what is above the last bound, and the sum.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from forebay.errors import StartError
from forebay.rundir import COUNTS
from forebay.topology import Peer

SIZE = 1 << 20
"""Bytes of a file: room for some 10,000 numbers; label values come from fixed sets."""
_HEAD = struct.Struct("<4sId")
_RECORD = struct.Struct("<HHI")
_MAGIC = b"FBC1"
_decode_key = msgspec.json.Decoder(tuple[str, str, list[tuple[str, str]]]).decode

log = logging.getLogger("forebay.counters")


class Sample(NamedTuple):
    """One counted thing as it stands in a file."""

    kind: str
    """`counter`, `gauge` or `histogram`."""
    name: str
    labels: tuple[tuple[str, str], ...]
    values: list[float]


class Cell:
    """One number."""

    __slots__ = ("_at", "_values")

    def __init__(self, values: memoryview[float], at: int) -> None:
        self._values, self._at = values, at

    def add(self, amount: float = 1.0) -> None:
        """Count."""
        self._values[self._at] += amount

    def set(self, value: float) -> None:
        """Put a gauge to a value."""
        self._values[self._at] = value

    @property
    def value(self) -> float:
        """The present value."""
        return self._values[self._at]


class Histogram:
    """Counts of values by bucket; a bucket holds what is at most its bound."""

    __slots__ = ("_at", "_bounds", "_values")

    def __init__(self, values: memoryview[float], at: int, bounds: Sequence[float]) -> None:
        self._values, self._at, self._bounds = values, at, bounds

    def observe(self, value: float, times: float = 1.0) -> None:
        """Note a value, `times` times."""
        at = self._at
        self._values[at + bisect_left(self._bounds, value)] += times
        self._values[at + len(self._bounds) + 1] += value * times


class Counters:
    """The numbers of this process. One thread changes them. `path` None: in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Opens or makes the file; numbers of an earlier life of this process are counted on, its gauges are 0."""
        self._map = mmap.mmap(-1, SIZE) if path is None else _mapped(path)
        self._values: memoryview[float] = memoryview(self._map).cast("d")
        self._places: dict[tuple[bytes, int], int] = {}
        self._full = False
        if path is None or not self._take_over():
            if any(self._map[: _HEAD.size]):  # not ours; a new file is zero already, and sparse
                self._map[:] = bytes(SIZE)
            _HEAD.pack_into(self._map, 0, _MAGIC, _HEAD.size, 0.0)

    def _take_over(self) -> bool:
        found = list(_records(self._map))
        for key, at, count in found:
            self._places[key, count] = at // 8
            if key.startswith(b'["gauge"'):
                self._values[at // 8] = 0.0
        return bool(found)

    def counter(self, name: str, /, **labels: str) -> Cell:
        """A number that only grows."""
        return Cell(*self._place("counter", name, labels, 1))

    def gauge(self, name: str, /, **labels: str) -> Cell:
        """A number that goes up and down."""
        return Cell(*self._place("gauge", name, labels, 1))

    def histogram(self, name: str, bounds: Sequence[float], /, **labels: str) -> Histogram:
        """A histogram with these upper bounds, ascending."""
        values, at = self._place("histogram", name, labels, len(bounds) + 2)
        return Histogram(values, at, bounds)

    def alive(self, now: float) -> None:
        """Leave a sign of life; `now` in seconds of the monotonic clock."""
        self._values[1] = now

    def _place(self, kind: str, name: str, labels: dict[str, str], count: int) -> tuple[memoryview[float], int]:
        key = msgspec.json.encode((kind, name, sorted(labels.items())))
        place = self._places.get((key, count))
        if place is None:
            place = self._append(key, count)
            if place is None:
                return memoryview(bytearray(8 * count)).cast("d"), 0
            self._places[key, count] = place
        return self._values, place

    def _append(self, key: bytes, count: int) -> int | None:
        used: int = _HEAD.unpack_from(self._map)[1]
        values = used + _RECORD.size + _padded(len(key))
        end = values + 8 * count
        if end > SIZE:
            if not self._full:
                self._full = True
                log.warning("the file of counters is full: some numbers of this process are not published")
            return None
        _RECORD.pack_into(self._map, used, len(key), count, 0)
        self._map[used + _RECORD.size : used + _RECORD.size + len(key)] = key
        # Last: a reader never sees a record that is not whole.
        struct.pack_into("<I", self._map, 4, end)
        return values // 8


def _padded(size: int) -> int:
    return (size + 7) & ~7


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # All of it at once: a page that finds the disk full later would end the process with SIGBUS.
        os.posix_fallocate(descriptor, 0, SIZE)
        return mmap.mmap(descriptor, SIZE)
    except OSError as error:
        raise StartError(f"{path} needs {SIZE >> 20} MiB: {error.strerror}; use another --run-dir") from error
    finally:
        os.close(descriptor)


def _records(data: bytes | mmap.mmap) -> Iterator[tuple[bytes, int, int]]:
    """Key, byte offset of the doubles and their number, of each whole record; nothing for a file that is not ours."""
    if len(data) < _HEAD.size:
        return
    magic, used, _ = _HEAD.unpack_from(data)
    at = _HEAD.size if magic == _MAGIC and used <= SIZE else len(data)
    while at + _RECORD.size <= min(used, len(data)):
        size, count, _ = _RECORD.unpack_from(data, at)
        values = at + _RECORD.size + _padded(size)
        if values + 8 * count > len(data):
            return
        yield bytes(data[at + _RECORD.size : at + _RECORD.size + size]), values, count
        at = values + 8 * count


def counts_path(run_dir: Path, peer: Peer) -> Path:
    """The file of a process's counters."""
    return run_dir / f"{peer}{COUNTS}"


def read_counts(path: Path) -> tuple[float, list[Sample]]:
    """The last sign of life (monotonic seconds, 0 for none) and all numbers of a process; empty without a file."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD.size)
            if len(data) == _HEAD.size:
                data += file.read(max(0, _HEAD.unpack(data)[1] - _HEAD.size))
    except FileNotFoundError:
        return 0.0, []
    samples = [_sample(key, struct.unpack_from(f"<{n}d", data, at)) for key, at, n in _records(data)]
    return (_HEAD.unpack_from(data)[2] if len(data) >= _HEAD.size else 0.0), samples


def _sample(key: bytes, values: Sequence[float]) -> Sample:
    kind, name, labels = _decode_key(key)
    return Sample(kind, name, tuple(labels), list(values))
