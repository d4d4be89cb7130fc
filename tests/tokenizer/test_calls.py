"""Tokenize and Detokenize: the shapes of their answers, the same counts as requests, ids checked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forebay.errors import RequestError
from forebay.wire.messages import ControlRequest
from forebay_tokenizer.calls import Calls, call_size
from forebay_tokenizer.lanes import SMALL
from tests.tokenizer.samples import TOOLS, admit, admitter, chat, plain, user, with_bos, work

CALLS = Calls(admitter())
HELLO = plain().encode("hello", add_special_tokens=False).ids


def call(kind: str, calls: Calls = CALLS, **fields: Any) -> dict[str, Any]:
    return calls.answer(ControlRequest("c1", 0, kind, fields))


def refusal(kind: str, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call(kind, **fields)
    assert caught.value.status == 400
    return caught.value


def test_one_prompt_gives_its_tokens_and_their_count() -> None:
    assert call("Tokenize", prompt="hello") == {"tokens": HELLO, "count": 1, "max_model_len": 100}


def test_a_list_of_prompts_gives_lists() -> None:
    assert call("Tokenize", prompt=["hello", ""]) == {"tokens": [HELLO, []], "count": [1, 0], "max_model_len": 100}


def test_the_tokenizers_own_length_wins_over_the_context() -> None:
    assert call("Tokenize", Calls(admitter(), 4096), prompt="")["max_model_len"] == 4096


def test_special_tokens_are_added_unless_unwanted() -> None:
    calls = Calls(admitter(with_bos()))
    assert call("Tokenize", calls, prompt="hello")["count"] == 2
    assert call("Tokenize", calls, prompt="hello", add_special_tokens=False)["count"] == 1


def test_token_texts_are_given_when_asked_for() -> None:
    assert call("Tokenize", prompt=["hello"], return_token_strs=True)["token_strs"] == [["hello"]]


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("extra", [{}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_messages_give_the_ids_of_a_chat_request(as_json: bool, extra: dict[str, Any]) -> None:
    messages = msgspec.json.encode(user()) if as_json else user()
    expected = admit(admitter(), work(chat=chat(user(), **extra))).ids.tolist()
    assert call("Tokenize", messages=messages, **extra)["tokens"] == expected


def test_the_generation_prompt_can_be_left_out() -> None:
    with_prompt = call("Tokenize", messages=user())["count"]
    assert call("Tokenize", messages=user(), add_generation_prompt=False)["count"] < with_prompt
    assert call("Tokenize", messages=user(), add_generation_prompt=None)["count"] == with_prompt


def test_tools_count_unless_the_choice_is_none() -> None:
    calls, tools = Calls(admitter(template=TOOLS)), [{"type": "function", "function": {"name": "f"}}]
    without = call("Tokenize", calls, messages=user())["count"]
    assert call("Tokenize", calls, messages=user(), tools=tools)["count"] > without
    assert call("Tokenize", calls, messages=user(), tools=tools, tool_choice="none")["count"] == without


def test_a_text_over_the_context_is_still_counted() -> None:
    assert call("Tokenize", prompt="x" * 1000)["count"] == 1000


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "messages": user()}, {"prompt": None, "messages": None}])
def test_exactly_one_of_prompt_and_messages_is_needed(fields: dict[str, Any]) -> None:
    assert refusal("Tokenize", **fields).message == "Exactly one of 'prompt' or 'messages' must be provided."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ({"messages": "x"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": user(), "add_generation_prompt": 1}, "add_generation_prompt"),
        ({"messages": user(), "reasoning_effort": []}, "reasoning_effort"),
        (
            {"messages": user(), "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
    ],
)
def test_wrong_fields_of_tokenize_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal("Tokenize", **fields).param == param


@pytest.mark.parametrize("text", ["hello world", "漢字 🙂\x00\n", "", "<|im_end|>"])
def test_a_text_comes_back_as_it_went(text: str) -> None:
    tokens = call("Tokenize", prompt=text)["tokens"]
    assert call("Detokenize", tokens=tokens, skip_special_tokens=False) == {"text": text, "prompt": text}


def test_lists_of_ids_give_a_list_of_texts() -> None:
    assert call("Detokenize", tokens=[HELLO, []])["text"] == ["hello", ""]


def test_special_tokens_are_left_out_of_texts_by_default() -> None:
    assert call("Detokenize", tokens=[*HELLO, plain().token_to_id("</s>")])["text"] == "hello"


@pytest.mark.parametrize("bad", [4294967295, -1, 1 << 63, 1.5, "1", True, None, [1]])
def test_wrong_ids_are_refused(bad: Any) -> None:
    assert refusal("Detokenize", tokens=[1, bad]).param == "tokens"
    assert refusal("Detokenize", tokens=[[bad]]).param == "tokens"


@pytest.mark.parametrize("tokens", [None, "a", 5])
def test_tokens_must_be_a_list(tokens: Any) -> None:
    assert refusal("Detokenize", tokens=tokens).param == "tokens"


def test_another_call_is_not_implemented() -> None:
    with pytest.raises(RequestError) as caught:
        call("Translate")
    assert caught.value.status == 501


@pytest.mark.parametrize(
    "fields", [{"prompt": ["x" * SMALL]}, {"messages": user("x" * SMALL)}, {"tokens": [1] * SMALL}]
)
def test_big_calls_are_known_by_their_size(fields: dict[str, Any]) -> None:
    assert call_size(ControlRequest("c", 0, "Tokenize", fields)) >= SMALL
