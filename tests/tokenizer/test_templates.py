"""Chat templates: what reaches them, what they may do, and what a client is told when they object."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import RequestError, SettingsError
from forebay_tokenizer.files import TokenizerFiles
from forebay_tokenizer.templates import ChatTemplates, Rendered
from tests.tokenizer.samples import ALTERNATING, BOS_FIRST, CHATML, LOG, PARTS, PARTS_ONLY, TOOLS, chat, user

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, messages: Any, *, options: dict[str, Any] | None = None, **fields: Any) -> str:
    templates = ChatTemplates({"default": source}, special_tokens=SPECIAL, **(options or {}))
    return templates.render(chat(messages, **fields)).text


def refusal(source: str, messages: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        render(source, messages, **fields)
    return caught.value


def test_a_chat_is_rendered_with_the_generation_prompt() -> None:
    expected = "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, [{"role": "system", "content": "Be brief"}, *user("hi")]) == expected


def test_the_generation_prompt_can_be_left_out() -> None:
    assert render(CHATML, user("hi"), add_generation_prompt=False).endswith("hi<|im_end|>\n")


def test_special_tokens_are_variables_of_the_template() -> None:
    turns = [*user("a"), {"role": "assistant", "content": "b"}, *user("c")]
    assert render(BOS_FIRST, turns).startswith("<s>user\n\na<|im_end|>")
    assert render(ALTERNATING, turns).replace("\n", "") == "<s>[INST] a [/INST] b</s>[INST] c [/INST]"


def test_what_the_template_raises_is_a_400_with_its_text() -> None:
    error = refusal(ALTERNATING, [*user(), *user()])
    assert (error.status, error.message) == (400, "Conversation roles must alternate user/assistant/user/assistant/...")


def test_any_other_failure_of_the_template_is_a_400_that_names_it() -> None:
    assert "has no attribute 'y'" in refusal("{{ messages[0].y.z }}", user()).message
    assert "ZeroDivisionError" in refusal("{{ 1 / 0 }}", user()).message
    assert len(refusal("{{ raise_exception('x' * 5000) }}", user()).message) == 1000


def test_without_a_template_chats_are_refused() -> None:
    with pytest.raises(RequestError, match=r"^this model has no usable chat template$"):
        ChatTemplates({}).render(chat(user()))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].content }}", "a b"),
        (PARTS, "user:\n<a><b>"),
        (PARTS_ONLY, "user:<a><b>"),
    ],
)
def test_all_text_parts_reach_the_prompt_in_order(source: str, expected: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(source, user(parts)).strip() == expected


def test_a_string_becomes_one_part_for_a_template_that_knows_only_parts() -> None:
    assert render(PARTS_ONLY, user("ab")) == "user:<ab>"


def test_template_variables_of_the_request_reach_the_template_and_absent_ones_stay_undefined() -> None:
    assert "<think>" in render(CHATML, user(), chat_template_kwargs={"enable_thinking": False})
    assert "<think>" not in render(CHATML, user())
    shown = "{{ x is defined }} {{ x }}"
    assert render(shown, user(), chat_template_kwargs={"x": [1, {"y": None}]}) == "True [1, {'y': None}]"
    assert render(shown, user()) == "False "


def test_the_requests_variables_win_over_the_operators_and_the_effort() -> None:
    shown = "{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }} {{ other }}"
    options = {"default_kwargs": {"enable_thinking": True, "other": 1}}
    fields: dict[str, Any] = {"options": options, "reasoning_effort": "none"}
    assert render(shown, user(), **fields) == "False False none 1"
    assert render(shown, user(), **fields, chat_template_kwargs={"enable_thinking": 7}) == "7 False none 1"
    assert render(shown, user(), options=options) == "True   1"


@pytest.mark.parametrize("effort", ["low", "max", 0, 0.5])
def test_any_effort_but_none_asks_for_thinking(effort: Any) -> None:
    shown = "{{ enable_thinking }} {{ reasoning_effort }}"
    assert render(shown, user(), reasoning_effort=effort) == f"True {effort}"


@pytest.mark.parametrize("effort", ["hard", True, 1, -0.1])
def test_an_unknown_effort_is_refused(effort: Any) -> None:
    assert refusal(CHATML, user(), reasoning_effort=effort).param == "reasoning_effort"


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "chat_template", "namespace"],
)
def test_a_request_cannot_set_the_servers_own_variables(name: str) -> None:
    error = refusal(CHATML, user(), chat_template_kwargs={name: None})
    assert (error.status, error.param) == (400, f"chat_template_kwargs.{name}")


def test_a_request_cannot_bring_a_template() -> None:
    error = refusal(CHATML, user(), chat_template="mine")
    assert (error.status, error.param) == (400, "chat_template")


def test_where_the_operator_trusts_requests_they_can_bring_template_and_variables() -> None:
    options = {"trust_requests": True}
    assert render(CHATML, user(), options=options, chat_template="mine {{ messages[0].content }}") == "mine hello"
    given = {"chat_template": "{{ bos_token }}", "bos_token": "B"}
    assert render(CHATML, user(), options=options, chat_template_kwargs=given) == "B"


@pytest.mark.parametrize("given", [5, "{% if %}", "{{ 1 | nofilter }}"])
def test_a_trusted_template_that_does_not_compile_is_a_400(given: Any) -> None:
    error = refusal(CHATML, user(), options={"trust_requests": True}, chat_template_kwargs={"chat_template": given})
    assert (error.status, error.param) == (400, "chat_template")


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(9) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% set x = [1] * 99999 %}{% for a in x %}{% for b in x %}{% for c in [1] %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_does_not_end_is_stopped(source: str) -> None:
    error = refusal(source, user(), options={"render_seconds": 0.02})
    assert error.message == "The chat template took longer than 0.02 s."


def test_a_sandboxed_template_reaches_nothing_of_python() -> None:
    error = refusal("{{ messages.__class__.__mro__[1].__subclasses__() }}", user())
    assert "unsafe" in error.message


def test_a_template_cannot_change_what_it_is_given() -> None:
    assert refusal("{{ messages.append(1) }}", user()).status == 400


def test_json_in_templates_is_plain_json() -> None:
    given = {"x": {"b": "<'é'>", "a": 1}}
    assert render("{{ x | tojson }}", user(), chat_template_kwargs=given) == '{"b": "<\'é\'>", "a": 1}'
    assert render("{{ x | tojson(indent=1, sort_keys=true) }}", user(), chat_template_kwargs=given).startswith(
        '{\n "a"'
    )


def test_templates_can_ask_for_the_date() -> None:
    assert re.fullmatch(r"\d{4}-\d\d", render("{{ strftime_now('%Y-%m') }}", user()))


def test_the_tags_that_templates_use_are_known() -> None:
    loop = "{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render("{% generation %}" + loop + "{% endgeneration %}", user()) == "01"


def test_loops_keep_their_length_and_neighbours() -> None:
    source = "{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ loop.nextitem is defined }} {% endfor %}"
    assert render(source, [*user(), {"role": "assistant", "content": ""}]) == "2FalseTrue 2TrueFalse "


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_tools_reach_the_template_as_the_client_sent_them() -> None:
    expected = '<tools>{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}</tools>'
    assert render(TOOLS, user(), tools=[TOOL]).startswith(expected)


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_and_an_empty_list_are_the_same(tools: Any) -> None:
    assert render("{{ tools is none }}", user(), tools=tools) == "True"


BARE = "{% for tool in tools %}{{ tool.name or raise_exception('a tool needs a name') }}{% endfor %}"


def test_a_template_that_wants_bare_functions_gets_them_at_the_second_try() -> None:
    assert render(BARE, user(), tools=[TOOL]) == "f"


def test_when_both_tries_fail_the_first_failure_is_told() -> None:
    source = "{{ raise_exception('full' if tools[0].function else 'bare') }}"
    assert refusal(source, user(), tools=[TOOL]).message == "full"


def test_the_template_for_tools_is_used_only_with_tools() -> None:
    templates = ChatTemplates({"default": "plain", "tool_use": "with tools"})
    assert templates.render(chat(user())).text == "plain"
    assert templates.render(chat(user(), tools=[TOOL])).text == "with tools"


ANSWER = {"role": "assistant", "content": " Sure: "}


def test_a_begun_answer_is_taken_out_and_kept_to_the_letter() -> None:
    rendered = ChatTemplates({"default": CHATML}).render(chat([*user("hi"), ANSWER], continue_final_message=True))
    assert rendered == Rendered("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", " Sure: ")


@pytest.mark.parametrize(
    "last",
    [
        user()[0],
        {"role": "assistant", "content": "x", "reasoning_content": "y"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_only_a_text_of_the_assistant_can_be_continued(last: dict[str, Any]) -> None:
    error = refusal(CHATML, [*user(), last], continue_final_message=True)
    assert (error.status, error.param) == (400, "continue_final_message")


def test_a_template_of_the_model_that_does_not_compile_leaves_the_rest_served(caplog: pytest.LogCaptureFixture) -> None:
    files = TokenizerFiles(tokenizer=Path("tokenizer.json"), templates={"default": "{% if %}"})
    with caplog.at_level(logging.WARNING):
        templates = ChatTemplates.load(files, LOG)
    assert "chat requests will be refused" in caplog.text
    with pytest.raises(RequestError):
        templates.render(chat(user()))


def test_a_template_of_the_operator_that_does_not_compile_stops_the_start() -> None:
    files = TokenizerFiles(tokenizer=Path("tokenizer.json"), templates={"default": "{% if %}"})
    with pytest.raises(SettingsError, match="cannot be compiled"):
        ChatTemplates.load(files, LOG, chosen=True)
