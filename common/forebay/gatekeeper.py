"""Who may connect to an inbox on TCP: only holders of the front's own keys; everybody else is refused and logged.

ZeroMQ asks a handler inside the process (ZAP, RFC 27) about every sender that has proved to own some key. It runs in a
thread of its own, since a handshake must not wait for a busy loop; it sleeps but for handshakes.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from forebay.keys import DOMAIN, Keys

ZAP = "inproc://zeromq.zap.01"
FAILURES = int(
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Handshakes that end before ZeroMQ asks us: a wrong idea of our key, or no keys at all."""
TELL_EVERY = 10.0
"""Seconds between two log lines: a stranger may knock many times a second."""

log = logging.getLogger("forebay.links")


def answer(question: list[bytes], public: bytes) -> list[bytes]:
    """The ZAP reply to a question: 200 for a sender with the key `public` (32 bytes), 400 for any other."""
    version, request, domain, _address, _identity, mechanism, *credentials = question
    known = domain == DOMAIN and mechanism == b"CURVE" and credentials == [public]
    status = (b"200", b"OK") if known else (b"400", b"unknown key")
    return [version, request, *status, b"", b""]


class Gatekeeper:
    """Answers for the inboxes of one ZeroMQ context until `close`, which the thread that made it calls."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, inbox: zmq.Socket[bytes]) -> None:
        self._public = z85.decode(keys.public)
        self._last = 0.0
        self._inbox = inbox
        self._monitor: Any = inbox.get_monitor_socket(FAILURES)
        self._door = context.socket(zmq.REP)
        self._door.linger = 0
        self._door.bind(ZAP)
        name = f"inproc://gatekeeper-{id(self)}"
        self._stop, stopped = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._stop.linger = stopped.linger = 0
        stopped.bind(name)
        self._stop.connect(name)
        self._thread = threading.Thread(target=self._run, args=(stopped,), name="gatekeeper", daemon=True)
        self._thread.start()

    def _run(self, stopped: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        for socket in (self._door, self._monitor, stopped):
            poller.register(socket, zmq.POLLIN)
        with self._door, stopped:
            while stopped not in (ready := dict(poller.poll())):
                if self._door in ready:
                    self._answer()
                if self._monitor in ready:
                    recv_monitor_message(self._monitor)
                    self._tell("somebody without the keys of this front tried to connect")
            self._monitor.close(0)

    def _answer(self) -> None:
        question = self._door.recv_multipart()
        if len(question) < 6:
            self._door.send_multipart([b"1.0", b"", b"500", b"unreadable", b"", b""])
            return
        reply = answer(question, self._public)
        self._door.send_multipart(reply)
        if reply[2] != b"200":
            self._tell(f"{question[3].decode('ascii', 'replace')} tried to connect with another key")

    def _tell(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last > TELL_EVERY:
            self._last = now
            log.warning("%s", text)

    def close(self) -> None:
        """End the thread and its sockets; before the inbox is closed."""
        self._inbox.disable_monitor()
        self._stop.send(b"")
        self._thread.join()
        self._stop.close(0)
