"""The life of a process: the number that names it, and its end when the supervisor dies, however that happens."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping

from forebay.errors import StartError

PARENT_PID = "FOREBAY_PARENT_PID"
"""Set by a supervisor for the processes that it starts; unset under systemd, which looks after its own."""
PR_SET_PDEATHSIG = 1


def parent_pid(environ: Mapping[str, str]) -> int | None:
    """The supervisor's pid as it was told to us, or None when nobody supervises this process."""
    text = environ.get(PARENT_PID, "")
    return int(text) if text.isdecimal() else None


def die_with_parent(expected_ppid: int | None) -> None:
    """Ask for SIGTERM when the parent dies; None: do nothing. Call it once, early, before any thread is made.

    Raises `StartError` when the parent is gone already. The kernel means the parent's *thread* that started us: a
    supervisor starts its processes from its main thread.
    """
    if expected_ppid is None:
        return
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
            raise StartError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != expected_ppid:
        raise StartError(f"the supervisor (process {expected_ppid}) is gone")


def new_incarnation() -> int:
    """A number that names one life of a process, larger than those of the lives before it: nanoseconds since 1970.

    Who has met a life refuses what older ones have left (`forebay.wire.lives`). When the wall clock was set back in
    between, the order is wrong until that life has greeted; then a process may see an error, and never a hang.
    """
    return time.time_ns()
