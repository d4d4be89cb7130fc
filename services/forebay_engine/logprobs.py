"""Log probabilities of the model's own distribution: before penalties, bias and temperature."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forebay import GenerateRequest
from forebay_engine.arrays import Floats, Ints


@dataclass(slots=True)
class TokenScore:
    """What one position has to report: the token's own value, and those of other ids as (values, ids)."""

    token: int
    value: float
    top: tuple[list[float], list[int]] | None = None
    given: tuple[list[float], list[int]] | None = None


@dataclass(slots=True)
class PromptScores:
    """The scores of the prompt positions from `start` on. The first of them has no value: nothing stands before it."""

    start: int
    first: int
    """The token at `start`."""
    with_top: bool
    with_given: bool
    scores: list[TokenScore] = field(default_factory=list)

    @property
    def next(self) -> int:
        """The next prompt position to be scored."""
        return self.start + 1 + len(self.scores)


def normaliser(row: Floats) -> float:
    """log(sum(exp(row))) of a row of logits (vocab,)."""
    top = float(row.max())
    return top + float(np.log(np.exp(row - np.float32(top)).sum(dtype=np.float64)))


def score(row: Floats, token: int, request: GenerateRequest) -> TokenScore:
    """The score of `token` by the logits that predict it (vocab,), with the lists that the request asks for."""
    scale = normaliser(row)
    out = TokenScore(token, float(row[token]) - scale)
    if request.top_logprobs_num > 0:
        out.top = _listed(row, top_ids(row, request.top_logprobs_num), scale)
    if request.token_ids_logprob:
        out.given = _listed(row, np.array(request.token_ids_logprob, np.int64), scale)
    return out


def top_ids(row: Floats, count: int) -> Ints:
    """The ids of the `count` largest logits, largest first, the lower id first among equals."""
    count = min(count, len(row))
    ids = np.argpartition(row, -count)[-count:]
    return ids[np.lexsort((ids, -row[ids]))]


def _listed(row: Floats, ids: Ints, scale: float) -> tuple[list[float], list[int]]:
    return (row[ids].astype(np.float64) - scale).tolist(), ids.tolist()
