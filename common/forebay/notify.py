"""The systemd notify protocol, both ends: a process says READY, a supervisor (ours or systemd) listens.

Datagrams of `KEY=value` lines on a unix socket whose path stands in NOTIFY_SOCKET. Who sent one is told by the
kernel (SCM_CREDENTIALS), not by the sender.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from forebay.errors import StartError
from forebay.rundir import clear_socket

LARGEST = 16_384
"""Bytes of a datagram that are read; a longer status text is cut."""
CREDENTIALS = struct.Struct("3i")


class Notifier:
    """The sending end. Without an address every call does nothing, so a process need not know who started it."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        """`address`: a path, or a name in the abstract namespace that starts with @. `watchdog`: see the property."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.watchdog_interval = watchdog
        """Seconds between two calls of `watchdog`: half of what the service manager allows; None: it expects none."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Notifier:
        """Take NOTIFY_SOCKET and, if it is meant for this process, WATCHDOG_USEC. A bad number counts as unset."""
        usec = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        wanted = mine and usec.isdecimal() and int(usec) > 0
        return cls(environ.get("NOTIFY_SOCKET") or None, int(usec) / 2e6 if wanted else None)

    def ready(self, status: str = "") -> bool:
        """This process serves now."""
        return self.send(READY="1", **({"STATUS": status} if status else {}))

    def stopping(self) -> bool:
        """An ordered stop has begun."""
        return self.send(STOPPING="1")

    def status(self, text: str) -> bool:
        """One line for the operator (`systemctl status` shows it)."""
        return self.send(STATUS=text)

    def watchdog(self) -> bool:
        """This process is alive and its loop turns."""
        return self.send(WATCHDOG="1")

    def send(self, **fields: str) -> bool:
        """Send some fields; False when nobody listens (never an error: the service matters more than its report)."""
        if self._address is None:
            return False
        text = "\n".join(f"{key}={value.replace(chr(10), ' | ')}" for key, value in fields.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(text.encode()[:LARGEST], self._address)
            except OSError:
                return False
        return True


class Notice(NamedTuple):
    """What one datagram said, and the process that sent it."""

    pid: int
    fields: dict[str, str]

    @property
    def ready(self) -> bool:
        return self.fields.get("READY") == "1"


class NotifyInbox:
    """The receiving end, on a unix socket in the run folder. Register `fileno` with a selector."""

    def __init__(self, path: Path) -> None:
        """Bind at `path`, in place of a dead socket; raises `StartError` when the path is taken or cannot be bound."""
        clear_socket(path, socket.SOCK_DGRAM)
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            self._socket.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            self._socket.close()
            raise StartError(f"cannot listen on {path}: {error}") from error

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[Notice]:
        """Everything that has come; never waits."""
        notices: list[Notice] = []
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(LARGEST, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                return notices
            notices.append(Notice(_sender(ancillary), parse(data)))

    def close(self) -> None:
        """Close and remove the socket."""
        self._socket.close()
        self.path.unlink(missing_ok=True)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The pid that the kernel vouches for, or 0."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= CREDENTIALS.size:
            return int(CREDENTIALS.unpack_from(data)[0])
    return 0


def parse(data: bytes) -> dict[str, str]:
    """The fields of one datagram; lines without = are left out, as in systemd."""
    lines = data.decode("utf-8", "replace").split("\n")
    return {key: value for key, sep, value in (line.partition("=") for line in lines) if sep}
