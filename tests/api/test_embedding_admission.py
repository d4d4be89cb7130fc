"""`/v1/embeddings`, `/encode` and `/v1/score`: what is let through, and the shapes of the answers."""

from __future__ import annotations

import base64
import json
import math
from array import array
from typing import Any

import pytest

from forebay.wire.embeddings import Vector, encode_embeddings
from forebay_api import embedding_replies
from forebay_api.embedding_admission import plan_embeddings, plan_encode
from forebay_api.embedding_bodies import read_embedding, read_encode
from forebay_api.plan import Plan
from forebay_api.routes.score import scores
from tests.api.conversation import Conversation, Talk
from tests.api.samples import context, said

OFFERED = {"embedding_method": "mean"}


def embed(facts: dict[str, Any] | None = None, /, **body: Any) -> Plan:
    return plan_embeddings(read_embedding(json.dumps(body).encode()), context(OFFERED if facts is None else facts))


def encode(**body: Any) -> Plan:
    return plan_encode(read_encode(json.dumps(body).encode()), context(OFFERED))


@pytest.mark.parametrize(
    ("given", "prompts", "batch"),
    [("a", 1, False), (["a"], 1, True), (["a", "b"], 2, True), ([1, 2], 1, False), ([[1], [2, 3]], 2, True)],
)
def test_inputs_are_texts_or_ids_one_or_many(given: Any, prompts: int, batch: bool) -> None:
    plan = embed(input=given)
    assert (len(plan.items), plan.batch) == (prompts, batch)
    assert all(item.head.embedding and item.head.sampling.max_new_tokens == 0 for item in plan.items)


@pytest.mark.parametrize("given", ["", "  ", [], ["a", ""], ["a", " "], [-1], [[]], ["a", 1], [[1], "a"]])
def test_empty_blank_negative_and_mixed_inputs_are_400(given: Any) -> None:
    status, _, param = said(embed, input=given)
    assert (status, param) == (400, "input")


def test_a_model_without_embeddings_is_400() -> None:
    assert said(embed, {}, input="a") == (400, "this model does not give embeddings", "input")


def test_a_model_that_only_embeds_needs_no_method() -> None:
    assert len(embed({"is_generation": False}, input="a").items) == 1


@pytest.mark.parametrize(
    ("facts", "dimensions", "error"),
    [
        ({}, 8, "not supported by this model"),
        ({}, 0, "at least 1"),
        ({"is_matryoshka": True}, 8, None),
        ({"matryoshka_dimensions": [8, 16]}, 8, None),
        ({"matryoshka_dimensions": [8, 16]}, 9, "one of 8, 16"),
    ],
)
def test_dimensions_are_for_models_that_can(facts: dict[str, Any], dimensions: int, error: str | None) -> None:
    known = {**OFFERED, **facts}
    if error is None:
        assert embed(known, input="a", dimensions=dimensions).items[0].head.extra == {"dimensions": dimensions}
    else:
        status, message, param = said(embed, known, input="a", dimensions=dimensions)
        assert (status, param) == (400, "dimensions")
        assert error in message


def test_unknown_encoding_is_400() -> None:
    assert said(embed, input="a", encoding_format="hex")[0] == 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"text": "a", "input_ids": [1]}, 400),
        ({"text": []}, 400),
        ({"text": [["q", "d"]]}, 501),
        ({"text": "a", "is_cross_encoder_request": True}, 501),
        ({"text": "a", "return_pooled_hidden_states": True}, 501),
    ],
)
def test_encode_refuses_what_it_cannot_do(body: dict[str, Any], status: int) -> None:
    assert said(encode, **body)[0] == status


# ---------------------------------------------------------------- answers
def give(c: Conversation, *rows: list[float]) -> None:
    vectors = [Vector(rid, array("f", row).tobytes(), 4, 1) for rid, row in zip(c.rids, rows, strict=True)]
    c.mailbox.take([encode_embeddings(list(reversed(vectors)))])


def test_vectors_come_in_the_order_of_the_inputs(talk: Talk) -> None:
    c = talk(embed(input=["a", "b"]))
    give(c, [1.0, 2.0], [3.0, 4.0])
    answer = embedding_replies.embeddings(c.call, "float")
    assert [(one["index"], one["embedding"]) for one in answer["data"]] == [(0, [1.0, 2.0]), (1, [3.0, 4.0])]
    assert (answer["object"], answer["model"]) == ("list", "served")
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_base64_is_little_endian_float32(talk: Talk) -> None:
    c = talk(embed(input="a"))
    give(c, [1.5, -2.0])
    text = embedding_replies.embeddings(c.call, "base64")["data"][0]["embedding"]
    assert base64.b64decode(text) == array("f", [1.5, -2.0]).tobytes()


def test_encode_answers_an_object_or_a_list(talk: Talk) -> None:
    c = talk(encode(text="a", rid="mine"))
    give(c, [1.0])
    answer = embedding_replies.encoded(c.call)
    assert answer["embedding"] == [1.0]
    meta = answer["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["cached_tokens"]) == ("mine", 4, 1)
    assert meta["finish_reason"] == {"type": "stop", "matched": None}
    c = talk(encode(text=["a"]))
    give(c, [1.0])
    assert len(embedding_replies.encoded(c.call)) == 1


def test_an_aborted_embedding_is_an_error(talk: Talk) -> None:
    c = talk(embed(input="a"))
    c.end(0, {"type": "abort", "message": "Aborted", "status_code": None})
    assert said(embedding_replies.embeddings, c.call, "float") == (499, "Aborted", None)


# ---------------------------------------------------------------- score
def test_scores_are_probabilities() -> None:
    assert scores([math.log(0.5), None, float("-inf")], False, 1.0) == pytest.approx([0.5, 0.0, 0.0])


def test_softmax_is_over_the_labels_only() -> None:
    assert scores([math.log(0.1), math.log(0.3)], True, 1.0) == pytest.approx([0.25, 0.75])


def test_temperature_flattens() -> None:
    cold, warm = (scores([0.0, -2.0], True, temperature)[0] for temperature in (0.5, 4.0))
    assert cold > warm > 0.5


def test_labels_without_any_value_count_nothing() -> None:
    assert scores([None, float("nan")], True, 1.0) == [0.0, 0.0]
