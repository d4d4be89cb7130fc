"""The engine without a model: what it repeats, its pace, and values that a reader can compute again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import AbortRequest, GenerationBatch, RequestError, SettingsError
from forebay.settings import Settings
from forebay_engine.echo import EchoEngine, open_echo
from forebay_engine.model_store import ModelFolder
from tests.engine.collect import Collector, request, run

VOCAB = 100
EVERYTHING: dict[str, Any] = {
    "return_logprob": True,
    "logprob_start_len": 1,
    "top_logprobs_num": 3,
    "token_ids_logprob": [7, 5],
    "return_hidden_states": True,
}


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def echo(**options: Any) -> EchoEngine:
    if "text" in options:
        options["text"] = np.array(options["text"], np.int64)
    return EchoEngine(**{"vocab": VOCAB, "context": 1000, **options})


def logprob(token: int, position: int) -> float:
    """The formula of the engine's description."""
    return -((token * 31 + position) % 1000) / 1000


def step(engine: EchoEngine) -> GenerationBatch:
    batch = engine.step()
    assert batch is not None
    return batch


def test_prompt_is_repeated_until_the_length() -> None:
    said = run(echo(), request("a", [4, 5, 6], sampling={"max_new_tokens": 7}))["a"]
    assert said.ids == [4, 5, 6, 4, 5, 6, 4]
    assert (said.finish, said.ends) == ({"type": "length", "length": 7}, 1)


def test_text_is_repeated_in_place_of_the_prompt() -> None:
    said = run(echo(text=[1, 2]), request("a", [9], sampling={"max_new_tokens": 3}), request("b", [8, 8]))
    assert (said["a"].ids, said["b"].ids) == ([1, 2, 1], [1, 2] * 4)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_any_number_of_tokens_a_step_gives_the_same_answer(count: int) -> None:
    requests = [request(rid, range(4, 4 + size)) for rid, size in (("a", 3), ("b", 5))]
    said = run(echo(tokens_per_step=count), *requests)
    assert said["a"].ids == [4, 5, 6, 4, 5, 6, 4, 5]
    assert said["b"].ids == [4, 5, 6, 7, 8, 4, 5, 6]


def test_step_of_even_rows_is_one_array() -> None:
    engine = echo()
    for rid in "abc":
        engine.add(request(rid, [ord(rid)]))
    batch = step(engine)
    assert batch.output_ids.tolist() == [97, 98, 99]
    assert (batch.tok_lens, batch.finish_reasons) == (None, None)


def test_rows_that_stay_the_same_are_the_same_list() -> None:
    engine = echo()
    engine.add(request("a", [1]))
    first, second = step(engine), step(engine)
    assert first.rids is second.rids
    assert first.prompt_tokens is second.prompt_tokens


def test_rows_that_come_and_go_leave_their_neighbours_alone() -> None:
    engine, collector = echo(), Collector()
    for number in range(40):
        size = 1 + number % 7
        engine.add(request(f"r{number}", range(number, number + size), sampling={"max_new_tokens": 1 + number % 5}))
        collector.take(step(engine))
    said = collector.said | run(engine)
    for number in range(30):
        size, length = 1 + number % 7, 1 + number % 5
        assert said[f"r{number}"].ids == [number + place % size for place in range(length)]


def test_stop_token_ends_when_it_is_emitted() -> None:
    sampling = {"ignore_eos": False, "stop_token_ids": [6]}
    said = run(echo(), request("a", [4, 5, 6, 7], sampling=sampling))["a"]
    assert (said.ids, said.finish) == ([4, 5, 6], {"type": "stop", "matched": 6})


def test_end_token_is_ignored_when_asked() -> None:
    engine = echo(eos=frozenset({5}))
    said = run(engine, request("a", [4, 5]), request("b", [4, 5], sampling={"ignore_eos": False}))
    assert (len(said["a"].ids), said["b"].ids) == (8, [4, 5])


