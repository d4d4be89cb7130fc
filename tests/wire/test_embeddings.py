"""Frames of vectors: engine to api."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from forebay import EmbeddingBatch, PeerError, WireError
from forebay.wire.embeddings import Vector, decode_embeddings, encode_embeddings, vectors_of

ROWS = [[1.5, -2.0], [0.25, 4.0]]


def sent(embeddings: Any) -> list[list[float]]:
    batch = EmbeddingBatch(["a", "b"], embeddings, [3, 4], [1, 0])
    return [array("f", one.raw).tolist() for one in decode_embeddings(encode_embeddings(vectors_of(batch)))]


@pytest.mark.parametrize(
    "embeddings",
    [
        ROWS,
        [tuple(row) for row in ROWS],
        [array("f", row) for row in ROWS],
        [np.array(row, np.float64) for row in ROWS],
        np.array(ROWS, np.float32),
        np.array(ROWS, np.float64),
        np.array(ROWS, np.float16),
    ],
    ids=["lists", "tuples", "arrays", "rows", "float32", "float64", "float16"],
)
def test_every_form_of_vectors_arrives_the_same(embeddings: Any) -> None:
    assert sent(embeddings) == ROWS


def test_widths_may_differ() -> None:
    assert sent([[1.0], [2.0, 3.0, 4.0]]) == [[1.0], [2.0, 3.0, 4.0]]


def test_counts_travel_along() -> None:
    vectors = decode_embeddings(encode_embeddings(vectors_of(EmbeddingBatch(["a"], [[1.0]], [7], [5]))))
    assert [(one.rid, one.prompt_tokens, one.cached_tokens) for one in vectors] == [("a", 7, 5)]


@pytest.mark.parametrize(
    "batch",
    [
        EmbeddingBatch(["a"], [[1.0], [2.0]], [1]),
        EmbeddingBatch(["a"], [[1.0]], [1, 2]),
        EmbeddingBatch(["a"], [[1.0]], [1], [1, 2]),
        EmbeddingBatch(["a"], np.zeros((2, 3), np.float32), [1]),
        EmbeddingBatch(["a"], np.zeros(3, np.float32), [1]),
        EmbeddingBatch(["a"], np.zeros((1, 3), np.int64), [1]),
        EmbeddingBatch(["a"], [["x"]], [1]),
    ],
)
def test_a_batch_whose_columns_do_not_fit_is_refused(batch: EmbeddingBatch) -> None:
    with pytest.raises(WireError):
        vectors_of(batch)


FRAME = encode_embeddings([Vector("a", b"\0" * 8, 1, 0), Vector("b", b"\0" * 4, 2, 1)])


@pytest.mark.parametrize("size", range(len(FRAME)))
def test_a_cut_frame_is_the_peers_error(size: int) -> None:
    with pytest.raises(PeerError):
        decode_embeddings(FRAME[:size])


def test_a_tail_is_the_peers_error() -> None:
    with pytest.raises(PeerError, match="bytes of vectors"):
        decode_embeddings(FRAME + b"\0")
