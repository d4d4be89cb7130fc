"""`/generate`: what the reply side and the detokenizer are told, and what is passed on, allowed or refused."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from forebay.wire.messages import OpenItem, RequestHead
from forebay_api.admission import HeaderFields, Plan, plan_generate
from forebay_api.schemas import read_generate
from tests.api.samples import CONTEXT, context, generate, refusal, said, sampling

THREE = ["a", "b", "c"]


def heads(**body: Any) -> list[RequestHead]:
    return [item.head for item in generate(**body).items]


def test_what_the_reply_side_is_told() -> None:
    plan = generate(
        context({"hidden_size": 8, "weight_version": "v2"}),
        stream=True,
        return_text_in_logprobs=True,
        return_prompt_token_ids=True,
        log_metrics=False,
        no_logs=True,
    )
    assert (plan.kind, plan.stream, plan.text_in_logprobs, plan.return_prompt_token_ids) == (
        "generate",
        True,
        True,
        True,
    )
    assert (plan.hidden_size, plan.weight_version, plan.log_metrics, plan.no_logs) == (8, "v2", False, True)
    assert plan.items[0].head.stream
    assert plan.items[0].open.stream


@pytest.mark.parametrize(
    ("setting", "field", "expected"),
    [(False, None, False), (True, None, True), (False, True, True), (True, False, False)],
)
def test_the_request_decides_about_incremental_frames(setting: bool, field: Any, expected: bool) -> None:
    ctx = context(incremental_streaming_output=setting)
    assert generate(ctx, stream=True, stream_output=field).incremental is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"text": "a"}, False),
        ({"text": ["a"]}, True),
        ({"sampling_params": {"n": 2}}, True),
        ({"text": ["a"], "stream": True}, False),
    ],
)
def test_only_the_items_of_a_whole_list_fail_alone(body: dict[str, Any], expected: bool) -> None:
    assert generate(**body).keeps_going is expected


def test_the_detokenizer_is_told_what_it_must_know() -> None:
    plan = generate(
        stream=True,
        return_logprob=True,
        return_text_in_logprobs=True,
        return_hidden_states=True,
        return_prompt_token_ids=True,
        sampling_params={
            "stop": "x",
            "stop_regex": "y",
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "stream_interval": 4,
            "min_new_tokens": 2,
        },
    )
    assert plan.items[0].open == OpenItem(
        rid="fresh.1",
        api=3,
        stream=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        no_stop_trim=True,
        stop=["x"],
        stop_regex=["y"],
        min_new_tokens=2,
        want_ids=True,
        want_prompt_ids=True,
        want_token_bytes=True,
        return_logprob=True,
        return_hidden_states=True,
        stream_interval=4,
    )


def test_token_bytes_are_only_sent_for_texts_in_logprobs() -> None:
    assert not generate(return_logprob=True).items[0].open.want_token_bytes
    assert not generate(return_text_in_logprobs=True).items[0].open.want_token_bytes


def test_the_operator_sets_the_tokens_of_one_event() -> None:
    assert generate(context(stream_interval=8)).items[0].open.stream_interval == 8


def test_a_probe_is_one_token_and_leaves_no_trace() -> None:
    plan = Plan.probe()
    assert (plan.ids, plan.log_metrics, plan.no_logs) == ([array("q", [0])], False, True)
    assert Plan.probe().items is not plan.items


# ---------------------------------------------------------------- passed on, allowed, refused
def test_fields_of_the_engine_are_passed_on_by_name() -> None:
    fields = {
        "session_params": {"id": "s", "offset": 3},
        "routing_key": "r",
        "extra_key": "k",
        "cache_salt": "c",
        "disagg_prefill_dp_rank": 2,
        "decode_tp_size": 4,
        "bootstrap_host": "h",
        "bootstrap_port": 5,
        "bootstrap_room": 6,
        "bootstrap_pair_key": "p",
        "require_reasoning": True,
        "custom_labels": {"team": "a"},
        "conversation_id": "v",
        "external_trace_header": {"traceparent": "t"},
        "kv_hints": {"actions": []},
    }
    assert heads(**fields)[0].extra == fields


def test_a_session_id_is_passed_on() -> None:
    assert heads(session_id="s")[0].extra == {"session_id": "s"}


def test_nothing_is_passed_on_when_nothing_was_sent() -> None:
    assert heads()[0].extra is None
    assert heads(extra_key="", cache_salt="", require_reasoning=False)[0].extra is None


def test_lists_are_passed_on_an_entry_each() -> None:
    found = heads(text=["a", "b"], cache_salt=["x", None], session_id="s")
    assert [head.extra for head in found] == [{"session_id": "s", "cache_salt": "x"}, {"session_id": "s"}]


def test_a_room_of_a_batch_counts_up() -> None:
    found = heads(text=THREE, bootstrap_room=7)
    assert [head.extra for head in found] == [{"bootstrap_room": 7}, {"bootstrap_room": 8}, {"bootstrap_room": 9}]


def test_a_session_is_named_in_one_way_only() -> None:
    message = "session_params and session_id cannot be used together"
    assert said(generate, session_params={"id": "a"}, session_id="b") == (400, message, "session_params")


@pytest.mark.parametrize("field", ["session_params", "kv_hints", "external_trace_header"])
def test_integers_over_64_bits_are_refused_in_opaque_fields(field: str) -> None:
    for number in (1 << 64, -(1 << 63) - 1):
        error = refusal(generate, **{field: {"a": [number]}})
        assert (error.status, error.param) == (400, field)


def test_a_priority_is_passed_on() -> None:
    assert heads(priority=-5)[0].priority == -5


def test_a_default_priority_counts_only_with_priority_scheduling() -> None:
    assert generate(context({"default_priority_value": 3})).items[0].head.priority is None
    ctx = context({"default_priority_value": 3, "enable_priority_scheduling": True})
    assert generate(ctx).items[0].head.priority == 3
    assert generate(ctx, priority=0).items[0].head.priority == 0


@pytest.mark.parametrize(
    ("facts", "fields", "header", "rank"),
    [
        ({}, {"routed_dp_rank": 0}, None, None),
        ({"dp_size": 4}, {"routed_dp_rank": 3}, None, 3),
        ({"dp_size": 4}, {"data_parallel_rank": 2}, None, 2),
        ({"dp_size": 4}, {"routed_dp_rank": 3}, "1", 1),
        ({"dp_size": 4}, {}, None, None),
    ],
)
def test_a_rank_is_passed_on_where_there_are_several(facts: Any, fields: Any, header: Any, rank: Any) -> None:
    plan = generate(context(facts), HeaderFields(data_parallel_rank=header), **fields)
    assert (plan.items[0].head.extra or {}).get("routed_dp_rank") == rank


@pytest.mark.parametrize(
    ("facts", "fields", "message"),
    [
        ({}, {"routed_dp_rank": 1}, "routed_dp_rank=1 is out of range [0, 1)"),
        ({"dp_size": 4}, {"routed_dp_rank": -1}, "routed_dp_rank=-1 is out of range [0, 4)"),
        ({"dp_size": 4}, {"data_parallel_rank": 4}, "data_parallel_rank=4 is out of range [0, 4)"),
    ],
)
def test_a_rank_that_does_not_exist_is_refused(facts: Any, fields: Any, message: str) -> None:
    assert said(generate, context(facts), **fields)[:2] == (400, message)


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "", "9" * 40])
def test_a_header_that_is_no_rank_is_refused(text: str) -> None:
    assert refusal(generate, None, HeaderFields(data_parallel_rank=text)).param == "x-data-parallel-rank"


def test_the_routing_key_of_the_header_wins() -> None:
    plan = generate(None, HeaderFields(routing_key="head"), routing_key="body")
    assert plan.items[0].head.extra == {"routing_key": "head"}


def test_hidden_states_are_refused_when_the_engine_gives_none() -> None:
    message = "return_hidden_states is not enabled in the engine"
    ctx = context({"enable_hidden_states": False})
    assert said(generate, ctx, return_hidden_states=True) == (400, message, "return_hidden_states")
    assert not generate(ctx, return_hidden_states=[False], text=["a"]).items[0].head.return_hidden_states


def test_hidden_states_can_be_asked_for_some_prompts() -> None:
    found = heads(text=["a", "b"], return_hidden_states=[True, False])
    assert [head.return_hidden_states for head in found] == [True, False]


@pytest.mark.parametrize(("value", "status"), [("last", 501), ("first", 400)])
def test_hidden_states_by_a_word_are_refused(value: str, status: int) -> None:
    assert refusal(generate, return_hidden_states=value).status == status


def test_an_adapter_needs_an_engine_with_lora() -> None:
    error = refusal(generate, lora_path="x")
    assert (error.status, error.param) == (400, "lora_path")
    assert error.message.startswith("LoRA adapter 'x' was requested, but LoRA is not enabled.")


def test_adapters_are_passed_on_to_an_engine_with_lora() -> None:
    plan = generate(context({"enable_lora": True}), text=["a", "b"], lora_path=["x", None])
    assert [item.head.lora_path for item in plan.items] == ["x", None]


def test_a_logit_processor_needs_the_engines_leave() -> None:
    assert refusal(generate, custom_logit_processor="x").param == "custom_logit_processor"
    plan = generate(context({"enable_custom_logit_processor": True}), custom_logit_processor="x")
    assert plan.items[0].head.extra == {"custom_logit_processor": "x"}


def test_a_thinking_budget_needs_an_engine_that_keeps_it() -> None:
    assert refusal(generate, max_thinking_tokens=5).param == "max_thinking_tokens"
    ctx = context({"enable_strict_thinking": True})
    plan = generate(ctx, max_thinking_tokens=5, sampling_params={"custom_params": {"a": 1}})
    assert sampling(plan).custom_params == {"a": 1, "thinking_budget": 5}


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("input_embeds", [[0.5]], 501),
        ("return_routed_experts", True, 501),
        ("routed_experts_start_len", 1, 501),
        ("return_indexer_topk", True, 501),
        ("return_sampling_mask", True, 501),
        ("sampling_logprobs_mode", "raw", 501),
        ("return_entropy", True, 501),
        ("return_flat_raw_top_logprobs", True, 501),
        ("return_flat_raw_top_logprobs_b64", True, 501),
        ("return_flat_raw_output_top_logprobs", True, 501),
        ("return_flat_raw_output_top_logprobs_b64", True, 501),
        ("image_data", "http://x", 400),
        ("image_data", ["a"], 400),
        ("video_data", ["a"], 400),
        ("audio_data", "a", 400),
        ("mm_hashes", ["a"], 400),
        ("mm_content_hashes", ["a"], 400),
        ("modalities", ["image"], 400),
    ],
)
def test_what_is_not_supported_is_refused_with_its_name(field: str, value: Any, status: int) -> None:
    error = refusal(generate, **{field: value})
    assert (error.status, error.param, field in error.message) == (status, field, True)


@pytest.mark.parametrize("value", [None, [], {}, ""])
@pytest.mark.parametrize("field", ["input_embeds", "image_data", "modalities"])
def test_an_unsupported_field_that_asks_for_nothing_is_no_fault(field: str, value: Any) -> None:
    assert generate(**{field: value}).items


@pytest.mark.parametrize(
    "body",
    [
        {"return_routed_experts": False, "routed_experts_start_len": 0, "return_entropy": None},
        {"anything": [1, 2], "max_new_tokens": 5},
    ],
)
def test_unknown_fields_and_switched_off_ones_are_ignored(body: dict[str, Any]) -> None:
    assert sampling(generate(**body)).max_new_tokens == 128


@pytest.mark.parametrize(
    "field",
    [
        "stream",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "sampling_params",
        "rid",
    ],
)
def test_null_is_absent_for_every_optional_field(field: str) -> None:
    assert generate(**{field: None}).items == generate().items


def test_a_plan_can_be_made_before_the_engine_has_said_anything() -> None:
    ctx = context()
    bare = type(ctx)(ctx.settings, None, ctx.new_rid)
    body = read_generate(json.dumps({"text": "a"}).encode())
    assert plan_generate(body, bare).items[0].text == "a"


def test_the_settings_context_length_goes_before_the_engines() -> None:
    assert (context().context_length, context(context_length=32).context_length) == (CONTEXT, 32)