@pytest.mark.parametrize(("minimum", "length"), [(0, 2), (1, 2), (2, 5), (4, 5), (5, 8)])
def test_stop_token_counts_from_the_minimum_length_on(minimum: int, length: int) -> None:
    sampling = {"ignore_eos": False, "stop_token_ids": [5], "min_new_tokens": minimum, "max_new_tokens": 50}
    assert len(run(echo(), request("a", [4, 5, 6], sampling=sampling))["a"].ids) == length


def test_no_new_tokens_is_a_row_without_tokens() -> None:
    said = run(echo(), request("a", [4], sampling={"max_new_tokens": 0}), request("b", [4]))
    assert (said["a"].ids, said["a"].finish) == ([], {"type": "length", "length": 0})
    assert len(said["b"].ids) == 8


def test_context_limits_the_answer() -> None:
    assert len(run(echo(context=10), request("a", [1] * 7, sampling={"max_new_tokens": None}))["a"].ids) == 3


def test_values_follow_the_formulas() -> None:
    said = run(echo(), request("a", [10, 98, 30], sampling={"max_new_tokens": 2}, **EVERYTHING))["a"].families
    first, second = (pytest.approx(value, abs=1e-6) for value in (logprob(10, 3), logprob(98, 4)))
    assert [cell.values for cell in said["output_token_logprobs"]] == [[first], [second]]
    assert [cell.ids for cell in said["output_token_logprobs"]] == [[10], [98]]
    top = said["output_top_logprobs"][1][0]
    assert top.ids == [98, 99, 0]
    assert top.values == pytest.approx([logprob(98, 4) - place / 4 for place in range(3)], abs=1e-6)
    given = said["output_token_ids_logprobs"][1][0]
    assert (given.ids, given.values) == ([7, 5], pytest.approx([logprob(7, 4), logprob(5, 4)], abs=1e-6))


def test_prompt_values_come_once_and_begin_with_none() -> None:
    said = run(echo(), request("a", [10, 98, 30], **EVERYTHING))["a"].families
    assert len(said["input_token_logprobs"]) == 1
    cell = said["input_token_logprobs"][0]
    assert (cell.ids, cell.values) == ([98, 30], [None, pytest.approx(logprob(30, 2), abs=1e-6)])
    assert [row and row.ids for row in said["input_top_logprobs"][0]] == [None, [30, 31, 32]]
    assert [row and row.ids for row in said["input_token_ids_logprobs"][0]] == [None, [7, 5]]


@pytest.mark.parametrize("count", [1, 2])
def test_hidden_rows_cover_the_prompt_then_each_token(count: int) -> None:
    asked = request("a", [10, 98, 30], sampling={"max_new_tokens": 4}, return_hidden_states=True)
    cells = run(echo(tokens_per_step=count), asked)["a"].families["output_hidden_states"]
    rows = [row for cell in cells for row in cell]
    assert [len(row) for row in rows] == [3 * 64, 64, 64, 64]
    assert rows[0][64:67] == pytest.approx([(98 + 1 + place) % 97 / 97 for place in range(3)], abs=1e-6)
    assert rows[2][:2] == pytest.approx([(30 + 5 + place) % 97 / 97 for place in range(2)], abs=1e-6)


def test_only_the_rows_that_asked_carry_values() -> None:
    said = run(echo(tokens_per_step=3), request("a", [1]), request("b", [2], **EVERYTHING), request("c", [3]))
    assert [bool(said[rid].families) for rid in "abc"] == [False, True, False]
    assert sum(len(cell.ids) for cell in said["b"].families["output_token_logprobs"]) == 8


def test_lists_of_different_widths_stand_side_by_side() -> None:
    wide = EVERYTHING | {"top_logprobs_num": 5, "token_ids_logprob": [1, 2, 3]}
    said = run(echo(), request("a", [1], **EVERYTHING), request("b", [2], **wide))
    assert [len(said[rid].families["output_top_logprobs"][3][0].ids) for rid in "ab"] == [3, 5]
    assert said["b"].families["output_token_ids_logprobs"][3][0].ids == [1, 2, 3]


