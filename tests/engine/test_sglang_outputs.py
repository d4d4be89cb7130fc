"""SGLang's steps as batches: which families travel, for which rows, and how much of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from forebay_engine.adapters.sglang_outputs import Outputs, filled
from tests.helpers.sglang_payloads import COLUMNS

LENGTH = {"type": "length", "length": 2}


class Untouched(list[Any]):
    """A column of which only single cells may be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a column that nobody asked for was walked")


def payload(*rids: str, **columns: Any) -> SimpleNamespace:
    """A step with one token a row and the columns that are given."""
    count = len(rids)
    plain = {
        "rids": list(rids),
        "finished_reasons": [None] * count,
        "output_ids": [array("q", [7])] * count,
        "prompt_tokens": [3] * count,
        "cached_tokens": [0] * count,
        "reasoning_tokens": [0] * count,
    }
    return SimpleNamespace(**(dict.fromkeys(COLUMNS) | plain | columns))


def logprobs(kind: str, values: list[Any], ids: list[Any], **more: Any) -> dict[str, Any]:
    """The flat columns of one kind; the ragged ones are filled with empty cells, as SGLang does."""
    empty: dict[str, Any] = {
        f"{kind}_{family}_logprobs_{part}": [[] for _ in values]
        for family in ("top", "token_ids")
        for part in ("val", "idx")
    }
    return empty | {f"{kind}_token_logprobs_val": values, f"{kind}_token_logprobs_idx": ids} | more


def test_a_step_nobody_wants_more_of_has_no_families() -> None:
    batch = Outputs().batch(payload("a", "b"))
    assert (batch.rids, batch.output_ids, batch.cached_tokens) == (["a", "b"], [array("q", [7])] * 2, [0, 0])
    assert (batch.output_token_logprobs, batch.input_token_logprobs, batch.output_hidden_states) == (None, None, None)
    assert batch.trailing == {}


def test_one_client_of_three_with_logprobs_costs_one_row() -> None:
    columns = logprobs("output", [[], [-0.5], []], [[], [7], []])
    family = Outputs().batch(payload("a", "b", "c", **columns)).output_token_logprobs
    assert family is not None
    assert (family.rows, family.values, family.ids) == ([1], [[-0.5]], [[7]])


def test_alternatives_are_looked_at_only_in_rows_with_logprobs() -> None:
    top = {"output_top_logprobs_val": Untouched([[], [[-0.5, -1.0]], []])}
    columns = logprobs("output", [[], [-0.5], []], [[], [7], []], **top, output_top_logprobs_idx=[[], [[7, 8]], []])
    family = Outputs().batch(payload("a", "b", "c", **columns)).output_top_logprobs
    assert family is not None
    assert (family.rows, family.values, family.ids) == ([1], [[[-0.5, -1.0]]], [[[7, 8]]])


def test_a_row_without_alternatives_has_no_place_in_their_family() -> None:
    assert Outputs().batch(payload("a", **logprobs("output", [[-0.5]], [[7]]))).output_top_logprobs is None


def test_prompt_logprobs_keep_the_position_without_a_value() -> None:
    columns = logprobs("output", [[-0.5]], [[7]]) | logprobs("input", [[None, -2.0]], [[1, 2]])
    family = Outputs().batch(payload("a", **columns)).input_token_logprobs
    assert family is not None
    assert (family.values, family.ids) == ([[None, -2.0]], [[1, 2]])


def test_the_same_rows_again_are_not_searched_for_prompt_logprobs() -> None:
    outputs = Outputs()
    first = logprobs("output", [[-0.5]], [[7]]) | logprobs("input", [[None]], [[1]])
    again = logprobs("output", [[-0.6]], [[8]]) | {"input_token_logprobs_val": Untouched([[]])}
    assert outputs.batch(payload("a", **first)).input_token_logprobs is not None
    assert outputs.batch(payload("a", **again)).input_token_logprobs is None


def test_a_new_row_beside_old_ones_brings_its_prompt_logprobs() -> None:
    outputs = Outputs()
    outputs.batch(payload("a", **logprobs("output", [[-0.5]], [[7]])))
    columns = logprobs("output", [[-0.5], [-0.1]], [[7], [8]]) | logprobs("input", [[], [None]], [[], [4]])
    family = outputs.batch(payload("a", "b", **columns)).input_token_logprobs
    assert family is not None
    assert (family.rows, family.ids) == ([1], [[4]])


def test_hidden_states_that_grow_are_sent_once_each() -> None:
    outputs, sent = Outputs(), []
    states: list[Any] = []
    for step in range(3):
        states.append([float(step)])
        family = outputs.batch(payload("a", output_hidden_states=[states])).output_hidden_states
        assert family is not None
        sent += family.values[0]
    assert sent == [[0.0], [1.0], [2.0]]


def test_the_vectors_of_a_prompt_are_one_row() -> None:
    states = [[[1.0, 2.0], [3.0, 4.0]], [5.0, 6.0]]
    family = Outputs().batch(payload("a", output_hidden_states=[states])).output_hidden_states
    assert family is not None
    assert family.values == [[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0]]]


def test_hidden_states_go_out_for_the_rows_that_have_new_ones() -> None:
    outputs = Outputs()
    outputs.batch(payload("a", output_hidden_states=[[[1.0]]]))
    family = outputs.batch(payload("a", "b", "c", output_hidden_states=[[[1.0]], None, [[9.0]]])).output_hidden_states
    assert family is not None
    assert (family.rows, family.values) == ([2], [[[9.0]]])


def test_a_rid_used_again_starts_with_its_first_hidden_state() -> None:
    outputs = Outputs()
    outputs.batch(payload("a", output_hidden_states=[[[1.0], [2.0]]], finished_reasons=[LENGTH]))
    family = outputs.batch(payload("a", output_hidden_states=[[[3.0]]])).output_hidden_states
    assert family is not None
    assert family.values == [[[3.0]]]


def test_an_aborted_request_leaves_no_count_of_hidden_states() -> None:
    outputs = Outputs()
    outputs.batch(payload("a", output_hidden_states=[[[1.0], [2.0]]]))
    outputs.forget("a")
    assert outputs.batch(payload("a", output_hidden_states=[[[3.0]]])).output_hidden_states is not None


def test_weight_versions_travel_as_maps_of_the_finished_rows() -> None:
    span = SimpleNamespace(version="w1", start=0, end=2)
    batch = Outputs().batch(payload("a", "b", weight_versions=[None, [span]]))
    assert batch.trailing == {"weight_versions": [None, [{"version": "w1", "start": 0, "end": 2}]]}


def test_decode_latencies_by_row_become_a_column() -> None:
    assert Outputs().batch(payload("a", "b"), {1: 0.25}).trailing == {"decode_latencies": [None, 0.25]}


def test_filled_names_the_rows_that_are_not_empty() -> None:
    assert filled([[], [1], None, [2]]) == [1, 3]
