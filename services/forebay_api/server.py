"""HTTP by uvicorn, and the direct write path beside it: events go straight to the transport, one write each.

uvicorn parses, keeps connections and runs the ASGI app. A response that streams takes its connection over through
`EventWriter`: no task, queue or coroutine wakes for a token. The ASGI task of the request only waits for its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

Headers = list[tuple[bytes, bytes]]
CHUNK_SIZES = [b"%x\r\n" % size for size in range(8192)]
"""Chunk heads of the usual sizes (0.1 us less than formatting one for every event)."""
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

log = logging.getLogger("forebay.api")


def chunk_head(size: int) -> bytes:
    """The line in front of a chunk of `size` bytes in chunked transfer coding."""
    return CHUNK_SIZES[size] if size < len(CHUNK_SIZES) else b"%x\r\n" % size


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, with two additions: the response that owns the connection hears at once when the client
    leaves, and when the transport is full or has room again."""

    owner: ResponseOwner | None = None

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        # `self.cycle` may be replaced by a pipelined request: the scope keeps the one that belongs to it.
        if self.cycle is not None:
            self.scope["extensions"] = {"forebay": {"connection": self, "cycle": self.cycle}}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.client_left()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.owner is not None:
            self.owner.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.owner is not None:
            self.owner.resume()


class ResponseOwner:
    """The response that a connection works for at the moment; makes sure that it hears when the client leaves."""

    __slots__ = ("connection", "cycle", "headers", "on_left", "transport")

    def __init__(self, scope: Any, headers: Headers, on_left: Callable[[], None]) -> None:
        self.connection: Connection
        self.cycle: RequestResponseCycle
        ours = scope["extensions"]["forebay"]
        self.connection, self.cycle = ours["connection"], ours["cycle"]
        self.transport = self.connection.transport
        self.headers = headers
        self.on_left = on_left
        self.connection.owner = self

    def client_left(self) -> None:
        """The connection is gone."""
        self.on_left()

    def pause(self) -> None:
        """The transport is full."""

    def resume(self) -> None:
        """The transport has room again."""

    def release(self) -> None:
        """The response is over: the connection may serve the next request."""
        if self.connection.owner is self:
            self.connection.owner = None

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self.cycle.disconnected or self.transport.is_closing()


class EventWriter(ResponseOwner):
    """Writes server-sent events to one response.

    `open` is True while events may go straight to the transport; when it is False the streams hold and merge what
    they have, and `on_room` tells them to go on.
    """

    __slots__ = ("on_room", "open", "started")

    def __init__(self, scope: Any, headers: Headers, on_left: Callable[[], None], on_room: Callable[[], None]) -> None:
        super().__init__(scope, headers, on_left)
        self.on_room = on_room
        self.open = not self.connection.flow.write_paused
        self.started = False

    def start(self) -> None:
        """Send the response head, with the first event."""
        self.started = True
        cycle = self.cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = True
        head = [STATUS_LINE[200]]
        for name, value in (*cycle.default_headers, *EVENT_STREAM, *self.headers):
            head += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            head.append(b"connection: close\r\n")
        head.append(b"transfer-encoding: chunked\r\n\r\n")
        self.transport.write(b"".join(head))

    def write(self, *parts: bytes) -> None:
        """Send one or more whole events, in one write. Only while `open`."""
        if not self.started:
            self.start()
        size = sum(map(len, parts))
        self.transport.write(b"".join((chunk_head(size), *parts, b"\r\n")))

    def pause(self) -> None:
        self.open = False

    def resume(self) -> None:
        self.open = True
        self.on_room()

    def client_left(self) -> None:
        self.open = False
        super().client_left()

    async def finish(self, last: bytes) -> None:
        """Send the last events and end the response; waits while the transport is full."""
        if not self.started:
            self.start()
        await self.cycle.send({"type": "http.response.body", "body": last, "more_body": False})
        self.release()


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: the role decides when to stop."""

    def install_signal_handlers(self) -> None:  # older uvicorn
        """Signals are the role's."""

    def capture_signals(self) -> Any:
        """Signals are the role's."""
        return _NoSignals()


class _NoSignals:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def make_server(
    app: Any,
    *,
    keep_alive: float,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
) -> Server:
    """A uvicorn server for `app` on the direct write path; run it with `serve(sockets=...)`."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=int(keep_alive),
        backlog=2048,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        proxy_headers=False,
    )
    return Server(config)


async def send_whole(
    send: Callable[[Any], Any], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]], content_type: bytes
) -> None:
    """One whole response by plain ASGI."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def read_body(receive: Callable[[], Any], limit: int, declared: int | None) -> bytes | None:
    """The request body, or None when the client left. Raises `BodyTooLarge` as soon as that is known."""
    if declared is not None and declared > limit:
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body = message.get("body", b"")
        size += len(body)
        if size > limit:
            raise BodyTooLarge
        if not message.get("more_body", False):
            if not parts:
                return bytes(body)
            parts.append(body)
            return b"".join(parts)
        parts.append(body)


class BodyTooLarge(Exception):
    """The body is over the limit; the rest of it has not been read."""