def test_deadlines_are_absolute() -> None:
    clock = Clock()
    engine = echo(step_seconds=0.01, clock=clock)
    engine.add(request("a", [1]))
    assert engine.step() is None
    assert engine.patience() == pytest.approx(0.01)
    clock.now += 0.013
    assert engine.step() is not None
    assert engine.patience() == pytest.approx(0.007)


def test_long_pause_is_not_caught_up_step_by_step() -> None:
    clock = Clock()
    engine = echo(step_seconds=0.01, clock=clock)
    engine.add(request("a", [1]))
    clock.now += 5
    assert engine.step() is not None
    assert engine.patience() == pytest.approx(0.0, abs=1e-9)
    assert engine.step() is not None
    assert engine.patience() == pytest.approx(0.01)


def test_idle_engine_has_nothing_to_do() -> None:
    engine = echo()
    assert (engine.patience(), engine.step()) == (None, None)


def test_aborted_row_ends_with_a_last_row() -> None:
    engine = echo()
    engine.add(request("a", [1, 2]))
    engine.add(request("b", [3]))
    step(engine)
    engine.abort(AbortRequest("a", "user", "Enough"))
    said = run(engine)
    assert said["a"].finish == {"type": "abort", "message": "Enough", "status_code": None, "err_type": None}
    assert said["a"].prompt_tokens == 2
    assert said["b"].ids == [3] * 7


def test_row_that_left_says_nothing_more() -> None:
    engine = echo()
    engine.add(request("a", [1]))
    engine.abort(AbortRequest("a"))
    assert (engine.patience(), engine.step()) == (None, None)


def test_all_rows_can_be_aborted_at_once() -> None:
    engine = echo()
    for rid in "ab":
        engine.add(request(rid, [1]))
    engine.abort(AbortRequest("", "user", abort_all=True))
    assert {rid for rid, one in run(engine).items() if one.finish} == {"a", "b"}


def test_flush_is_refused_while_requests_are_pending() -> None:
    engine = echo()
    assert engine.flush()[0]
    engine.add(request("a", [1]))
    assert not engine.flush()[0]


def test_state_counts_rows_and_tokens() -> None:
    engine = echo(tokens_per_step=3)
    engine.add(request("a", [1]))
    step(engine)
    state = engine.state()
    assert (state["num_running_reqs"], state["total_output_tokens"], state["total_steps"]) == (1, 3, 1)


@pytest.mark.parametrize(
    ("ids", "fields", "reason"),
    [
        ([], {}, "cannot be empty"),
        ([1] * 1001, {}, "longer than the context"),
        ([1], {"sampling": {"json_schema": "{}"}}, "json_schema"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(ids: list[int], fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        echo().add(request("a", ids, **fields))


def test_text_is_bytes_without_a_tokenizer() -> None:
    engine, facts = open_echo(Settings(echo_text="ab"))
    assert run(engine, request("a", [1], sampling={"max_new_tokens": 3}))["a"].ids == [97, 98, 97]
    assert (facts["tokenizer_path"], facts["vocab_size"]) == (None, 256)


def test_text_is_encoded_with_the_tokenizer_of_the_model(tiny_folder: ModelFolder) -> None:
    engine, facts = open_echo(Settings(echo_text="the", tokenizer_path=str(tiny_folder.path), context_length=77))
    assert run(engine, request("a", [1], sampling={"max_new_tokens": 2}))["a"].ids[0] > 2
    assert (facts["vocab_size"], facts["eos_token_ids"], facts["context_length"]) == (265, [2], 77)


def test_empty_text_is_refused() -> None:
    with pytest.raises(SettingsError, match="echo_text"):
        open_echo(Settings(echo_text=""))


def test_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no tokenizer at"):
        open_echo(Settings(tokenizer_path=str(tmp_path)))
