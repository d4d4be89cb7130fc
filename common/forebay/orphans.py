"""What process 1 owes: in a container it becomes the parent of every orphan, and must take their ends."""

from __future__ import annotations

import os
from collections.abc import Container


def is_process_one() -> bool:
    """Whether we inherit orphans: process 1 of a container, or of any other PID namespace."""
    return os.getpid() == 1


def reap_orphans(own: Container[int]) -> None:
    """Take the ends of all processes but `own`, which their `Child` takes; never waits.

    One of `own` that has just ended hides those behind it. Its pidfd wakes the supervisor, which then calls us again.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return
        os.waitpid(ended.si_pid, 0)
