"""`/v1/completions`: the chunks byte for byte, and the whole answer."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import RequestError
from forebay.wire.messages import Extra, RequestFault
from forebay_api.calls import as_error
from tests.api.conversation import CREATED, Talk, pairs
from tests.api.samples import complete, context

HEAD = f'"id":"answer-1","object":"text_completion","created":{CREATED},"model":"served"'
STOP = {"type": "stop", "matched": 7}
LENGTH = {"type": "length", "length": 2}


def chunk(text: str, more: str = "", index: int = 0) -> str:
    """A chunk without families; `more` replaces what says that it goes on."""
    finish = more or '"finish_reason":null,"matched_stop":null'
    return f'data: {{{HEAD},"choices":[{{"index":{index},"text":"{text}","logprobs":null,{finish}}}]}}\n\n'


ENDED = '"finish_reason":"length","matched_stop":null,"stop_reason":null'
DONE = "data: [DONE]\n\n"


def test_plain_stream(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.say((0, "Hel", [1], None))
    c.say((0, "lo", [2], None))
    c.end(0, LENGTH)
    assert c.bytes.decode() == chunk("Hel") + chunk("lo") + chunk("", ENDED) + DONE


def test_last_text_comes_with_the_finish_reason(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, {"type": "stop", "matched": "x"}, "b", [2])
    assert c.bytes.decode().endswith(chunk("b", '"finish_reason":"stop","matched_stop":"x","stop_reason":"x"') + DONE)


def test_empty_completion_has_one_chunk(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.end(0, STOP)
    assert c.bytes.decode() == chunk("", '"finish_reason":"stop","matched_stop":7,"stop_reason":7') + DONE


def test_quotes_and_controls_are_escaped_in_plain_chunks(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.say((0, "a", [1], None))
    c.say((0, '"\\\n\x00é', [1], None))
    c.end(0, LENGTH)
    assert c.chunks[1]["choices"][0]["text"] == '"\\\n\x00é'


def test_tokens_without_text_make_no_chunk(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.say((0, "a", [1], None))
    c.say((0, "", [1], None))
    c.end(0, LENGTH)
    assert len(c.chunks) == 2


def test_samples_and_prompts_are_numbered_prompt_by_prompt(talk: Talk) -> None:
    c = talk(complete(prompt=["x", "y"], n=2, stream=True))
    c.say(*((index, str(index), [1], None) for index in (3, 1, 0, 2)))
    for index in (2, 0, 3, 1):
        c.end(index, LENGTH)
    texts = [(one["choices"][0]["index"], one["choices"][0]["text"]) for one in c.chunks[:4]]
    assert texts == [(3, "3"), (1, "1"), (0, "0"), (2, "2")]
    ends = [one["choices"][0]["index"] for one in c.chunks if one["choices"][0]["finish_reason"]]
    assert ends == [2, 0, 3, 1]


def test_interleaved_choices_keep_their_own_text(talk: Talk) -> None:
    c = talk(complete(n=2, stream=True))
    for step in range(4):
        c.say((step % 2, f"{step % 2}", [1], None))
    c.end(0, LENGTH)
    c.end(1, LENGTH)
    for index in (0, 1):
        texts = [one["choices"][0]["text"] for one in c.chunks if one["choices"][0]["index"] == index]
        assert "".join(texts) == str(index) * 2


# ---------------------------------------------------------------- usage
def test_usage_comes_once_in_a_chunk_without_choices(talk: Talk) -> None:
    c = talk(complete(prompt=["x", "y"], n=2, stream=True, stream_options={"include_usage": True}))
    c.say((0, "a", [1], None))
    for index in range(4):
        c.end(index, LENGTH, prompt_tokens=5, completion_tokens=2)
    *chunks, last = c.chunks
    assert [one["usage"] for one in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (10, 8)
    assert last["usage"]["total_tokens"] == 18


def test_no_usage_unless_asked_for(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, LENGTH)
    assert not any("usage" in one for one in c.chunks)


def test_continuous_usage_runs_along_in_every_chunk(talk: Talk) -> None:
    c = talk(complete(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    c.say((0, "a", [1], None))
    c.say((0, "b", [1], None))
    c.end(0, LENGTH, completion_tokens=3)
    assert [one["usage"]["completion_tokens"] for one in c.chunks] == [1, 2, 3, 3]
    assert {one["usage"]["prompt_tokens"] for one in c.chunks} == {5}


def test_cached_tokens_show_only_with_the_cache_report(talk: Talk) -> None:
    c = talk(complete())
    c.end(0, LENGTH, cached_tokens=4)
    assert c.answer["usage"]["prompt_tokens_details"] is None
    c = talk(complete(context(enable_cache_report=True)))
    c.end(0, LENGTH, cached_tokens=4)
    assert c.answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


# ---------------------------------------------------------------- ends
@pytest.mark.parametrize(
    ("reason", "finish", "matched"),
    [
        (STOP, "stop", 7),
        ({"type": "stop", "matched": "end"}, "stop", "end"),
        ({"type": "stop", "matched": None}, "stop", None),
        (LENGTH, "length", None),
        ({"type": "abort", "message": "Aborted", "status_code": None}, "abort", None),
        ({"type": "moon"}, "stop", None),
    ],
)
def test_finish_reasons_of_a_whole_answer(talk: Talk, reason: dict[str, Any], finish: str, matched: Any) -> None:
    c = talk(complete())
    c.end(0, reason, "so far")
    choice = c.answer["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"], choice["stop_reason"]) == (finish, matched, matched)
    assert choice["text"] == "so far"


def test_abort_with_a_status_is_that_error_before_the_first_chunk(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.end(0, {"type": "abort", "message": "The request queue is full.", "status_code": 503})
    assert not c.wire.started
    fault = c.call.fault
    assert fault is not None
    error = as_error(fault)
    assert isinstance(error, RequestError)
    assert (error.status, error.message) == (503, "The request queue is full.")


def test_abort_with_a_status_after_the_first_chunk_is_an_error_event(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, {"type": "abort", "message": "out of memory", "status_code": 500, "err_type": "InternalServerError"})
    error = (
        'data: {"error":{"object":"error","message":"out of memory","type":"InternalServerError","param":null,'
        '"code":500}}\n\n'
    )
    assert c.bytes.decode() == chunk("a") + error + DONE


def test_abort_without_a_status_ends_the_stream_with_its_text(talk: Talk) -> None:
    c = talk(complete(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None})
    assert c.chunks[-1]["choices"][0]["finish_reason"] == "abort"


# ---------------------------------------------------------------- the whole answer
def test_whole_answer(talk: Talk) -> None:
    c = talk(complete(context({"weight_version": "v1"})))
    c.end(0, LENGTH, "Hello")
    assert c.answer == {
        "id": "answer-1",
        "object": "text_completion",
        "created": CREATED,
        "model": "served",
        "choices": [
            {
                "index": 0,
                "text": "Hello",
                "logprobs": None,
                "finish_reason": "length",
                "matched_stop": None,
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
            "reasoning_tokens": 0,
        },
        "metadata": {"weight_version": "v1"},
    }


def test_metadata_names_the_versions_when_they_changed_on_the_way(talk: Talk) -> None:
    versions = [{"version": "v1", "start": 0, "end": 1}, {"version": "v2", "start": 1, "end": 2}]
    c = talk(complete(context({"weight_version": "v2"})))
    c.end(0, LENGTH, trailing={"weight_versions": versions})
    assert c.answer["metadata"] == {"weight_version": "v2", "weight_versions": versions}


def test_model_is_echoed_as_the_client_wrote_it(talk: Talk) -> None:
    c = talk(complete(model="whatever", stream=True))
    c.end(0, LENGTH)
    assert c.chunks[0]["model"] == "whatever"


def test_token_ids_ride_along_and_the_prompt_comes_first(talk: Talk) -> None:
    c = talk(complete(stream=True, return_token_ids=True))
    c.admit(0, [8, 9])
    c.say((0, "a", [1], None))
    c.say((0, "bc", [2, 3], None))
    c.end(0, LENGTH, "d", [4])
    choices = [one["choices"][0] for one in c.chunks]
    assert [one["token_ids"] for one in choices] == [[1], [2, 3], [4]]
    assert choices[0]["prompt_token_ids"] == [8, 9]
    assert not any("prompt_token_ids" in one for one in choices[1:])


# ---------------------------------------------------------------- logprobs
NAMES = {1: b"a", 2: b"bc", 8: b"he", 9: b"llo", 5: b"\xf0\x9f"}


def spoken(*found: tuple[float | None, int], top: Any = None, prompt: Any = None, prompt_top: Any = None) -> Extra:
    return Extra(
        output_logprobs=pairs(*found),
        output_top=top,
        input_logprobs=prompt,
        input_top=prompt_top,
        token_bytes=dict(NAMES),
    )


def test_offsets_go_on_over_the_chunks(talk: Talk) -> None:
    c = talk(complete(stream=True, logprobs=0))
    c.say((0, "a", [1], spoken((-0.5, 1))))
    c.say((0, "bca", [2, 1], spoken((-0.25, 2), (-1.0, 1))))
    c.end(0, LENGTH, "bc", [2], extra=spoken((-0.5, 2)))
    found = [one["choices"][0]["logprobs"] for one in c.chunks]
    assert [one["tokens"] for one in found] == [["a"], ["bc", "a"], ["bc"]]
    assert [one["text_offset"] for one in found] == [[0], [1, 3], [4]]


def test_zero_alternatives_still_give_the_chosen_token(talk: Talk) -> None:
    c = talk(complete(logprobs=0))
    c.end(0, LENGTH, "a", extra=spoken((-0.5, 1)))
    assert c.answer["choices"][0]["logprobs"] == {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [None],
        "text_offset": [0],
    }


def test_alternatives_hold_the_chosen_token_too(talk: Talk) -> None:
    c = talk(complete(logprobs=1))
    c.end(0, LENGTH, "a", extra=spoken((-0.5, 1), top=[pairs((-0.25, 2))]))
    assert c.answer["choices"][0]["logprobs"]["top_logprobs"] == [{"bc": -0.25, "a": -0.5}]


def test_of_two_alternatives_with_one_text_the_likelier_stays(talk: Talk) -> None:
    c = talk(complete(logprobs=2))
    extra = spoken((-0.5, 1), top=[pairs((-3.0, 2), (-2.0, 8))])
    extra.token_bytes = {1: b"a", 2: b"x", 8: b"x"}
    c.end(0, LENGTH, "a", extra=extra)
    assert c.answer["choices"][0]["logprobs"]["top_logprobs"] == [{"x": -2.0, "a": -0.5}]


def test_part_of_a_character_is_shown_byte_by_byte(talk: Talk) -> None:
    c = talk(complete(logprobs=0))
    c.end(0, LENGTH, "", extra=spoken((-0.5, 5)))
    assert c.answer["choices"][0]["logprobs"]["tokens"] == ["\xf0\x9f"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None])
def test_a_logprob_that_is_no_number_is_null(talk: Talk, value: float | None) -> None:
    c = talk(complete(logprobs=1))
    c.end(0, LENGTH, "a", extra=spoken((value, 1), top=[pairs((value, 2))]))
    found = c.answer["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [None]


# ---------------------------------------------------------------- echo
@pytest.mark.parametrize("logprobs", [None, 0, 5])
@pytest.mark.parametrize("prompt", ["hello", [8, 9]])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_first(talk: Talk, logprobs: int | None, prompt: Any, stream: bool) -> None:
    c = talk(complete(prompt=prompt, echo=True, logprobs=logprobs, stream=stream))
    c.admit(0, [8, 9], "hello")
    extra = None
    if logprobs is not None:
        assert c.plan.items[0].head.logprob_start_len == 0
        rows = {"top": [pairs((-0.25, 2))], "prompt_top": [None, pairs((-0.1, 1))]} if logprobs else {}
        extra = spoken((-0.5, 1), prompt=pairs((None, 8), (-0.75, 9)), **rows)
    if stream:
        c.say((0, "a", [1], extra))
        c.end(0, LENGTH)
        choice = c.chunks[0]["choices"][0]
    else:
        c.end(0, LENGTH, "a", extra=extra)
        choice = c.answer["choices"][0]
    assert choice["text"] == "helloa"
    if logprobs is None:
        assert choice["logprobs"] is None
        return
    assert choice["logprobs"]["tokens"] == ["he", "llo", "a"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.75, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 2, 5]
    assert choice["logprobs"]["top_logprobs"][0] is None


def test_echo_comes_once_for_each_choice(talk: Talk) -> None:
    c = talk(complete(prompt="hello", echo=True, n=2, stream=True))
    for index in (0, 1):
        c.say((index, "a", [1], None))
        c.say((index, "b", [1], None))
        c.end(index, LENGTH)
    texts = {0: "", 1: ""}
    for one in c.chunks:
        texts[one["choices"][0]["index"]] += one["choices"][0]["text"]
    assert texts == {0: "helloab", 1: "helloab"}


# ---------------------------------------------------------------- hidden states
def test_hidden_states_come_in_a_chunk_of_their_own_with_all_rows(talk: Talk) -> None:
    c = talk(complete(stream=True, return_hidden_states=True))
    c.say((0, "a", [1], Extra(hidden_states=[[0.5, 1.0]])))
    c.say((0, "b", [1], Extra(hidden_states=[[1.5, 2.0]])))
    c.end(0, LENGTH, "c", [1], extra=Extra(hidden_states=[[2.5, 3.0]]))
    chunks = c.chunks
    assert ["hidden_states" in one["choices"][0] for one in chunks] == [False, False, False, True]
    assert chunks[-1]["choices"][0]["hidden_states"] == [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]
    assert chunks[-1]["choices"][0]["text"] == ""


def test_strict_model_name_is_404() -> None:
    with pytest.raises(RequestError) as caught:
        complete(context(strict_model_name=True), model="other")
    assert (caught.value.status, caught.value.param) == (404, "model")


@pytest.mark.parametrize(
    ("kind", "native", "param"),
    [
        ("completion", "text", "prompt"),
        ("completion", "input_ids", "prompt"),
        ("completion", "max_new_tokens", "max_tokens"),
        ("chat", "max_new_tokens", "max_tokens"),
        ("chat", "messages", "messages"),
        ("embedding", "input_ids", "input"),
        ("generate", "input_ids", "input_ids"),
    ],
)
def test_an_error_names_the_field_of_the_route_that_was_asked(kind: str, native: str, param: str) -> None:
    error = as_error(RequestFault("1", 400, f"{native} must be shorter; {native} is not", None, native), kind)
    assert (error.param, error.message) == (param, f"{param} must be shorter; {native} is not")
