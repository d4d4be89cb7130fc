"""The engine of the load client: many HTTP streams over raw sockets in one epoll loop, without JSON in the hot path."""

from __future__ import annotations

import array
import errno
import heapq
import os
import random
import re
import select
import socket
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

import _cpu

RE_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')
RE_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)":\s*"(?:[^"\\]|\\.)')
RE_ID = re.compile(rb'"id":\s*"([^"]+)"')
RE_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
RE_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.I)
RE_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.I)
RE_CLOSE = re.compile(rb"\r\nconnection:\s*close", re.I)
LAST_CHUNK = b"\r\n0\r\n\r\n"
HEAD, CHUNKED, SIZED, UNTIL_EOF = range(4)
"""What a connection waits for: the head of an answer, or a body that ends in one of three ways."""


class Conn:
    """One connection and the answer that it is reading."""

    # fmt: off
    __slots__ = (
        "base", "body", "busy", "close", "crlf", "events", "fd", "first_ns", "head", "keep", "last_ns", "mode",
        "nbytes", "need", "out", "pos", "prev", "rec_k", "rec_t", "resp_id", "rid", "send_ns", "seq", "sock", "status",
        "tail", "tokens",
    )
    # fmt: on

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.busy = False
        self.out = b""

    def begin(self, rid: str, out: bytes, seq: int, *, keep: bool, record: bool) -> None:
        """Make it ready for the answer to one request."""
        self.rid, self.out, self.seq, self.keep = rid, out, seq, keep
        self.pos, self.busy, self.first_ns, self.last_ns, self.head = 0, True, 0, 0, b""
        self.mode, self.need, self.tail, self.events, self.crlf = HEAD, 0, b"", 0, None
        self.tokens, self.nbytes, self.status, self.close, self.prev, self.base = 0, 0, 0, False, 10, 0
        self.body: list[bytes] = []
        self.rec_t, self.rec_k = (array.array("q"), array.array("q")) if record else (None, None)
        self.resp_id: str | None = None


