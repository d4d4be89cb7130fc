"""Whatever a body holds, it is planned or refused with a 4xx or 501: never another error, never another's trouble."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from forebay.errors import RequestError
from forebay_api import schemas
from forebay_api.admission import Plan, plan_chat, plan_completions, plan_generate
from forebay_api.fields import SamplingBody
from tests.api.samples import context

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    5,
    1 << 63,
    -(1 << 70),
    0.5,
    -0.5,
    1e300,
    "",
    "a",
    "none",
    "(a+)+",
    "\u0000",
    "{}",
    [],
    {},
    [1, 2],
    ["a", ""],
    [[1], [2]],
    [[]],
    [None],
    [True],
    [{}, {}],
    {"type": "json_schema", "schema": {}},
    {"include_usage": True, "effort": "low"},
    {"1": 0.5},
    {"a": [[1 << 65]]},
    [{"type": "function", "function": {"name": "f"}}],
    [{"role": "user", "content": "hi"}],
]
ROUTES: list[tuple[type[msgspec.Struct], Callable[[bytes], Any], Callable[..., Plan], dict[str, Any]]] = [
    (schemas.GenerateBody, schemas.read_generate, plan_generate, {"text": ["a", "b"]}),
    (schemas.CompletionBody, schemas.read_completion, plan_completions, {"prompt": "a"}),
    (schemas.ChatBody, schemas.read_chat, plan_chat, {"messages": [{"role": "user", "content": "a"}]}),
]


@pytest.mark.parametrize(("body", "read", "plan", "base"), ROUTES)
@pytest.mark.parametrize("seed", range(4))
def test_any_body_is_planned_or_refused(body: Any, read: Any, plan: Any, base: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    ctx = context({"enable_lora": True, "dp_size": 2}, max_batch_items=8)
    statuses = set()
    for _ in range(200):
        fields = dict(base)
        for name in chance.sample(body.__struct_fields__, chance.randint(1, 2)):
            fields[name] = chance.choice(VALUES)
        if chance.random() < 0.3 and body is schemas.GenerateBody:
            fields["sampling_params"] = {chance.choice(SamplingBody.__struct_fields__): chance.choice(VALUES)}
        try:
            made = plan(read(json.dumps(fields).encode()), ctx)
        except RequestError as error:
            statuses.add(error.status)
            continue
        statuses.add(200)
        assert msgspec.msgpack.encode(made.items)
        assert len(made.items) == len(made.ids) == len(made.public_rids)
    assert {200, 400} <= statuses <= {200, 400, 404, 501}
