"""Counts the engine's work and tells its recent speed. The clock is passed in."""

from __future__ import annotations

from collections import deque

WINDOW = 5.0
"""Seconds over which the speed is averaged."""


class Meter:
    """Totals since the start, and output tokens a second over the last seconds."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.steps = 0
        self._recent: deque[tuple[float, int]] = deque()

    def step(self, now: float, prompt_tokens: int, output_tokens: int) -> None:
        """Note one step that ended at `now` (seconds of a steady clock)."""
        self.steps += 1
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self._recent.append((now, output_tokens))
        self._forget(now)

    def speed(self, now: float) -> float:
        """Output tokens a second over the last seconds."""
        self._forget(now)
        return sum(tokens for _, tokens in self._recent) / WINDOW

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - WINDOW:
            self._recent.popleft()
