"""What the connections of one api process may do: how many, how slow, how big a head; and who looks after them.

One sweep over all connections, twice a second, finds those that are too slow and streams that have been silent: no
timer or task for a connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from forebay_api.connection import Connection

SWEEP_EVERY = 0.5
RESERVE = 64
"""File descriptors that connections never get: for refusing further ones, and for files and links."""
MOST_DESCRIPTORS = 1 << 20
LINGER_SECONDS = 2.0
"""How long we still read, and throw away, from a client that was refused while it was sending."""
MIN_BODY_RATE = 1024
"""Bytes a second."""

log = logging.getLogger("forebay.api")


@dataclass(slots=True)
class Door:
    """The limits of all connections, and the connections themselves."""

    max_connections: int
    max_header_bytes: int
    header_timeout: float
    body_timeout: float
    ping_interval: float | None = None
    last_call: bool = False
    """The process stops: each connection closes after the answer to its present request."""
    direct: Callable[[RequestResponseCycle], bool] | None = None
    """Takes a request whose body is complete, if it is one that needs no task (`forebay_api.direct`)."""
    refused: int = 0
    """Connections that were turned away because there were too many."""
    connections: set[Connection] = field(default_factory=set)

    @classmethod
    def of(cls, settings: Settings, room: int) -> Door:
        """The limits of these settings; `room`: connections that the file descriptors allow."""
        return cls(
            max_connections=min(room, settings.max_connections or room),
            max_header_bytes=settings.max_header_bytes,
            header_timeout=settings.header_timeout,
            body_timeout=settings.body_timeout,
            ping_interval=settings.sse_ping_interval,
        )

    def sweep(self, now: float) -> None:
        """Look at every connection once; `now` is the event loop's time."""
        for connection in list(self.connections):
            connection.look(now)

    def close_idle(self) -> None:
        """Close the connections that have had their answers, and the others after theirs."""
        for connection in list(self.connections):
            connection.leave()

    def sweep_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sweep from now on, for as long as the loop runs."""
        every = SWEEP_EVERY if self.ping_interval is None else min(SWEEP_EVERY, self.ping_interval / 4)
        self.sweep(loop.time())
        loop.call_later(every, self.sweep_forever, loop)


def descriptors_for_clients() -> int:
    """Raise the soft limit of file descriptors to the hard one; how many connections there is room for.

    Call it once the process has opened what it needs itself.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY:
        soft = MOST_DESCRIPTORS
    elif soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    room = max(1, soft - len(os.listdir("/proc/self/fd")) - RESERVE)
    log.info("room for %d client connections (%d file descriptors)", room, soft)
    return room
