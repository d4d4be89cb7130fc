"""`/v1/chat/completions`: the chunks byte for byte, and the whole answer."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.wire.messages import Extra
from tests.api.conversation import CREATED, Talk, pairs
from tests.api.samples import chat, context

HEAD = f'"id":"answer-1","object":"chat.completion.chunk","created":{CREATED},"model":"served"'
LENGTH = {"type": "length", "length": 2}
ROLE = '{"role":"assistant","content":"","reasoning_content":null}'
GOES_ON = '"finish_reason":null,"matched_stop":null'
ENDED = '"finish_reason":"length","matched_stop":null,"stop_reason":null'
DONE = "data: [DONE]\n\n"


def chunk(delta: str, finish: str = GOES_ON, index: int = 0) -> str:
    return f'data: {{{HEAD},"choices":[{{"index":{index},"delta":{delta},"logprobs":null,{finish}}}]}}\n\n'


def content(text: str) -> str:
    return f'{{"reasoning_content":null,"content":"{text}"}}'


def test_role_then_text_then_an_empty_finish(talk: Talk) -> None:
    c = talk(chat(stream=True))
    c.say((0, "Hel", [1], None))
    c.say((0, "lo", [2], None))
    c.end(0, LENGTH)
    expected = chunk(ROLE) + chunk(content("Hel")) + chunk(content("lo")) + chunk("{}", ENDED) + DONE
    assert c.bytes.decode() == expected


def test_last_text_goes_before_the_finish_chunk(talk: Talk) -> None:
    c = talk(chat(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, {"type": "stop", "matched": "x"}, "b", [2])
    finish = '"finish_reason":"stop","matched_stop":"x","stop_reason":"x"'
    assert c.bytes.decode().endswith(chunk(content("b")) + chunk("{}", finish) + DONE)


def test_empty_answer_has_role_and_finish(talk: Talk) -> None:
    c = talk(chat(stream=True))
    c.end(0, LENGTH)
    assert c.bytes.decode() == chunk(ROLE) + chunk("{}", ENDED) + DONE


def test_each_sample_has_its_role_and_its_finish(talk: Talk) -> None:
    c = talk(chat(stream=True, n=2))
    c.say((1, "b", [1], None))
    c.say((0, "a", [1], None), (1, "b", [1], None))
    c.end(1, LENGTH)
    c.end(0, LENGTH)
    expected = [
        chunk(ROLE, index=1) + chunk(content("b"), index=1),
        chunk(ROLE, index=0) + chunk(content("a"), index=0),
        chunk(content("b"), index=1),
        chunk("{}", ENDED, 1),
        chunk("{}", ENDED, 0),
    ]
    assert c.bytes.decode() == "".join(expected) + DONE


def test_usage_comes_after_the_finish_chunk(talk: Talk) -> None:
    c = talk(chat(stream=True, stream_options={"include_usage": True}))
    c.say((0, "a", [1], None))
    c.end(0, LENGTH)
    *chunks, finish, usage = c.chunks
    assert [one["usage"] for one in (*chunks, finish)] == [None] * 3
    assert finish["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 7)


def test_continuous_usage_is_in_every_chunk(talk: Talk) -> None:
    c = talk(chat(stream=True, stream_options={"continuous_usage_stats": True}))
    c.say((0, "a", [1], None))
    c.say((0, "b", [1], None))
    c.end(0, LENGTH, completion_tokens=2)
    assert [one["usage"]["completion_tokens"] for one in c.chunks] == [1, 1, 2, 2]


def test_abort_with_a_status_is_an_error_event_and_no_finish(talk: Talk) -> None:
    c = talk(chat(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, {"type": "abort", "message": "full", "status_code": 503})
    *_, last = c.chunks
    assert last["error"]["code"] == 503
    assert not any(one["choices"][0]["finish_reason"] for one in c.chunks[:-1])


def test_normal_chunks_have_no_error_member(talk: Talk) -> None:
    c = talk(chat(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, LENGTH)
    assert not any("error" in one for one in c.chunks)


def test_whole_answer(talk: Talk) -> None:
    c = talk(chat(context({"weight_version": "v1"})))
    c.end(0, LENGTH, "Hello")
    answer = c.answer
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "reasoning_content": None},
            "logprobs": None,
            "finish_reason": "length",
            "matched_stop": None,
            "stop_reason": None,
        }
    ]
    assert answer["metadata"] == {"weight_version": "v1"}


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids(talk: Talk, stream: bool) -> None:
    c = talk(chat(stream=stream, return_token_ids=True))
    c.admit(0, [8, 9])
    if not stream:
        c.end(0, LENGTH, "ab", [1, 2])
        choice = c.answer["choices"][0]
        assert (choice["prompt_token_ids"], choice["response_token_ids"]) == ([8, 9], [1, 2])
        return
    c.say((0, "a", [1], None))
    c.end(0, LENGTH, "b", [2])
    choices = [one["choices"][0] for one in c.chunks]
    assert choices[0]["prompt_token_ids"] == [8, 9]
    assert [one.get("token_ids") for one in choices] == [None, [1], [2], None]


# ---------------------------------------------------------------- logprobs
def spoken(value: float | None, token: int, *top: tuple[float | None, int]) -> Extra:
    names = {1: b"a", 2: b"bc", 5: b"\xf0\x9f", 6: b"\x98\x80"}
    return Extra(output_logprobs=pairs((value, token)), output_top=[pairs(*top)] if top else None, token_bytes=names)


def test_each_chunk_has_the_logprobs_of_its_own_tokens(talk: Talk) -> None:
    c = talk(chat(stream=True, logprobs=True, top_logprobs=1))
    c.say((0, "a", [1], spoken(-0.5, 1, (-0.25, 2))))
    c.say((0, "bc", [2], spoken(-0.75, 2, (-1.0, 1))))
    c.end(0, LENGTH)
    found = [one["choices"][0]["logprobs"] for one in c.chunks]
    assert [found[0], found[3]] == [None, None]
    assert found[1]["content"] == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [{"token": "bc", "logprob": -0.25, "bytes": [98, 99]}],
        }
    ]
    assert found[2]["content"][0]["token"] == "bc"


def test_logprobs_of_held_text_are_not_lost(talk: Talk) -> None:
    c = talk(chat(stream=True, logprobs=True))
    c.say((0, "", [5], spoken(-0.5, 5)))
    c.say((0, "\U0001f600", [6], spoken(-0.5, 6)))
    c.end(0, LENGTH)
    raw = [
        entry["bytes"] for one in c.chunks for entry in (one["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert bytes(byte for part in raw for byte in part).decode() == "\U0001f600"


def test_without_alternatives_the_list_is_empty(talk: Talk) -> None:
    c = talk(chat(logprobs=True))
    c.end(0, LENGTH, "a", extra=spoken(-0.5, 1))
    assert c.answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None])
def test_a_logprob_that_is_no_number_is_the_floor(talk: Talk, value: Any) -> None:
    c = talk(chat(logprobs=True))
    c.end(0, LENGTH, "a", extra=spoken(value, 1))
    assert c.answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_hidden_states_are_the_same_in_a_stream_and_a_whole_answer(talk: Talk) -> None:
    rows = [[0.5, 1.0], [1.5, 2.0], [2.5, float("nan")]]
    c = talk(chat(stream=True, return_hidden_states=True))
    c.say((0, "a", [1], Extra(hidden_states=rows[:1])))
    c.say((0, "", [1], Extra(hidden_states=rows[1:2])))
    c.end(0, LENGTH, "b", extra=Extra(hidden_states=rows[2:]))
    whole = talk(chat(return_hidden_states=True))
    whole.end(0, LENGTH, "ab", extra=Extra(hidden_states=[list(row) for row in rows]))
    in_stream = c.chunks[-1]["choices"][0]["hidden_states"]
    assert in_stream == whole.answer["choices"][0]["hidden_states"] == [[0.5, 1.0], [1.5, 2.0], [2.5, None]]
