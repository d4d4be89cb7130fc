"""Clients send the same parameters again and again: what was checked and filled in once is copied for the next request.

A body is taken apart into its prompt, its names and the rest. When the rest has come before, only prompt and names are
looked at; the plan is that of the earlier request with others in their place. The plans are kept in the context, which
is made anew when the engine has told new facts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

from msgspec import UNSET, Raw
from msgspec.json import encode
from msgspec.structs import replace

from forebay_api.batch import public_rids
from forebay_api.chat_prompt import messages_of
from forebay_api.fields import present
from forebay_api.openai_bodies import ChatBody, CompletionBody
from forebay_api.plan import AdmissionContext, Plan, fresh_id
from forebay_api.schemas import GenerateBody

MAX_KEY = 4096
"""Bytes of a body without its prompt that is kept as a key."""
MAX_WORDS = 64
"""Stop strings, patterns and ids of a plan that is kept."""
_unlike = attrgetter("sampling_seed", "logit_bias", "custom_params", "json_schema", "regex", "ebnf", "structural_tag")
_lists = attrgetter("stop", "stop_regex", "stop_token_ids")
_texts_of_chat = attrgetter("tools", "tool_choice", "chat_template_kwargs", "response_format", "structured_outputs")
_NO_TEXTS = (UNSET,) * 5

B = TypeVar("B", GenerateBody, CompletionBody, ChatBody)


def generate(body: GenerateBody, ctx: AdmissionContext, make: Callable[[GenerateBody], Plan]) -> Plan:
    """The plan of a `/generate` body; `make` is the long way. Raises `RequestError`."""
    text, rid = body.text, body.rid
    if not isinstance(text, str) or isinstance(rid, list):
        return make(body)
    body.text = body.rid = None
    known = ctx.shapes.find(body)
    if known is None:
        return _kept(ctx, body, make(replace(body, text=text, rid=rid)))
    return _like(known, ctx, rid, "", text=text)


def completion(body: CompletionBody, ctx: AdmissionContext, make: Callable[[CompletionBody], Plan]) -> Plan:
    """The plan of a completions body."""
    prompt, rid = body.prompt, body.request_id if body.rid is None else body.rid
    if not prompt or not isinstance(prompt, str) or isinstance(rid, list):
        return make(body)
    body.prompt = body.rid = body.request_id = None
    known = ctx.shapes.find(body)
    if known is None:
        return _kept(ctx, body, make(replace(body, prompt=prompt, rid=rid)))
    return _like(known, ctx, rid, "cmpl-", text=prompt)


def chat(body: ChatBody, ctx: AdmissionContext, make: Callable[[ChatBody], Plan]) -> Plan:
    """The plan of a chat body."""
    raw, rid = body.messages, body.request_id if body.rid is None else body.rid
    if isinstance(rid, list) or body.input_ids is not None or _texts_of_chat(body) != _NO_TEXTS:
        return make(body)
    body.messages, body.rid, body.request_id = UNSET, None, None
    known = ctx.shapes.find(body)
    if known is None:
        return _kept(ctx, body, make(replace(body, messages=raw, rid=rid)))
    return _like(known, ctx, rid, "chatcmpl-", messages=messages_of(present(raw)))


def _kept(ctx: AdmissionContext, body: B, plan: Plan) -> Plan:
    """Remember a plan, unless its next request is likely to differ or it holds much."""
    if plan.n > 1 or plan.batch or plan.items[0].head.extra is not None or plan.items[0].head.lora_path is not None:
        return plan
    item = plan.items[0]
    sampling = item.head.sampling
    words = [word for words in _lists(sampling) for word in words]
    if len(words) > MAX_WORDS or any(value is not None for value in _unlike(sampling)) or _holds_json(body):
        return plan
    if len(encode(body)) > MAX_KEY:  # what the plan has no use for, the key would hold all the same
        return plan
    blank = replace(
        item,
        text=None if item.text is None else "",
        chat=None if item.chat is None else replace(item.chat, messages=b""),
    )
    ctx.shapes.keep(body, replace(plan, items=[blank], ids=[]))
    return plan


def _holds_json(body: B) -> bool:
    """Whether a field is JSON text as it came: that is a part of the whole body, and would keep it."""
    return any(isinstance(getattr(body, name), Raw) for name in body.__struct_fields__)


def _like(
    known: Plan,
    ctx: AdmissionContext,
    public_rid: str | None,
    prefix: str,
    *,
    text: str | None = None,
    messages: bytes | None = None,
) -> Plan:
    """The plan of a request that differs from an earlier one in its prompt and names alone."""
    names = public_rids(public_rid, 1, batch=False)
    rid = ctx.new_rid(public_rid)
    blank = known.items[0]
    item = replace(
        blank,
        head=replace(blank.head, rid=rid, public_rid=public_rid, attempt=0),
        rids=[rid],
        open=replace(blank.open, rid=rid),
        text=text,
        chat=None if messages is None or blank.chat is None else replace(blank.chat, messages=messages),
    )
    name = public_rid or fresh_id(prefix) if prefix else ""
    return replace(known, id=name, parent_rid=public_rid, public_rids=names, items=[item], ids=[array("q")])
