"""The scheduler over the tiny model: who runs, what they get, and that company changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay import AbortRequest, RequestError
from forebay_engine.backend import Backend
from forebay_engine.scheduler import Limits, Scheduler
from tests.engine.collect import Collector, Said, request, run

TEXTS = [f"Tell me about {what}, and do not stop before the end." for what in ("cats", "the moon", "bread", "snow")]
EVERYTHING: dict[str, Any] = {
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 3,
    "token_ids_logprob": [7, 5],
}


def scheduler(backend: Backend, *, context: int = 1024, running: int = 32, prefill: int = 512) -> Scheduler:
    return Scheduler(backend, Limits(context, running, prefill))


def ids(said: dict[str, Said]) -> dict[str, list[int]]:
    return {rid: one.ids for rid, one in said.items()}


def alone(backend: Backend, text: str, count: int = 24) -> list[int]:
    return run(scheduler(backend), request("a", text, sampling={"max_new_tokens": count}))["a"].ids


@pytest.fixture(scope="module")
def answers(backend: Backend) -> dict[str, list[int]]:
    """The 24 greedy tokens of each text, computed alone."""
    return {text: alone(backend, text) for text in TEXTS}


def test_answers_differ_from_each_other(answers: dict[str, list[int]]) -> None:
    assert len({tuple(one) for one in answers.values()}) == len(TEXTS)


@pytest.mark.parametrize("limits", [{}, {"prefill": 40}, {"running": 2}], ids=["together", "in pieces", "two at once"])
def test_company_and_pieces_change_no_answer(
    backend: Backend, answers: dict[str, list[int]], limits: dict[str, int]
) -> None:
    requests = [request(text, text, sampling={"max_new_tokens": 24}) for text in TEXTS]
    assert ids(run(scheduler(backend, **limits), *requests)) == answers


def test_requests_that_lost_their_blocks_give_the_same_answers(backend: Backend, small_backend: Backend) -> None:
    # 4 blocks of 32 tokens: two requests begin with a block each, and need three before their end.
    texts = [text[:24] for text in TEXTS]
    engine = scheduler(small_backend, prefill=32)
    said = run(engine, *(request(text, text, sampling={"max_new_tokens": 60}, **EVERYTHING) for text in texts))
    assert engine.retracted > 0
    assert ids(said) == {text: alone(backend, text, 60) for text in texts}
    assert [len(said[text].families["input_token_logprobs"]) for text in texts] == [1] * 4
    assert [len(said[text].families["output_token_logprobs"]) for text in texts] == [60] * 4
    assert engine.pool.free == 4


def test_hidden_rows_are_not_sent_twice_after_a_request_lost_its_blocks(small_backend: Backend) -> None:
    engine = scheduler(small_backend, prefill=32)
    sampling = {"max_new_tokens": 60}
    said = run(engine, *(request(text, text[:24], sampling=sampling, return_hidden_states=True) for text in TEXTS))
    assert engine.retracted > 0
    for one in said.values():
        rows = [len(row) for cell in one.families["output_hidden_states"] for row in cell]
        assert rows == [24 * 64] + [64] * 59


def test_request_ends_once_with_its_length(backend: Backend) -> None:
    said = run(scheduler(backend), request("a", "x"))["a"]
    assert (said.finish, said.ends, len(said.ids)) == ({"type": "length", "length": 8}, 1, 8)
    assert said.prompt_tokens == 1


def test_stop_token_ends_and_is_in_the_answer(backend: Backend, answers: dict[str, list[int]]) -> None:
    stop = answers[TEXTS[0]][5]
    first = answers[TEXTS[0]].index(stop)
    sampling = {"ignore_eos": False, "stop_token_ids": [stop]}
    said = run(scheduler(backend), request("a", TEXTS[0], sampling=sampling))["a"]
    assert said.finish == {"type": "stop", "matched": stop}
    assert said.ids == answers[TEXTS[0]][: first + 1]


def test_end_token_of_the_model_ends_unless_ignored(backend: Backend, answers: dict[str, list[int]]) -> None:
    eos = answers[TEXTS[0]][0]
    engine = Scheduler(backend, Limits(1024, 32, 512, frozenset({eos})))
    said = run(engine, request("stops", TEXTS[0], sampling={"ignore_eos": False}), request("goes on", TEXTS[0]))
    assert (said["stops"].finish, len(said["goes on"].ids)) == ({"type": "stop", "matched": eos}, 8)


def test_length_is_judged_before_the_stop(backend: Backend, answers: dict[str, list[int]]) -> None:
    sampling = {"ignore_eos": False, "stop_token_ids": [answers[TEXTS[0]][0]], "max_new_tokens": 1}
    said = run(scheduler(backend), request("a", TEXTS[0], sampling=sampling))["a"]
    assert said.finish == {"type": "length", "length": 1}


def test_answer_without_a_limit_ends_with_the_context(backend: Backend) -> None:
    engine = scheduler(backend, context=20)
    said = run(engine, request("a", range(3, 15), sampling={"max_new_tokens": None}))["a"]
    assert (len(said.ids), said.finish) == (8, {"type": "length", "length": 8})


def test_no_new_tokens_only_reads_the_prompt(backend: Backend) -> None:
    asked = request("a", range(3, 13), sampling={"max_new_tokens": 0}, return_hidden_states=True, **EVERYTHING)
    said = run(scheduler(backend, prefill=4), asked)["a"]
    assert (said.ids, said.finish) == ([], {"type": "length", "length": 0})
    assert len(said.families["input_token_logprobs"][0].ids) == 10
    assert len(said.families["output_hidden_states"][0][0]) == 10 * 64


def test_stop_string_ends_when_the_engine_looks_for_it(backend: Backend, answers: dict[str, list[int]]) -> None:
    def decode(tokens: object) -> str:
        return "".join(f"<{token}>" for token in tokens)  # type: ignore[attr-defined]

    expected = answers[TEXTS[0]][:4]
    text = decode(expected[2:4])
    engine = Scheduler(backend, Limits(1024, 32, 512), decode)
    said = run(engine, request("a", TEXTS[0], sampling={"stop": [text], "max_new_tokens": 24}))["a"]
    assert said.finish == {"type": "stop", "matched": text}
    assert said.ids == expected


def test_chosen_logprob_is_the_best_of_the_top_for_greedy_requests(backend: Backend) -> None:
    said = run(scheduler(backend), request("a", TEXTS[0], **EVERYTHING))["a"].families
    chosen = [cell.values[0] for cell in said["output_token_logprobs"]]
    assert len(chosen) == 8
    assert chosen == [cell[0].values[0] for cell in said["output_top_logprobs"]]
    assert all(cell[0].values == sorted(cell[0].values, reverse=True) for cell in said["output_top_logprobs"])


def test_given_ids_come_in_their_order_at_every_position(backend: Backend) -> None:
    said = run(scheduler(backend), request("a", "four", **EVERYTHING))["a"].families
    assert [cell[0].ids for cell in said["output_token_ids_logprobs"]] == [[7, 5]] * 8
    prompt = said["input_token_ids_logprobs"][0]
    assert [row and row.ids for row in prompt] == [None, [7, 5], [7, 5], [7, 5]]


def test_prompt_logprobs_begin_with_none_at_the_asked_position(backend: Backend) -> None:
    asked = request("a", range(10, 20), return_logprob=True, logprob_start_len=6)
    cell = run(scheduler(backend), asked)["a"].families["input_token_logprobs"][0]
    assert cell.ids == [16, 17, 18, 19]
    assert cell.values[0] is None
    assert all(value < 0 for value in cell.values[1:])


@pytest.mark.parametrize("start", [-1, 10])
def test_no_prompt_logprobs_before_the_first_or_behind_the_last_position(backend: Backend, start: int) -> None:
    asked = request("a", range(10, 20), return_logprob=True, logprob_start_len=start)
    said = run(scheduler(backend), asked)["a"].families
    assert set(said) == {"output_token_logprobs"}


def test_prompt_logprob_equals_the_output_logprob_of_the_same_text(backend: Backend) -> None:
    first = run(scheduler(backend), request("a", "some text", return_logprob=True))["a"]
    whole = request("b", [3 + byte for byte in b"some text"] + first.ids, return_logprob=True, logprob_start_len=8)
    scored = run(scheduler(backend, prefill=5), whole)["b"].families["input_token_logprobs"][0]
    said = [cell.values[0] for cell in first.families["output_token_logprobs"]]
    assert scored.values[1:] == pytest.approx(said, abs=1e-4)


def test_logprobs_are_those_of_the_model_not_of_the_sampling(backend: Backend) -> None:
    plain = request("a", "x", return_logprob=True, top_logprobs_num=1)
    bent = request(
        "b",
        "x",
        sampling={"temperature": 3.0, "top_k": 2, "logit_bias": {9: 50.0}, "sampling_seed": 1},
        return_logprob=True,
        top_logprobs_num=1,
    )
    said = run(scheduler(backend), plain, bent)
    tops = [said[rid].families["output_top_logprobs"][0][0] for rid in "ab"]
    assert tops[0] == tops[1]
    assert said["b"].ids[0] == 9
    assert said["b"].families["output_token_logprobs"][0].values[0] < tops[0].values[0]


def test_nothing_is_reported_unless_asked(backend: Backend) -> None:
    quiet = request("a", "x", top_logprobs_num=3, token_ids_logprob=[4], logprob_start_len=0)
    said = run(scheduler(backend), quiet, request("b", "y", **EVERYTHING))
    assert not said["a"].families
    assert len(said["b"].families) == 6


@pytest.mark.parametrize("prefill", [512, 4])
def test_first_hidden_row_covers_the_prompt_and_each_later_token_has_one(backend: Backend, prefill: int) -> None:
    asked = request("a", range(3, 13), return_hidden_states=True)
    cells = run(scheduler(backend, prefill=prefill), asked)["a"].families["output_hidden_states"]
    assert [[len(row) for row in cell] for cell in cells] == [[10 * 64]] + [[64]] * 7


def test_hidden_rows_do_not_depend_on_pieces(backend: Backend) -> None:
    def rows(prefill: int) -> list[float]:
        asked = request("a", range(3, 13), return_hidden_states=True)
        cells = run(scheduler(backend, prefill=prefill), asked)["a"].families["output_hidden_states"]
        return [value for cell in cells for row in cell for value in row]

    np.testing.assert_allclose(rows(4), rows(512), atol=1e-4)


def test_request_that_left_says_nothing_more_and_frees_its_blocks(backend: Backend) -> None:
    engine = scheduler(backend)
    engine.add(request("a", "x"))
    engine.step()
    engine.abort(AbortRequest("a"))
    assert (engine.patience(), engine.step(), engine.pool.free) == (None, None, backend.blocks)


def test_aborted_request_ends_with_a_last_row(backend: Backend) -> None:
    engine = scheduler(backend)
    engine.add(request("a", "x"))
    engine.step()
    engine.abort(AbortRequest("a", "user"))
    said = run(engine)["a"]
    assert (said.ids, said.ends) == ([], 1)
    assert said.finish == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def test_request_aborted_before_it_ran_is_told_so(backend: Backend) -> None:
    engine = scheduler(backend)
    engine.add(request("a", "x"))
    engine.abort(AbortRequest("a", "user"))
    finish = run(engine)["a"].finish
    assert finish is not None
    assert finish["message"] == "Abort in waiting queue"


def test_all_requests_can_be_aborted_at_once(backend: Backend) -> None:
    engine = scheduler(backend, running=1)
    for rid in "abc":
        engine.add(request(rid, "x"))
    engine.step()
    engine.abort(AbortRequest("", "user", abort_all=True))
    said = run(engine)
    assert {rid: one.finish and one.finish["type"] for rid, one in said.items()} == dict.fromkeys("abc", "abort")


def test_abort_of_an_unknown_request_does_nothing(backend: Backend) -> None:
    engine = scheduler(backend)
    engine.abort(AbortRequest("nobody", "user"))
    assert engine.patience() is None


def test_higher_priority_runs_first(backend: Backend) -> None:
    engine = scheduler(backend, running=1)
    for rid, priority in (("a", None), ("b", 5), ("c", -1)):
        engine.add(request(rid, "x", sampling={"max_new_tokens": 1}, priority=priority))
    collector = Collector()
    while (batch := engine.step()) is not None:
        collector.take(batch)
    assert list(collector.said) == ["b", "a", "c"]


def test_prompt_that_can_never_fit_is_refused(small_backend: Backend) -> None:
    with pytest.raises(RequestError, match="does not fit the engine's cache"):
        scheduler(small_backend).add(request("a", [5] * 128))


def test_answer_ends_when_the_whole_cache_is_one_request(small_backend: Backend) -> None:
    said = run(scheduler(small_backend), request("a", [5] * 120, sampling={"max_new_tokens": 500}))["a"]
    assert said.finish == {"type": "length", "length": 8}


def test_request_that_comes_twice_is_served_once(backend: Backend) -> None:
    assert run(scheduler(backend), request("a", "x"), request("a", "x"))["a"].ends == 1


def test_flush_is_refused_while_requests_are_pending(backend: Backend) -> None:
    engine = scheduler(backend)
    assert engine.flush() == (True, "Cache flushed.")
    engine.add(request("a", "x"))
    assert engine.flush() == (False, "Cache not flushed: 0 requests are running and 1 are waiting.")


def test_state_counts_requests_and_tokens(backend: Backend) -> None:
    engine = scheduler(backend, running=1)
    engine.add(request("a", range(3, 43)))
    engine.add(request("b", "x"))
    engine.step()
    state = engine.state()
    assert (state["num_running_reqs"], state["num_waiting_reqs"]) == (1, 1)
    assert (state["num_used_tokens"], state["total_prompt_tokens"], state["total_output_tokens"]) == (64, 40, 1)


def test_failed_step_ends_its_requests_and_not_the_engine(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(step: object) -> None:
        raise RuntimeError("out of memory")

    engine = scheduler(backend)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "run", fail)
        finish = run(engine, request("a", "x"))["a"].finish
    assert finish is not None
    assert (finish["type"], finish["status_code"]) == ("abort", 500)
    assert len(run(engine, request("b", "x"))["b"].ids) == 8
