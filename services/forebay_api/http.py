"""One HTTP exchange as the routes see it: headers, body, answers and errors, over plain ASGI."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from forebay.errors import RequestError
from forebay_api import errorbody
from forebay_api.compressed import unpacked
from forebay_api.connection import Headers

if TYPE_CHECKING:
    from forebay_api.calls import Call
    from forebay_api.metrics import Way

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_encode = msgspec.json.Encoder().encode


class ClientLeft(Exception):
    """The client closed the connection before its request was read."""


class Bodies:
    """What the bodies of all requests under way take together, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Make room for more; raises `RequestError` (503) when there is none."""
        if self.held + size > self.limit:
            raise RequestError("the request bodies under way take too much memory", 503, retry_after=1)
        self.held += size


class Exchange:
    """A request that is being answered. `openai` says which family's error shape it gets."""

    __slots__ = (
        "answered",
        "began",
        "bodies",
        "body_size",
        "call",
        "fields",
        "headers",
        "openai",
        "receive",
        "request_id",
        "scope",
        "send",
        "status",
        "unread",
        "way",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, extra: Headers) -> None:
        self.scope, self.receive, self.send = scope, receive, send
        self.fields: dict[bytes, bytes] = dict(scope["headers"])
        given = self.fields.get(b"x-request-id", b"")
        self.request_id = given if given and _REQUEST_ID.fullmatch(given) else os.urandom(16).hex().encode()
        self.headers: Headers = [(b"x-request-id", self.request_id), *extra]
        self.openai = False
        self.answered = False
        self.status = 0
        """The status of the answer; 0 until there is one."""
        self.began = time.perf_counter()
        self.bodies: Bodies | None = None
        """Where the body is accounted for."""
        self.body_size = 0
        self.call: Call | None = None
        """The generation call that this exchange became."""
        self.unread = False
        """Whether the request is refused before its body has been read to the end."""
        self.way: Way | None = None
        """Where it is counted."""

    def header(self, name: bytes) -> bytes | None:
        """A request header by its lower-case name."""
        return self.fields.get(name)

    def query(self) -> dict[str, str]:
        """The query parameters; of one given twice the last."""
        pairs = parse_qs(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return {name: values[-1] for name, values in pairs.items()}

    def need_json(self) -> None:
        """Refuse a body that does not call itself JSON."""
        kind = self.fields.get(b"content-type", b"")
        if kind != JSON and kind.split(b";")[0].strip().lower() != JSON:
            raise RequestError("Unsupported Media Type: Only 'application/json' is allowed", 400)

    async def body(self, limit: int) -> bytes:
        """The request body, unpacked; raises `RequestError` (413 over the limit, 400) and `ClientLeft`."""
        body = await self._read(limit)
        form = self.fields.get(b"x-body-compressed")
        if form is None:
            return body
        whole = await unpacked(body, form, limit)
        self.take_body(max(0, len(whole) - len(body)))
        return whole

    async def _read(self, limit: int) -> bytes:
        declared = self.fields.get(b"content-length")
        try:
            size = int(declared) if declared and declared.isdigit() else None
            body = await read_body(self.receive, limit, size, self.take_body)
        except BodyTooLarge:
            self.unread = True
            raise RequestError(f"the request body is over the limit of {limit} bytes", 413) from None
        if body is None:
            raise ClientLeft
        return body

    def take_body(self, size: int) -> None:
        """Account for a part of the body; raises `RequestError` (503) when all bodies take too much."""
        if self.bodies is None:
            return
        try:
            self.bodies.take(size)
        except RequestError:
            self.unread = True
            raise
        self.body_size += size

    def forget_body(self) -> None:
        """The request is over, and what its body took is free."""
        if self.bodies is not None:
            self.bodies.held -= self.body_size
            self.body_size = 0

    def close(self) -> None:
        """The exchange is over: cut the rings of references, so that its memory is free at once.

        Left to the garbage collector, it would not be used again for the next request while it is still in the
        processor's caches, and the collections themselves cost: 15 us a request.
        """
        if self.call is not None:
            self.call.close()
        self.scope.pop("extensions", None)

    def time_limit(self) -> float | None:
        """Seconds that the client gives its request (`x-request-timeout-s`); raises `RequestError` for nonsense."""
        text = self.fields.get(b"x-request-timeout-s")
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise RequestError("x-request-timeout-s must be a number of seconds above 0", param="x-request-timeout-s")
        return seconds

    async def raw(self, status: int, body: bytes, kind: bytes = JSON) -> None:
        """A whole answer."""
        self.answered = True
        self.status = status
        if self.unread:
            # The rest of the body is not read, so the connection cannot be used again.
            connection = self.scope["extensions"]["forebay"]["connection"]
            connection.last_words(status, [(b"content-type", kind), *self.headers], body)
            return
        await send_whole(self.send, status, body, self.headers, kind)

    async def json(self, value: Any, status: int = 200) -> None:
        """A whole answer as JSON."""
        await self.raw(status, _encode(value))

    async def text(self, text: str, status: int = 200) -> None:
        """A whole answer as plain text."""
        await self.raw(status, text.encode(), TEXT)

    def refusal(self, error: RequestError, form: str) -> bytes:
        """The body of an error answer in the shape of this route's family; its headers are added to `headers`."""
        retry = error.retry_after
        if retry is None and error.status in (429, 503):
            retry = 1
        if retry is not None:
            self.headers.append((b"retry-after", b"%d" % retry))
        if error.status == 401:
            self.headers.append((b"www-authenticate", b"Bearer"))
        return errorbody.body_of(error, openai=self.openai, form=form)

    async def error(self, error: RequestError, form: str) -> None:
        """The error answer of this route's family."""
        await self.raw(error.status, self.refusal(error, form))


async def send_whole(
    send: Callable[[Any], Any], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]], content_type: bytes
) -> None:
    """One whole response by plain ASGI; an empty body has no content type."""
    kind = [(b"content-type", content_type)] if body else []
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*kind, (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def read_body(
    receive: Callable[[], Any], limit: int, declared: int | None, take: Callable[[int], None] = lambda size: None
) -> bytes | None:
    """The request body, or None when the client left. Raises `BodyTooLarge` as soon as that is known; `take` hears of
    each part and may raise, too."""
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
        take(len(body))
        if not message.get("more_body", False):
            if not parts:
                return bytes(body)
            parts.append(body)
            return b"".join(parts)
        parts.append(body)


class BodyTooLarge(Exception):
    """The body is over the limit; the rest of it has not been read."""
