"""Embeddings, scores of given tokens without output, and pauses: both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay import AbortRequest, ControlRequest, EmbeddingBatch, GenerateRequest
from forebay_engine.answers import answer
from forebay_engine.backend import Backend
from forebay_engine.echo import EchoEngine
from forebay_engine.echo_families import hidden, logprob
from forebay_engine.engine import Engine
from forebay_engine.scheduler import Limits, Scheduler
from tests.engine.collect import request, run

TEXT = "Tell me about cats, and do not stop before the end of it all."


def scheduler(backend: Backend, prefill: int = 512) -> Scheduler:
    return Scheduler(backend, Limits(1024, 32, prefill))


def wish(rid: str, text: str = TEXT) -> GenerateRequest:
    return request(rid, text, sampling={"max_new_tokens": 0}, embedding=True)


def vectors(engine: Engine, *requests: GenerateRequest) -> EmbeddingBatch:
    """All embeddings of an engine that is asked for nothing else."""
    for one in requests:
        engine.add(one)
    out = EmbeddingBatch([], [], [])
    while engine.patience() is not None:
        assert engine.step() is None
        batch = engine.embeddings()
        if batch is not None:
            out.rids += batch.rids
            out.embeddings += batch.embeddings
            out.prompt_tokens += batch.prompt_tokens
    return out


def test_embedding_is_the_mean_of_the_prompts_hidden_rows(backend: Backend) -> None:
    found = vectors(scheduler(backend), wish("a"))
    said = run(scheduler(backend), request("b", TEXT, sampling={"max_new_tokens": 1}, return_hidden_states=True))["b"]
    rows = np.array(said.families["output_hidden_states"][0][0]).reshape(len(TEXT), -1)
    assert (found.rids, found.prompt_tokens) == (["a"], [len(TEXT)])
    np.testing.assert_allclose(found.embeddings[0], rows.mean(axis=0), atol=1e-5)


def test_pieces_and_company_change_no_embedding(backend: Backend) -> None:
    together = vectors(scheduler(backend, prefill=40), wish("a"), wish("b", TEXT[::-1]))
    by_rid = dict(zip(together.rids, together.embeddings, strict=True))
    np.testing.assert_allclose(by_rid["a"], vectors(scheduler(backend), wish("a")).embeddings[0], atol=1e-5)
    assert not np.allclose(by_rid["a"], by_rid["b"], atol=1e-3)


def test_an_embedding_leaves_nothing_in_the_engine(backend: Backend) -> None:
    engine = scheduler(backend)
    vectors(engine, wish("a"))
    assert engine.pool.free == backend.blocks
    assert engine.flush()[0]


def test_echo_embedding_can_be_computed_again() -> None:
    found = vectors(EchoEngine(vocab=100, context=100), request("a", [5, 6, 7], embedding=True))
    expected = hidden(np.array([5, 6, 7]), np.arange(3)).mean(axis=0)
    np.testing.assert_allclose(found.embeddings[0], expected, rtol=1e-6)


# ---------------------------------------------------------------- given ids behind the prompt
SCORED: dict[str, Any] = {"return_logprob": True, "token_ids_logprob": [7, 5], "sampling": {"max_new_tokens": 0}}


def test_given_ids_are_scored_behind_a_prompt_without_output(backend: Backend) -> None:
    said = run(scheduler(backend), request("a", TEXT, **SCORED))["a"]
    with_output = {**SCORED, "sampling": {"max_new_tokens": 1}}
    expected = run(scheduler(backend), request("a", TEXT, **with_output))["a"]
    assert (said.ids, said.finish) == ([], {"type": "length", "length": 0})
    found, due = (one.families["output_token_ids_logprobs"][0][0] for one in (said, expected))
    assert found.ids == due.ids == [7, 5]
    assert found.values == pytest.approx(due.values, abs=1e-5)
    assert "output_token_logprobs" not in said.families


def test_echo_scores_given_ids_behind_a_prompt_too() -> None:
    engine = EchoEngine(vocab=100, context=100)
    said = run(engine, request("a", [1, 2, 3], **SCORED), request("b", [4], sampling={"max_new_tokens": 2}))
    cell = said["a"].families["output_token_ids_logprobs"][0][0]
    assert cell.ids == [7, 5]
    assert cell.values == pytest.approx(logprob(np.array([7, 5]), np.array([3, 3])).tolist())
    assert said["a"].ids == []


# ---------------------------------------------------------------- pauses
@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_changes_no_answer(backend: Backend, mode: str) -> None:
    engine = scheduler(backend)
    whole = run(scheduler(backend), request("a", TEXT, sampling={"max_new_tokens": 12}))["a"].ids
    said: list[int] = []
    engine.add(request("a", TEXT, sampling={"max_new_tokens": 12}))
    for turn in range(14):
        if turn == 5:
            engine.pause(mode)
            assert engine.patience() is None
            assert engine.step() is None
            assert (engine.pool.free == backend.blocks) == (mode == "retract")
            engine.resume()
        batch = engine.step()
        if batch is not None:
            said += batch.output_ids.tolist()
    assert said == whole


@pytest.mark.parametrize("kind", ["scheduler", "echo"])
def test_an_abort_comes_through_a_pause(backend: Backend, kind: str) -> None:
    engine: Any = scheduler(backend) if kind == "scheduler" else EchoEngine(vocab=100, context=100)
    engine.add(request("a", [5, 6]))
    engine.step()
    engine.pause("in_place")
    engine.abort(AbortRequest("a", "user"))
    assert engine.patience() == 0
    batch = engine.step()
    assert batch is not None
    assert batch.finish_reasons[0]["type"] == "abort"
    assert engine.patience() is None


def ask(type_: str, **fields: Any) -> dict[str, Any]:
    return answer(EchoEngine(vocab=100, context=100), ControlRequest("c", 0, type_, fields))


@pytest.mark.parametrize("type_", ["PauseGeneration", "ContinueGeneration", "FlushCache", "FreezeGc"])
def test_what_an_engine_can_do_succeeds(type_: str) -> None:
    assert ask(type_)["success"] is True


def test_a_version_is_a_name_that_the_front_keeps() -> None:
    assert ask("UpdateWeightVersion", new_version="v2")["new_version"] == "v2"
    assert ask("UpdateWeightVersion", new_version=3)["success"] is False


@pytest.mark.parametrize("type_", ["UpdateWeightsFromDisk", "StartProfile", "OpenSession", "SetInternalState"])
def test_what_an_engine_cannot_do_is_refused_by_name(type_: str) -> None:
    assert ask(type_) == {"success": False, "message": f"this engine does not support {type_}"}
