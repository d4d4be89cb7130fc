"""The borders of every length and range, each with the text that the client gets."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.errors import RequestError
from forebay.wire.messages import Ids, SamplingParams
from forebay_tokenizer import checks
from forebay_tokenizer.bounds import Bound
from forebay_tokenizer.checks import SLICE, Limits


def ids(count: int) -> Ids:
    return array("q", range(count))


def fit(
    count: int, *, new: int | None = None, keep: int | None = None, given: bool = True, **limits: Any
) -> tuple[list[int], SamplingParams]:
    sampling = SamplingParams(max_new_tokens=new, min_new_tokens=2)
    bounds = Limits(**{"vocab_size": 1000, "context_length": 10, **limits})
    fitted = checks.fit(ids(count), sampling, bounds, given=given, keep=keep, param="text")
    return fitted.tolist(), sampling


def refusal(check: Callable[..., Any], *args: Any, **kwargs: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check(*args, **kwargs)
    assert caught.value.status == 400
    return caught.value


def test_a_prompt_may_leave_room_for_one_token() -> None:
    assert fit(9)[0] == list(range(9))
    assert fit(6, reserved=3)[0] == list(range(6))


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    error = refusal(fit, 10)
    assert error.message == "The input (10 tokens) is longer than the model's context length (10 tokens)."
    assert error.param == "text"


def test_reserved_positions_count_as_input() -> None:
    error = refusal(fit, 7, reserved=3)
    assert error.message == "The input (10 tokens) is longer than the model's context length (10 tokens)."


def test_prompt_and_answer_may_fill_the_context() -> None:
    assert fit(6, new=4)[1].max_new_tokens == 4
    assert fit(5, new=4, reserved=1)[1].max_new_tokens == 4


def test_an_answer_that_does_not_fit_is_refused_with_all_numbers() -> None:
    error = refusal(fit, 6, new=5, reserved=1)
    assert "maximum context length of 10 tokens" in error.message
    assert "a total of 12 tokens: 7 tokens from the input and 5 tokens" in error.message
    assert error.param == "max_new_tokens"


def test_a_limit_that_nobody_set_is_not_checked() -> None:
    assert fit(6, new=500, given=False)[1].max_new_tokens == 500


def test_with_truncation_allowed_a_long_prompt_is_cut_to_the_context() -> None:
    kept, sampling = fit(12, new=4, allow_auto_truncate=True)
    assert kept == list(range(10))
    assert (sampling.max_new_tokens, sampling.min_new_tokens) == (0, 0)


def test_with_truncation_allowed_a_long_answer_is_cut() -> None:
    kept, sampling = fit(6, new=5, reserved=1, allow_auto_truncate=True)
    assert kept == list(range(6))
    assert (sampling.max_new_tokens, sampling.min_new_tokens) == (3, 2)


def test_an_unknown_context_refuses_nothing() -> None:
    assert fit(50, new=500, context_length=None)[0] == list(range(50))


@pytest.mark.parametrize(("keep", "kept"), [(1, [49]), (3, [47, 48, 49]), (9, list(range(41, 50)))])
def test_a_prompt_is_cut_to_its_last_ids_on_request(keep: int, kept: list[int]) -> None:
    assert fit(50, keep=keep)[0] == kept


def test_a_shorter_prompt_is_left_alone() -> None:
    assert fit(4, keep=5)[0] == list(range(4))


def test_the_request_can_ask_for_what_fits_beside_the_answer() -> None:
    assert fit(50, keep=-1)[0] == list(range(41, 50))
    assert fit(50, keep=-1, new=4, reserved=1)[0] == list(range(45, 50))
    assert fit(50, keep=-1, context_length=None)[0] == list(range(50))


@pytest.mark.parametrize("keep", [0, -2])
def test_a_senseless_cut_is_refused(keep: int) -> None:
    assert refusal(fit, 5, keep=keep).param == "truncate_prompt_tokens"


def test_a_text_that_can_never_fit_is_refused_before_encoding() -> None:
    limits = Limits(vocab_size=1, context_length=10, bound=Bound(8))
    checks.text_can_fit(b"x" * 72, limits, "text")
    error = refusal(checks.text_can_fit, b"x" * 73, limits, "text")
    assert error.message == "The input (at least 10 tokens) is longer than the model's context length (10 tokens)."


@pytest.mark.parametrize("change", [{"context_length": None}, {"bound": None}, {"allow_auto_truncate": True}])
def test_a_text_is_not_judged_by_its_bytes_when_they_say_nothing(change: dict[str, Any]) -> None:
    limits = replace(Limits(vocab_size=1, context_length=10, bound=Bound(8)), **change)
    checks.text_can_fit(b"x" * 1000, limits, "text")


def test_any_characters_are_text() -> None:
    assert checks.text_bytes("a\x00ä漢🙂", "text") == "a\x00ä漢🙂".encode()


def test_half_a_surrogate_pair_is_refused() -> None:
    error = refusal(checks.text_bytes, "ab\ud800", "prompt")
    assert "position 2" in error.message
    assert error.param == "prompt"


def test_ids_of_the_whole_vocabulary_are_taken() -> None:
    checks.ids_in_range(array("q", [0, 999]), 1000, "input_ids")
    checks.ids_in_range([], 1000, "input_ids")


@pytest.mark.parametrize("bad", [-1, 1000, (1 << 63) - 1])
@pytest.mark.parametrize("at", [0, SLICE - 1, SLICE])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(bad: int, at: int) -> None:
    values = array("q", [5]) * (SLICE + 1)
    values[at] = bad
    error = refusal(checks.ids_in_range, values, 1000, "input_ids")
    assert error.message == f"input_ids must be in [0, 999], got {bad} at position {at}."


def test_an_empty_prompt_is_refused() -> None:
    assert refusal(checks.not_empty, array("q")).message == "input_ids cannot be empty."


@pytest.mark.parametrize("bad", [-1, 1000])
def test_ids_in_sampling_fields_are_held_to_the_vocabulary(bad: int) -> None:
    wrong: list[tuple[SamplingParams, list[int] | None, str]] = [
        (SamplingParams(logit_bias={0: 1.0, bad: 1.0}), None, "logit_bias"),
        (SamplingParams(stop_token_ids=[bad]), None, "stop_token_ids"),
        (SamplingParams(), [0, bad], "token_ids_logprob"),
    ]
    for sampling, logprob_ids, param in wrong:
        error = refusal(checks.sampling_ids, sampling, logprob_ids, 1000)
        assert error.param == param
        assert str(bad) in error.message


def test_the_refusal_of_a_bias_has_the_agreed_text() -> None:
    error = refusal(checks.sampling_ids, SamplingParams(logit_bias={7: 1.0}), None, 7)
    assert error.message == "logit_bias must has keys in [0, 6], got 7."


def test_ids_at_the_borders_of_sampling_fields_are_taken() -> None:
    sampling = SamplingParams(logit_bias={0: 1.0, 999: -1.0}, stop_token_ids=[0, 999])
    checks.sampling_ids(sampling, [0, 999], 1000)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 10, 1 << 70])
def test_what_is_no_id_is_refused(value: Any) -> None:
    assert refusal(checks.id_array, [1, value], 10, "tokens").param == "tokens"
