"""`/v1/chat/completions`: messages and tools as JSON text for the tokenizer, and the fields that only chats have."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from forebay.wire.messages import ChatPrompt
from tests.api.samples import CONTEXT, USER, chat, context, refusal, said, sampling

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def prompt(**fields: Any) -> ChatPrompt:
    found = chat(**fields).items[0].chat
    assert found is not None
    return found


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


# ---------------------------------------------------------------- messages
def test_messages_go_to_the_tokenizer_as_they_were_sent() -> None:
    messages = [*USER, {"role": "assistant", "content": None, "anything": {"x": "é"}}]
    assert json.loads(prompt(messages=messages).messages) == messages


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "missing field `messages`"),
        ([], "Messages cannot be empty."),
        ({}, "invalid type: map, expected a sequence"),
        ("hi", 'invalid type: string "hi", expected a sequence'),
    ],
)
def test_what_is_no_list_of_messages_is_refused(messages: Any, message: str) -> None:
    assert said(chat, messages=messages) == (400, message, "messages")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (True, False)),
        ({"add_generation_prompt": False}, (False, False)),
        ({"continue_final_message": True}, (True, True)),
        ({"continue_final_message": True, "add_generation_prompt": False}, (False, True)),
    ],
)
def test_how_a_chat_ends_is_told_to_the_template(fields: dict[str, Any], expected: tuple[bool, bool]) -> None:
    found = prompt(**fields)
    assert (found.add_generation_prompt, found.continue_final_message) == expected


def test_a_message_is_not_continued_and_begun_at_once() -> None:
    error = refusal(chat, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"


def test_ids_take_the_place_of_the_rendered_chat() -> None:
    plan = chat(input_ids=[1, 2])
    item = plan.items[0]
    assert (item.chat, item.has_ids, plan.ids) == (None, True, [array("q", [1, 2])])
    assert refusal(chat, input_ids=[]).param == "input_ids"


# ---------------------------------------------------------------- template
def test_template_variables_are_passed_on() -> None:
    assert prompt(chat_template_kwargs={"a": [1]}).chat_template_kwargs == b'{"a": [1]}'


def test_template_variables_must_be_an_object() -> None:
    message = "invalid type: sequence, expected a map"
    assert said(chat, chat_template_kwargs=[1]) == (400, message, "chat_template_kwargs")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ],
)
def test_a_template_in_the_request_needs_the_operators_trust(fields: dict[str, Any], param: str) -> None:
    text = "a request cannot bring its own chat template on this server"
    assert said(chat, **fields) == (400, text, param)
    trusting = context(trust_request_chat_template=True)
    item = chat(trusting, **fields).items[0]
    assert item.chat is not None
    assert item.chat.chat_template == "x"


def test_a_template_that_is_no_text_is_refused() -> None:
    ctx = context(trust_request_chat_template=True)
    error = refusal(chat, ctx, chat_template_kwargs={"chat_template": 5})
    assert error.param == "chat_template_kwargs.chat_template"


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"reasoning_effort": "low"}, "low"),
        ({"reasoning_effort": 0.5}, 0.5),
        ({"reasoning_effort": 0}, 0.0),
        ({"reasoning": {"effort": "high"}}, "high"),
        ({"reasoning": {"enabled": False}}, "none"),
        ({"reasoning": {"enabled": True}}, "medium"),
        ({"reasoning": {"enabled": True, "effort": "max"}}, "max"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "low"),
    ],
)
def test_the_reasoning_effort_goes_to_the_template(fields: dict[str, Any], effort: Any) -> None:
    assert prompt(**fields).reasoning_effort == effort


@pytest.mark.parametrize("effort", ["huge", "", True, 1, -0.5, [1]])
def test_an_unknown_reasoning_effort_is_refused(effort: Any) -> None:
    assert refusal(chat, reasoning_effort=effort).param == "reasoning_effort"


# ---------------------------------------------------------------- limits and logprobs
@pytest.mark.parametrize(
    ("fields", "limit"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6), ({"max_tokens": 5, "max_completion_tokens": 6}, 6)],
)
def test_the_newer_name_of_the_limit_wins(fields: dict[str, Any], limit: int) -> None:
    plan = chat(**fields)
    assert (sampling(plan).max_new_tokens, plan.items[0].max_new_tokens_given) == (limit, True)


def test_without_a_limit_a_chat_may_fill_its_context() -> None:
    plan = chat(max_tokens=None)
    assert (sampling(plan).max_new_tokens, plan.items[0].max_new_tokens_given) == (None, False)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_outside_the_context_is_refused(name: str) -> None:
    for limit in (0, -1):
        assert said(chat, **{name: limit}) == (400, f"{name} must be positive", name)
    message = f"{name} must be at most {CONTEXT}, the model's context length, got {CONTEXT + 1}."
    assert said(chat, **{name: CONTEXT + 1}) == (400, message, name)
    assert sampling(chat(**{name: CONTEXT})).max_new_tokens == CONTEXT


def test_a_limit_outside_the_context_is_cut_later_where_the_operator_cuts() -> None:
    assert sampling(chat(context(allow_auto_truncate=True), max_tokens=1000)).max_new_tokens == 1000


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (False, 0)),
        ({"logprobs": True}, (True, 0)),
        ({"logprobs": True, "top_logprobs": 5}, (True, 5)),
        ({"logprobs": False, "top_logprobs": 0}, (False, 0)),
        ({"logprobs": None, "top_logprobs": None}, (False, 0)),
    ],
)
def test_logprobs_are_asked_of_the_engine(fields: dict[str, Any], expected: tuple[bool, int]) -> None:
    plan = chat(**fields)
    head = plan.items[0].head
    assert (head.return_logprob, head.top_logprobs_num) == expected == (plan.return_logprob, plan.top_logprobs)
    assert head.logprob_start_len == -1


def test_alternatives_need_logprobs() -> None:
    message = "top_logprobs needs logprobs to be true"
    assert said(chat, top_logprobs=1) == (400, message, "top_logprobs")


@pytest.mark.parametrize("value", [-1, 1025])
def test_the_number_of_alternatives_is_limited(value: int) -> None:
    message = f"top_logprobs must be in [0, 1024], got {value}."
    assert said(chat, logprobs=True, top_logprobs=value) == (400, message, "top_logprobs")


def test_a_thinking_budget_has_two_names() -> None:
    ctx = context({"enable_strict_thinking": True})
    assert sampling(chat(ctx, thinking_token_budget=5)).custom_params == {"thinking_budget": 5}
    assert sampling(chat(ctx, max_thinking_tokens=6)).custom_params == {"thinking_budget": 6}
    assert refusal(chat, thinking_token_budget=5).param == "thinking_token_budget"


@pytest.mark.parametrize("field", ["return_meta_info", "echo"])
def test_what_chats_do_not_have_is_refused(field: str) -> None:
    assert said(chat, **{field: True}) == (400, f"{field} is not supported", field)
    assert chat(**{field: False}).items == chat().items


@pytest.mark.parametrize("field", ["return_token_ids", "return_prompt_token_ids"])
def test_token_ids_are_returned_when_asked_for(field: str) -> None:
    plan = chat(**{field: True})
    assert (plan.return_token_ids, plan.items[0].open.want_prompt_ids) == (True, True)


# ---------------------------------------------------------------- tools
def test_tools_are_shown_to_the_template() -> None:
    found = prompt(tools=[TOOL]).tools
    assert found is not None
    assert json.loads(found) == [TOOL]


@pytest.mark.parametrize("fields", [{"tools": None}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}])
def test_tools_that_are_not_to_be_used_are_not_shown(fields: dict[str, Any]) -> None:
    assert prompt(**fields).tools is None


@pytest.mark.parametrize("choice", [None, "auto"])
def test_with_tools_the_model_decides(choice: Any) -> None:
    assert prompt(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).tools is not None


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_without_tools_means_nothing(choice: str) -> None:
    assert prompt(tool_choice=choice).tools is None


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        (None, "required", "tool_choice 'required' needs tools"),
        ([], "required", "tool_choice 'required' needs tools"),
        (None, NAMED, "tool_choice names the tool 'f', but there are no tools"),
        ([tool(name="g")], NAMED, "Tool 'f' not found in tools list."),
        ([TOOL], "always", 'tool_choice cannot be string "always"'),
        (
            [TOOL],
            "required",
            "tool_choice 'required' is not supported by this server: it has no tool call parser; use 'auto' or 'none'",
        ),
        (
            [TOOL],
            NAMED,
            "tool_choice a named tool is not supported by this server: it has no tool call parser; "
            "use 'auto' or 'none'",
        ),
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(tools: Any, choice: Any, message: str) -> None:
    assert said(chat, tools=tools, tool_choice=choice) == (400, message, "tool_choice")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        ([5], "tools.0"),
        ([{"type": "function"}], "tools.0.function"),
        ([{"type": "web_search", "function": {"name": "f"}}], "tools.0.type"),
        ([{"type": "function", "function": {}}], "tools.0.function.name"),
        ([tool(name="")], "tools.0.function.name"),
        ([tool(), tool()], "tools.1.function.name"),
        ([tool(name=5)], "tools.0.function.name"),
        ([tool(strict="yes")], "tools.0.function.strict"),
        ([tool(parameters=[1])], "tools.0.function.parameters"),
    ],
)
def test_a_malformed_tool_is_refused_with_its_place(tools: Any, param: str) -> None:
    error = refusal(chat, tools=tools)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "objekt"}, "type must be one of"),
        ({"type": ["string", "string"]}, "type must be one of"),
        ({"type": []}, "type must be one of"),
        ({"properties": []}, "properties must be an object (at properties)"),
        ({"properties": {"a": 5}}, "a schema must be an object or a boolean (at properties.a)"),
        ({"properties": {"a": {"type": 5}}}, "type must be one of"),
        ({"items": [1]}, "a schema must be an object or a boolean (at items)"),
        ({"anyOf": []}, "anyOf must be a list with something in it (at anyOf)"),
        ({"anyOf": [{"minLength": -1}]}, "minLength must be a whole number from 0 on (at anyOf.0.minLength)"),
        ({"required": "a"}, "required must be a list of different strings"),
        ({"required": ["a", "a"]}, "required must be a list of different strings"),
        ({"enum": "a"}, "enum must be a list"),
        ({"minimum": "0"}, "minimum must be a number"),
        ({"multipleOf": 0}, "multipleOf must be a number above 0"),
        ({"description": 5}, "description must be a string"),
        ({"uniqueItems": 1}, "uniqueItems must be a boolean"),
        ({"dependentRequired": {"a": "b"}}, "dependentRequired must be an object of lists of different strings"),
    ],
)
def test_parameters_that_are_no_json_schema_are_refused(schema: dict[str, Any], fault: str) -> None:
    error = refusal(chat, tools=[TOOL | {"function": {"name": "x"}}, tool(parameters=schema)])
    assert error.message.startswith(f"Tool 1 function has invalid 'parameters' schema: {fault}")
    assert error.param == "tools.1.function.parameters"


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": ["string", "null"], "enum": ["a", None], "default": 5, "x-anything": [1]},
        {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": True}, "required": ["a"]},
        {"type": "array", "items": {"type": "integer", "minimum": 0.5}, "minItems": 1, "prefixItems": [{}]},
        {"anyOf": [{"const": 1}, {"not": {}}], "additionalProperties": False, "maxProperties": 3.0},
    ],
)
def test_parameters_that_are_a_json_schema_are_accepted(schema: Any) -> None:
    assert prompt(tools=[tool(parameters=schema)]).tools is not None


def test_deeply_nested_parameters_are_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"not": schema}
    assert "nested deeper than 128 levels" in refusal(chat, tools=[tool(parameters=schema)]).message
