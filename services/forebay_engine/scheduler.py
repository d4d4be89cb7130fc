"""Continuous batching: decides what each step computes, and turns its results into rows.

Every step serves all running requests: one token for each that decodes, and pieces of the prompts that are still
to be read, up to a budget. Blocks of the cache are taken as a sequence grows. When they run out, the request
that is last in the order of service gives its blocks back and is computed again later: the first in order can
always go on, so nothing waits for ever.
"""

from __future__ import annotations

import logging
import time
from bisect import insort
from typing import Any, NamedTuple

import numpy as np

from forebay import AbortRequest, EmbeddingBatch, GenerateRequest, GenerationBatch
from forebay_engine.arrays import Floats
from forebay_engine.backend import BLOCK_TOKENS, Backend, StepOutput
from forebay_engine.kv_pool import BlockPool
from forebay_engine.logprobs import TokenScore, score
from forebay_engine.meter import Meter
from forebay_engine.pieces import Piece, step_input
from forebay_engine.refusals import refuse
from forebay_engine.rows import StepRows, Vectors
from forebay_engine.stop_texts import Decode
from forebay_engine.task import Task, abort_reason, make_task

log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """The scheduler's bounds: tokens of the context, requests at once, prompt tokens a step; `eos` ends an answer."""

    context: int
    running: int
    prefill: int
    eos: frozenset[int] = frozenset()


