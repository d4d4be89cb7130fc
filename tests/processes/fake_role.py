"""A process for the tests of the supervisor: says READY, fails, hangs or drains as its arguments tell it.

Usage: fake_role.py EVENTS NAME [ready] [fail] [drain=SECONDS] [stubborn] [ready-once=FILE] [orphan] [lifetime]
It appends `NAME started PID` and `NAME stopping` to the file EVENTS. Imports little: each test starts several.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType


def main(events: str, name: str, *words: str) -> int:
    options = dict(word.partition("=")[::2] for word in words)

    def tell(what: str) -> None:
        with open(events, "a") as file:
            file.write(f"{name} {what}\n")

    def stop(number: int, frame: FrameType | None) -> None:
        tell("stopping")
        if "stubborn" not in options:
            time.sleep(float(options.get("drain", 0)))
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if "lifetime" in options:
        from forebay.lifetime import die_with_parent, parent_pid

        die_with_parent(parent_pid(os.environ))
    tell(f"started {os.getpid()}")
    if "orphan" in options:
        left = subprocess.Popen(["sleep", "60"])
        tell(f"started {left.pid}")
    if "fail" in options:
        print("the first of the last lines\nno tokenizer.json in /nowhere", file=sys.stderr)
        return 3
    flag = options.get("ready-once")
    if "ready" in options or (flag is not None and not os.path.exists(flag)):
        if flag is not None:
            open(flag, "w").close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
