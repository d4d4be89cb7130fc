"""What a test or a benchmark starts ends with it, however that comes to its end: by SIGKILL, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

CHECKED = '[ "$PPID" = "$0" ] && exec "$@"'
"""Our end before the kernel was told to report it shows in the parent: then nothing is started."""


def tied(command: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The command as one that the kernel sends SIGTERM when the thread that started it has ended.

    For `Popen` in this process, from a thread that lives as long. The process keeps its pid: it is the command in the
    end, after 2 ms. Where there is no Linux, the command as it is.
    """
    words = [os.fspath(word) for word in command]
    if sys.platform != "linux":
        return words
    return ["setpriv", "--pdeathsig", "TERM", "sh", "-c", CHECKED, str(os.getpid()), *words]
