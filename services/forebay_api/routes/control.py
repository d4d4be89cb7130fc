"""Control: abort, flush, profile, internal state, log level, garbage collector, and any call by its type."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.errors import RequestError
from forebay.housekeeping import keep_house
from forebay.redaction import without_secrets
from forebay.topology import Peer
from forebay.wire.messages import ControlRequest
from forebay_api import schemas
from forebay_api.control_bodies import InternalStateBody, LoggingBody, ProfileBody
from forebay_api.controls import MAX_BODY, ask, ask_engine, fields_of, message_of, refusal, succeeded
from forebay_api.http import Exchange
from forebay_api.jsonbody import decoded
from forebay_api.mailbox import ENGINE
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api

FLUSHED = "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"  # noqa: E501
FLUSH_AGAIN = 0.1
"""Seconds between two attempts to flush while `timeout` lets requests come to their end."""
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_object = msgspec.json.Decoder(dict[str, Any])


async def abort_request(api: Api, http: Exchange) -> None:
    """End one request by its id, or all of them. Answers at once; the requests end through their own answers."""
    body = schemas.read_abort(await http.body(api.settings.max_body_bytes))
    if not body.rid and not body.abort_all:
        if api.settings.strict_abort:
            raise RequestError("provide either a nonempty rid or abort_all=true", param="rid")
        api.log.info("an abort without a rid was ignored")
    else:
        api.mailbox.abort(body.rid, everything=body.abort_all)
    await http.raw(200, b"")


async def flush_cache(api: Api, http: Exchange) -> None:
    """Drop the caches of the engine and the tokenizers; the engine refuses while requests are pending, unless they
    end within `timeout` seconds."""
    text = http.query().get("timeout", "0")
    try:
        wait = float(text)
    except ValueError:
        wait = -1.0
    if not 0 <= wait <= 86_400:
        raise RequestError(f"timeout must be a number of seconds from 0 to 86400, got {text[:40]}.", param="timeout")
    until = time.monotonic() + wait
    answer = await ask_engine(api, "FlushCache", {})
    while not succeeded(answer) and time.monotonic() < until:
        await asyncio.sleep(FLUSH_AGAIN)
        answer = await ask_engine(api, "FlushCache", {})
    if not succeeded(answer):
        await http.text(message_of(answer, "Flush cache failed.\n"), 400)
        return
    await asyncio.gather(*(ask(api, peer, "FlushCache", {}) for peer in _front(api, "tokenizer")))
    await http.text(FLUSHED)


def _front(api: Api, *roles: str) -> list[Peer]:
    """The live processes of some roles."""
    return [peer for peer in sorted(api.mailbox.hellos) if peer.role in roles]


async def internal_state(api: Api, http: Exchange) -> None:
    """The engine's live state, one map an engine link."""
    await http.json([without_secrets(await ask_engine(api, "GetInternalState", {}))])


async def set_internal_state(api: Api, http: Exchange) -> None:
    """Change arguments of the running engine; for each engine link whether it did."""
    fields = await fields_of(api, http, InternalStateBody)
    await http.json([succeeded(await ask_engine(api, "SetInternalState", fields))])


async def start_profile(api: Api, http: Exchange) -> None:
    """Start the engine's profiler."""
    answer = await ask_engine(api, "StartProfile", await fields_of(api, http, ProfileBody))
    await _say(http, answer, "Start profiling.\n")


async def stop_profile(api: Api, http: Exchange) -> None:
    """Stop the engine's profiler."""
    answer = await ask_engine(api, "StopProfile", {})
    await _say(http, answer, "Stop profiling. This will take some time.\n")


async def _say(http: Exchange, answer: Any, text: str) -> None:
    if succeeded(answer):
        await http.text(text)
    else:
        await http.json(refusal(answer), 400)


async def configure_logging(api: Api, http: Exchange) -> None:
    """Change the level of the log lines of every process, while they run."""
    fields = await fields_of(api, http, LoggingBody)
    for name, value in fields.items():
        if value is not None and name != "log_level":
            raise RequestError(f"{name} cannot be changed while the front runs", 501, param=name)
    await _everywhere(api, "ConfigureLogging", fields)
    await http.raw(200, b"")


async def freeze_gc(api: Api, http: Exchange) -> None:
    """Take what every process holds now out of garbage collection: fewer and shorter pauses."""
    await _everywhere(api, "FreezeGc", {})
    await http.text("Garbage collection frozen.\n")


async def _everywhere(api: Api, type_: str, fields: dict[str, Any]) -> None:
    """A call to every process. The other api processes get it from the link, and apply it without an answer."""
    keep_house(ControlRequest("", api.mailbox.number, type_, fields))
    peers = [*_front(api, "tokenizer", "detokenizer"), ENGINE]
    answers = await asyncio.gather(*(ask(api, peer, type_, fields) for peer in peers))
    failed = [str(peer) for peer, answer in zip(peers, answers, strict=True) if not succeeded(answer)]
    if failed:
        raise RequestError(f"{type_} failed in {', '.join(failed)}")


async def any_call(api: Api, http: Exchange) -> None:
    """A control call of any type, with the JSON body as its fields; answers with the engine's map."""
    type_ = http.scope["path_params"]["type"]
    if not _TYPE.fullmatch(type_):
        raise RequestError("the type of a control call is a word of letters and digits", param="type")
    body = await http.body(min(MAX_BODY, api.settings.max_body_bytes))
    answer = await ask_engine(api, type_, decoded(_object, body or b"{}", {}))
    refused = isinstance(answer, dict) and answer.get("success") is False
    await http.json(without_secrets(answer), 400 if refused else 200)


_BOTH = ("GET", "POST")
ROUTES = [
    Route(("POST",), "/abort_request", abort_request, "Abort requests", "control", "admin", body=schemas.AbortBody),
    Route(_BOTH, "/flush_cache", flush_cache, "Flush the caches", "control", "admin"),
    Route(_BOTH, "/start_profile", start_profile, "Start profiling", "control", "admin", body=ProfileBody),
    Route(_BOTH, "/stop_profile", stop_profile, "Stop profiling", "control", "admin"),
    Route(("GET",), "/get_internal_state", internal_state, "The engine's live state", "control", "admin"),
    Route(
        ("POST", "PUT"),
        "/set_internal_state",
        set_internal_state,
        "Change the running engine",
        "control",
        "admin",
        body=InternalStateBody,
    ),
    Route(_BOTH, "/configure_logging", configure_logging, "Change logging", "control", "admin", body=LoggingBody),
    Route(_BOTH, "/freeze_gc", freeze_gc, "Freeze the garbage collector", "control", "admin"),
    Route(("POST",), "/control/{type}", any_call, "Any control call", "control", "force"),
]
