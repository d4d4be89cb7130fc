"""Generation: `/generate`, `/v1/completions` and `/v1/chat/completions`, streaming and whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay_api import replies, schemas
from forebay_api.admission import plan_chat, plan_completions, plan_generate
from forebay_api.calls import Call, Choice, as_error
from forebay_api.http import JSON, Exchange
from forebay_api.native_stream import GenerateCall, GenerateChoice
from forebay_api.openai_streams import ChatChoice, CompletionChoice
from forebay_api.plan import NO_HEADERS, HeaderFields, Plan
from forebay_api.routes.route import Route
from forebay_api.schemas import read_chat, read_completion, read_generate
from forebay_api.server import EventWriter, ResponseOwner
from forebay_api.streams import StreamCall, StreamChoice
from forebay_api.warmup import warm_prefixes

if TYPE_CHECKING:
    from forebay_api.app import Api

STREAMS: dict[str, tuple[type[StreamCall], type[StreamChoice]]] = {
    "generate": (GenerateCall, GenerateChoice),
    "completion": (StreamCall, CompletionChoice),
    "chat": (StreamCall, ChatChoice),
}
"""The call and choice of each API family."""


async def generate(api: Api, http: Exchange) -> None:
    """Native generation."""
    await _answer(api, http, read_generate, plan_generate)


async def completions(api: Api, http: Exchange) -> None:
    """OpenAI completions."""
    http.need_json()
    await _answer(api, http, read_completion, plan_completions)


async def chat(api: Api, http: Exchange) -> None:
    """OpenAI chat completions."""
    http.need_json()
    await _answer(api, http, read_chat, plan_chat)


async def _answer(api: Api, http: Exchange, read: Callable[[bytes], Any], make: Callable[..., Plan]) -> None:
    api.accepting()
    body = await http.body(api.settings.max_body_bytes)
    plan = make(read(body), api.admission(), _header_fields(http))
    if plan.stream:
        await _stream(api, http, plan)
        return
    call = await run_whole(api, http, plan)
    if call is not None:
        await http.raw(200, replies.whole(call), JSON)


def _header_fields(http: Exchange) -> HeaderFields:
    rank, key = http.header(b"x-data-parallel-rank"), http.header(b"x-smg-routing-key")
    if rank is None and key is None:
        return NO_HEADERS
    return HeaderFields(_text(rank), _text(key))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _choices(call: Call, kind: type[Choice]) -> list[Choice]:
    """The choices of a plan in the order of the answer: prompt after prompt, sample after sample."""
    out: list[Choice] = []
    for prompt, item in enumerate(call.plan.items):
        for rid in item.rids:
            out.append(kind(call, rid, len(out), item, prompt))
    return out


async def _submit(api: Api, http: Exchange, call: Call, kind: type[Choice]) -> None:
    """Send a call on its way; with several samples after its prompts, where the engine keeps prefixes."""
    plan, choices = call.plan, _choices(call, kind)
    api.call_began(http, call)
    if plan.n > 1 and api.admission().warms_prefix:
        call.choices = choices
        await warm_prefixes(api, call)
        choices = call.running
    if choices and not call.done.done():
        prompts = {choice.prompt for choice in choices}
        api.mailbox.submit(call, choices, [ids for at, ids in enumerate(plan.ids) if at in prompts])


async def run_whole(api: Api, http: Exchange, plan: Plan) -> Call | None:
    """Run a call that does not stream to its end; None when its client has left.

    Raises `RequestError` when it failed as a whole.
    """
    api.check_plan(plan)
    call = Call(plan, asyncio.get_running_loop(), http.request_id.decode())

    def left() -> None:
        call.leave()
        api.mailbox.abandon(call)

    owner = ResponseOwner(http.scope, [], left)
    try:
        await _submit(api, http, call, Choice)
        await call.done
    finally:
        owner.release()
    if call.client_left:
        return None
    fault = call.fault
    if fault is not None and (call.expired or not plan.keeps_going or len(call.faults) == len(call.choices)):
        raise as_error(fault, plan.kind)
    return call


async def _stream(api: Api, http: Exchange, plan: Plan) -> None:
    api.check_plan(plan)
    call_type, choice_type = STREAMS[plan.kind]
    call = call_type(plan, asyncio.get_running_loop(), http.request_id.decode(), api.settings.max_stream_backlog_bytes)

    def left() -> None:
        call.leave()
        api.mailbox.abandon(call)

    def slow() -> None:
        api.log.info("client too slow, request %s aborted", call.request_id)
        call.leave()
        api.mailbox.abandon(call)
        writer.transport.abort()

    writer = call.writer = EventWriter(http.scope, http.headers, left, call.full, call.room)
    call.too_slow = slow
    try:
        await _submit(api, http, call, choice_type)
        await call.done
        if call.client_left:
            return
        if call.failed is not None and not writer.started:
            writer.release()
            raise as_error(call.failed, plan.kind)
        http.answered, http.status = True, 200
        await writer.finish(call.last_events())
    finally:
        writer.release()


ROUTES = [
    Route(("POST", "PUT"), "/generate", generate, "Generate (native)", "generation", body=schemas.GenerateBody),
    Route(
        ("POST",),
        "/v1/completions",
        completions,
        "Completions (OpenAI)",
        "generation",
        openai=True,
        body=schemas.CompletionBody,
    ),
    Route(
        ("POST",),
        "/v1/chat/completions",
        chat,
        "Chat completions (OpenAI)",
        "generation",
        openai=True,
        body=schemas.ChatBody,
    ),
]
