"""One client connection: uvicorn's protocol, with limits on its head, its speed and the number of its kind.

HEAD ──head complete──▶ BODY ──body complete──▶ DONE ──next byte──▶ HEAD          (any) ──refused──▶ REFUSED
"""

from __future__ import annotations

import enum
import uuid
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from forebay.errors import RequestError
from forebay_api import errorbody
from forebay_api.door import LINGER_SECONDS, MIN_BODY_RATE, RESERVE, Door

if TYPE_CHECKING:
    import asyncio

    from forebay_api.server import ResponseOwner

Headers = list[tuple[bytes, bytes]]
MOST_UNREAD = 1 << 20
"""Bytes of a body that are thrown away for a request that has been answered already; then the connection is closed."""
MOST_PIPELINED = 4
"""Requests sent before the answer to an earlier one that are read; then reading stops until that is answered."""


class Stage(enum.Enum):
    """What the client owes us."""

    HEAD = 1
    BODY = 2
    DONE = 3
    """Nothing: its request is being answered, or the connection is idle."""
    REFUSED = 4
    """To go away."""


class Connection(HttpToolsProtocol):
    """A connection. The response that owns it hears at once when the client leaves, and when the transport is full
    or has room again."""

    owner: ResponseOwner | None = None
    timed_out = False
    """Whether it was closed because its request's body was too slow."""

    def __init__(self, door: Door, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._door = door
        self._stage = Stage.HEAD
        self._since = 0.0
        """When the present stage began; of a body, when its last byte came (event loop time)."""
        self._head_bytes = self._body_bytes = self._unread = 0
        self._head_most = 0
        """Like `_head_bytes`, with all of the read in which the head began."""
        self._head_begun = False
        """Whether a request line has begun; empty lines before one mean nothing."""
        self._body_began = 0.0
        self._read = 0
        """Bytes of the latest read."""
        self._feeding = False
        """Whether the parser is at work."""
        self._come: RequestResponseCycle | None = None
        """A request that came with the bytes that the parser is at, and is started when it has done."""
        self._cycles: list[RequestResponseCycle] = []
        """The requests without an answer: more than one when a client does not wait for its answers."""
        self._unsent = 0
        """Bytes that waited for the client at the last look, and since when it has read none of them."""
        self._unread_since = 0.0

    @property
    def pings(self) -> bool:
        """Whether silent streams get comment lines."""
        return self._door.ping_interval is not None

    # ---------------------------------------------------------------- the transport
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        door = self._door
        door.connections.add(self)
        over = len(door.connections) - door.max_connections
        if over > 0:
            door.refused += 1
            self.refuse(RequestError("too many connections", 503, retry_after=1))
            if over > RESERVE // 2:
                transport.close()  # no time to linger

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.connections.discard(self)
        super().connection_lost(exc)
        for cycle in self._cycles:  # uvicorn tells the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.client_left()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent, self._unread_since = 0, self.loop.time()
        if self.owner is not None:
            self.owner.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.owner is not None:
            self.owner.resume()

    def data_received(self, data: bytes) -> None:
        if self._stage is Stage.REFUSED:
            return
        if self._stage is Stage.DONE:
            self._begin_head()
        if self._stage is Stage.HEAD:
            self._head_bytes += len(data)
            self._head_most += len(data)
        self._read = len(data)
        self._feeding = True
        try:
            super().data_received(data)
        finally:
            self._feeding = False
        if self._come is not None:
            self._start()
        # The parser keeps an unfinished header line to itself: its length shows only here.
        if self._stage is Stage.HEAD and self._head_bytes > self._door.max_header_bytes:
            self._refuse_head()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._feeding:
            self._come = cycle
            return
        super()._start_asgi_task(cycle, app)

    def _start(self) -> None:
        """Start the request that has come: without a task if it is complete, and one of those that need none."""
        cycle, self._come = self._come, None
        assert cycle is not None
        direct = self._door.direct
        if cycle.more_body or direct is None or not direct(cycle):
            super()._start_asgi_task(cycle, self.app)

    def _begin_head(self) -> None:
        self._stage = Stage.HEAD
        self._since = self.loop.time()
        self._head_bytes = 0
        self._head_most = self._read if self._feeding else 0
        self._head_begun = False

    # ---------------------------------------------------------------- the parser
    def on_message_begin(self) -> None:
        if self._stage is Stage.REFUSED:
            raise ValueError("a request behind one that was refused")
        super().on_message_begin()
        if self._stage is not Stage.HEAD:
            self._begin_head()
        self._head_begun = True

    def on_headers_complete(self) -> None:
        limit = self._door.max_header_bytes
        # What has come at all is mostly within the limit, and then the head is.
        if self._head_most + len(self.headers) > limit and self._head_size() > limit:
            self._refuse_head()
            raise ValueError("the head of the request is too large")
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MOST_PIPELINED:
            # uvicorn stops reading behind a request that has to wait; then nobody would hear that the client leaves.
            self.flow.resume_reading()
        # `self.cycle` may be replaced by a pipelined request: the scope keeps the one that belongs to it.
        if self.cycle is not None:
            self.scope["extensions"] = {"forebay": {"connection": self, "cycle": self.cycle}}
            self._cycles = [*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle]
            if self._door.last_call:
                self.cycle.keep_alive = False
        self._stage = Stage.BODY
        self._since = self._body_began = self.loop.time()
        self._body_bytes = self._unread = 0

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        self._since = self.loop.time()
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > MOST_UNREAD:
                self._linger()
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self._stage is Stage.BODY:
            self._stage = Stage.DONE
        if len(self.pipeline) <= MOST_PIPELINED:
            # uvicorn stops reading at 64 KiB of a body until that is taken, and a whole one is taken at once.
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP."""
        if self._stage is not Stage.REFUSED:
            self.refuse(RequestError(msg, 400))

    def leave(self) -> None:
        """This process stops. A connection that has not sent its first request yet may still do so."""
        if self._stage is Stage.DONE:
            self.shutdown()

    # ---------------------------------------------------------------- refusals
    def _refuse_head(self) -> None:
        limit = self._door.max_header_bytes
        self.refuse(RequestError(f"the head of the request is over the limit of {limit} bytes", 431))

    def refuse(self, error: RequestError) -> None:
        """Answer without any route and close. Closes only, if a response is under way already: also one to an
        earlier request, when this one was sent before its answer."""
        if self.pipeline or self._is_answering():
            self.transport.close()
            return
        body = errorbody.body_of(error, openai=False)
        headers: Headers = [(b"content-type", b"application/json"), (b"x-request-id", uuid.uuid4().hex.encode())]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        self.last_words(error.status, headers, body)

    def _is_answering(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return bool(cycle.response_started or not cycle.more_body)

    def last_words(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer to a request that has not been read to its end; then the connection closes.

        The client may still be sending. Closed at once, the system would answer its bytes with a reset, and the
        client would never see why: so we read on a little and throw it away.
        """
        cycle = self.cycle
        if cycle is not None:
            cycle.response_started = cycle.response_complete = cycle.disconnected = True
            cycle.message_event.set()
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.client_left()
        lines = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join((*lines, body)))
        self._linger()

    def _linger(self) -> None:
        self._unset_keepalive_if_required()
        self._stage = Stage.REFUSED
        self._since = self.loop.time()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # ---------------------------------------------------------------- time
    def look(self, now: float) -> None:
        """Close the connection if its client is too slow; let a silent stream say that it lives."""
        if self.flow.write_paused and self._reads_nothing(now):
            self.transport.abort()
            return
        if self._stage is Stage.DONE:
            if self.owner is not None and self._door.ping_interval is not None:
                self.owner.look(now, self._door.ping_interval)
        elif self._stage is Stage.HEAD:
            if now - self._since > self._door.header_timeout:
                self._head_too_slow()
        elif self._stage is Stage.BODY:
            self._look_at_body(now)
        elif now - self._since > LINGER_SECONDS:
            self.transport.abort()

    def _reads_nothing(self, now: float) -> bool:
        """Whether a client whose connection is full has not read a byte within the time that a body may pause."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unread_since = unsent, now
        return now - self._unread_since > self._door.body_timeout

    def _head_too_slow(self) -> None:
        if self._head_begun:
            self.refuse(RequestError("the head of the request did not come in time", 408))
        else:
            self.transport.close()

    def _look_at_body(self, now: float) -> None:
        if self.flow.read_paused:  # we are the slow ones
            self._since = now
            return
        late = now - self._body_began - self._door.body_timeout
        if now - self._since > self._door.body_timeout or (late > 0 and self._body_bytes < late * MIN_BODY_RATE):
            if self.cycle.response_complete:
                self.transport.close()
                return
            self.timed_out = True
            self.refuse(RequestError("the body of the request did not come in time", 408))
