"""The sockets of one process: its inbox and a link to every peer, with limits, liveness and greetings.

Sends never block. A link whose peer is away refuses frames (`IMMEDIATE`), so that nothing is queued for a process
that may come back as another one; a link whose queue is full, by frames or by bytes (`backlog`), refuses them too. The
caller decides what that means. Liveness is the connection itself: a socket monitor on every link, and ZeroMQ
heartbeats from its I/O thread, so a process that is only busy is not taken for dead.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import zmq

from forebay.backlog import LINK_BYTES
from forebay.errors import LinkError, PeerError, StartError
from forebay.gatekeeper import Gatekeeper
from forebay.keys import Keys
from forebay.link import EVENTS, LINGER_MS, NOBLOCK, READABLE, Link, is_tcp, limit_queues
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.frames import Buffer, Kind, kind_of
from forebay.wire.messages import Mark

FLOW_MS = 100
"""How long `Links.next` waits: longer than the usual step of an engine."""
_MARK = int(Kind.MARK)
"""The first of the kinds that links send each other for themselves."""
_OWN = bytes([_MARK])


class Links:
    """The inbox of `me` and its links to `peers`.

    `greet` makes the Hello frame that is sent on a link each time it comes up.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        me: Peer,
        address_of: Callable[[Peer], str],
        peers: Iterable[Peer],
        greet: Callable[[], bytes],
        keys: Keys | None = None,
        limit: int = LINK_BYTES,
    ) -> None:
        """`keys`: what the processes with TCP addresses show each other. `limit`: see `Link`. Raises `StartError` for
        TCP without keys."""
        self.me = me
        self._greet = greet
        self._closed = False
        self.received = self.received_bytes = 0
        address = address_of(me)
        self._address = address
        addresses = {peer: address_of(peer) for peer in peers}
        if keys is None and any(map(is_tcp, (address, *addresses.values()))):
            raise StartError(f"{me} has TCP links and no keys: set keys_dir (`forebay keys DIR` makes it)")
        self._gatekeeper: Gatekeeper | None = None
        self._inbox = inbox = self._bound(context, keys)
        inbox.setsockopt(zmq.RCVTIMEO, FLOW_MS)
        self._recv = inbox.recv
        self._state: Callable[[int], Any] = inbox.get
        self.readable()  # for the same reason as in `Link`
        self.links = {peer: Link(context, me, peer, where, keys, limit) for peer, where in addresses.items()}
        self._strangers: set[Peer] = set()
        """Peers whose link is up and that have not been greeted."""
        self.stirred = True
        """Whether a connection may have changed since the last call of `changes`."""
        self._inbox_fd = int(inbox.getsockopt(zmq.FD))
        self._monitor_fds = frozenset(int(link.monitor().getsockopt(zmq.FD)) for link in self.links.values())
        # The plain descriptors: zmq_poll asks every socket on every call, 20 us more a wake-up with four links.
        self._sleeper = select.poll()
        for fd in (self._inbox_fd, *self._monitor_fds):
            self._sleeper.register(fd, select.POLLIN)

    def _bound(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None) -> zmq.Socket[bytes]:
        """The inbox, open to our own user alone (ipc) or to holders of the keys (TCP)."""
        inbox: zmq.Socket[bytes] = context.socket(zmq.PULL)
        limit_queues(inbox)
        try:
            if keys is not None and is_tcp(self._address):
                keys.guard(inbox)
                self._gatekeeper = Gatekeeper(context, keys, inbox)
            else:
                # The kernel tells who connects (SO_PEERCRED); the folder's mode 0700 is the first wall.
                inbox.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
            inbox.bind(self._address)
        except zmq.ZMQError as error:
            self._close_inbox(inbox)
            raise StartError(f"{self.me} cannot bind its inbox at {self._address}: {error}") from error
        return inbox

    def _close_inbox(self, inbox: zmq.Socket[bytes]) -> None:
        if self._gatekeeper is not None:
            self._gatekeeper.close()
        inbox.close(0)

    def receive(self) -> bytes | None:
        """The next frame of the inbox, or None. Never waits."""
        return self._next(NOBLOCK)

    def next(self) -> bytes | None:
        """The next frame of the inbox, waited for at most `FLOW_MS`; then None. Lets go of the interpreter lock."""
        return self._next(0)

    def _next(self, flags: int) -> bytes | None:
        while True:
            try:
                frame = self._recv(flags)
            except zmq.Again:
                return None
            self.received += 1
            self.received_bytes += len(frame)
            if frame[:1] < _OWN or not self.is_own(frame):
                return frame

    def is_own(self, frame: Buffer) -> bool:
        """Take a frame in that is for the links themselves; False for any other."""
        try:
            mark = control.decode_taken(frame) if kind_of(frame) is Kind.TAKEN else control.decode_mark(frame)
        except PeerError:
            return False
        link = self.links.get(Peer(mark.role, mark.index))
        if link is not None and frame[0] == _MARK:
            link.send_own(control.encode_taken(Mark(*self.me, mark.link, mark.sent)))
        elif link is not None:
            link.backlog.returned(mark.link, mark.sent, link.sent_bytes)
        return True

    def readable(self) -> bool:
        """Whether a frame waits for `receive`."""
        return bool(self._state(EVENTS) & READABLE)

    @property
    def raw_receive(self) -> Callable[[], bytes]:
        """What `next` calls; raises `zmq.Again`. For a loop that counts by itself and tells `received_elsewhere`, and
        asks `is_own` about frames that it does not know."""
        return self._recv

    def received_elsewhere(self, frames: int, size: int) -> None:
        """Count frames that came by `raw_receive`, and their bytes."""
        self.received += frames
        self.received_bytes += size

    def views(self, most: int) -> Iterator[memoryview]:
        """The frames that wait, at most so many, without a copy of each: 0.2 ms less for 2 MB of prompt ids, 3 ms for
        32 MB. Never waits. Asks the socket once, not for each frame (1.4 us)."""
        if not self._state(EVENTS) & READABLE:
            return
        receive, frames, size = self._recv, 0, 0
        try:
            while frames < most:
                view: memoryview = memoryview(receive(NOBLOCK, False))  # type: ignore[arg-type]
                frames += 1
                size += len(view)
                if not len(view) or view[0] < _MARK or not self.is_own(view):
                    yield view
        except zmq.Again:
            return
        finally:
            self.received += frames
            self.received_bytes += size

    def send(self, peer: Peer, frame: bytes) -> bool:
        """Hand a frame to a peer; False when it is away, its queue is full, or there is no link to it. Never blocks."""
        if self._closed:
            raise LinkError(f"the links of {self.me} are closed")
        link = self.links.get(peer)
        return link is not None and link.send(frame)

    def post(self, peer: Peer, frame: bytes) -> bool:
        """Hand over a frame that must not be lost while the peer lives, however many bytes wait for it: an error, an
        abort, an answer. They are small, and no request has more than a few. False when the peer is away."""
        if self._closed:
            raise LinkError(f"the links of {self.me} are closed")
        link = self.links.get(peer)
        return link is not None and link.send(frame, True)

    def greet_all(self) -> None:
        """Tell every peer that is there how this process is now."""
        for link in self.links.values():
            link.send(self._greet(), True)

    def greeting(self) -> bytes:
        """The Hello frame of this process."""
        return self._greet()

    def is_up(self, peer: Peer) -> bool:
        """Whether the connection to a peer stands, as of the last call of `changes`."""
        link = self.links.get(peer)
        return link is not None and link.up

    def has_greeted(self, peer: Peer) -> bool:
        """Whether a peer whose connection stands has been sent the greeting."""
        return self.is_up(peer) and peer not in self._strangers

    def of_role(self, role: str) -> list[Peer]:
        """The peers of a role, in order of their number."""
        return [peer for peer in self.links if peer.role == role]

    def changes(self) -> list[tuple[Peer, bool]]:
        """Connections that came up or went down since the last call; greets those that came up."""
        out: list[tuple[Peer, bool]] = []
        for peer, link in self.links.items():
            for up in link.changes():
                (self._strangers.add if up else self._strangers.discard)(peer)
                out.append((peer, up))
        self._strangers = {peer for peer in self._strangers if not self.links[peer].send(self._greet(), True)}
        self.stirred = bool(self._strangers)
        return out

    def wait(self, timeout_ms: int) -> bool:
        """Sleep until a frame, a change of a link or a watched descriptor waits, or the time is over.

        Lets go of the interpreter lock; a negative time is none. After True, `receive` and `changes` until they have
        no more.
        """
        if self.readable():
            return True
        timeout_ms = max(0, timeout_ms)
        until = time.monotonic() + timeout_ms / 1000
        left = timeout_ms
        while ready := self._sleeper.poll(left):
            for fd, _ in ready:
                if fd in self._monitor_fds:
                    self.stirred = True
            # The descriptor of a ZeroMQ socket may be readable for its own business: ask whether a frame is there.
            if self.stirred or any(fd != self._inbox_fd for fd, _ in ready) or self.readable():
                return True
            left = max(0, int((until - time.monotonic()) * 1000))
        return False

    def sleep(self, timeout_ms: int) -> None:
        """Like `wait`, for a loop that has received until None: asks no socket anything (4 system calls less)."""
        for fd, _ in self._sleeper.poll(timeout_ms):
            if fd in self._monitor_fds:
                self.stirred = True

    def watch(self, fd: int) -> None:
        """Let `wait` end also when this file descriptor is readable."""
        self._sleeper.register(fd, select.POLLIN)

    def inbox_fd(self) -> int:
        """The edge-triggered descriptor of the inbox: when it is readable, `receive` until None."""
        return self._inbox_fd

    def monitor_fds(self) -> list[int]:
        """The edge-triggered descriptors that are readable when `changes` has something to say."""
        return sorted(self._monitor_fds)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close everything; frames already handed over have `linger_ms` to leave. Removes the socket file."""
        if self._closed:
            return
        self._closed = True
        for link in self.links.values():
            link.close(linger_ms)
        self._close_inbox(self._inbox)
        path = self._address.removeprefix("ipc://")
        if path != self._address:
            with contextlib.suppress(FileNotFoundError):  # ZeroMQ's own thread removes it, too, sooner or later
                os.unlink(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
