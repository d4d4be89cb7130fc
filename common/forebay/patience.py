"""How often and how fast a process is restarted: growing delays, and an end when it dies too often. Pure."""

from __future__ import annotations

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0


class Patience:
    """The restarts of one process: at most `limit` within `window` seconds."""

    def __init__(self, limit: int, window: float) -> None:
        self._limit = limit
        self._window = window
        self._restarts: list[float] = []

    def next_delay(self, now: float) -> float | None:
        """Seconds to wait before the restart that is due at `now` (0.1, doubling to 5); None: it died too often."""
        self._restarts = [then for then in self._restarts if now - then < self._window]
        if len(self._restarts) >= self._limit:
            return None
        self._restarts.append(now)
        return float(min(FIRST_DELAY * 2 ** (len(self._restarts) - 1), LONGEST_DELAY))
