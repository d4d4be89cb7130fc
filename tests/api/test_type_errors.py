"""The texts of type errors are fixed: clients and golden tests compare them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay_api.schemas import read_chat, read_completion, read_detokenize, read_generate
from forebay_api.typeerrors import SHOWN_BYTES
from tests.api.samples import refusal, said

SAMPLING_KEYS = (
    "max_new_tokens, stop, stop_token_ids, stop_regex, temperature, top_p, top_k, min_p, frequency_penalty, "
    "presence_penalty, repetition_penalty, min_new_tokens, n, json_schema, regex, ebnf, structural_tag, ignore_eos, "
    "skip_special_tokens, spaces_between_special_tokens, no_stop_trim, stream_interval, logit_bias, sampling_seed, "
    "custom_params, beam_width, watermark, choice"
)
STRINGS = "a value or an array of values for StringOrList"
BOOLS = "a value or an array of values for BoolOrList"
INTS = "a value or an array of values for Int64OrList"
IDS = "a value or an array of values for TokenIdsOrList"


@pytest.mark.parametrize(
    ("params", "message", "field"),
    [
        ({"temperature": "hot"}, 'invalid type: string "hot", expected f64', "temperature"),
        ({"temperature": True}, "invalid type: boolean `true`, expected f64", "temperature"),
        ({"top_p": [1]}, "invalid type: sequence, expected f64", "top_p"),
        ({"max_new_tokens": 1.0}, "invalid type: floating point `1.0`, expected i64", "max_new_tokens"),
        ({"n": True}, "invalid type: boolean `true`, expected i64", "n"),
        ({"top_k": 1 << 63}, "invalid value: integer `9223372036854775808`, expected i64", "top_k"),
        ({"top_k": -(1 << 64)}, "invalid value: integer `-18446744073709551616`, expected i64", "top_k"),
        ({"stop": 5}, f"invalid type: integer `5`, expected {STRINGS}", "stop"),
        ({"stop": ["a", None]}, "invalid type: null, expected a string", "stop.1"),
        ({"stop_regex": {}}, f"invalid type: map, expected {STRINGS}", "stop_regex"),
        ({"stop_token_ids": [None]}, "invalid type: null, expected i64", "stop_token_ids.0"),
        ({"stop_token_ids": 5}, "invalid type: integer `5`, expected a sequence", "stop_token_ids"),
        ({"logit_bias": {"4": 1, "5": "a"}}, 'invalid type: string "a", expected f64', "logit_bias.5"),
        ({"logit_bias": []}, "invalid type: sequence, expected a map", "logit_bias"),
        ({"ignore_eos": "no"}, 'invalid type: string "no", expected a boolean', "ignore_eos"),
        ({"json_schema": {}}, "invalid type: map, expected a string", "json_schema"),
        ({"custom_params": 5}, "invalid type: integer `5`, expected a map", "custom_params"),
        (
            {"watermark": {"on": True}},
            "unknown field `on`, expected one of `enabled`, `key`, `context_window`",
            "watermark.on",
        ),
        ({"watermark": 1}, "invalid type: integer `1`, expected struct Watermark", "watermark"),
    ],
)
def test_a_wrong_sampling_parameter_is_named_with_its_value(params: dict[str, Any], message: str, field: str) -> None:
    body = json.dumps({"text": "a", "sampling_params": params}).encode()
    assert said(read_generate, body) == (400, message, f"sampling_params.{field}")


@pytest.mark.parametrize("key", ["foo", "seed", "max_tokens", "logprobs"])
def test_an_unknown_sampling_parameter_is_answered_with_the_known_ones(key: str) -> None:
    known = ", ".join(f"`{name}`" for name in SAMPLING_KEYS.split(", "))
    body = json.dumps({"text": "a", "sampling_params": {key: 1}}).encode()
    expected = f"unknown field `{key}`, expected one of {known}"
    assert said(read_generate, body) == (400, expected, f"sampling_params.{key}")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text", 5, f"invalid type: integer `5`, expected {STRINGS}"),
        ("text", ["a", 5], "invalid type: integer `5`, expected a string"),
        ("input_ids", "a", f'invalid type: string "a", expected {IDS}'),
        ("input_ids", ["a"], f'invalid type: string "a", expected {IDS}'),
        ("input_ids", [[1.5]], "invalid type: floating point `1.5`, expected i64"),
        ("input_ids", [1 << 63], "invalid value: integer `9223372036854775808`, expected i64"),
        ("sampling_params", 5, "invalid type: integer `5`, expected struct SamplingParams"),
        ("rid", 5, f"invalid type: integer `5`, expected {STRINGS}"),
        ("stream", 1, "invalid type: integer `1`, expected a boolean"),
        ("return_logprob", "yes", f'invalid type: string "yes", expected {BOOLS}'),
        ("return_logprob", [1], "invalid type: integer `1`, expected a boolean"),
        ("logprob_start_len", "a", f'invalid type: string "a", expected {INTS}'),
        ("top_logprobs_num", 1.5, f"invalid type: floating point `1.5`, expected {INTS}"),
        ("token_ids_logprob", 5, f"invalid type: integer `5`, expected {IDS}"),
        ("token_ids_logprob", [[None]], "invalid type: null, expected i64"),
        ("return_text_in_logprobs", 1, "invalid type: integer `1`, expected a boolean"),
        ("return_hidden_states", 1, f"invalid type: integer `1`, expected {BOOLS}"),
        ("return_prompt_token_ids", None, "invalid type: null, expected a boolean"),
        ("session_params", "a", 'invalid type: string "a", expected a map'),
        ("session_id", 5, "invalid type: integer `5`, expected a string"),
        ("lora_path", 5, f"invalid type: integer `5`, expected {STRINGS}"),
        ("custom_logit_processor", [5], "invalid type: integer `5`, expected a string"),
        ("priority", "high", 'invalid type: string "high", expected i64'),
        ("priority", 1 << 63, "invalid value: integer `9223372036854775808`, expected i64"),
        ("routing_key", 5, "invalid type: integer `5`, expected a string"),
        ("extra_key", 5, f"invalid type: integer `5`, expected {STRINGS}"),
        ("cache_salt", ["a", 5], "invalid type: integer `5`, expected a string"),
        ("routed_dp_rank", "a", 'invalid type: string "a", expected i64'),
        ("bootstrap_room", "a", f'invalid type: string "a", expected {INTS}'),
        ("bootstrap_host", 5, f"invalid type: integer `5`, expected {STRINGS}"),
        ("require_reasoning", "a", 'invalid type: string "a", expected a boolean'),
        ("max_thinking_tokens", -1, "invalid value: integer `-1`, expected u64"),
        ("max_thinking_tokens", "a", 'invalid type: string "a", expected u64'),
        ("log_metrics", "a", 'invalid type: string "a", expected a boolean'),
        ("custom_labels", {"a": 5}, "invalid type: integer `5`, expected a string"),
        ("kv_hints", 5, "invalid type: integer `5`, expected a sequence"),
        ("return_routed_experts", "a", 'invalid type: string "a", expected a boolean'),
    ],
)
def test_a_wrong_field_of_generate_is_named_with_its_value(field: str, value: Any, message: str) -> None:
    error = refusal(read_generate, json.dumps({field: value}).encode())
    assert (error.status, error.message, (error.param or "").split(".")[0]) == (400, message, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", "1"), ("max_tokens", "5"), ("n", 1.0), ("seed", "7"), ("stop", 5), ("stream_options", [])],
)
def test_numbers_as_strings_are_not_taken_on_openai_routes(field: str, value: Any) -> None:
    for read in (read_completion, read_chat):
        assert refusal(read, json.dumps({field: value}).encode()).param == field


def test_an_inner_field_is_named_by_its_dotted_path() -> None:
    body = b'{"stream_options": {"include_usage": "yes"}}'
    assert refusal(read_chat, body).param == "stream_options.include_usage"


def test_an_entry_of_a_list_is_named_by_its_number() -> None:
    body = b'{"sampling_params": [{}, {"temperature": "hot"}]}'
    assert refusal(read_generate, body).param == "sampling_params.1.temperature"


def test_a_long_value_is_not_echoed_whole() -> None:
    body = json.dumps({"sampling_params": {"temperature": "x" * 10_000, "n": 1}}).encode()
    assert len(refusal(read_generate, body).message) < 200


def test_a_quote_in_a_shown_value_is_escaped() -> None:
    body = json.dumps({"priority": 'a"b'}).encode()
    assert refusal(read_generate, body).message == 'invalid type: string "a\\"b", expected i64'


def test_a_huge_body_is_refused_without_its_value() -> None:
    body = json.dumps({"text": "x" * SHOWN_BYTES, "priority": "high"}).encode()
    assert said(read_generate, body) == (400, "invalid type: string, expected i64", "priority")


def test_what_is_no_json_behind_a_wrong_type_is_said_first() -> None:
    assert "not valid JSON" in refusal(read_generate, b'{"priority": "high", "text": nope}').message


def test_a_number_beyond_all_floats_is_refused() -> None:
    body = b'{"sampling_params": {"temperature": 1e999}}'
    assert said(read_generate, body) == (400, "number out of range", "sampling_params.temperature")


def test_token_ids_to_detokenize_must_be_integers() -> None:
    assert said(read_detokenize, b'{"tokens": ["a"]}') == (400, f'invalid type: string "a", expected {IDS}', "tokens.0")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"priority": "high", "priority": 5}', "invalid type: string, expected i64"),
        ('{"sampling_params": {"top_p": "x"}, "sampling_params": 5}', "invalid type: string, expected f64"),
        ('{"stop": [5], "text": ["a", 5], "text": []}', "invalid type: integer, expected a string"),
        (
            '{"sampling_params": {"logit_bias": {"1": "x"}}, "sampling_params": {}}',
            "invalid type: string, expected f64",
        ),
    ],
)
def test_a_wrong_value_whose_field_comes_again_is_named_by_its_type(body: str, message: str) -> None:
    assert refusal(read_generate, body.encode()).message == message
