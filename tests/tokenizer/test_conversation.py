"""Messages from the client's JSON to what templates read: roles, contents, tool calls, and every refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay.errors import RequestError
from forebay_tokenizer.conversation import conversation, read_messages, text_of
from forebay_tokenizer.traits import Traits
from tests.tokenizer.samples import user

TEXT, BOTH = Traits(), Traits(parts=True, text=True)


def read(messages: Any, traits: Traits = TEXT) -> list[dict[str, Any]]:
    raw = messages if isinstance(messages, bytes) else msgspec.json.encode(messages)
    return conversation(read_messages(raw, "messages"), traits)


def refusal(messages: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(messages)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("role", ["System", "USER", "assistant", "tool", "Function"])
def test_roles_are_known_in_any_case(role: str) -> None:
    assert read([{"role": role, "content": "x"}])[0]["role"] == role.lower()


def test_an_unknown_role_is_refused_by_name() -> None:
    error = refusal([*user(), {"role": "robot", "content": "x"}])
    assert "'robot'" in error.message
    assert error.param == "messages.1.role"


@pytest.mark.parametrize(("knows", "role"), [(True, "developer"), (False, "system")])
def test_the_developer_is_the_system_for_a_template_without_developers(knows: bool, role: str) -> None:
    assert read([{"role": "developer", "content": "x"}], Traits(developer=knows))[0]["role"] == role


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, null]}'}}


@pytest.mark.parametrize("traits", [TEXT, BOTH, Traits(parts=True, text=False)])
def test_null_empty_and_absent_content_beside_tool_calls_are_the_same(traits: Traits) -> None:
    base: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
    forms: list[dict[str, Any]] = [{}, {"content": None}, {"content": ""}, {"content": []}]
    first, *others = [read([base | form], traits) for form in forms]
    assert others == [first] * 3
    assert text_of(first[0]) == ""


def test_a_user_must_say_something() -> None:
    assert refusal([{"role": "user", "content": None}]).param == "messages.0.content"
    assert refusal([{"role": "user"}]).param == "messages.0.content"


def test_parts_are_joined_with_a_space_where_the_template_wants_text() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]
    assert read(user(parts))[0]["content"] == "a b c"
    assert read([{"role": "tool", "content": parts}])[0]["content"] == "a b c"


def test_parts_are_kept_where_the_template_wants_parts() -> None:
    assert read(user(["a"]), BOTH)[0]["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url", "input_audio", "file", "thinking", "odd"])
def test_other_parts_are_refused(kind: str) -> None:
    error = refusal(user([{"type": "text", "text": "a"}, {"type": kind, kind: "x"}]))
    assert error.message == f"Model only supports text input; received unsupported content type '{kind}'."
    assert error.param == "messages.0.content.1.type"


def test_a_part_without_its_text_is_refused() -> None:
    assert refusal(user([{"type": "text"}])).param == "messages.0.content.0"


def test_thinking_parts_of_the_assistant_become_its_reasoning() -> None:
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]
    message = read([{"role": "assistant", "content": content}])[0]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("a", "hm", "hm")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_taken_under_either_name(name: str) -> None:
    assert read([{"role": "assistant", "content": "a", name: "hm"}])[0]["reasoning_content"] == "hm"


def test_arguments_become_an_object() -> None:
    call = read([{"role": "assistant", "tool_calls": [CALL]}])[0]["tool_calls"][0]
    assert call == {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, None]}}}


@pytest.mark.parametrize("arguments", ["", " ", None, {}, "{}"])
def test_a_call_without_arguments_has_an_empty_object(arguments: Any) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert read([message])[0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["[1]", "5", "{", "null"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    error = refusal([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}])
    assert error.param == "messages.0.tool_calls.0.function.arguments"


def test_the_tools_answer_keeps_its_name_and_call() -> None:
    message = read([{"role": "tool", "content": "1", "tool_call_id": "c1", "name": "f", "odd": 1}])[0]
    assert message == {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "f"}


def test_an_empty_list_of_messages_is_refused() -> None:
    assert refusal([]).message == "Messages cannot be empty."


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{}", "messages"),
        (b"[1]", "messages.0"),
        (b'[{"content":"x"}]', "messages.0"),
        (b'[{"role":"user","content":5}]', "messages.0.content"),
        (b'[{"role":"user","content":[{"type":"text","text":5}]}]', "messages.0.content.0.text"),
        (b"[", "messages"),
        (b'[{"role":"user","content":"\\ud800x y z"}]', "messages"),
        (b'[{"role":"user","content":"\xff"}]', "messages"),
        (b'[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":' + b"[" * 100_000, "messages"),
    ],
    ids=["object", "number", "no role", "content", "text", "cut", "surrogate", "not UTF-8", "deep"],
)
def test_what_is_not_a_list_of_messages_is_refused_with_its_place(raw: bytes, param: str) -> None:
    assert refusal(raw).param == param


def test_the_place_of_a_wrong_type_is_in_the_message() -> None:
    assert refusal([{"role": 1}]).message == "messages[0].role: Expected `str`, got `int`"
