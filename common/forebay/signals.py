"""The supervisor's signals as something to select on: the handler does nothing, the number arrives on a socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from types import FrameType, TracebackType
from typing import Any, Self

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """While entered, SIGTERM, SIGINT and SIGHUP only make `fileno` readable; before and after, all is as it was.

    A SIGHUP that is ignored when we start (nohup) stays ignored; SIGINT does not, since shells ignore it for every
    command with & in a script. With `children`, the end of a child makes it readable, too. Enter it in the main thread.
    """

    def __init__(self, *, children: bool = False) -> None:
        self._numbers = (*STOP, signal.SIGCHLD) if children else STOP
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._old_fd = -1

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[int]:
        """The stop signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            return [number for number in self._reader.recv(4096) if number in STOP]
        return []

    def __enter__(self) -> Self:
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _nothing)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        self._reader.close()
        self._writer.close()


def has_terminal() -> bool:
    """Whether this process has a controlling terminal; after it was closed, which comes as a SIGHUP, it has none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor carries the news."""
