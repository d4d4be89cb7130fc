"""Generation: `/generate`, `/v1/completions` and `/v1/chat/completions`, streaming and whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from forebay.errors import RequestError
from forebay_api import replies, schemas
from forebay_api.admission import plan_chat, plan_completions, plan_generate
from forebay_api.calls import Call, Choice, as_error
from forebay_api.http import JSON, ClientLeft, Exchange
from forebay_api.native_stream import GenerateCall, GenerateChoice
from forebay_api.openai_streams import ChatChoice, CompletionChoice
from forebay_api.plan import NO_HEADERS, AdmissionContext, HeaderFields, Plan
from forebay_api.routes.route import Route
from forebay_api.schemas import read_chat, read_completion, read_generate
from forebay_api.server import EventWriter, ResponseOwner
from forebay_api.streams import StreamCall, StreamChoice
from forebay_api.warmup import warm_prefixes

if TYPE_CHECKING:
    from forebay_api.app import Api

Owner = TypeVar("Owner", bound=ResponseOwner)

STREAMS: dict[str, tuple[type[StreamCall], type[StreamChoice]]] = {
    "generate": (GenerateCall, GenerateChoice),
    "completion": (StreamCall, CompletionChoice),
    "chat": (StreamCall, ChatChoice),
}
"""The call and choice of each API family."""


class Kind(NamedTuple):
    """How the body of a route becomes a plan."""

    read: Callable[[bytes], Any]
    plan: Callable[[Any, AdmissionContext, HeaderFields], Plan]
    only_json: bool
    """Whether the body must call itself JSON."""


KINDS = {
    "/generate": Kind(read_generate, plan_generate, only_json=False),
    "/v1/completions": Kind(read_completion, plan_completions, only_json=True),
    "/v1/chat/completions": Kind(read_chat, plan_chat, only_json=True),
}


async def generate(api: Api, http: Exchange) -> None:
    """Native generation."""
    await _answer(api, http, KINDS["/generate"])


async def completions(api: Api, http: Exchange) -> None:
    """OpenAI completions."""
    await _answer(api, http, KINDS["/v1/completions"])


async def chat(api: Api, http: Exchange) -> None:
    """OpenAI chat completions."""
    await _answer(api, http, KINDS["/v1/chat/completions"])


async def _answer(api: Api, http: Exchange, kind: Kind) -> None:
    welcome(api, http, kind)
    body = await http.body(api.settings.max_body_bytes)
    await respond(api, http, plan_of(api, http, kind, body))


def welcome(api: Api, http: Exchange, kind: Kind) -> None:
    """Refuse what can be refused before the body is read."""
    if kind.only_json:
        http.need_json()
    api.accepting()


def plan_of(api: Api, http: Exchange, kind: Kind, body: bytes) -> Plan:
    """What a body asks for. Raises `RequestError`."""
    return kind.plan(kind.read(body), api.admission(), _header_fields(http))


async def respond(api: Api, http: Exchange, plan: Plan) -> None:
    """Run a plan, and answer with what came of it."""
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


def warms(api: Api, plan: Plan) -> bool:
    """Whether the prompts of a plan go ahead of its samples."""
    return plan.n > 1 and api.admission().warms_prefix


def submit(api: Api, http: Exchange, call: Call, kind: type[Choice]) -> None:
    """Send a call on its way."""
    choices = _choices(call, kind)
    api.call_began(http, call)
    api.mailbox.submit(call, choices, call.plan.ids)


async def _submit(api: Api, http: Exchange, call: Call, kind: type[Choice]) -> None:
    """Send a call on its way; with several samples after its prompts, where the engine keeps prefixes."""
    if not warms(api, call.plan):
        submit(api, http, call, kind)
        return
    call.choices = _choices(call, kind)
    api.call_began(http, call)
    await warm_prefixes(api, call)
    choices = call.running
    if choices and not call.done.done():
        prompts = {choice.prompt for choice in choices}
        api.mailbox.submit(call, choices, [ids for at, ids in enumerate(call.plan.ids) if at in prompts])


def _present(owner: Owner) -> Owner:
    """The owner, if its client is there. Raises `ClientLeft`: a connection that is lost tells no owner any more."""
    if owner.gone:
        owner.release()
        raise ClientLeft
    return owner


def open_whole(api: Api, http: Exchange, plan: Plan) -> tuple[Call, ResponseOwner]:
    """A call that does not stream, and its hold on the connection, which the caller releases."""
    api.check_plan(plan)
    call = Call(plan, asyncio.get_running_loop(), http.request_id.decode())

    def left() -> None:
        call.leave()
        api.mailbox.abandon(call)

    return call, _present(ResponseOwner(http.scope, [], left))


def whole_fault(call: Call) -> RequestError | None:
    """The error that a finished call which does not stream is answered with; None: with its result."""
    fault = call.fault
    if fault is None or (call.plan.keeps_going and not call.expired and len(call.faults) < len(call.choices)):
        return None
    return as_error(fault, call.plan.kind)


async def run_whole(api: Api, http: Exchange, plan: Plan) -> Call | None:
    """Run a call that does not stream to its end; None when its client has left.

    Raises `RequestError` when it failed as a whole.
    """
    call, owner = open_whole(api, http, plan)
    try:
        await _submit(api, http, call, Choice)
        await call.done
    finally:
        owner.release()
    if call.client_left:
        return None
    error = whole_fault(call)
    if error is not None:
        raise error
    return call


def open_stream(api: Api, http: Exchange, plan: Plan) -> tuple[StreamCall, EventWriter]:
    """A call that streams, and its hold on the connection, which the caller releases."""
    api.check_plan(plan)
    kind = STREAMS[plan.kind][0]
    backlog = api.settings.max_stream_backlog_bytes
    call = kind(plan, asyncio.get_running_loop(), http.request_id.decode(), backlog)

    def left() -> None:
        call.leave()
        api.mailbox.abandon(call)

    def slow() -> None:
        api.log.info("client too slow, request %s aborted", call.request_id)
        left()
        writer.transport.abort()

    writer = call.writer = _present(EventWriter(http.scope, http.headers, left, call.full, call.room))
    call.too_slow = slow
    return call, writer


async def _stream(api: Api, http: Exchange, plan: Plan) -> None:
    call, writer = open_stream(api, http, plan)
    try:
        await _submit(api, http, call, STREAMS[plan.kind][1])
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
