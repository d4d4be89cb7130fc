"""Control calls as the routes make them: fields from a body or query, one call, a status by the engine's own flag."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.errors import RequestError
from forebay.redaction import without_secrets
from forebay.topology import Peer
from forebay_api.http import Exchange
from forebay_api.jsonbody import BodyReader
from forebay_api.mailbox import ENGINE
from forebay_api.typeerrors import clipped

if TYPE_CHECKING:
    from forebay_api.app import Api

MAX_BODY = 1 << 20
"""Bytes of a control body without tensors in it."""


async def ask(
    api: Api,
    peer: Peer,
    type_: str,
    fields: dict[str, Any],
    *,
    exclusive: bool = False,
    timeout: float | None = None,
) -> Any:
    """One control call; raises `RequestError` 504 when the answer takes too long (the call is taken back), 503 when
    the peer is gone."""
    future = api.mailbox.control(peer, type_, fields, f"control-{uuid.uuid4().hex}", exclusive=exclusive)
    try:
        return await asyncio.wait_for(future, timeout or api.settings.control_timeout)
    except TimeoutError:
        raise RequestError(f"{peer.role} did not answer {type_} in time", 504) from None


async def ask_engine(api: Api, type_: str, fields: dict[str, Any], *, exclusive: bool = False) -> Any:
    """One control call to the engine."""
    return await ask(api, ENGINE, type_, fields, exclusive=exclusive)


def succeeded(answer: Any) -> bool:
    """The engine's own success flag decides."""
    return isinstance(answer, dict) and answer.get("success") is True


def message_of(answer: Any, otherwise: str) -> str:
    """What an answer says in words."""
    text = answer.get("message") or answer.get("error_message") if isinstance(answer, dict) else None
    return text if isinstance(text, str) else otherwise


def refusal(answer: Any) -> dict[str, Any]:
    """The body of a 400: the engine's own map, with the flag and the words that it may have left out."""
    shown = without_secrets(answer) if isinstance(answer, dict) else {}
    return {**shown, "success": False, "message": message_of(answer, "the engine refused the call")}


async def fields_of(api: Api, http: Exchange, body: type[msgspec.Struct], *, large: bool = False) -> dict[str, Any]:
    """The fields of a control call: from the JSON body, where that is empty from the query. Raises `RequestError`."""
    raw = await http.body(api.settings.max_body_bytes if large else min(MAX_BODY, api.settings.max_body_bytes))
    read = _reader(body).read(raw) if raw else _from_query(body, http.query())
    out: dict[str, Any] = {}
    for field in msgspec.structs.fields(body):
        value = getattr(read, field.name)
        if value is None and field.default is not msgspec.NODEFAULT:
            value = field.default
        out[field.name] = value
    return out


@functools.cache
def _reader(body: type[msgspec.Struct]) -> BodyReader[msgspec.Struct]:
    title = body.__name__.removesuffix("Body") + "Request"
    return BodyReader(body, {"": (title, body.__struct_fields__)})


def _from_query(body: type[msgspec.Struct], query: dict[str, str]) -> msgspec.Struct:
    if not query:
        return _reader(body).read(b"{}")
    try:
        return msgspec.convert(query, body, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"the query cannot be read: {clipped(str(error))}") from error


def call_handler(
    type_: str,
    body: type[msgspec.Struct],
    sentence: str,
    *,
    exclusive: bool = False,
    large: bool = False,
    done: Callable[[dict[str, Any], Any], Any] = lambda fields, answer: answer,
) -> Callable[[Api, Exchange], Awaitable[None]]:
    """A handler that hands its body to the engine as one call of a type.

    200 with `done(fields, answer)` when the engine says success, else 400 with its answer. `exclusive`: no request
    runs meanwhile.
    """

    async def handler(api: Api, http: Exchange) -> None:
        fields = await fields_of(api, http, body, large=large)
        answer = await ask_engine(api, type_, fields, exclusive=exclusive)
        if succeeded(answer):
            await http.json(done(fields, answer))
        else:
            await http.json(refusal(answer), 400)

    handler.__doc__ = sentence
    return handler
