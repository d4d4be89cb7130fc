"""Sampling parameters: defaults, borders and texts of the table, precedence, normalisation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.errors import SettingsError
from forebay.facts import make_blob, read_blob
from forebay.wire.messages import ALL_TOKENS, SamplingParams
from forebay_api.regex_bound import UNBOUNDED
from forebay_api.sampling import SamplingRules, layer, model_layer, normalise, samples
from forebay_api.schemas import read_generate
from tests.api.samples import VOCABULARY, chat, complete, context, generate, refusal, said, sampling

SEED_MAX, SEED_MIN = (1 << 63) - 1, -(1 << 63)


def params(**written: Any) -> SamplingParams:
    return sampling(generate(sampling_params=written))


def fault(**written: Any) -> tuple[int, str, str | None]:
    return said(generate, sampling_params=written)


def test_nothing_written_gives_the_table_of_defaults() -> None:
    assert params() == SamplingParams(max_new_tokens=128)


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("max_new_tokens", 128),
        ("min_new_tokens", 0),
        ("temperature", 1.0),
        ("top_p", 1.0),
        ("top_k", ALL_TOKENS),
        ("min_p", 0.0),
        ("frequency_penalty", 0.0),
        ("presence_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("stop", []),
        ("stop_token_ids", []),
        ("stop_regex", []),
        ("ignore_eos", False),
        ("no_stop_trim", False),
        ("skip_special_tokens", True),
        ("spaces_between_special_tokens", True),
        ("n", 1),
        ("stream_interval", None),
        ("logit_bias", None),
        ("sampling_seed", None),
        ("json_schema", None),
        ("regex", None),
        ("ebnf", None),
        ("structural_tag", None),
        ("custom_params", None),
    ],
)
def test_null_is_the_default(key: str, default: Any) -> None:
    assert getattr(params(**{key: None}), key) == default


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("max_new_tokens", [0, 1, SEED_MAX]),
        ("min_new_tokens", [0, 128]),
        ("temperature", [1e-6, 2, 1e6]),
        ("top_p", [1e-9, 1]),
        ("top_k", [1, 2**40]),
        ("min_p", [0, 1]),
        ("frequency_penalty", [-2, 2]),
        ("presence_penalty", [-2, 2]),
        ("repetition_penalty", [1e-9, 2]),
        ("stream_interval", [1, 1000]),
        ("sampling_seed", [SEED_MIN, SEED_MAX]),
    ],
)
def test_the_borders_of_a_range_are_inside(key: str, values: list[float]) -> None:
    assert [getattr(params(**{key: value}), key) for value in values] == values


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0, got -1."),
        ({"min_new_tokens": -1}, "min_new_tokens must be in [0, max_new_tokens], got -1."),
        ({"min_new_tokens": 129}, "min_new_tokens must be in [0, max_new_tokens(128)], got 129."),
        ({"temperature": -0.1}, "temperature must be a non-negative finite number, got -0.1."),
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0."),
        ({"top_p": 1.1}, "top_p must be in (0, 1], got 1.1."),
        ({"top_p": -1}, "top_p must be in (0, 1], got -1."),
        ({"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"top_k": -2}, "top_k must be -1 (disable) or at least 1, got -2."),
        ({"min_p": -0.1}, "min_p must be in [0, 1], got -0.1."),
        ({"min_p": 1.1}, "min_p must be in [0, 1], got 1.1."),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1."),
        ({"frequency_penalty": 2.1}, "frequency_penalty must be in [-2, 2], got 2.1."),
        ({"presence_penalty": -2.1}, "presence_penalty must be in [-2, 2], got -2.1."),
        ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1."),
        ({"repetition_penalty": 0}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 0."),
        ({"repetition_penalty": 2.1}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 2.1."),
        ({"stop": ["a"] * 33}, "at most 32 stop strings are allowed, got 33"),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string."),
        ({"stop": ""}, "stop cannot contain an empty string."),
        ({"stop": ["a", "b" * 1025]}, "stop strings may have at most 1024 characters, got one of 1025."),
        ({"stop_regex": ["a{900}", "b{900}", "c{900}"]}, "the stop_regex patterns have over 2000 states together"),
        ({"stop_regex": "(?=a)b"}, "stop_regex '(?=a)b' uses look-around, which is not supported"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be in [0, 99], got -1."),
        ({"stop_token_ids": [100]}, "stop_token_ids must be in [0, 99], got 100."),
        ({"stop_regex": ["a"] * 33}, "at most 32 stop_regex patterns are allowed, got 33"),
        ({"stop_regex": "a" * 257}, "stop_regex is 257 bytes, over the 256-byte limit"),
        ({"stop_regex": ""}, "stop_regex cannot contain an empty string."),
        (
            {"stop_regex": "(a+)+"},
            "stop_regex '(a+)+' has nested unbounded repeats, which can take endless time",
        ),
        ({"n": 0}, "n must be in [1, 128], got 0."),
        ({"n": 129}, "n must be in [1, 128], got 129."),
        ({"n": SEED_MAX}, f"n must be in [1, 128], got {SEED_MAX}."),
        ({"stream_interval": 0}, "stream_interval must be at least 1, got 0."),
        ({"logit_bias": {"100": 1}}, "logit_bias must has keys in [0, 99], got 100."),
        ({"logit_bias": {"-1": 1}}, "logit_bias must has keys in [0, 99], got -1."),
        ({"logit_bias": {"x": 1}}, "logit_bias must has keys in [0, 99], got x."),
        ({"logit_bias": {" 1": 1}}, "logit_bias must has keys in [0, 99], got  1."),
        ({"sampling_seed": SEED_MAX + 1}, f"sampling_seed must be in [-2**63, 2**63 - 1], got {SEED_MAX + 1}."),
        ({"sampling_seed": SEED_MIN - 1}, f"sampling_seed must be in [-2**63, 2**63 - 1], got {SEED_MIN - 1}."),
        ({"beam_width": 2}, "beam_width must be 1 (beam search is not supported), got 2"),
        ({"beam_width": 0}, "beam_width must be 1 (beam search is not supported), got 0"),
    ],
)
def test_a_value_just_outside_is_refused_with_the_text_of_its_row(written: dict[str, Any], message: str) -> None:
    assert fault(**written) == (400, message, f"sampling_params.{next(iter(written))}")


def test_a_beam_of_one_is_no_beam_search() -> None:
    assert params(beam_width=1) == params()


@pytest.mark.parametrize(
    ("temperature", "seen"),
    [(0, (1.0, 1)), (-0.0, (1.0, 1)), (1e-7, (1.0, 1)), (1e-6, (1e-6, ALL_TOKENS)), (0.5, (0.5, ALL_TOKENS))],
)
def test_a_temperature_of_nothing_becomes_the_best_token_only(temperature: float, seen: tuple[float, int]) -> None:
    found = params(temperature=temperature)
    assert (found.temperature, found.top_k) == seen


def test_no_limit_of_candidates_has_one_spelling() -> None:
    assert params(top_k=-1).top_k == ALL_TOKENS


def test_one_stop_string_becomes_a_list() -> None:
    assert params(stop="a", stop_regex="b").stop == ["a"]


def test_as_many_stop_strings_as_allowed_pass() -> None:
    assert len(params(stop=["a" * 1024] * 32).stop) == 32


def test_stop_token_ids_are_sorted_and_unique() -> None:
    assert params(stop_token_ids=[5, 3, 5]).stop_token_ids == [3, 5]


def test_the_longest_stop_pattern_decides_how_far_the_engine_looks_back() -> None:
    assert params(stop_regex=["abc", "x{5}"]).stop_regex_max_len == 5
    assert params(stop_regex=["abc", "x+"]).stop_regex_max_len == UNBOUNDED


def test_keys_of_logit_bias_become_numbers() -> None:
    assert params(logit_bias={"5": 1, "99": -1.5}).logit_bias == {5: 1.0, 99: -1.5}


def test_without_a_known_vocabulary_any_id_that_fits_is_passed() -> None:
    ctx = context({"vocab_size": None})
    found = sampling(generate(ctx, sampling_params={"logit_bias": {"2147483647": 1}}))
    assert found.logit_bias == {2147483647: 1.0}


def test_numbers_written_as_integers_are_taken_as_floats() -> None:
    assert isinstance(params(temperature=2).temperature, float)


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ({"stop": [""], "beam_width": 2}, "stop"),
        ({"beam_width": 2, "temperature": -1}, "beam_width"),
        ({"temperature": -1, "top_p": 0}, "temperature"),
        ({"top_p": 0, "min_p": 2}, "top_p"),
        ({"min_p": 2, "top_k": 0}, "min_p"),
        ({"top_k": 0, "frequency_penalty": 3}, "top_k"),
        ({"frequency_penalty": 3, "presence_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": 3, "repetition_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 3, "min_new_tokens": -1}, "repetition_penalty"),
        ({"min_new_tokens": -1, "max_new_tokens": -1}, "min_new_tokens"),
        ({"max_new_tokens": -1, "logit_bias": {"x": 1}}, "max_new_tokens"),
        ({"logit_bias": {"x": 1}, "sampling_seed": 1 << 70}, "logit_bias"),
        ({"sampling_seed": 1 << 70, "json_schema": "{"}, "sampling_seed"),
    ],
)
def test_of_two_bad_values_the_earlier_check_answers(written: dict[str, Any], first: str) -> None:
    assert fault(**dict(reversed(written.items())))[2] == f"sampling_params.{first}"


def test_custom_parameters_are_passed_on() -> None:
    custom = {"a": 1, "b": [1, "x", None], "c": {"d": [[1]]}}
    assert params(custom_params=custom).custom_params == custom


@pytest.mark.parametrize("value", [[[1]], [{"a": 1}]])
def test_custom_parameters_hold_no_lists_of_lists(value: Any) -> None:
    assert fault(custom_params={"a": value})[2] == "sampling_params.custom_params"


def test_integers_over_64_bits_are_refused_in_custom_parameters() -> None:
    status, message, param = fault(custom_params={"a": {"b": [1 << 64]}})
    assert (status, param) == (400, "sampling_params.custom_params")
    assert message == "invalid value: integer `18446744073709551616`, expected i64"


def test_a_watermark_is_passed_on_to_the_engine() -> None:
    plan = generate(sampling_params={"watermark": {"enabled": True, "context_window": 4}})
    assert plan.items[0].head.extra == {"watermark": {"enabled": True, "context_window": 4}}


# ---------------------------------------------------------------- precedence
PREFERRED = {"temperature": 0.5, "top_p": 0.5, "max_new_tokens": 7}
MODEL = {"temperature": 0.25, "top_p": 0.25, "top_k": 25, "frequency_penalty": 1.0, "min_p": None}


def test_the_request_goes_before_preferred_parameters() -> None:
    ctx = context(preferred_sampling_params=PREFERRED)
    found = sampling(generate(ctx, sampling_params={"temperature": 0.75}))
    assert (found.temperature, found.top_p, found.max_new_tokens) == (0.75, 0.5, 7)


def test_an_explicit_null_means_the_table_and_not_the_preferred_value() -> None:
    ctx = context(preferred_sampling_params=PREFERRED)
    found = sampling(generate(ctx, sampling_params={"temperature": None, "max_new_tokens": None}))
    assert (found.temperature, found.max_new_tokens) == (1.0, 128)


def test_null_on_openai_routes_is_the_same_as_absent() -> None:
    ctx = context(preferred_sampling_params=PREFERRED)
    assert sampling(complete(ctx, temperature=None)).temperature == 0.5


def test_preferred_parameters_that_the_engine_states_count_too() -> None:
    assert sampling(generate(context({"preferred_sampling_params": PREFERRED}))).temperature == 0.5


def test_the_key_of_a_preferred_watermark_reaches_the_engine() -> None:
    watermark = {"enabled": True, "key": "abc"}
    facts = read_blob(make_blob({"preferred_sampling_params": {"watermark": watermark}}))
    ctx = context({"preferred_sampling_params": facts.preferred_sampling_params})
    assert generate(ctx).items[0].head.extra == {"watermark": watermark}


def test_the_operators_own_setting_goes_before_the_engines_statement() -> None:
    ctx = context({"preferred_sampling_params": PREFERRED}, preferred_sampling_params={"temperature": 0.125})
    assert sampling(generate(ctx)).temperature == 0.125


def test_the_defaults_of_the_model_are_used_by_chats_only() -> None:
    ctx = context({"default_sampling_params": MODEL})
    assert sampling(chat(ctx)).temperature == 0.25
    assert sampling(complete(ctx)).temperature == 1.0
    assert sampling(generate(ctx)).temperature == 1.0


def test_preferred_parameters_go_before_the_defaults_of_the_model() -> None:
    ctx = context({"default_sampling_params": MODEL}, preferred_sampling_params={"temperature": 0.5})
    found = sampling(chat(ctx))
    assert (found.temperature, found.top_p, found.top_k) == (0.5, 0.25, 25)


def test_only_the_five_keys_of_a_model_count() -> None:
    assert sampling(chat(context({"default_sampling_params": MODEL}))).frequency_penalty == 0.0


def test_the_operator_can_switch_the_defaults_of_the_model_off() -> None:
    ctx = context({"default_sampling_params": MODEL}, sampling_defaults="forebay")
    assert sampling(chat(ctx)).temperature == 1.0


def test_a_top_k_of_0_in_a_model_means_all_tokens() -> None:
    assert model_layer({"top_k": 0}) == {"top_k": -1}


def test_preferred_parameters_may_hold_a_number_of_samples() -> None:
    assert generate(context(preferred_sampling_params={"n": 2})).n == 2


def test_two_preferred_grammars_stop_the_launch() -> None:
    with pytest.raises(SettingsError, match="preferred_sampling_params: Only one of json_schema"):
        context(preferred_sampling_params={"regex": "a", "ebnf": "b"})


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"foo": 1}, {"n": 0}, {"top_p": "x"}])
def test_bad_preferred_parameters_stop_the_launch(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"^preferred_sampling_params: "):
        layer(bad, "preferred_sampling_params")


@pytest.mark.parametrize(("default", "seen"), [(None, None), (5, 5), (0, 0)])
def test_the_operator_sets_the_limit_of_requests_that_name_none(default: int | None, seen: int | None) -> None:
    plan = generate(context(default_max_new_tokens=default))
    assert sampling(plan).max_new_tokens == seen
    assert plan.items[0].max_new_tokens_given is (seen is not None)


@pytest.mark.parametrize(("make", "limit"), [(generate, 128), (complete, 16), (chat, None)])
def test_each_route_has_its_own_limit_of_new_tokens(make: Any, limit: int | None) -> None:
    assert sampling(make()).max_new_tokens == limit


def test_a_preferred_limit_goes_before_that_of_the_completions_route() -> None:
    assert sampling(complete(context(preferred_sampling_params=PREFERRED))).max_new_tokens == 7


# ---------------------------------------------------------------- without a tokenizer
@pytest.mark.parametrize("written", [{"stop": "a"}, {"stop_regex": "a"}, {"min_new_tokens": 1}])
def test_rules_about_text_are_refused_without_a_tokenizer(written: dict[str, Any]) -> None:
    ctx = context({"skip_tokenizer_init": True})
    message = refusal(generate, ctx, input_ids=[1], sampling_params=written).message
    assert message.startswith(f"{next(iter(written))}=")
    assert message.endswith("is unavailable when skip_tokenizer_init=True")


def test_ids_are_served_without_a_tokenizer() -> None:
    assert generate(context({"skip_tokenizer_init": True}), input_ids=[1]).items[0].has_ids


def test_the_parameters_of_one_body_are_not_changed_by_normalising_them() -> None:
    body = read_generate(json.dumps({"text": "a", "sampling_params": {"temperature": 0}}).encode())
    assert not isinstance(body.sampling_params, list)
    assert body.sampling_params is not None
    rules = SamplingRules(layers=({"top_p": 0.5, "n": 3},), vocab_size=VOCABULARY)
    assert normalise(body.sampling_params, rules) == normalise(body.sampling_params, rules)
    assert samples(body.sampling_params, rules) == 3
