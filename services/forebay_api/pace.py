"""How long streams wait between two tokens, measured once a step: no token costs a call.

A frame of a detokenizer holds a row for every stream that has got tokens in one step. The time since its previous frame
is what each row that was there before has waited.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from forebay.counters import Histogram
from forebay.wire.deltas import Deltas
from forebay_api.calls import Choice


class Pace:
    """The measure of one api process; without a histogram it only tells the time."""

    def __init__(self) -> None:
        self.histogram: Histogram | None = None
        self.unmeasured = 0
        """Running calls that want to be left out of the metrics."""
        self.last: dict[int, float] = {}
        """When each detokenizer's latest frame with text came."""

    def step(self, deltas: Deltas, rows: Sequence[Choice | None], now: float) -> None:
        """Note one frame with text, come at `now` (`time.perf_counter`)."""
        before = self.last.get(deltas.source)
        self.last[deltas.source] = now
        if before is None or self.histogram is None:
            return
        lens = deltas.lens
        if lens is None:
            going = tokens = len(rows) - len(deltas.starts)
        else:
            going = len(rows) - len(deltas.starts)
            tokens = sum(lens) - sum(lens[row] for row, _, _ in deltas.starts)
        if self.unmeasured and rows:
            share = sum(1 for choice in rows if choice is None or choice.call.plan.log_metrics) / len(rows)
            going, tokens = round(going * share), round(tokens * share)
        if going > 0 and tokens > 0:
            self.histogram.observe((now - before) * going / tokens, tokens)

    def plain(self, source: int, rows: Sequence[Choice | None], now: float) -> None:
        """Note a steady frame: one token for each row, and none of them is new."""
        before = self.last.get(source)
        self.last[source] = now
        if before is None or self.histogram is None:
            return
        tokens = len(rows)
        if self.unmeasured:
            tokens = sum(1 for choice in rows if choice is None or choice.call.plan.log_metrics)
        if tokens:
            self.histogram.observe(now - before, tokens)


clock = time.perf_counter
