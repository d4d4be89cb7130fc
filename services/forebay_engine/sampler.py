"""Chooses the next token from a row of logits. Pure numpy: the same row, parameters and seed give the same token.

Order of the rules: penalties, bias, minimum length, then (not for greedy requests) temperature, top-k, top-p,
min-p and the draw. Greedy requests arrive as `top_k == 1`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from forebay import SamplingParams
from forebay_engine.arrays import AnyArray, Floats, Ints

SEED_MASK = (1 << 64) - 1
"""Seeds are signed 64-bit numbers for clients, and unsigned ones for the generator."""
HEAD = 256
"""Candidates that top-p looks at first: nearly always enough, and far cheaper to sort than a vocabulary."""


class Chooser:
    """The sampling state of one request: what it has produced so far, and its random numbers."""

    def __init__(self, params: SamplingParams, prompt: Iterable[int], ending: Iterable[int], vocab: int) -> None:
        """`ending`: ids that `min_new_tokens` keeps back. Ids outside the vocabulary are left out."""
        self.params = params
        self.produced = 0
        self._counts: dict[int, int] = {}
        self._seen = np.zeros(vocab, np.bool_) if params.repetition_penalty != 1.0 else None
        if self._seen is not None:
            self._seen[np.fromiter(prompt, np.int64)] = True
        self._ending = np.array(sorted(i for i in set(ending) if 0 <= i < vocab), np.int64)
        bias = params.logit_bias or {}
        self._bias_ids = np.fromiter(bias.keys(), np.int64)
        self._bias = np.fromiter(bias.values(), np.float32)
        seed = params.sampling_seed
        self._random = None if params.top_k == 1 else np.random.default_rng(None if seed is None else seed & SEED_MASK)

    def choose(self, logits: Floats) -> int:
        """The next token for a row (vocab,), noted here. Raises `FloatingPointError` for a row that is not finite."""
        row = self._adjusted(logits)
        if not np.isfinite(row.max()):
            raise FloatingPointError("the logits of this step are not finite")
        token = int(row.argmax()) if self._random is None else draw(row, self.params, self._random.random())
        self._note(token)
        return token

    def _note(self, token: int) -> None:
        self.produced += 1
        if self.params.presence_penalty or self.params.frequency_penalty:
            self._counts[token] = self._counts.get(token, 0) + 1
        if self._seen is not None:
            self._seen[token] = True

    def _adjusted(self, logits: Floats) -> Floats:
        """The row after penalties, bias and minimum length; the row itself when none applies."""
        params = self.params
        early = self.produced < params.min_new_tokens and len(self._ending)
        if self._seen is None and not self._counts and not len(self._bias) and not early:
            return logits
        row = logits.copy()
        if self._seen is not None:
            penalise_repetition(row, self._seen, params.repetition_penalty)
        if self._counts:
            ids = np.fromiter(self._counts.keys(), np.int64)
            counts = np.fromiter(self._counts.values(), np.float32)
            row[ids] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * counts
        row[self._bias_ids] += self._bias
        if early:
            row[self._ending] = -np.inf
        return row


def penalise_repetition(row: Floats, seen: AnyArray, penalty: float) -> None:
    """Make the tokens marked in `seen` (vocab,) less likely, in place: positive logits divided, others multiplied."""
    values = row[seen]
    row[seen] = np.where(values > 0, values / np.float32(penalty), values * np.float32(penalty))


def draw(row: Floats, params: SamplingParams, chance: float) -> int:
    """One token of a row (vocab,) by temperature, top-k, top-p and min-p; `chance` is uniform in [0, 1)."""
    weights = np.exp((row - row.max()) * np.float32(1.0 / params.temperature))
    kept = candidates(weights, params)
    total = np.cumsum(weights if kept is None else weights[kept], dtype=np.float64)
    place = min(int(np.searchsorted(total, chance * total[-1], side="right")), len(total) - 1)
    return place if kept is None else int(kept[place])


def candidates(weights: Floats, params: SamplingParams) -> Ints | None:
    """The ids that top-k, then top-p, then min-p leave, likeliest first; None when nothing limits them.

    `weights` (vocab,) are proportional to the probabilities, the largest is 1.
    """
    limited = params.top_k < len(weights)
    if not limited and params.top_p >= 1.0:
        return np.flatnonzero(weights >= params.min_p) if params.min_p > 0.0 else None
    if limited:
        ids = _largest(weights, params.top_k)
        mass = float(weights[ids].sum(dtype=np.float64))
    else:
        mass = float(weights.sum(dtype=np.float64))
        ids = _head(weights, params.top_p * mass)
    if params.top_p < 1.0:
        reached = np.cumsum(weights[ids], dtype=np.float64)
        ids = ids[: int(np.searchsorted(reached, params.top_p * mass)) + 1]
    return ids[weights[ids] >= params.min_p] if params.min_p > 0.0 else ids


def _largest(weights: Floats, count: int) -> Ints:
    """The ids of the `count` largest weights, largest first, the lower id first among equals."""
    ids = np.argpartition(weights, -count)[-count:] if count < len(weights) else np.arange(len(weights))
    return ids[np.lexsort((ids, -weights[ids]))]


def _head(weights: Floats, mass: float) -> Ints:
    """The largest weights, enough of them to hold `mass`, largest first."""
    count = HEAD
    while count < len(weights):
        ids = _largest(weights, count)
        if float(weights[ids].sum(dtype=np.float64)) >= mass:
            return ids
        count *= 8
    return _largest(weights, len(weights))
