"""`/generate`: frames and whole answers, `meta_info`, logprobs, hidden states, ends."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.wire.messages import Extra
from forebay_api.native_stream import Grown
from tests.api.conversation import Conversation, Talk, pairs
from tests.api.samples import context, generate

LENGTH = {"type": "length", "length": 3}
STEPS = [("Hé", [1]), ('l"', [2]), ("o\n\U0001f600", [3])]


def run(c: Conversation, *extras: Extra | None) -> Conversation:
    """Three tokens, the last with the end."""
    found = [*extras, None, None, None]
    for (text, ids), extra in zip(STEPS[:2], found, strict=False):
        c.say((0, text, ids, extra))
    c.end(0, LENGTH, *STEPS[2], completion_tokens=3, extra=found[2])
    return c


def whole(c: Conversation, extra: Extra | None = None) -> Any:
    c.end(0, LENGTH, "".join(text for text, _ in STEPS), [1, 2, 3], completion_tokens=3, extra=extra)
    return c.answer


# ---------------------------------------------------------------- frames
def test_cumulative_frames_hold_everything_since_the_start(talk: Talk) -> None:
    frames = run(talk(generate(stream=True))).chunks
    assert [frame["text"] for frame in frames] == ["Hé", 'Hél"', 'Hél"o\n\U0001f600']
    assert [frame["output_ids"] for frame in frames] == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("how", ["setting", "field"])
def test_incremental_frames_hold_what_is_new(talk: Talk, how: str) -> None:
    plan = (
        generate(context(incremental_streaming_output=True), stream=True)
        if how == "setting"
        else generate(stream=True, stream_output=True)
    )
    frames = run(talk(plan)).chunks
    assert [frame["text"] for frame in frames] == [text for text, _ in STEPS]
    assert [frame["output_ids"] for frame in frames] == [[1], [2], [3]]
    assert [frame["meta_info"]["completion_tokens"] for frame in frames] == [1, 2, 3]


def test_the_field_switches_the_setting_off_too(talk: Talk) -> None:
    plan = generate(context(incremental_streaming_output=True), stream=True, stream_output=False)
    assert run(talk(plan)).chunks[-1]["output_ids"] == [1, 2, 3]


def test_whole_answer_and_last_cumulative_frame_agree(talk: Talk) -> None:
    last = run(talk(generate(stream=True))).chunks[-1]
    answer = whole(talk(generate()))
    for frame in (last, answer):
        del frame["meta_info"]["e2e_latency"], frame["meta_info"]["id"]
    del last["meta_info"]["ttft"]
    assert last == answer


def test_finish_reason_is_null_until_the_last_frame(talk: Talk) -> None:
    frames = run(talk(generate(stream=True))).chunks
    assert [frame["meta_info"]["finish_reason"] for frame in frames] == [None, None, LENGTH]


def test_frames_of_a_slow_reader_are_merged_and_no_token_is_lost(talk: Talk) -> None:
    c = talk(generate(stream=True, stream_output=True))
    c.say((0, "a", [1], None))
    c.wire.open = False
    c.say((0, "b", [2], None))
    c.say((0, "c", [3, 4], None))
    c.wire.open = True
    c.call.room()  # type: ignore[attr-defined]
    c.end(0, LENGTH)
    assert [(frame["text"], frame["output_ids"]) for frame in c.chunks] == [("a", [1]), ("bc", [2, 3, 4]), ("", [])]


def test_steps_that_come_together_make_one_frame(talk: Talk) -> None:
    c = talk(generate(stream=True, stream_output=True))
    c.mailbox.take([c.step((0, "a", [1], None)), c.step((0, "b", [2], None))])
    c.end(0, LENGTH)
    assert [frame["text"] for frame in c.chunks] == ["ab", ""]


def test_batch_frames_are_numbered(talk: Talk) -> None:
    c = talk(generate(text=["x", "y"], stream=True))
    c.say((1, "b", [1], None), (0, "a", [1], None))
    c.end(1, LENGTH)
    c.end(0, LENGTH)
    assert [(frame["index"], frame["text"]) for frame in c.chunks] == [(1, "b"), (0, "a"), (1, "b"), (0, "a")]


def test_a_single_stream_has_no_index(talk: Talk) -> None:
    assert not any("index" in frame for frame in run(talk(generate(stream=True))).chunks)


# ---------------------------------------------------------------- whole answers
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ({"text": "x"}, dict),
        ({"text": ["x"]}, 1),
        ({"text": ["x", "y"]}, 2),
        ({"text": "x", "sampling_params": {"n": 2}}, 2),
        ({"text": ["x", "y"], "sampling_params": {"n": 2}}, 4),
        ({"input_ids": [1, 2]}, dict),
        ({"input_ids": [[1, 2]]}, 1),
    ],
)
def test_a_list_answers_a_list(talk: Talk, body: dict[str, Any], shape: Any) -> None:
    c = talk(generate(**body))
    for index in reversed(range(len(c.rids))):
        c.end(index, LENGTH, str(index))
    answer = c.answer
    if shape is dict:
        assert answer["text"] == "0"
    else:
        assert [one["text"] for one in answer] == [str(index) for index in range(shape)]
        assert not any("index" in one for one in answer)


def test_a_failed_item_stands_in_its_place(talk: Talk) -> None:
    c = talk(generate(text=["x", "y"]))
    c.end(0, {"type": "abort", "message": "too long", "status_code": 400, "err_type": "BadRequestError"})
    c.end(1, LENGTH, "b")
    failed, fine = c.answer
    assert failed == {
        "error": {"message": "too long", "type": "invalid_request_error", "code": 400, "param": None},
        "index": 0,
    }
    assert fine["text"] == "b"


def test_with_batch_error_mode_all_the_first_failure_ends_the_batch(talk: Talk) -> None:
    c = talk(generate(context(batch_error_mode="all"), text=["x", "y"]))
    c.fail(0, 400, "bad")
    assert c.call.done.done()
    assert c.call.fault is not None
    assert c.call.fault.message == "bad"
    assert not c.call.running


def test_prompt_ids_only_on_request(talk: Talk) -> None:
    assert "prompt_token_ids" not in whole(talk(generate()))
    c = talk(generate(return_prompt_token_ids=True))
    c.admit(0, [4, 5])
    assert whole(c)["prompt_token_ids"] == [4, 5]


# ---------------------------------------------------------------- ends
@pytest.mark.parametrize(
    "reason",
    [
        {"type": "stop", "matched": 7},
        {"type": "stop", "matched": [7, 8]},
        {"type": "stop", "matched": "x"},
        {"type": "length", "length": 3},
        {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
        {"type": "moon", "phase": "full"},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_finish_reasons_pass_through_as_the_engine_gave_them(talk: Talk, reason: dict[str, Any], stream: bool) -> None:
    c = talk(generate(stream=stream))
    if stream:
        c.say((0, "a", [1], None))
    c.end(0, reason, "b", [2])
    frame = c.chunks[-1] if stream else c.answer
    assert frame["meta_info"]["finish_reason"] == reason
    assert frame["text"] == ("ab" if stream else "b")


def test_abort_with_a_status_in_a_stream_is_an_error_event(talk: Talk) -> None:
    c = talk(generate(stream=True))
    c.say((0, "a", [1], None))
    c.end(0, {"type": "abort", "message": "The request queue is full.", "status_code": 503})
    assert c.bytes.endswith(
        b'data: {"error":{"message":"The request queue is full.","type":"unavailable_error","code":503,"param":null,'
        b'"retryable":true}}\n\ndata: [DONE]\n\n'
    )


# ---------------------------------------------------------------- meta_info
def test_meta_info_of_a_running_and_a_finished_request(talk: Talk) -> None:
    c = talk(generate(context({"weight_version": "v1"}), rid="mine", stream=True))
    c.say((0, "a", [1], None), prompt=9, cached=4)
    c.end(0, LENGTH, prompt_tokens=9, completion_tokens=1, cached_tokens=4, reasoning_tokens=1)
    running, finished = (frame["meta_info"] for frame in c.chunks)
    assert running == {
        "id": "mine",
        "finish_reason": None,
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "cached_tokens": 4,
        "reasoning_tokens": 0,
        "weight_version": "v1",
    }
    assert set(finished) - set(running) == {"e2e_latency", "ttft"}
    assert finished["e2e_latency"] >= finished["ttft"] > 0


def test_what_the_engine_says_by_name_is_passed_on(talk: Talk) -> None:
    said = {
        "num_retractions": 1,
        "weight_versions": [{"version": "a", "start": 0, "end": 3}],
        "queue_time": float("inf"),
    }
    c = talk(generate())
    c.end(0, LENGTH, trailing=said)
    meta = c.answer["meta_info"]
    assert (meta["num_retractions"], meta["weight_versions"]) == (1, said["weight_versions"])
    assert meta["queue_time"] is None


# ---------------------------------------------------------------- logprobs
def token(value: float | None, number: int) -> Extra:
    return Extra(
        output_logprobs=pairs((value, number)),
        output_top=[pairs((-0.25, 8), (-0.5, number))],
        output_token_ids=[pairs((-1.0, 6))],
        token_bytes={number: b"t%d" % number, 8: b"eight", 6: b"six"},
    )


def first(start: int) -> Extra:
    """The first token, with what the engine says of a prompt [4, 5, 6] from `start` on."""
    extra = token(-0.5, 1)
    ids = [4, 5, 6][start:] if start >= 0 else []
    if ids:
        extra.input_logprobs = pairs((None, ids[0]), *((-0.125, i) for i in ids[1:]))
        extra.input_top = [None, *(pairs((-0.1, 8), (-0.2, i)) for i in ids[1:])]
        extra.input_token_ids = [None, *(pairs((-2.0, 6)) for _ in ids[1:])]
    return extra


@pytest.mark.parametrize(("start", "values"), [(0, [None, -0.125, -0.125]), (2, [None]), (3, []), (-1, [])])
@pytest.mark.parametrize("stream", [False, True])
def test_prompt_logprobs_begin_with_null(talk: Talk, start: int, values: list[Any], stream: bool) -> None:
    c = talk(generate(stream=stream, return_logprob=True, logprob_start_len=start, top_logprobs_num=2))
    if stream:
        meta = run(c, first(start), token(-0.5, 2), token(-0.5, 3)).chunks[-1]["meta_info"]
    else:
        meta = whole(c, first(start))["meta_info"]
    assert [triple[0] for triple in meta["input_token_logprobs"]] == values
    assert [row is None for row in meta["input_top_logprobs"]] == [True, False, False][: len(values)]


def test_both_lists_are_there_even_when_empty(talk: Talk) -> None:
    meta = whole(talk(generate(return_logprob=True)))["meta_info"]
    assert (meta["input_token_logprobs"], meta["output_token_logprobs"], meta["output_token_logprobs_length"]) == (
        [],
        [],
        0,
    )


def test_no_logprob_keys_unless_asked_for(talk: Talk) -> None:
    assert not any("logprobs" in key for key in whole(talk(generate()))["meta_info"])


@pytest.mark.parametrize(("asked", "keys"), [({}, 0), ({"top_logprobs_num": 2}, 2), ({"token_ids_logprob": [6]}, 2)])
def test_families_show_only_on_request(talk: Talk, asked: dict[str, Any], keys: int) -> None:
    meta = whole(talk(generate(return_logprob=True, **asked)), first(-1))["meta_info"]
    assert len([key for key in meta if key.endswith("_logprobs") and "token_logprobs" not in key]) == keys


@pytest.mark.parametrize("stream_output", [False, True])
def test_output_logprobs_are_cumulative_or_new_like_the_text(talk: Talk, stream_output: bool) -> None:
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [6]}
    c = talk(generate(stream=True, stream_output=stream_output, **asked))
    frames = [frame["meta_info"] for frame in run(c, first(0), token(-1.5, 2), token(-2.5, 3)).chunks]
    per_frame = [[1], [2], [3]] if stream_output else [[1], [1, 2], [1, 2, 3]]
    assert [[triple[1] for triple in meta["output_token_logprobs"]] for meta in frames] == per_frame
    assert [meta["output_token_logprobs_length"] for meta in frames] == [len(ids) for ids in per_frame]
    for name in ("output_top_logprobs", "output_token_ids_logprobs"):
        assert [len(meta[name]) for meta in frames] == [len(ids) for ids in per_frame]
    shown = [{key for key in meta if key.startswith("input_")} for meta in frames]
    names = {"input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"}
    assert shown == ([names, set(), set()] if stream_output else [names] * 3)


def test_token_texts_are_in_the_triples_on_request(talk: Talk) -> None:
    meta = whole(talk(generate(return_logprob=True, return_text_in_logprobs=True)), token(-0.5, 1))["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 1, "t1"]]
    meta = whole(talk(generate(return_logprob=True)), token(-0.5, 1))["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 1, None]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("stream", [False, True])
def test_floats_that_are_no_numbers_are_null_in_strict_json(talk: Talk, value: float, stream: bool) -> None:
    c = talk(generate(stream=stream, return_logprob=True, top_logprobs_num=1, return_hidden_states=True))
    extra = Extra(output_logprobs=pairs((value, 1)), output_top=[pairs((value, 8))], hidden_states=[[value]])
    meta = run(c, extra).chunks[-1]["meta_info"] if stream else whole(c, extra)["meta_info"]
    assert meta["output_token_logprobs"][0][0] is None
    assert meta["output_top_logprobs"] == [[[None, 8, None]]]
    assert meta["hidden_states"] == [[None]]


# ---------------------------------------------------------------- hidden states
@pytest.mark.parametrize("stream_output", [None, True])
def test_hidden_states_come_whole_on_the_last_frame(talk: Talk, stream_output: bool | None) -> None:
    ctx = context({"hidden_size": 2})
    rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
    c = talk(generate(ctx, stream=True, stream_output=stream_output, return_hidden_states=True))
    frames = run(c, *(Extra(hidden_states=[row]) for row in rows)).chunks
    expected = [[[1.0, 2.0], [3.0, 4.0]], [5.0, 6.0], [7.0, 8.0]]
    assert ["hidden_states" in frame["meta_info"] for frame in frames] == [False, False, True]
    assert frames[-1]["meta_info"]["hidden_states"] == expected
    answer = whole(talk(generate(ctx, return_hidden_states=True)), Extra(hidden_states=rows))
    assert answer["meta_info"]["hidden_states"] == expected


# ---------------------------------------------------------------- the cumulative frames' kept JSON
def test_a_grown_list_is_the_list() -> None:
    grown = Grown()
    for part in ([], [1, None], [], [[0.5, "x"]]):
        grown.add(part)
    assert (bytes(grown.json), grown.count) == (b'1,null,[0.5,"x"]', 3)


def test_a_grown_text_is_the_text() -> None:
    grown = Grown()
    for part in ("", 'a"', "\\\n", "é\U0001f600"):
        grown.add(part)
    assert grown.json.decode() == 'a\\"\\\\\\né\U0001f600'