class Scheduler:
    """The requests of one engine. An `Engine`: `add` and `abort` between steps."""

    def __init__(self, backend: Backend, limits: Limits, decode: Decode | None = None) -> None:
        """With `decode` (ids to text) the engine looks for stop strings itself; without, the front does."""
        self.backend = backend
        self.decode = decode
        self.limits = limits
        self.pool = BlockPool(backend.blocks, BLOCK_TOKENS)
        self.meter = Meter()
        self.retracted = 0
        """Times that a request had to give its blocks back."""
        self._serial = 0
        self._waiting: list[Task] = []
        self._running: list[Task] = []
        self._by_rid: dict[str, Task] = {}
        self._ended: list[tuple[Task, dict[str, Any]]] = []
        """Aborted tasks whose last row goes out with the next step."""
        self._vectors = Vectors()
        """Finished embeddings: rid, vector, prompt tokens."""
        self.paused = False

    def patience(self) -> float | None:
        """0 when a step is due, None when there is nothing to do."""
        due = self._ended or (not self.paused and (self._waiting or self._running))
        return 0.0 if due else None

    def pause(self, mode: str) -> None:
        """Compute nothing until `resume`; `retract` gives the cache back, so that everything is computed anew."""
        self.paused = True
        while mode == "retract" and self._running:
            self._retract(self._running[-1])

    def resume(self) -> None:
        """Go on."""
        self.paused = False

    def add(self, request: GenerateRequest) -> None:
        """Take a request. Raises `RequestError` for one that cannot be served."""
        limits, capacity = self.limits, self.pool.capacity
        refuse(
            request,
            vocab=self.backend.vocab_size,
            context=limits.context,
            capacity=capacity,
            engine_stops=self.decode is not None,
        )
        if request.rid in self._by_rid:
            log.warning("the request %s came twice: the second is dropped", request.rid)
            return
        room = min(limits.context, capacity) - len(request.input_ids)
        asked = request.sampling.max_new_tokens
        task = make_task(
            request,
            self._serial,
            limit=room if asked is None else min(asked, room),
            eos=limits.eos,
            vocab=self.backend.vocab_size,
            decode=self.decode,
        )
        self._serial += 1
        self._by_rid[request.rid] = task
        insort(self._waiting, task, key=lambda other: other.rank)

    def abort(self, abort: AbortRequest) -> None:
        """End one request, or all of them. After the reason `user` a last row follows; else nothing more is sent."""
        named = self._by_rid.get(abort.rid)
        for task in list(self._by_rid.values()) if abort.abort_all else [named] if named else []:
            waiting = task in self._waiting and task.produced == 0
            self._leave(task)
            if abort.reason == "user":
                text = "Abort in waiting queue" if waiting and abort.message == "Aborted" else abort.message
                self._ended.append((task, abort_reason(text)))

    def step(self) -> GenerationBatch | None:
        """One inference; the rows of the requests that have something to say."""
        rows = StepRows()
        for task, reason in self._ended:
            rows.add(task.rid, task.prompt, None, reason)
        self._ended.clear()
        if self.paused:
            return rows.batch()
        self._admit()
        pieces = self._with_blocks(self._plan())
        if pieces:
            self._compute(pieces, rows)
        return rows.batch()

    def embeddings(self) -> EmbeddingBatch | None:
        """The vectors that the steps since the last call have finished: the mean of the prompt's last hidden states."""
        return self._vectors.take()

    def flush(self) -> tuple[bool, str]:
        """Empty the cache: refused while requests are pending. (Success, a sentence about it.)"""
        if self._by_rid:
            running, waiting = len(self._running), len(self._waiting)
            return False, f"Cache not flushed: {running} requests are running and {waiting} are waiting."
        return True, "Cache flushed."

    def state(self) -> dict[str, Any]:
        """Facts about the moment, by the names that `/server_info` and `/v1/loads` use."""
        used = self.pool.capacity - self.pool.free * BLOCK_TOKENS
        return {
            "num_running_reqs": len(self._running),
            "num_waiting_reqs": len(self._waiting),
            "num_used_tokens": used,
            "max_total_num_tokens": self.pool.capacity,
            "max_running_requests": self.limits.running,
            "token_usage": round(used / self.pool.capacity, 4),
            "gen_throughput": round(self.meter.speed(time.monotonic()), 2),
            "total_prompt_tokens": self.meter.prompt_tokens,
            "total_output_tokens": self.meter.output_tokens,
            "total_steps": self.meter.steps,
            "total_retractions": self.retracted,
        }

    # ---- who runs

    def _admit(self) -> None:
        """Let waiting requests run, in order, while their tokens fit and each running one can still grow by a block."""
        while self._waiting and len(self._running) < self.limits.running:
            task = self._waiting[0]
            needed = self.pool.missing(task.blocks, len(task.tokens))
            spare = len(self._running) + 1 if self._running else 0
            if needed + spare > self.pool.free or not self.pool.grow(task.blocks, len(task.tokens)):
                return
            self._waiting.pop(0)
            insort(self._running, task, key=lambda other: other.rank)

    def _plan(self) -> list[Piece]:
        """The pieces of this step: all decoding requests, then prompts in order of service within the budget."""
        pieces = [Piece(task, task.cached, len(task.tokens)) for task in self._running if task.decoding]
        budget = max(BLOCK_TOKENS, self.limits.prefill - len(pieces))
        for task in self._running:
            if task.decoding or not budget:
                continue
            size = min(budget, len(task.tokens) - task.cached)
            pieces.append(Piece(task, task.cached, task.cached + size))
            budget -= size
        return pieces

    def _with_blocks(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces for which the cache has blocks, after taking them in order of service."""
        for piece in sorted(pieces, key=lambda item: item.task.rank):
            task = piece.task
            while task in self._running and not self.pool.grow(task.blocks, piece.end):
                self._retract(self._running[-1])
        return [piece for piece in pieces if piece.task.blocks]

    def _retract(self, task: Task) -> None:
        """Take a running task's blocks; it waits again, and its tokens are computed again later."""
        self.retracted += 1
        self._running.remove(task)
        self.pool.release(task.blocks)
        task.cached = 0
        insort(self._waiting, task, key=lambda other: other.rank)

    def _leave(self, task: Task) -> None:
        """Forget a task that has ended."""
        for group in (self._running, self._waiting):
            if task in group:
                group.remove(task)
        self.pool.release(task.blocks)
        del self._by_rid[task.rid]

    # ---- one inference

    def _compute(self, pieces: list[Piece], rows: StepRows) -> None:
        step, wanted = step_input(pieces)
        try:
            output = self.backend.run(step)
        except RuntimeError:
            log.exception("a step of %d requests failed; they end with an error", len(pieces))
            for piece in pieces:
                self._end(piece.task, abort_reason("the engine failed in a step of this request", 500), rows)
            return
        at_logits = at_hidden = 0
        for piece, (logits, hidden) in zip(pieces, wanted, strict=True):
            result = StepOutput(
                output.logits[at_logits : at_logits + logits], output.hidden[at_hidden : at_hidden + hidden]
            )
            at_logits, at_hidden = at_logits + logits, at_hidden + hidden
            self._take(piece, result, rows)
        prompt_tokens = sum(max(0, min(end, task.prompt) - start) for task, start, end in pieces)
        self.meter.step(time.monotonic(), prompt_tokens, rows.tokens)

    def _take(self, piece: Piece, result: StepOutput, rows: StepRows) -> None:
        """The results of one piece: prompt scores, hidden rows, and a new token when the piece reaches the end."""
        task = piece.task
        task.cached = piece.end
        for position, row in zip(task.scored_positions(piece.start, piece.end), result.logits, strict=False):
            assert task.scores is not None
            task.scores.scores.append(score(row, task.tokens[position + 1], task.request))
        if len(result.hidden):
            task.keep_hidden(result.hidden)
            task.hidden_from = piece.end
        if not piece.last:
            return
        if task.request.embedding:
            assert task.pooled is not None
            self._vectors.add(task.rid, task.pooled / np.float32(task.prompt), task.prompt)
            self._leave(task)
            return
        if task.limit == 0:
            found = score(result.logits[-1], 0, task.request) if task.scores_next else None
            self._end(task, {"type": "length", "length": 0}, rows, found)
            return
        self._extend(task, result.logits[-1], rows)

    def _extend(self, task: Task, logits: Floats, rows: StepRows) -> None:
        """Choose the next token of a task and report it."""
        try:
            token = task.chooser.choose(logits)
        except FloatingPointError as error:
            self._end(task, abort_reason(str(error), 500), rows)
            return
        found = score(logits, token, task.request) if task.request.return_logprob else None
        task.tokens.append(token)
        reason = task.end_of(token)
        if reason is not None:
            self._leave(task)
        _report(task, rows, token, reason, found)

    def _end(self, task: Task, reason: dict[str, Any], rows: StepRows, following: TokenScore | None = None) -> None:
        """End a task without a new token; `following`: what the given ids would have had there."""
        self._leave(task)
        _report(task, rows, None, reason, following)


def _report(
    task: Task, rows: StepRows, token: int | None, reason: dict[str, Any] | None, found: TokenScore | None
) -> None:
    """Add the row of a task, with everything that it has collected since its last row."""
    hidden = np.concatenate(task.hidden) if task.hidden else None
    rows.add(task.rid, task.prompt, token, reason, score=found, prompt_scores=task.scores, hidden=hidden)
    task.scores = None
    task.hidden = []
