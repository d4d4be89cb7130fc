"""The sending end towards one peer: a PUSH socket, its monitor, and the account of what is on its way."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from forebay.backlog import LINK_BYTES, Backlog
from forebay.gatekeeper import FAILURES
from forebay.keys import Keys
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.messages import Mark

QUEUE_FRAMES = 100_000
"""Frames a link or inbox holds before it is full (each side): so many that the bound in bytes comes first."""
HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 10_000
RECONNECT_MS = 20
RECONNECT_MAX_MS = 500
LINGER_MS = 500
TURNED_AWAY = 3
"""Connections in a row that end before they stand: by then it is no accident."""

# Plain ints: the enum's `|` costs microseconds a call on the token path.
NOBLOCK = int(zmq.NOBLOCK)
EVENTS, READABLE, WRITABLE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.POLLOUT)
_UP = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_DOWN = int(zmq.EVENT_DISCONNECTED)

log = logging.getLogger("forebay.links")


class Link:
    """The sending end towards one peer."""

    __slots__ = (
        "_failed",
        "_me",
        "_monitor",
        "_monitored",
        "_send",
        "_socket",
        "backlog",
        "peer",
        "refused",
        "sent",
        "sent_bytes",
        "up",
    )

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        me: Peer,
        peer: Peer,
        address: str,
        keys: Keys | None = None,
        limit: int = LINK_BYTES,
    ) -> None:
        """`limit`: bytes on their way from which on frames are refused."""
        socket = context.socket(zmq.PUSH)
        limit_queues(socket)
        if keys is not None and is_tcp(address):
            keys.use(socket)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self._monitor: Any = socket.get_monitor_socket(_UP | _DOWN | FAILURES)
        self._monitored: Callable[[int], Any] = self._monitor.get
        self._monitored(EVENTS)  # ZeroMQ signals only a reader that has once found nothing
        socket.connect(address)
        self._socket = socket
        self._send = socket.send
        self._me = me
        self.peer = peer
        self.backlog = Backlog(int.from_bytes(os.urandom(7)), limit)
        self.up = False
        self._failed = 0
        """Connections since the last one that stood."""
        self.sent = self.sent_bytes = self.refused = 0

    def send(self, frame: bytes, must: bool = False) -> bool:
        """Hand one frame over; False when the peer is away or its queue is full. Never blocks.

        `must`: it must reach a peer that lives, however many bytes wait for it.
        """
        if self.sent_bytes >= self.backlog.attend_at and not self._has_room() and not must:
            self.refused += 1
            return False
        try:
            self._send(frame, NOBLOCK)
        except zmq.Again:
            if not self._send_again(frame):
                self.refused += 1
                return False
        self.sent += 1
        self.sent_bytes += len(frame)
        return True

    def _has_room(self) -> bool:
        """Send a mark if one is due; whether the peer has taken enough of what it was sent."""
        backlog, sent, now = self.backlog, self.sent_bytes, time.monotonic()
        mark = Mark(*self._me, backlog.name, sent)
        if backlog.wants_mark(sent, now) and self.send_own(control.encode_mark(mark)):
            backlog.marked(sent, now)
        return not backlog.full(sent)

    def send_own(self, frame: bytes) -> bool:
        """Hand over a mark, also when the link is full: two full links wait for each other's marks."""
        try:
            self._send(frame, NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _send_again(self, frame: bytes) -> bool:
        """ZeroMQ hears of a new connection, or of room in a queue, once a millisecond at most, unless it is asked."""
        if not int(self._socket.get(EVENTS)) & WRITABLE:
            return False
        try:
            self._send(frame, NOBLOCK)
        except zmq.Again:
            return False
        return True

    def changes(self) -> list[bool]:
        """What happened to the connection since the last call, in order: True up, False down."""
        out = []
        while self._monitored(EVENTS) & READABLE:  # `poll(0)` takes half as long again
            event = int(recv_monitor_message(self._monitor)["event"])
            up = event == _UP
            if up != self.up and event in (_UP, _DOWN):
                self.up = up
                self._failed = 0
                self.backlog.broken(self.sent_bytes)
                out.append(up)
            elif event == _DOWN:
                self._turned_away()
        return out

    def _turned_away(self) -> None:
        self._failed += 1
        if self._failed == TURNED_AWAY:
            log.warning("%s refuses our connections: it has other keys or runs as another user", self.peer)

    def monitor(self) -> Any:
        """The socket that is readable when `changes` has something to say."""
        return self._monitor

    def close(self, linger_ms: int) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)


def is_tcp(address: str) -> bool:
    """Whether an address leads out of the run folder."""
    return address.startswith("tcp://")


def limit_queues(socket: zmq.Socket[bytes]) -> None:
    """What holds for every socket between processes: queues, heartbeats, how long it lingers."""
    socket.setsockopt(zmq.SNDHWM, QUEUE_FRAMES)
    socket.setsockopt(zmq.RCVHWM, QUEUE_FRAMES)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
