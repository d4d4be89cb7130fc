"""Passes on what child processes write, whole lines at a time, without ever waiting for a reader that is stuck.

A stopped terminal or a hanging log service must not keep the supervisor from its work, so it writes only what fits, and
drops lines, counted, once a megabyte waits. No threads: when a supervisor with threads is killed, the kernel hands its
children from thread to thread and signals them anew each time, which they would take for a second stop signal.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque

LARGEST_BACKLOG = 1 << 20
ATOMIC = 4096
"""Bytes that a pipe which is writable takes without blocking (PIPE_BUF)."""
LAST_LINES = 8
LONGEST_LINE = 1 << 16
RETRY = 0.1
"""Seconds between attempts while the reader is stuck."""


class Relay:
    """The way to one descriptor (standard error), shared by all children."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._backlog = bytearray()
        self._dropped = 0

    @property
    def waiting(self) -> bool:
        """Whether something has not been written yet: call `flush` again after `RETRY` seconds."""
        return bool(self._backlog)

    def put(self, lines: bytes) -> None:
        """Take whole lines; they are written as far as the reader takes them now."""
        if len(self._backlog) + len(lines) > LARGEST_BACKLOG:
            self._dropped += lines.count(b"\n")
        else:
            self._backlog += lines
        self.flush()

    def flush(self) -> None:
        """Write what fits now."""
        while self._backlog and self._writable():
            try:
                written = os.write(self._descriptor, self._backlog[:ATOMIC])
            except OSError:  # nobody will ever read it: the processes live on
                self._backlog.clear()
                return
            del self._backlog[:written]
            if self._dropped and not self._backlog:
                self._backlog += b"forebay: %d log lines were dropped, their reader was stuck\n" % self._dropped
                self._dropped = 0

    def finish(self, seconds: float) -> None:
        """Write the rest, for at most this long."""
        deadline = time.monotonic() + seconds
        self.flush()
        while self._backlog and time.monotonic() < deadline:
            time.sleep(0.01)
            self.flush()

    def _writable(self) -> bool:
        return bool(select.select([], [self._descriptor], [], 0)[1])


class Lines:
    """The reading end of one child's output: cut into whole lines, the last ones remembered."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: a pipe, which its owner closes."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.closed = False
        """Whether the child has closed its end."""
        self._partial = b""
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> tuple[bytes, bool]:
        """Whole lines that have come (one read's worth), and whether there may be more. Never waits."""
        try:
            data = os.read(self._descriptor, LONGEST_LINE)
        except BlockingIOError:
            return b"", False
        self.closed = not data
        text = self._partial + data
        cut = text.rfind(b"\n") + 1 if data and len(text) < LONGEST_LINE else len(text)
        lines, self._partial = text[:cut], text[cut:]
        if lines and not lines.endswith(b"\n"):
            lines += b"\n"
        self._last.extend(line.decode("utf-8", "replace") for line in lines[-LONGEST_LINE:].splitlines())
        return lines, bool(data)

    def last(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._last)
