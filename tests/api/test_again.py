"""Requests with parameters that came before: the plan is that of the long way, with its own prompt and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from forebay_api.plan import AdmissionContext, Plan
from forebay_api.shapes import MAX_SHAPES
from tests.api.samples import chat, complete, context, generate, refusal

BODIES: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"stop": ["a", "b"], "max_tokens": 3, "temperature": 0},
    {"stop": "a", "stream": True, "stream_options": {"include_usage": True}},
    {"seed": 5},
    {"response_format": {"type": "json_object"}},
    {"logit_bias": {"3": 1.0}},
    {"n": 2},
    {"return_token_ids": True, "no_logs": True, "log_metrics": False},
    {"session_id": "s"},
    {"custom_params": {"a": 1}},
    {"priority": 3},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"model": "other"},
]


def comparable(plan: Plan) -> Any:
    """A plan without the ids that are made up for it."""
    plan.id = "" if plan.parent_rid is None else plan.id
    replace = msgspec.structs.replace
    items = [
        replace(item, head=replace(item.head, rid=""), open=replace(item.open, rid=""), rids=[""] * len(item.rids))
        for item in plan.items
    ]
    return items, replace(plan, items=[])


@pytest.mark.parametrize("names", [{}, {"rid": "mine"}], ids=["no name", "a name"])
@pytest.mark.parametrize("body", BODIES, ids=str)
@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (complete, {"prompt": "one"}, {"prompt": "another"}),
        (chat, {}, {"messages": [{"role": "user", "content": "another"}]}),
    ],
    ids=["completion", "chat"],
)
def test_the_second_request_gets_the_plan_of_the_long_way(
    make: Callable[..., Plan],
    first: dict[str, Any],
    second: dict[str, Any],
    body: dict[str, Any],
    names: dict[str, Any],
) -> None:
    ctx = context()
    make(ctx, **body, **first)
    again = make(ctx, **body, **names, **second)
    assert comparable(again) == comparable(make(context(), **body, **names, **second))


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.5, "max_new_tokens": 3}, {"stop": ["x"]}, {"sampling_seed": 1}], ids=str
)
def test_generate_gets_the_plan_of_the_long_way(params: dict[str, Any]) -> None:
    ctx = context()
    generate(ctx, sampling_params=params, text="one", rid="r")
    again = generate(ctx, sampling_params=params, text="another")
    assert comparable(again) == comparable(generate(context(), sampling_params=params, text="another"))
    assert again.items[0].text == "another"


def known(ctx: AdmissionContext) -> int:
    return len(ctx.shapes._known)


def test_every_request_has_ids_of_its_own() -> None:
    ctx = context()
    plans = [complete(ctx) for _ in range(3)]
    assert known(ctx) == 1
    assert len({plan.id for plan in plans}) == 3
    assert len({plan.items[0].head.rid for plan in plans}) == 3
    for plan in plans:
        (item,) = plan.items
        assert item.rids == [item.head.rid] == [item.open.rid]


def test_what_is_written_into_one_plan_is_not_in_the_next() -> None:
    ctx = context()
    first = complete(ctx)
    first.items[0].head.attempt = 3
    first.items[0].text = None
    first.items.append(first.items[0])
    second = complete(ctx)
    assert (second.items[0].head.attempt, second.items[0].text, len(second.items)) == (0, "hi", 1)


@pytest.mark.parametrize("rid", ["", "x" * 129, "\n"])
def test_a_bad_name_is_refused_as_on_the_long_way(rid: str) -> None:
    ctx = context()
    complete(ctx)
    assert str(refusal(complete, ctx, rid=rid)) == str(refusal(complete, context(), rid=rid))


@pytest.mark.parametrize("messages", [[], "hi", None], ids=str)
def test_bad_messages_are_refused_as_on_the_long_way(messages: Any) -> None:
    ctx = context()
    chat(ctx)
    assert str(refusal(chat, ctx, messages=messages)) == str(refusal(chat, context(), messages=messages))


def test_a_refused_body_is_refused_again() -> None:
    ctx = context()
    assert str(refusal(complete, ctx, temperature=-1)) == str(refusal(complete, ctx, temperature=-1))


@pytest.mark.parametrize(
    "body",
    [{"seed": 1}, {"custom_params": {"a": 1}}, {"session_id": "s"}, {"n": 2}, {"regex": "a"}, {"tools": []}],
    ids=str,
)
def test_what_is_unlike_from_request_to_request_is_not_kept(body: dict[str, Any]) -> None:
    ctx = context()
    chat(ctx, **body)
    assert known(ctx) == 0


def test_only_a_few_are_kept() -> None:
    ctx = context()
    for limit in range(1, 2 * MAX_SHAPES):
        complete(ctx, max_tokens=limit)
    assert known(ctx) == MAX_SHAPES


def test_the_prompt_of_a_kept_body_is_not_kept() -> None:
    ctx = context()
    text = "not to be kept " * 3
    complete(ctx, prompt=text)
    chat(ctx, messages=[{"role": "user", "content": text}])
    generate(ctx, text=text)
    assert known(ctx) == 3
    for body, plan in ctx.shapes._known:
        assert text.encode() not in msgspec.msgpack.encode((plan.items, plan.ids))
        assert text not in repr(body)
        assert not any(isinstance(value, msgspec.Raw) for value in msgspec.structs.astuple(body))


def test_an_engine_with_other_facts_begins_anew() -> None:
    ctx = context()
    complete(ctx, max_tokens=40)
    other = context({"preferred_sampling_params": {"temperature": 0.25}})
    assert complete(other, max_tokens=40).items[0].head.sampling.temperature == 0.25


def test_a_body_that_holds_much_is_not_kept() -> None:
    ctx = context()
    complete(ctx, stop_token_ids=[1] * 5000)
    chat(ctx, reasoning_effort="low", reasoning={"effort": "x" * 5000})
    assert known(ctx) == 0
    chat(ctx, reasoning_effort="low", reasoning={"effort": "x"})
    assert known(ctx) == 1
