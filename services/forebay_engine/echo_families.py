"""The values that the echo engine reports beside its tokens, by the formulas in `echo`. Whole columns at a time.

Prompt families are the exception: they are sent once a request, so they are made row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forebay import FlatFamily, GenerateRequest, GenerationBatch, HiddenFamily, RaggedFamily
from forebay_engine.arrays import AnyArray, Floats, Ints
from forebay_engine.echo_table import END, PRODUCED, PROMPT, EchoStep, EchoTable, places_within

HIDDEN_SIZE = 64


def logprob(tokens: AnyArray, positions: AnyArray) -> Floats:
    """The made-up logprob of each token at its position."""
    out: Floats = (-((tokens * 31 + positions) % 1000) / 1000).astype(np.float32)
    return out


def hidden(tokens: AnyArray, positions: AnyArray) -> Floats:
    """The made-up hidden state of each token at its position: (tokens, HIDDEN_SIZE)."""
    sums = (np.asarray(tokens) + np.asarray(positions))[:, None] + np.arange(HIDDEN_SIZE)
    out: Floats = ((sums % 97) / 97).astype(np.float32)
    return out


@dataclass(slots=True)
class _Wishes:
    """Which rows asked for what; made again when rows come or go."""

    chosen: Ints
    top: Ints
    top_widths: Ints
    given: Ints
    given_ids: list[list[int]]
    hidden: Ints


@dataclass(slots=True)
class _Picked:
    """The new tokens of some rows: the rows, their tokens and positions, and the tokens of each row (None: one)."""

    rows: list[int]
    owner: Ints
    """Index into `rows` of each token."""
    tokens: Ints
    positions: Ints
    lens: list[int] | None


class EchoFamilies:
    """Fills the families of a batch for the rows that asked for them."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self._version = -1
        self._wishes = _wishes([])

    def fill(self, batch: GenerationBatch, table: EchoTable, step: EchoStep) -> None:
        """Add the families of one step to its batch."""
        if table.version != self._version:
            self._version = table.version
            self._wishes = _wishes(table.requests)
        wishes = self._wishes
        if len(wishes.chosen):
            self._fill_logprobs(batch, table, step, wishes)
        if len(wishes.hidden):
            batch.output_hidden_states = self._hidden(table, step, wishes.hidden)

    def _fill_logprobs(self, batch: GenerationBatch, table: EchoTable, step: EchoStep, wishes: _Wishes) -> None:
        picked = _pick(table, step, wishes.chosen)
        values = logprob(picked.tokens, picked.positions)
        batch.output_token_logprobs = FlatFamily(values, picked.tokens, picked.rows, picked.lens)
        if len(wishes.top):
            picked = _pick(table, step, wishes.top)
            batch.output_top_logprobs = self._top(picked, wishes.top_widths[picked.owner])
        if len(wishes.given):
            picked = _pick_given(table, step, wishes.given)
            batch.output_token_ids_logprobs = _given(picked, wishes.given_ids)
        first = wishes.chosen[table.columns[PRODUCED][wishes.chosen] == 0].tolist()
        if first:
            self._fill_prompt(batch, table.requests, first)

    def _top(self, picked: _Picked, widths: Ints) -> RaggedFamily:
        token, place = np.repeat(np.arange(len(widths)), widths), places_within(widths)
        ids = (picked.tokens[token] + place) % self.vocab
        values = logprob(picked.tokens, picked.positions)[token] - (place / 4).astype(np.float32)
        return RaggedFamily(values, ids, picked.rows, picked.lens, widths.tolist())

    def _fill_prompt(self, batch: GenerationBatch, requests: Sequence[GenerateRequest], rows: list[int]) -> None:
        """Prompt families of the rows that give their first output."""
        rows = [row for row in rows if 0 <= requests[row].logprob_start_len < len(requests[row].input_ids)]
        cells = [(row, *_prompt_columns(requests[row])) for row in rows]
        if cells:
            batch.input_token_logprobs = FlatFamily(
                [[None, *logprob(ids, at)[1:].tolist()] for _, ids, at in cells],
                [ids.tolist() for _, ids, _ in cells],
                rows,
            )
        top = [(row, ids, at) for row, ids, at in cells if requests[row].top_logprobs_num > 0]
        if top:
            lists = [self._prompt_top(ids, at, requests[row].top_logprobs_num) for row, ids, at in top]
            batch.input_top_logprobs = _ragged_lists(lists, [row for row, *_ in top])
        given = [(row, at) for row, _, at in cells if requests[row].token_ids_logprob]
        if given:
            lists = [_prompt_given(np.array(requests[row].token_ids_logprob), at) for row, at in given]
            batch.input_token_ids_logprobs = _ragged_lists(lists, [row for row, _ in given])

    def _prompt_top(self, ids: Ints, at: Ints, width: int) -> tuple[Any, Any]:
        places = np.arange(width)
        values = logprob(ids, at)[:, None] - (places / 4).astype(np.float32)
        return values.tolist(), ((ids[:, None] + places) % self.vocab).tolist()

    def _hidden(self, table: EchoTable, step: EchoStep, rows: Ints) -> HiddenFamily:
        picked = _pick(table, step, rows)
        vectors = hidden(picked.tokens, picked.positions)
        if (table.columns[PRODUCED][rows] > 0).all():
            return HiddenFamily(vectors, picked.rows, picked.lens)
        cells: list[list[Any]] = [[] for _ in picked.rows]
        for owner, vector in zip(picked.owner.tolist(), vectors.tolist(), strict=True):
            cells[owner].append(vector)
        for cell, row in zip(cells, picked.rows, strict=True):
            if table.columns[PRODUCED][row] == 0:
                ids = np.array(table.requests[row].input_ids)
                cell[:1] = [hidden(ids, np.arange(len(ids))).reshape(-1).tolist()]
        return HiddenFamily(cells, picked.rows)


