"""HTTP by uvicorn, and the direct write path beside it: events go straight to the transport, one write each.

uvicorn parses, keeps connections and runs the ASGI app. A response that streams takes its connection over through
`EventWriter`: no task, queue or coroutine wakes for a token. Where a request has an ASGI task (most have
none: `forebay_api.direct`), that only waits for its end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from forebay.errors import StartError
from forebay.settings import Settings
from forebay_api.connection import Connection, Headers
from forebay_api.door import Door

CHUNK_SIZES = [b"%x\r\n" % size for size in range(8192)]
"""Chunk heads of the usual sizes (0.1 us less than formatting one for every event)."""
EVENT_STREAM = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
"""What the head of each stream says besides."""
BACKLOG = 2048
"""Connections that the system may hold for us until we accept them."""
PING = b": ping\n\n"


def chunk_head(size: int) -> bytes:
    """The line in front of a chunk of `size` bytes in chunked transfer coding."""
    return CHUNK_SIZES[size] if size < len(CHUNK_SIZES) else b"%x\r\n" % size


def complete(cycle: RequestResponseCycle) -> None:
    """The answer of a request is written: uvicorn goes on to the next one of its connection, or closes it."""
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    cycle.on_response = _nothing  # it holds the connection, which holds this


def _nothing() -> None:
    return None


def write_answer(cycle: RequestResponseCycle, status: int, kind: bytes, headers: Headers, body: bytes) -> None:
    """A whole answer with a body, in one write and without a wait; nothing when the client has left."""
    if cycle.disconnected:
        return
    lines = [STATUS_LINE[status]]
    for name, value in cycle.default_headers:
        lines += (name, b": ", value, b"\r\n")
    lines += (b"content-type: ", kind, b"\r\ncontent-length: %d\r\n" % len(body))
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
    cycle.transport.write(b"".join(lines))
    complete(cycle)


class ResponseOwner:
    """The response that a connection works for at the moment; makes sure that it hears when the client leaves."""

    __slots__ = ("connection", "cycle", "headers", "on_left", "transport")

    def __init__(self, scope: Any, headers: Headers, on_left: Callable[[], None]) -> None:
        self.connection: Connection
        self.cycle: RequestResponseCycle
        ours = scope["extensions"]["forebay"]
        self.connection, self.cycle = ours["connection"], ours["cycle"]
        self.transport: asyncio.Transport | Noted = self.connection.transport
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

    def look(self, now: float, interval: float) -> None:
        """A look in passing, when silent streams are to say each `interval` seconds that they live."""

    def release(self) -> None:
        """The response is over: the connection may serve the next request."""
        if self.connection.owner is self:
            self.connection.owner = None

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self.cycle.disconnected or self.transport.is_closing()


class Noted:
    """A transport that remembers whether it was written to. Only with `sse_ping_interval`: it costs 0.1 us a write."""

    __slots__ = ("_write", "abort", "is_closing", "wrote")

    def __init__(self, transport: Any) -> None:
        self._write, self.abort, self.is_closing = transport.write, transport.abort, transport.is_closing
        self.wrote = False

    def write(self, data: bytes) -> None:
        """As the transport's own."""
        self.wrote = True
        self._write(data)


class EventWriter(ResponseOwner):
    """Writes server-sent events to one response.

    `open` is True while events may go straight to the transport; when it is False the streams hold and merge what
    they have: `on_full` tells them to begin with that, and `on_room` to go on.
    """

    __slots__ = ("_noted", "_silent_since", "on_full", "on_room", "open", "started")

    def __init__(
        self,
        scope: Any,
        headers: Headers,
        on_left: Callable[[], None],
        on_full: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        super().__init__(scope, headers, on_left)
        self.on_full, self.on_room = on_full, on_room
        self.open = not self.connection.flow.write_paused
        self.started = False
        self._silent_since = self.connection.loop.time()
        self._noted = Noted(self.transport) if self.connection.pings else None
        if self._noted is not None:
            self.transport = self._noted

    def _head(self) -> bytes:
        """The head of the response, which goes out with the first event."""
        self.started = True
        cycle = self.cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = True
        head = [STATUS_LINE[200]]
        for name, value in cycle.default_headers:
            head += (name, b": ", value, b"\r\n")
        head.append(EVENT_STREAM)
        for name, value in self.headers:
            head += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            head.append(b"connection: close\r\n")
        head.append(b"transfer-encoding: chunked\r\n\r\n")
        return b"".join(head)

    def write(self, *parts: bytes | bytearray) -> None:
        """Send one or more whole events, or an event in pieces, in one write. Only while `open`."""
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        head = b"" if self.started else self._head()
        self.transport.write(b"".join((head, chunk_head(size), *parts, b"\r\n")))

    def pause(self) -> None:
        self.open = False
        self.on_full()

    def resume(self) -> None:
        self.open = True
        self.on_room()

    def look(self, now: float, interval: float) -> None:
        if self._noted is None:
            return
        if self._noted.wrote or not self.open:
            self._silent_since = now
        elif now - self._silent_since >= interval:
            self.write(PING)
            self._silent_since = now
        self._noted.wrote = False

    def client_left(self) -> None:
        self.open = False
        super().client_left()

    async def finish(self, last: bytes) -> None:
        """Send the last events and end the response; waits while the transport is full."""
        flow = self.connection.flow
        if flow.write_paused and not self.cycle.disconnected:
            await flow.drain()
        self.end(last)

    def end(self, last: bytes) -> None:
        """Send the last events and end the response, also on a full transport."""
        if not self.cycle.disconnected:
            head = b"" if self.started else self._head()
            self.transport.write(b"".join((head, chunk_head(len(last)), last, b"\r\n0\r\n\r\n")))
            complete(self.cycle)
        self.release()


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: the role decides when to stop."""

    handshake_timeout = 30.0
    door: Door

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections from these sockets, TCP or unix."""
        loop, config = asyncio.get_running_loop(), self.config
        tls: dict[str, Any] = {}
        if config.ssl is not None:
            tls = {"ssl": config.ssl, "ssl_handshake_timeout": self.handshake_timeout}

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
                config=config, server_state=self.server_state, app_state={}, _loop=loop
            )
            return made

        self.servers = []
        for sock in sockets or ():
            make = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
            self.servers.append(await make(protocol, sock=sock, backlog=config.backlog, **tls))
        self.started = True

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


def make_server(app: Any, settings: Settings, door: Door) -> Server:
    """A uvicorn server for `app` on the direct write path; run it with `serve(sockets=...)`.

    Raises `StartError` for a certificate or key that cannot be read.
    """
    # Its warnings are one line for each request that is no HTTP: the client is told, the log of the server is not.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        http=partial(Connection, door),  # type: ignore[arg-type]
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]  # it goes to `call_later`
        backlog=BACKLOG,
        ssl_certfile=settings.tls_certfile,
        ssl_keyfile=settings.tls_keyfile,
        proxy_headers=False,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"tls_certfile and tls_keyfile cannot be used: {error}") from error
    server = Server(config)
    server.handshake_timeout = settings.header_timeout
    server.door = door
    return server
