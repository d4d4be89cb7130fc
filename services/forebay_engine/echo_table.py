"""The rows of the echo engine as numpy columns: where each row's source lies, how far it is, when it ends."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from forebay import GenerateRequest
from forebay_engine.arrays import AnyArray, Ints

START, SIZE, PRODUCED, END, PROMPT = range(5)
"""Columns: first id of the source in the store, its length, tokens so far, tokens in all, prompt tokens."""


class EchoStep(NamedTuple):
    """One step over all rows: their new ids one row after the other, and who ends."""

    ids: Ints
    counts: Ints
    """New tokens of each row."""
    single: bool
    """Whether every row has exactly one."""
    reasons: list[dict[str, Any] | None] | None
    ended: AnyArray
    """Which rows end (rows,), bool."""


class _Store:
    """The ids of all sources, one after the other, in a buffer that doubles when it is full."""

    def __init__(self, shared: Ints) -> None:
        self.ids = shared
        self.used = len(shared)

    def put(self, source: Ints) -> int:
        """Append `source`; returns where it starts."""
        start, end = self.used, self.used + len(source)
        if end > len(self.ids):
            wider = np.zeros(max(end, 2 * len(self.ids)), np.int64)
            wider[:start] = self.ids[:start]
            self.ids = wider
        self.ids[start:end] = source
        self.used = end
        return start


class EchoTable:
    """All running rows. `shared` is the source of the rows that have none of their own, and may be empty."""

    def __init__(self, shared: Ints) -> None:
        self.shared = shared
        self.requests: list[GenerateRequest] = []
        self.rids: list[str] = []
        self.prompt_tokens: list[int] = []
        self.columns: Ints = np.zeros((5, 0), np.int64)
        self.version = 0
        """Changes when rows come or go."""
        self._reasons: list[dict[str, Any]] = []
        self._new: list[tuple[GenerateRequest, Ints | None, int, dict[str, Any]]] = []
        self._store = _Store(shared)

    def __len__(self) -> int:
        return len(self.requests) + len(self._new)

    def add(self, request: GenerateRequest, source: Ints | None, end: int, reason: dict[str, Any]) -> None:
        """A new row, that repeats `source` (None: the shared one) until it has `end` tokens."""
        self._new.append((request, source, end, reason))

    def remove(self, rids: Container[str] | None) -> list[GenerateRequest]:
        """Take rows out, all of them for None; returns the requests that were there."""
        self.merge()
        stays = np.array([rids is not None and rid not in rids for rid in self.rids], np.bool_)
        gone = [request for request, stay in zip(self.requests, stays.tolist(), strict=True) if not stay]
        if gone:
            self._keep(stays)
        return gone

    def merge(self) -> None:
        """Make rows of the newly added requests."""
        if not self._new:
            return
        fresh, self._new = self._new, []
        rows = [self._row(request, source, end) for request, source, end, _ in fresh]
        self.columns = np.concatenate((self.columns, np.array(rows, np.int64).T), axis=1)
        self._reasons += [reason for *_, reason in fresh]
        self._set_requests(self.requests + [request for request, *_ in fresh])

    def step(self, per_row: int) -> EchoStep:
        """The next ids of every row, at most `per_row` each. `advance` makes them the rows' past."""
        start, size, produced, end, _ = self.columns
        counts = np.minimum(end - produced, per_row)
        ended = produced + counts >= end
        single = per_row == 1 and bool(counts.all())
        if single:
            ids = self._store.ids[start + produced % size]
        else:
            row = np.repeat(np.arange(len(counts)), counts)
            ids = self._store.ids[start[row] + (produced[row] + places_within(counts)) % size[row]]
        reasons = None
        if ended.any():
            reasons = [reason if over else None for reason, over in zip(self._reasons, ended.tolist(), strict=True)]
        return EchoStep(ids, counts, single, reasons, ended)

    def advance(self, step: EchoStep) -> None:
        """Count the tokens of `step`, and drop the rows that ended with it."""
        self.columns[PRODUCED] += step.counts
        if step.reasons is not None:
            self._keep(~step.ended)

    def _row(self, request: GenerateRequest, source: Ints | None, end: int) -> tuple[int, ...]:
        if source is None:
            return 0, len(self.shared), 0, end, len(request.input_ids)
        return self._store.put(source), len(source), 0, end, len(request.input_ids)

    def _keep(self, stays: AnyArray) -> None:
        """Drop the rows that are not marked, and their sources when most of the store is theirs."""
        marks = stays.tolist()
        self.columns = self.columns[:, stays]
        self._reasons = [reason for reason, stay in zip(self._reasons, marks, strict=True) if stay]
        self._set_requests([request for request, stay in zip(self.requests, marks, strict=True) if stay])
        if self._store.used > 2 * (len(self.shared) + int(self.columns[SIZE].sum())):
            self._repack()

    def _repack(self) -> None:
        old, self._store = self._store.ids, _Store(self.shared)
        for row in np.flatnonzero(self.columns[START] >= len(self.shared)):
            column = self.columns[:, row]
            column[START] = self._store.put(old[column[START] : column[START] + column[SIZE]])

    def _set_requests(self, requests: list[GenerateRequest]) -> None:
        self.requests = requests
        self.rids = [request.rid for request in requests]
        self.prompt_tokens = self.columns[PROMPT].tolist()
        self.version += 1


def places_within(counts: Ints) -> Ints:
    """0, 1 ... count - 1 for each count, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