def _wishes(requests: Sequence[GenerateRequest]) -> _Wishes:
    chosen = [row for row, request in enumerate(requests) if request.return_logprob]
    top = [row for row in chosen if requests[row].top_logprobs_num > 0]
    given = [row for row in chosen if requests[row].token_ids_logprob]
    return _Wishes(
        np.array(chosen, np.int64),
        np.array(top, np.int64),
        np.array([requests[row].top_logprobs_num for row in top], np.int64),
        np.array(given, np.int64),
        [requests[row].token_ids_logprob or [] for row in given],
        np.array([row for row, request in enumerate(requests) if request.return_hidden_states], np.int64),
    )


def _pick(table: EchoTable, step: EchoStep, rows: Ints) -> _Picked:
    """The tokens of `rows` in this step."""
    base = table.columns[PROMPT][rows] + table.columns[PRODUCED][rows]
    if step.single:
        return _Picked(rows.tolist(), np.arange(len(rows)), step.ids[rows], base, None)
    counts = step.counts[rows]
    owner, place = np.repeat(np.arange(len(rows)), counts), places_within(counts)
    begins = np.cumsum(step.counts) - step.counts
    return _Picked(rows.tolist(), owner, step.ids[begins[rows][owner] + place], base[owner] + place, counts.tolist())


def _pick_given(table: EchoTable, step: EchoStep, rows: Ints) -> _Picked:
    """The places at which given ids are scored: those of the new tokens, and of a row that gets no token at all the
    one behind its prompt."""
    if step.single:
        return _pick(table, step, rows)
    counts = np.maximum(step.counts[rows], table.columns[END][rows] == 0)
    owner, place = np.repeat(np.arange(len(rows)), counts), places_within(counts)
    base = table.columns[PROMPT][rows] + table.columns[PRODUCED][rows]
    return _Picked(rows.tolist(), owner, np.zeros(0, np.int64), base[owner] + place, counts.tolist())


def embedding(ids: AnyArray) -> Floats:
    """The made-up embedding of a prompt: the mean of the hidden states of its tokens (HIDDEN_SIZE)."""
    out: Floats = hidden(ids, np.arange(len(ids))).mean(axis=0, dtype=np.float32)
    return out


def _given(picked: _Picked, ids: list[list[int]]) -> RaggedFamily:
    widths = np.array([len(row) for row in ids], np.int64)
    flat, starts = np.concatenate([np.array(row, np.int64) for row in ids]), np.cumsum(widths) - widths
    width = widths[picked.owner]
    token, place = np.repeat(np.arange(len(width)), width), places_within(width)
    tokens = flat[starts[picked.owner][token] + place]
    return RaggedFamily(logprob(tokens, picked.positions[token]), tokens, picked.rows, picked.lens, width.tolist())


def _prompt_columns(request: GenerateRequest) -> tuple[Ints, Ints]:
    """The prompt's ids that are to be scored, and their positions."""
    start = request.logprob_start_len
    ids = np.array(request.input_ids[start:], np.int64)
    return ids, np.arange(start, start + len(ids), dtype=np.int64)


def _prompt_given(ids: Ints, at: Ints) -> tuple[Any, Any]:
    return logprob(ids[None, :], at[:, None]).tolist(), [ids.tolist()] * len(at)


def _ragged_lists(lists: list[tuple[Any, Any]], rows: list[int]) -> RaggedFamily:
    """Prompt lists of several rows; the first position of each has none."""
    return RaggedFamily([[None, *values[1:]] for values, _ in lists], [[None, *ids[1:]] for _, ids in lists], rows)