def connect(options: Namespace) -> socket.socket:
    """A socket whose connection is being made."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.rcvbuf:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.rcvbuf)
    sock.setblocking(False)
    code = sock.connect_ex((options.host, options.port))
    if code not in (0, errno.EINPROGRESS):
        raise OSError(code, os.strerror(code))
    return sock


class Streams:
    """Sends requests and reads their answers; the public fields are what it counted."""

    def __init__(self, options: Namespace, pids: list[int]) -> None:
        self.options, self.pids = options, pids
        self.epoll = select.epoll()
        self.conns: dict[int, Conn] = {}
        self.idle: list[Conn] = []
        self.rng = random.Random(options.seed)
        self.seq = self.inflight = self.done = self.aborted = 0
        self.ttft, self.e2e = array.array("d"), array.array("d")
        self.gap, self.gap_events = array.array("q"), array.array("i")
        """Nanoseconds between reads of a stream, and the events that the later of both brought."""
        self.tokens = self.events = self.nbytes = 0
        self.status: dict[int, int] = {}
        self.errors: dict[str, int] = {}
        self.error_samples: list[str] = []
        self.kept: list[tuple[str, bytes]] = []
        self.dump: list[dict[str, Any]] = []
        self.slow: list[tuple[int, int, int]] = []
        self.end_ns = 0
        self.rss_peak = 0.0

    # ---------------------------------------------------------------- connections
    def new_conn(self) -> Conn:
        conn = Conn(connect(self.options))
        self.conns[conn.fd] = conn
        self.epoll.register(conn.fd, select.EPOLLIN)
        return conn

    def drop(self, conn: Conn) -> None:
        if self.conns.pop(conn.fd, None) is not None:
            self.epoll.unregister(conn.fd)
        conn.sock.close()

    def close(self) -> None:
        for conn in list(self.conns.values()):
            self.drop(conn)
        self.epoll.close()

    def preconnect(self, count: int) -> None:
        """Open connections beforehand, so that their cost is not in the measured span. Raises `OSError`."""
        for number in range(count):
            self.idle.append(self.new_conn())
            if number % 64 == 63:
                time.sleep(0.005)
        poll = select.poll()
        for conn in self.idle:
            poll.register(conn.fd, select.POLLOUT)  # a connected socket is writable
        left = {conn.fd for conn in self.idle}
        deadline = time.monotonic() + 10
        while left and time.monotonic() < deadline:
            for fd, _ in poll.poll(100):
                poll.unregister(fd)
                left.discard(fd)
                code = self.conns[fd].sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, os.strerror(code))

    # ---------------------------------------------------------------- one request
    def start(self, request: tuple[str, bytes]) -> None:
        conn = self.idle.pop() if self.idle else self.new_conn()
        rid, out = request
        conn.begin(rid, out, self.seq, keep=self.seq < self.options.keep, record=bool(self.options.dump))
        self.seq += 1
        self.inflight += 1
        self.write(conn)

    def write(self, conn: Conn) -> None:
        now = time.monotonic_ns()
        try:
            conn.pos += conn.sock.send(conn.out[conn.pos :] if conn.pos else conn.out)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EINPROGRESS):
                return self.fail(conn, f"send:{error.strerror}")
        if conn.pos < len(conn.out):
            self.epoll.modify(conn.fd, select.EPOLLIN | select.EPOLLOUT)
        else:
            self.epoll.modify(conn.fd, select.EPOLLIN)
            conn.out = b""
            conn.send_ns = now  # the start of the send() that took the last byte
        return None

    def fail(self, conn: Conn, why: str) -> None:
        self.errors[why] = self.errors.get(why, 0) + 1
        self.end_ns = time.monotonic_ns()
        self.inflight -= 1
        self.done += 1
        self.drop(conn)

    def finish(self, conn: Conn, now: int) -> None:
        self.inflight -= 1
        self.done += 1
        self.end_ns = now
        conn.busy = False
        self.status[conn.status] = self.status.get(conn.status, 0) + 1
        self.nbytes += conn.nbytes
        if conn.status == 200:
            self.count(conn, now)
        elif len(self.error_samples) < 3:
            self.error_samples.append(conn.tail[-400:].decode("utf-8", "replace"))
        if conn.keep:
            self.kept.append((conn.rid, b"".join(conn.body)))
        if conn.rec_t is not None:
            facts = {"rid": conn.rid, "resp_id": conn.resp_id, "send_ns": conn.send_ns, "first_ns": conn.first_ns}
            facts |= {"done_ns": now, "status": conn.status, "tokens": conn.tokens}
            self.dump.append({**facts, "t": conn.rec_t.tolist(), "k": conn.rec_k.tolist()})
        if conn.close or not self.options.keepalive:
            self.drop(conn)
        else:
            self.idle.append(conn)

    def count(self, conn: Conn, now: int) -> None:
        found = RE_TOKENS.findall(conn.tail)
        if found:
            conn.tokens = max(conn.tokens, int(found[-1]))
        self.tokens += conn.tokens
        if self.options.stream:
            self.events += conn.events - (b"[DONE]" in conn.tail[-64:])
        self.e2e.append((now - conn.send_ns) / 1e6)
        if conn.first_ns:
            self.ttft.append((conn.first_ns - conn.send_ns) / 1e6)

    # ---------------------------------------------------------------- reading
    def read(self, conn: Conn) -> None:
        try:
            data = conn.sock.recv(self.options.recv_size)
        except BlockingIOError:
            return None
        except OSError as error:
            return self.fail(conn, f"recv:{error.strerror}") if conn.busy else self.drop(conn)
        now = time.monotonic_ns()
        if not data:
            return self.eof(conn, now)
        if not conn.busy:
            return None
        conn.nbytes += len(data)
        if conn.keep:
            conn.body.append(data)
        if conn.mode == HEAD:
            data = self.read_head(conn, data)
            if not data and not (conn.mode == SIZED and conn.need == 0):
                return None
        if data and self.options.stream and conn.status == 200 and conn.mode != SIZED:
            self.read_events(conn, data, now)
            if not conn.busy:
                return None
        elif not conn.first_ns:
            conn.first_ns = now
        return self.read_body(conn, data, now)

    def eof(self, conn: Conn, now: int) -> None:
        if not conn.busy:
            if conn in self.idle:
                self.idle.remove(conn)
            return self.drop(conn)
        if conn.mode == UNTIL_EOF:
            conn.close = True
            return self.finish(conn, now)
        return self.fail(conn, "eof")

    def read_head(self, conn: Conn, data: bytes) -> bytes:
        """The bytes behind the head, once it is complete."""
        conn.head += data
        end = conn.head.find(b"\r\n\r\n")
        if end < 0:
            return b""
        head = conn.head[: end + 2]
        found = RE_STATUS.match(head)
        conn.status = int(found[1]) if found else 0
        conn.close = bool(RE_CLOSE.search(head))
        rest = conn.head[end + 4 :]
        conn.head = b""
        length = RE_LENGTH.search(head)
        if RE_CHUNKED.search(head):
            conn.mode, conn.tail = CHUNKED, b"\r\n"
        elif length:
            conn.mode, conn.need = SIZED, int(length[1])
        else:
            conn.mode = UNTIL_EOF
        return rest

    def read_events(self, conn: Conn, data: bytes, now: int) -> None:
        """Count the events of a read: server-sent events end with an empty line, which two reads may share."""
        if conn.crlf is None and b"data:" in data:
            conn.crlf = b"\n\n" not in data
        if conn.crlf:
            count = data.count(b"\n\r\n") - data.endswith(LAST_CHUNK)
        else:
            count = data.count(b"\n\n") + (conn.prev == 10 and data[0] == 10)
        conn.prev = data[-1]
        if count <= 0:
            return
        conn.events += count
        if conn.first_ns:
            self.gap.append(now - conn.last_ns)
            self.gap_events.append(count)
            conn.last_ns = now
        elif self.options.api == "generate" or RE_TEXT.search(data):
            conn.first_ns = conn.last_ns = now
            if count > 1:
                self.gap.append(0)
                self.gap_events.append(count - 1)
        if conn.rec_t is not None:
            self.record(conn, data, now)
        if self.options.abort_every and conn.seq % self.options.abort_every == 0:
            self.leave_early(conn, now)

    def leave_early(self, conn: Conn, now: int) -> None:
        if conn.events < self.options.abort_after:
            return
        self.aborted += 1
        self.done += 1
        self.inflight -= 1
        self.end_ns = now
        self.nbytes += conn.nbytes
        conn.busy = False
        self.drop(conn)

    def record(self, conn: Conn, data: bytes, now: int) -> None:
        found = RE_TOKENS.findall(data)
        if found:
            tokens = int(found[-1])
            if not conn.rec_k or tokens > conn.rec_k[-1]:
                conn.rec_t.append(now)
                conn.rec_k.append(tokens)
            conn.tokens = tokens
        elif self.options.api != "generate" and conn.first_ns:
            texts = len(RE_TEXT.findall(data))  # only events that carry text
            if texts:
                conn.base += texts
                conn.rec_t.append(now)
                conn.rec_k.append(conn.base)
        if conn.resp_id is None:
            name = RE_ID.search(data)
            conn.resp_id = name[1].decode() if name else None

    def read_body(self, conn: Conn, data: bytes, now: int) -> None:
        """Whether the answer is complete with this read; a slow reader then waits before the next one."""
        options = self.options
        if len(data) > 2048 and conn.rec_t is None:
            found = RE_TOKENS.findall(data)  # a long event can push the count out of the tail
            if found:
                conn.tokens = max(conn.tokens, int(found[-1]))
        conn.tail = data[-options.tail :] if len(data) >= options.tail else (conn.tail + data)[-options.tail :]
        if conn.mode == CHUNKED and conn.tail.endswith(LAST_CHUNK):
            return self.finish(conn, now)
        if conn.mode == SIZED:
            conn.need -= len(data)
            if conn.need <= 0:
                return self.finish(conn, now)
        if options.slow_every and conn.seq % options.slow_every == 0:
            self.epoll.modify(conn.fd, 0)
            heapq.heappush(self.slow, (now + int(options.slow_ms * 1e6), conn.fd, conn.seq))
        return None

    # ---------------------------------------------------------------- the loop
    def run(self, requests: Iterable[tuple[str, bytes]]) -> tuple[int, int]:
        """Send all requests, at most `concurrency` at once, and read their answers; start and end in ns."""
        options = self.options
        pending: Iterator[tuple[str, bytes]] = iter(requests)
        more = True
        rss_due = 0.0
        begin = time.monotonic_ns()
        next_at = begin
        deadline = begin + int(options.timeout * 1e9)
        ramp = 0 if options.rate else int(options.ramp_s * 1e9 / max(1, options.concurrency))
        started = 0
        while more or self.inflight:
            now = time.monotonic_ns()
            if now > deadline:
                self.errors["timeout"] = self.errors.get("timeout", 0) + self.inflight
                break
            while more and self.inflight < options.concurrency and now >= next_at:
                request = next(pending, None)
                if request is None:
                    more = False
                    break
                self.start(request)
                started += 1
                if options.rate:
                    next_at += int(self.rng.expovariate(options.rate) * 1e9)
                elif ramp and started < options.concurrency:
                    next_at = begin + started * ramp
            if not more and not self.inflight:
                break
            wait = 0.2
            if more and self.inflight < options.concurrency:
                wait = min(wait, max(0.0, (next_at - now) / 1e9))
            self.poll(self.wake_slow(now, wait))
            if self.pids and now / 1e9 > rss_due:
                self.rss_peak = max(self.rss_peak, _cpu.rss_mib(self.pids))
                rss_due = now / 1e9 + options.rss_every
        return begin, max(self.end_ns, begin + 1)

    def wake_slow(self, now: int, wait: float) -> float:
        """Let slow readers read again whose time has come; the time to wait for the next of them, at most `wait`."""
        while self.slow and self.slow[0][0] <= now:
            _, fd, seq = heapq.heappop(self.slow)
            conn = self.conns.get(fd)
            if conn is not None and conn.busy and conn.seq == seq:
                self.epoll.modify(fd, select.EPOLLIN)
        return min(wait, max(0.0, (self.slow[0][0] - now) / 1e9)) if self.slow else wait

    def poll(self, wait: float) -> None:
        for fd, event in self.epoll.poll(wait, 512):
            conn = self.conns.get(fd)
            if conn is None:
                continue
            if event & select.EPOLLOUT:
                self.write(conn)
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self.read(conn)
