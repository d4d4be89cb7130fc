"""What one step computes of each request, and the arrays that the backend takes for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from forebay_engine.backend import StepInput
from forebay_engine.task import Task


class Piece(NamedTuple):
    """Positions `start` to `end` of a task, computed in one step."""

    task: Task
    start: int
    end: int

    @property
    def last(self) -> bool:
        """Whether the piece reaches the newest token, so that a new one can be chosen."""
        return self.end == len(self.task.tokens)


def step_input(pieces: list[Piece]) -> tuple[StepInput, list[tuple[int, int]]]:
    """The inputs of a step, and for each piece how many logit rows and hidden rows it gets.

    A piece gets the logits of the prompt positions to be scored, then of its last position if a token follows.
    """
    tokens: list[Any] = []
    positions: list[Any] = []
    logit_rows: list[int] = []
    hidden_rows: list[int] = []
    blocks: list[int] = []
    begins, block_begins, wanted = [0], [0], []
    for task, start, end in pieces:
        shift = begins[-1] - start
        before = len(logit_rows), len(hidden_rows)
        tokens.append(task.tokens[start:end])
        positions.append(np.arange(start, end, dtype=np.int64))
        logit_rows += [shift + position for position in task.scored_positions(start, end)]
        if end == len(task.tokens) and (task.limit or task.scores_next):
            logit_rows.append(shift + end - 1)
        hidden_rows += [shift + position for position in task.hidden_positions(start, end)]
        blocks += task.blocks
        begins.append(shift + end)
        block_begins.append(len(blocks))
        wanted.append((len(logit_rows) - before[0], len(hidden_rows) - before[1]))
    step = StepInput(
        tokens=np.concatenate(tokens, dtype=np.int64),
        positions=np.concatenate(positions),
        past=np.array([piece.start for piece in pieces], np.int32),
        begins=np.array(begins, np.int32),
        blocks=np.array(blocks, np.int32),
        block_begins=np.array(block_begins, np.int32),
        longest=max(piece.end for piece in pieces),
        logit_rows=np.array(logit_rows, np.int32),
        hidden_rows=np.array(hidden_rows, np.int32),
    )
    return step, wanted
