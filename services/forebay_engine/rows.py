"""Collects the rows of one scheduler step into the batch that `Front.push_generation` takes.

Families are sparse: a row that nobody asked more of than its token costs one entry in each plain column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forebay import EmbeddingBatch, FlatFamily, GenerationBatch, HiddenFamily, RaggedFamily
from forebay_engine.arrays import Floats
from forebay_engine.logprobs import PromptScores, TokenScore

Lists = tuple[list[float], list[int]]


@dataclass(slots=True)
class _Cells:
    """A family under construction: one cell of values and one of ids for each row that has data."""

    rows: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)

    def add(self, row: int, values: Any, ids: Any) -> None:
        self.rows.append(row)
        self.values.append(values)
        self.ids.append(ids)

    def flat(self) -> FlatFamily | None:
        return FlatFamily(self.values, self.ids, self.rows) if self.rows else None

    def ragged(self) -> RaggedFamily | None:
        return RaggedFamily(self.values, self.ids, self.rows) if self.rows else None


class StepRows:
    """One row a request that has something to say in this step."""

    def __init__(self) -> None:
        self._rids: list[str] = []
        self._ids: list[int] = []
        self._lens: list[int] = []
        self._finish: list[dict[str, Any] | None] = []
        self._prompt: list[int] = []
        self._chosen, self._top, self._given = _Cells(), _Cells(), _Cells()
        self._prompt_chosen, self._prompt_top, self._prompt_given = _Cells(), _Cells(), _Cells()
        self._hidden = _Cells()

    @property
    def tokens(self) -> int:
        """New tokens of all rows so far."""
        return len(self._ids)

    def add(
        self,
        rid: str,
        prompt_tokens: int,
        token: int | None,
        finish: dict[str, Any] | None,
        *,
        score: TokenScore | None = None,
        prompt_scores: PromptScores | None = None,
        hidden: Floats | None = None,
    ) -> None:
        """One row: its new token (None: a row that only ends), and what it has to report besides.

        `hidden` (positions, hidden size) of the first output covers the whole prompt: it travels as one vector.
        """
        row = len(self._rids)
        self._rids.append(rid)
        self._prompt.append(prompt_tokens)
        self._finish.append(finish)
        self._lens.append(0 if token is None else 1)
        if token is not None:
            self._ids.append(token)
        if score is not None:
            self._add_score(row, score, chosen=token is not None)
        if prompt_scores is not None:
            self._add_prompt_scores(row, prompt_scores)
        if hidden is not None:
            self._hidden.add(row, [hidden.reshape(-1).tolist()], None)

    def batch(self) -> GenerationBatch | None:
        """The step as a batch; None when no request had anything to say."""
        if not self._rids:
            return None
        return GenerationBatch(
            rids=self._rids,
            output_ids=np.array(self._ids, np.int64),
            finish_reasons=self._finish if any(self._finish) else None,
            prompt_tokens=self._prompt,
            tok_lens=self._lens if 0 in self._lens else None,
            output_token_logprobs=self._chosen.flat(),
            input_token_logprobs=self._prompt_chosen.flat(),
            output_top_logprobs=self._top.ragged(),
            input_top_logprobs=self._prompt_top.ragged(),
            output_token_ids_logprobs=self._given.ragged(),
            input_token_ids_logprobs=self._prompt_given.ragged(),
            output_hidden_states=HiddenFamily(self._hidden.values, self._hidden.rows) if self._hidden.rows else None,
        )

    def _add_score(self, row: int, score: TokenScore, *, chosen: bool) -> None:
        """`chosen` False: only the ids that were given, for a place where no token was produced."""
        if chosen:
            self._chosen.add(row, [score.value], [score.token])
        if chosen and score.top is not None:
            self._top.add(row, [score.top[0]], [score.top[1]])
        if score.given is not None:
            self._given.add(row, [score.given[0]], [score.given[1]])

    def _add_prompt_scores(self, row: int, prompt: PromptScores) -> None:
        scores = prompt.scores
        self._prompt_chosen.add(
            row, [None, *(score.value for score in scores)], [prompt.first, *(score.token for score in scores)]
        )
        if prompt.with_top:
            _add_positions(self._prompt_top, row, [score.top for score in scores])
        if prompt.with_given:
            _add_positions(self._prompt_given, row, [score.given for score in scores])


def _add_positions(cells: _Cells, row: int, lists: list[Lists | None]) -> None:
    """Lists of every prompt position; the first position has none."""
    values = [None, *(pair and pair[0] for pair in lists)]
    cells.add(row, values, [None, *(pair and pair[1] for pair in lists)])


class Vectors:
    """Collects the answers of embedding requests until `Front.push_embeddings` takes them."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, Floats, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rid: str, vector: Floats, prompt_tokens: int) -> None:
        self._rows.append((rid, vector, prompt_tokens))

    def take(self) -> EmbeddingBatch | None:
        """All since the last call."""
        if not self._rows:
            return None
        rids, vectors, prompts = (list(column) for column in zip(*self._rows, strict=True))
        self._rows.clear()
        return EmbeddingBatch(rids, vectors, prompts)
