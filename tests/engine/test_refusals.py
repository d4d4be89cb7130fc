"""What the engines refuse, each with the name of the field."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from forebay import GenerateRequest, RequestError, SamplingParams
from forebay_engine.refusals import refuse


def check(ids: list[int] | None = None, *, engine_stops: bool = False, capacity: int = 64, **fields: Any) -> None:
    request = GenerateRequest(rid="r", input_ids=array("q", [1, 2, 3] if ids is None else ids), **fields)
    refuse(request, vocab=10, context=32, capacity=capacity, engine_stops=engine_stops)


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_grammars_are_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} is not supported") as caught:
        check(sampling=msgspec.structs.replace(SamplingParams(), **{name: "x"}))
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"lora_path": "a"}, "lora_path"),
        ({"sampling": SamplingParams(custom_params={"a": 1})}, "custom_params"),
        ({"extra": {"session_id": "s"}}, "session_id"),
        ({"extra": {"never_heard_of": 1}}, "never_heard_of"),
    ],
)
def test_fields_without_effect_here_are_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} is not supported"):
        check(**fields)


def test_hints_that_change_no_answer_are_let_through() -> None:
    check(extra={"routing_key": "a", "cache_salt": "b", "session_id": None, "require_reasoning": False})


@pytest.mark.parametrize("ids", [[-1], [10], [1, 1 << 62]])
def test_prompt_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(RequestError, match=r"input_ids must be in \[0, 9\]"):
        check(ids)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sampling": SamplingParams(logit_bias={10: 1.0})}, "logit_bias"),
        ({"token_ids_logprob": [3, -1]}, "token_ids_logprob"),
    ],
)
def test_other_ids_outside_the_vocabulary_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} must have ids"):
        check(**fields)


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot be empty"):
        check([])


def test_prompt_needs_room_for_one_token() -> None:
    check([1] * 31)
    with pytest.raises(RequestError, match=r"longer than the model's context length \(32 tokens\)"):
        check([1] * 32)


def test_prompt_that_only_is_scored_may_fill_the_context() -> None:
    check([1] * 32, sampling=SamplingParams(max_new_tokens=0))


def test_prompt_that_can_never_fit_the_cache_is_refused() -> None:
    with pytest.raises(RequestError, match="raise engine_cache_tokens"):
        check([1] * 20, capacity=20)


def test_first_scored_position_may_be_the_end_but_not_beyond() -> None:
    check(return_logprob=True, logprob_start_len=3)
    check(return_logprob=False, logprob_start_len=4)
    with pytest.raises(RequestError, match="logprob_start_len"):
        check(return_logprob=True, logprob_start_len=4)


def test_stop_patterns_are_refused_only_where_the_engine_looks_for_stops() -> None:
    sampling = SamplingParams(stop_regex=["a+"])
    check(sampling=sampling)
    with pytest.raises(RequestError, match="stop_regex"):
        check(sampling=sampling, engine_stops=True)
