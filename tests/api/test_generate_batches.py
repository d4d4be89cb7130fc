"""`/generate`: one prompt or many, the rules of batches, limits and ids."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from forebay.wire.messages import RequestHead
from forebay_api.admission import Plan
from tests.api.samples import context, generate, refusal, said


def heads(**body: Any) -> list[RequestHead]:
    return [item.head for item in generate(**body).items]


def shape(plan: Plan) -> tuple[int, int, bool]:
    """Prompts, samples of each, and whether the answer is a list."""
    return len(plan.items), plan.n, plan.batch


# ---------------------------------------------------------------- prompts
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"text": "a"}, (1, 1, False)),
        ({"text": ["a"]}, (1, 1, True)),
        ({"text": ["a", "b"]}, (2, 1, True)),
        ({"input_ids": [1, 2]}, (1, 1, False)),
        ({"input_ids": [[1, 2]]}, (1, 1, True)),
        ({"input_ids": [[1], [2, 3]]}, (2, 1, True)),
        ({"text": "a", "input_ids": None}, (1, 1, False)),
        ({"text": "a", "sampling_params": {"n": 3}}, (1, 3, False)),
        ({"text": ["a", "b"], "sampling_params": {"n": 3}}, (2, 3, True)),
    ],
)
def test_the_form_of_the_prompt_decides_between_one_and_many(body: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert shape(generate(**body)) == expected


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"text": None}, "either `text` or `input_ids` must be provided", "text"),
        ({"text": "a", "input_ids": [1]}, "provide either `text` or `input_ids`, not both", "input_ids"),
        ({"text": []}, "batch must contain at least one item", "text"),
        ({"input_ids": []}, "input_ids cannot be empty.", "input_ids"),
        ({"input_ids": [[]]}, "input_ids cannot be empty for any prompt in the batch", "input_ids"),
        ({"input_ids": [[1], []]}, "input_ids cannot be empty for any prompt in the batch", "input_ids"),
    ],
)
def test_no_prompt_or_two_are_refused(body: dict[str, Any], message: str, param: str) -> None:
    assert said(generate, **body) == (400, message, param)


@pytest.mark.parametrize("ids", [[1, [2]], [[1], 2]])
def test_flat_and_nested_ids_cannot_be_mixed(ids: list[Any]) -> None:
    assert refusal(generate, input_ids=ids).param == "input_ids"


def test_ids_stand_beside_the_items() -> None:
    plan = generate(input_ids=[[1, 2], [3]])
    assert plan.ids == [array("q", [1, 2]), array("q", [3])]
    assert all(item.has_ids and item.text is None for item in plan.items)


def test_a_text_has_an_empty_column_of_ids() -> None:
    plan = generate(text="a")
    assert (plan.ids, plan.items[0].has_ids, plan.items[0].text) == ([array("q")], False, "a")


def test_a_session_may_go_on_without_new_ids() -> None:
    assert generate(input_ids=[], session_params={"id": "s"}).ids == [array("q")]


def test_an_empty_text_is_left_to_the_tokenizer() -> None:
    assert generate(text="").items[0].text == ""


# ---------------------------------------------------------------- spreading over a batch
THREE = ["a", "b", "c"]


def test_one_value_counts_for_all_prompts() -> None:
    found = heads(text=THREE, return_logprob=True, logprob_start_len=2, top_logprobs_num=4, token_ids_logprob=[5, 6])
    seen = {
        (head.return_logprob, head.logprob_start_len, head.top_logprobs_num, *(head.token_ids_logprob or []))
        for head in found
    }
    assert seen == {(True, 2, 4, 5, 6)}


def test_a_list_has_one_value_for_each_prompt() -> None:
    found = heads(
        text=THREE,
        return_logprob=[True, False, True],
        logprob_start_len=[0, 1, 2],
        top_logprobs_num=[1, 2, 3],
        token_ids_logprob=[[7], None, []],
    )
    assert [head.return_logprob for head in found] == [True, False, True]
    assert [head.logprob_start_len for head in found] == [0, -1, 2]
    assert [head.top_logprobs_num for head in found] == [1, 0, 3]
    assert [head.token_ids_logprob for head in found] == [[7], None, None]


OF_LOGPROBS = [
    ("return_logprob", [True, False]),
    ("logprob_start_len", [0, 1]),
    ("top_logprobs_num", [1, 2]),
    ("token_ids_logprob", [[1], [2]]),
]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        *OF_LOGPROBS,
        ("return_hidden_states", [True, False]),
        ("lora_path", ["a", "b"]),
        ("extra_key", ["a", "b"]),
        ("cache_salt", ["a", "b"]),
        ("bootstrap_room", [1, 2]),
        ("kv_hints", [{}, {}]),
        ("rid", ["a", "b"]),
        ("sampling_params", [{}, {}]),
    ],
)
def test_a_list_of_another_length_is_refused_with_both_lengths(field: str, values: list[Any]) -> None:
    message = f"{field} has 2 entries, but there are 3 prompts"
    assert said(generate, text=THREE, **{field: values}) == (400, message, field)


@pytest.mark.parametrize(("field", "values"), OF_LOGPROBS)
def test_lists_and_several_samples_do_not_go_together(field: str, values: list[Any]) -> None:
    body = {"text": ["a", "b"], "sampling_params": {"n": 2}, field: values}
    assert said(generate, **body) == (400, f"{field} cannot be a list when n > 1", field)


def test_a_list_of_logit_processors_and_several_samples_do_not_go_together() -> None:
    ctx = context({"enable_custom_logit_processor": True})
    body = {"text": ["a", "b"], "sampling_params": {"n": 2}, "custom_logit_processor": ["x", None]}
    message = "custom_logit_processor cannot be a list when n > 1"
    assert said(generate, ctx, **body) == (400, message, "custom_logit_processor")


def test_each_prompt_can_have_its_own_sampling_parameters() -> None:
    found = heads(text=["a", "b"], sampling_params=[{"temperature": 0.5}, {"top_p": 0.5}])
    assert [(head.sampling.temperature, head.sampling.top_p) for head in found] == [(0.5, 1.0), (1.0, 0.5)]


def test_all_prompts_must_have_the_same_number_of_samples() -> None:
    message = "all n in sampling_params must be equal, got [1, 2]"
    assert said(generate, text=["a", "b"], sampling_params=[{"n": 2}, {}]) == (400, message, "sampling_params")


def test_an_error_in_a_list_of_sampling_parameters_names_the_entry() -> None:
    error = refusal(generate, text=["a", "b"], sampling_params=[{}, {"top_p": 0}])
    assert error.param == "sampling_params.1.top_p"


def test_the_parameters_of_a_whole_batch_are_made_once() -> None:
    first, second = heads(text=["a", "b"], sampling_params={"stop": "x"})
    assert first.sampling is second.sampling


@pytest.mark.parametrize("ids", [[[0]], [[1], [2]], [1, [2]]])
def test_nested_token_ids_are_refused_for_a_single_prompt(ids: Any) -> None:
    error = refusal(generate, text="a", return_logprob=True, token_ids_logprob=ids)
    assert (error.status, error.param) == (400, "token_ids_logprob")


def test_an_empty_list_of_token_ids_asks_for_none() -> None:
    assert heads(text="a", return_logprob=True, token_ids_logprob=[])[0].token_ids_logprob is None


def test_without_logprobs_their_options_do_not_reach_the_engine() -> None:
    head = heads(text="a", logprob_start_len=0, top_logprobs_num=5, token_ids_logprob=[1])[0]
    assert (head.logprob_start_len, head.top_logprobs_num, head.token_ids_logprob) == (-1, 0, None)


# ---------------------------------------------------------------- limits
@pytest.mark.parametrize("value", [-1, 1025, 2_000_000_000])
def test_the_number_of_alternatives_is_limited(value: int) -> None:
    message = f"top_logprobs_num must be in [0, 1024], got {value}."
    assert said(generate, top_logprobs_num=value) == (400, message, "top_logprobs_num")


def test_the_operator_sets_the_limit_of_alternatives() -> None:
    assert refusal(generate, context(max_top_logprobs=5), top_logprobs_num=6).message.endswith("[0, 5], got 6.")


def test_the_number_of_asked_token_ids_is_limited_too() -> None:
    message = "token_ids_logprob has 6 ids, over the limit of 5"
    assert said(generate, context(max_top_logprobs=5), token_ids_logprob=[1] * 6) == (400, message, "token_ids_logprob")


@pytest.mark.parametrize("value", [0, 1024])
def test_the_borders_of_the_number_of_alternatives_are_inside(value: int) -> None:
    assert heads(return_logprob=True, top_logprobs_num=value)[0].top_logprobs_num == value


def test_a_first_position_below_minus_one_is_refused() -> None:
    message = "logprob_start_len must be at least -1, got -2."
    assert said(generate, logprob_start_len=-2) == (400, message, "logprob_start_len")


def test_prompts_times_samples_are_limited() -> None:
    ctx = context(max_batch_items=6)
    assert shape(generate(ctx, text=THREE, sampling_params={"n": 2})) == (3, 2, True)
    message = "3 prompts with n=3 make 9 items, over the limit of 6 in one request"
    assert said(generate, ctx, text=THREE, sampling_params={"n": 3}) == (400, message, "n")


def test_prompts_alone_are_limited() -> None:
    assert refusal(generate, context(max_batch_items=2), text=THREE).status == 400


def test_no_wire_id_is_made_for_a_refused_request() -> None:
    ctx = context()
    refusal(generate, ctx, text=THREE, sampling_params={"top_p": 0})
    assert generate(ctx).items[0].rids == ["fresh.1"]


# ---------------------------------------------------------------- ids
def test_every_sample_has_its_own_wire_id() -> None:
    plan = generate(text=["a", "b"], sampling_params={"n": 2})
    assert [item.rids for item in plan.items] == [["fresh.1", "fresh.2"], ["fresh.3", "fresh.4"]]
    assert [(item.head.rid, item.head.api) for item in plan.items] == [("fresh.1", 3), ("fresh.3", 3)]


@pytest.mark.parametrize(
    ("text", "rid", "public"),
    [
        ("a", None, [None]),
        ("a", "x", ["x"]),
        ("a", ["x"], ["x"]),
        (["a"], "x", ["x_0"]),
        (["a", "b"], "x", ["x_0", "x_1"]),
        (["a", "b"], ["x", "y"], ["x", "y"]),
    ],
)
def test_the_clients_id_names_its_prompts(text: Any, rid: Any, public: list[Any]) -> None:
    plan = generate(text=text, rid=rid)
    assert plan.public_rids == public
    assert [item.head.public_rid for item in plan.items] == public
    assert plan.parent_rid == (rid if isinstance(rid, str) else None)


def test_duplicate_ids_are_refused() -> None:
    message = "Duplicate request IDs detected within the request: ['a']"
    assert said(generate, text=THREE, rid=["a", "b", "a"]) == (400, message, "rid")


@pytest.mark.parametrize("rid", ["", "x" * 129, "a\nb", "é", "a\x7f", ["ok", "no\0"]])
def test_an_id_that_cannot_stand_in_a_log_is_refused(rid: Any) -> None:
    text = ["a", "b"] if isinstance(rid, list) else "a"
    assert said(generate, text=text, rid=rid) == (400, "rid must be 1 to 128 printable ASCII characters", "rid")


def test_the_longest_id_is_accepted() -> None:
    assert generate(rid="x" * 128).public_rids == ["x" * 128]
