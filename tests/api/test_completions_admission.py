"""`/v1/completions`, and what it shares with chats: OpenAI's names mapped to the native ones."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from forebay_api.admission import HeaderFields, Plan
from tests.api.samples import chat, complete, context, refusal, said, sampling

SEED_MAX = (1 << 63) - 1


def texts(plan: Plan) -> list[str | None]:
    return [item.text for item in plan.items]


# ---------------------------------------------------------------- prompts
@pytest.mark.parametrize(
    ("prompt", "expected", "batch"),
    [("a", ["a"], False), (["a"], ["a"], True), (["a", "b"], ["a", "b"], True), (["a", ""], ["a", ""], True)],
)
def test_texts_are_prompts(prompt: Any, expected: list[str], batch: bool) -> None:
    plan = complete(prompt=prompt)
    assert (texts(plan), plan.batch) == (expected, batch)


@pytest.mark.parametrize(
    ("prompt", "expected"), [([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ([0], [[0]]), ([[0]], [[0]])]
)
def test_token_ids_are_prompts(prompt: Any, expected: list[list[int]]) -> None:
    assert complete(prompt=prompt).ids == [array("q", ids) for ids in expected]


@pytest.mark.parametrize("prompt", ["", [], [""], ["", ""], [[]], [[], []]])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    assert said(complete, prompt=prompt) == (400, "Prompt cannot be empty", "prompt")


@pytest.mark.parametrize("prompt", [["a", 1], [1, "a"], [1, [2]], [[1], 2], [[1], "a"], [[1], []]])
def test_a_mixed_prompt_is_refused(prompt: Any) -> None:
    error = refusal(complete, prompt=prompt)
    assert (error.status, error.param) == (400, "prompt")


@pytest.mark.parametrize("prompt", [[1.5], [["a"]], {"a": 1}, 5, True, [1 << 63]])
def test_a_prompt_of_another_type_is_refused(prompt: Any) -> None:
    error = refusal(complete, prompt=prompt)
    assert (error.status, (error.param or "").split(".")[0]) == (400, "prompt")


def test_a_missing_prompt_is_refused() -> None:
    assert said(complete, prompt=None) == (400, "missing field `prompt`", "prompt")


def test_special_tokens_and_truncation_are_for_the_tokenizer() -> None:
    item = complete(add_special_tokens=False, truncate_prompt_tokens=-1).items[0]
    assert (item.add_special_tokens, item.truncate_prompt_tokens) == (False, -1)


# ---------------------------------------------------------------- sampling
@pytest.mark.parametrize(
    ("fields", "key", "value"),
    [
        ({"max_tokens": 5}, "max_new_tokens", 5),
        ({"min_tokens": 2}, "min_new_tokens", 2),
        ({"temperature": 0.5}, "temperature", 0.5),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": 5}, "top_k", 5),
        ({"top_k": 0}, "top_k", 1 << 30),
        ({"top_k": -1}, "top_k", 1 << 30),
        ({"min_p": 0.5}, "min_p", 0.5),
        ({"frequency_penalty": 1}, "frequency_penalty", 1.0),
        ({"presence_penalty": 1}, "presence_penalty", 1.0),
        ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"seed": 7}, "sampling_seed", 7),
        ({"logit_bias": {"5": 1}}, "logit_bias", {5: 1.0}),
        ({"stop": "a"}, "stop", ["a"]),
        ({"stop": None}, "stop", []),
        ({"stop_token_ids": [2, 1]}, "stop_token_ids", [1, 2]),
        ({"stop_regex": "a"}, "stop_regex", ["a"]),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"no_stop_trim": True}, "no_stop_trim", True),
        ({"include_stop_str_in_output": True}, "no_stop_trim", True),
        ({"include_stop_str_in_output": False, "no_stop_trim": True}, "no_stop_trim", True),
        ({"include_stop_str_in_output": False}, "no_stop_trim", False),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens", False),
        ({"custom_params": {"a": 1}}, "custom_params", {"a": 1}),
    ],
)
def test_a_field_reaches_the_engine_under_its_own_name(fields: dict[str, Any], key: str, value: Any) -> None:
    assert getattr(sampling(complete(**fields)), key) == value
    assert getattr(sampling(chat(**fields)), key) == value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"seed": SEED_MAX + 1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stop": ["a"] * 33}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 5_000_000}, "n"),
        ({"priority": 1 << 63}, "priority"),
    ],
)
def test_an_error_names_the_field_as_the_client_wrote_it(fields: dict[str, Any], param: str) -> None:
    for make in (complete, chat):
        error = refusal(make, **fields)
        assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_no_tokens_is_refused(limit: int) -> None:
    assert said(complete, max_tokens=limit) == (400, "max_tokens must be positive", "max_tokens")


def test_no_new_tokens_can_be_asked_for_with_the_prompt_echoed() -> None:
    assert sampling(complete(max_tokens=0, echo=True)).max_new_tokens == 0
    assert refusal(complete, max_tokens=-1, echo=True).message == "max_tokens must be positive"


# ---------------------------------------------------------------- logprobs and echo
@pytest.mark.parametrize(
    ("logprobs", "echo", "expected"),
    [
        (None, False, (False, 0, -1)),
        (0, False, (True, 0, -1)),
        (5, False, (True, 5, -1)),
        (None, True, (False, 0, -1)),
        (0, True, (True, 0, 0)),
        (5, True, (True, 5, 0)),
    ],
)
def test_logprobs_and_echo_decide_what_the_engine_is_asked(logprobs: Any, echo: bool, expected: Any) -> None:
    plan = complete(logprobs=logprobs, echo=echo)
    head = plan.items[0].head
    assert (head.return_logprob, head.top_logprobs_num, head.logprob_start_len) == expected
    assert (plan.return_logprob, plan.top_logprobs, plan.echo) == (*expected[:2], echo)
    assert plan.items[0].open.want_token_bytes is expected[0]


@pytest.mark.parametrize("value", [-1, 1025, 10**9])
def test_the_number_of_alternatives_is_limited(value: int) -> None:
    assert said(complete, logprobs=value) == (400, f"logprobs must be in [0, 1024], got {value}.", "logprobs")


def test_the_text_of_echoed_ids_comes_from_the_tokenizer() -> None:
    assert complete(prompt=[1], echo=True).items[0].open.want_prompt_text
    assert not complete(prompt="a", echo=True).items[0].open.want_prompt_text
    assert not complete(prompt=[1]).items[0].open.want_prompt_text


# ---------------------------------------------------------------- samples
def test_best_of_may_only_say_what_n_says() -> None:
    assert complete(n=2, best_of=2).n == 2
    message = "best_of values greater than n are not supported"
    for fields in ({"best_of": 2}, {"n": 2, "best_of": 1}):
        assert said(complete, **fields) == (400, message, "best_of")


def test_prompts_times_samples_are_limited() -> None:
    ctx = context(max_batch_items=4)
    assert len(complete(ctx, prompt=["a", "b"], n=2).items) == 2
    assert refusal(complete, ctx, prompt=["a", "b"], n=3).param == "n"


# ---------------------------------------------------------------- model
@pytest.mark.parametrize(
    ("name", "echoed"),
    [(None, "served"), ("", "served"), ("default", "default"), ("served", "served"), ("other", "other")],
)
def test_the_answer_has_the_model_name_of_the_request(name: Any, echoed: str) -> None:
    assert complete(model=name).model == echoed
    assert chat(model=name).model == echoed


@pytest.mark.parametrize(
    ("name", "adapter"),
    [("served:x", "x"), ("other:x", "x"), ("served", None), ("served:", None), ("served:a:b", "a:b")],
)
def test_a_model_name_may_hold_an_adapter(name: str, adapter: str | None) -> None:
    plan = complete(context({"enable_lora": True}), model=name)
    assert (plan.items[0].head.lora_path, plan.model) == (adapter, name)


def test_a_served_name_may_hold_a_colon() -> None:
    ctx = context({"enable_lora": True, "served_model_name": "a:b"})
    assert complete(ctx, model="a:b").items[0].head.lora_path is None
    assert complete(ctx, model="a:b:c").items[0].head.lora_path == "c"


def test_the_adapter_in_the_model_name_goes_before_the_field() -> None:
    ctx = context({"enable_lora": True})
    assert complete(ctx, model="served:x", lora_path="y").items[0].head.lora_path == "x"
    assert complete(ctx, lora_path="y").items[0].head.lora_path == "y"


def test_an_adapter_in_the_model_name_needs_an_engine_with_lora() -> None:
    assert refusal(complete, model="served:x").param == "model"


def test_an_unknown_model_is_refused_only_by_a_strict_server() -> None:
    ctx = context(strict_model_name=True)
    message = "The model 'other' does not exist; this server has 'served'"
    assert said(chat, ctx, model="other") == (404, message, "model")
    assert chat(ctx, model="default").model == "default"


def test_a_model_name_of_any_length_is_not_repeated_in_every_event() -> None:
    assert said(chat, model="x" * 513) == (400, "model must be at most 512 characters", "model")


# ---------------------------------------------------------------- ids and the answer
@pytest.mark.parametrize(("make", "prefix"), [(complete, "cmpl-"), (chat, "chatcmpl-")])
def test_an_answer_has_a_fresh_id_of_its_route(make: Any, prefix: str) -> None:
    first, second = make().id, make().id
    assert first != second
    assert first.startswith(prefix)
    assert len(first) == len(prefix) + 32


@pytest.mark.parametrize("fields", [{"rid": "mine"}, {"request_id": "mine"}, {"rid": "mine", "request_id": "other"}])
def test_the_clients_id_is_the_id_of_the_answer(fields: dict[str, Any]) -> None:
    plan = complete(**fields)
    assert (plan.id, plan.public_rids, plan.parent_rid) == ("mine", ["mine"], "mine")


def test_each_prompt_of_a_batch_has_its_own_public_id() -> None:
    assert complete(prompt=["a", "b"], rid="x").public_rids == ["x_0", "x_1"]
    plan = complete(prompt=["a", "b"], rid=["x", "y"])
    assert plan.public_rids == ["x", "y"]
    assert plan.id.startswith("cmpl-")


@pytest.mark.parametrize("name", ["rid", "request_id"])
def test_an_id_that_cannot_stand_in_a_log_is_refused(name: str) -> None:
    assert refusal(chat, **{name: "a\r\nb"}).status == 400


@pytest.mark.parametrize(
    ("fields", "settings", "expected"),
    [
        ({"stream": True}, {}, (False, False)),
        ({"stream": True, "stream_options": {"include_usage": True}}, {}, (True, False)),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, {}, (False, True)),
        ({"stream": True, "stream_options": None}, {}, (False, False)),
        ({"stream": True}, {"stream_response_default_include_usage": True}, (True, False)),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {}, (False, False)),
        ({}, {"stream_response_default_include_usage": True}, (False, False)),
    ],
)
def test_usage_in_a_stream_is_asked_for(fields: Any, settings: Any, expected: tuple[bool, bool]) -> None:
    for make in (complete, chat):
        plan = make(context(**settings), **fields)
        assert (plan.include_usage, plan.continuous_usage) == expected


def test_token_ids_are_returned_when_asked_for() -> None:
    plan = complete(return_token_ids=True)
    item = plan.items[0].open
    assert (plan.return_token_ids, item.want_ids, item.want_prompt_ids) == (True, True, True)
    assert not complete().items[0].open.want_ids


def test_hidden_states_are_returned_when_asked_for() -> None:
    plan = complete(return_hidden_states=True)
    assert (plan.return_hidden_states, plan.items[0].head.return_hidden_states) == (True, True)


def test_the_operator_lets_cached_tokens_be_seen() -> None:
    assert complete(context(enable_cache_report=True)).cache_report


def test_fields_of_the_engine_are_passed_on() -> None:
    for make in (complete, chat):
        head = make(None, HeaderFields(routing_key="r"), priority=4, cache_salt="c", session_id="s").items[0].head
        assert (head.priority, head.extra) == (4, {"session_id": "s", "routing_key": "r", "cache_salt": "c"})


# ---------------------------------------------------------------- accepted and ignored, or refused
@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me"},
        {"metadata": {"a": 1}},
        {"store": True},
        {"service_tier": "auto"},
        {"prompt_cache_key": "a"},
        {"safety_identifier": "a"},
        {"verbosity": "low"},
        {"modalities": ["text"]},
        {"unknown_field": [1]},
        {"use_beam_search": False},
        {"length_penalty": 1.0},
        {"function_call": None},
        {"audio": None},
    ],
)
def test_fields_that_ask_for_nothing_special_are_ignored(fields: dict[str, Any]) -> None:
    assert complete(**fields).items == complete().items
    assert chat(**fields).items == chat().items


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("use_beam_search", True, 400),
        ("length_penalty", 0.5, 400),
        ("prompt_embeds", "aGk=", 400),
        ("prompt_logprobs", 0, 400),
        ("return_tokens_as_token_ids", True, 400),
        ("return_cached_tokens_details", True, 400),
        ("return_input_ids_in_sglext", True, 400),
        ("return_output_ids_in_sglext", True, 400),
        ("allowed_token_ids", [1], 501),
        ("bad_words", ["a"], 501),
        ("modalities", ["text", "audio"], 400),
        ("audio", {"voice": "x"}, 400),
        ("prediction", {"type": "content"}, 400),
        ("web_search_options", {"a": 1}, 400),
        ("web_search_options", {}, 400),
        ("function_call", "auto", 400),
        ("functions", [{"name": "f"}], 400),
        ("image_data", ["x"], 400),
        ("return_routed_experts", True, 501),
        ("max_thinking_tokens", 5, 400),
        ("custom_logit_processor", "x", 400),
        ("lora_path", "x", 400),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_name(field: str, value: Any, status: int) -> None:
    for make in (complete, chat):
        error = refusal(make, **{field: value})
        assert (error.status, error.param) == (status, field)


def test_a_suffix_needs_a_template() -> None:
    assert said(complete, suffix="x") == (400, "suffix is not supported by this model", "suffix")
    assert complete(suffix="").items == complete().items


def test_a_text_needs_a_tokenizer() -> None:
    ctx = context({"skip_tokenizer_init": True})
    assert refusal(complete, ctx).status == 400
    assert refusal(chat, ctx).status == 400
    assert complete(ctx, prompt=[1]).items
