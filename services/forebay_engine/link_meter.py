"""A `Front` that counts what it costs its engine: CPU time of the engine's thread in `drain` and the batch pushes."""

from __future__ import annotations

import time
from typing import Any

from forebay import EmbeddingBatch, Front, GenerationBatch


class LinkMeter:
    """The part of `Front` that a loop uses. Two readings of the thread's clock are added to a call, about 0.5 us."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._spent_ns = 0
        self.wait_ingress = front.wait_ingress
        self.push_error = front.push_error
        self.push_control_output = front.push_control_output

    @property
    def cpu_s(self) -> float:
        """Seconds so far."""
        return self._spent_ns / 1e9

    def drain(self) -> list[Any]:
        """`Front.drain`."""
        begin = time.thread_time_ns()
        entries = self._front.drain()
        self._spent_ns += time.thread_time_ns() - begin
        return entries

    def push_generation(self, batch: GenerationBatch) -> bool:
        """`Front.push_generation`."""
        begin = time.thread_time_ns()
        sent = self._front.push_generation(batch)
        self._spent_ns += time.thread_time_ns() - begin
        return sent

    def push_embeddings(self, batch: EmbeddingBatch) -> bool:
        """`Front.push_embeddings`."""
        begin = time.thread_time_ns()
        sent = self._front.push_embeddings(batch)
        self._spent_ns += time.thread_time_ns() - begin
        return sent
