"""Small contexts and bodies for the tests of admission."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from forebay.errors import RequestError
from forebay.facts import LaunchFacts
from forebay.settings import Settings
from forebay.wire.messages import SamplingParams
from forebay_api import schemas
from forebay_api.admission import AdmissionContext, HeaderFields, Plan, plan_chat, plan_completions, plan_generate

VOCABULARY = 100
CONTEXT = 64
USER = [{"role": "user", "content": "hi"}]


def context(facts: dict[str, Any] | None = None, **settings: Any) -> AdmissionContext:
    """A context with a vocabulary of 100 ids and a context of 64 tokens. `facts` are what the engine said besides."""
    count = itertools.count(1)

    def new_rid(public: str | None) -> str:
        return f"{public or 'fresh'}.{next(count)}"

    known = {"vocab_size": VOCABULARY, "context_length": CONTEXT, "served_model_name": "served", **(facts or {})}
    fields = {name: value for name, value in known.items() if name in LaunchFacts.__struct_fields__}
    return AdmissionContext(Settings(**settings), LaunchFacts(**fields, raw=known), new_rid, 3)


def generate(ctx: AdmissionContext | None = None, headers: HeaderFields | None = None, /, **body: Any) -> Plan:
    """The plan of a `/generate` body; with a text if it names no prompt."""
    if "text" not in body and "input_ids" not in body:
        body["text"] = "hi"
    read = schemas.read_generate(json.dumps(body).encode())
    return plan_generate(read, ctx or context(), headers or HeaderFields())


def complete(ctx: AdmissionContext | None = None, headers: HeaderFields | None = None, /, **body: Any) -> Plan:
    """The plan of a completions body."""
    read = schemas.read_completion(json.dumps({"prompt": "hi", **body}).encode())
    return plan_completions(read, ctx or context(), headers or HeaderFields())


def chat(ctx: AdmissionContext | None = None, headers: HeaderFields | None = None, /, **body: Any) -> Plan:
    """The plan of a chat body."""
    read = schemas.read_chat(json.dumps({"messages": USER, **body}).encode())
    return plan_chat(read, ctx or context(), headers or HeaderFields())


def refusal(step: Callable[..., Any], *args: Any, **fields: Any) -> RequestError:
    """The error with which a step refuses its input."""
    with pytest.raises(RequestError) as caught:
        step(*args, **fields)
    return caught.value


def said(step: Callable[..., Any], *args: Any, **fields: Any) -> tuple[int, str, str | None]:
    """Status, message and parameter of the error with which a step refuses its input."""
    error = refusal(step, *args, **fields)
    return error.status, error.message, error.param


def sampling(plan: Plan) -> SamplingParams:
    """The sampling parameters of a plan's first prompt."""
    return plan.items[0].head.sampling
