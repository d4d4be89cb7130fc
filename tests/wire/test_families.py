"""The reader of a step's families: what does not fit is the peer's fault, and costs no more memory than what came."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from forebay.errors import PeerError
from forebay.wire.columns import FLAT, HIDDEN, RAGGED
from forebay.wire.families import Family
from forebay.wire.messages import Pairs

HUGE = 1 << 40


def read(shape: int, entry: Any, *columns: array[Any], rows: int = 2) -> list[tuple[int, Any]]:
    raw = b"".join(column.tobytes() for column in columns)
    return list(Family(shape, entry, rows, memoryview(raw)).items())


def test_nested_cells_are_read() -> None:
    assert read(FLAT, [0, [1], [[1, None]], [[5, 6]]]) == [(1, Pairs([1.0, None], [5, 6]))]


def test_nan_is_no_value() -> None:
    assert read(FLAT, [0, [1], [[float("nan"), -1.0]], [[5, 6]]]) == [(1, Pairs([None, -1.0], [5, 6]))]


def test_arrays_are_read() -> None:
    columns = array("f", [0.5, float("nan")]), array("i", [5, 6])
    assert read(FLAT, [1, None, None, "f", "i", 8, 8], *columns) == [(0, Pairs([0.5], [5])), (1, Pairs([None], [6]))]


@pytest.mark.parametrize(
    ("shape", "entry"),
    [
        (FLAT, None),
        (FLAT, 5),
        (FLAT, [0]),
        (FLAT, [2, None, []]),
        (FLAT, ["0", None, []]),
        (FLAT, [0, [2], [[1.0]], [[1]]]),
        (FLAT, [0, [-1], [[1.0]], [[1]]]),
        (FLAT, [0, [True], [[1.0]], [[1]]]),
        (FLAT, [0, "1", [[1.0]], [[1]]]),
        (FLAT, [0, [1], [[1.0]]]),
        (FLAT, [0, [1], [[1.0]], [[1]], 5]),
        (FLAT, [0, [1], [[1.0], []], [[1], []]]),
        (FLAT, [0, None, [[1.0]], [[1]]]),
        (FLAT, [0, [1], {}, {}]),
        (HIDDEN, [0, [1], [[[1.0]]], [[1]]]),
        (HIDDEN, [0, [1], [[[1.0]], [[1.0]]]]),
    ],
)
def test_nested_entry_that_does_not_fit_its_batch_is_refused(shape: int, entry: Any) -> None:
    with pytest.raises(PeerError):
        read(shape, entry)


@pytest.mark.parametrize(
    ("shape", "entry"),
    [
        (FLAT, [0, [1], [[1.0]], [[1, 2]]]),
        (FLAT, [0, [1], [["x"]], [[1]]]),
        (FLAT, [0, [1], [["1.5"]], [[1]]]),
        (FLAT, [0, [1], [[1.0]], [[1.5]]]),
        (FLAT, [0, [1], [[1.0]], [[True]]]),
        (FLAT, [0, [1], [5], [[1]]]),
        (FLAT, [0, [1], [None], [None]]),
        (RAGGED, [0, [1], [[[1.0]]], [[]]]),
        (RAGGED, [0, [1], [[[1.0]]], [[None]]]),
        (RAGGED, [0, [1], [[None]], [[[1]]]]),
        (RAGGED, [0, [1], ["ab"], ["ab"]]),
        (RAGGED, [0, [1], [7], [7]]),
        (HIDDEN, [0, [1], [[["x"]]]]),
        (HIDDEN, [0, [1], [[1.0]]]),
        (HIDDEN, [0, [1], ["text"]]),
        (HIDDEN, [0, [1], [[[None]]]]),
    ],
)
def test_cell_of_the_wrong_shape_is_the_peers_fault(shape: int, entry: Any) -> None:
    with pytest.raises(PeerError, match="cell"):
        read(shape, entry)


@pytest.mark.parametrize(
    ("shape", "entry"),
    [
        (FLAT, [1, None, None, "f", "i", 8]),
        (FLAT, [1, None, None, "f", "i", 8, 8, 1]),
        (FLAT, [1, None, [1], "f", "i", 8, 8]),
        (FLAT, [1, None, [1, -1], "f", "i", 8, 8]),
        (FLAT, [1, None, [1, "1"], "f", "i", 8, 8]),
        (FLAT, [1, None, None, "x", "i", 8, 8]),
        (FLAT, [1, None, None, [], {}, 8, 8]),
        (FLAT, [1, None, None, "i", "i", 8, 8]),
        (FLAT, [1, None, None, "f", "f", 8, 8]),
        (FLAT, [1, None, None, "f", "i", 8, -8]),
        (FLAT, [1, None, None, "f", "i", 8, 16]),
        (FLAT, [1, None, None, "f", "i", 4, 12]),
        (FLAT, [1, None, [HUGE, HUGE], "f", "i", 8, 8]),
        (RAGGED, [1, None, [HUGE, 0], "f", "i", 0, 0, 0]),
        (RAGGED, [1, None, [HUGE, 0], "f", "i", 8, 8, []]),
        (RAGGED, [1, None, [1, 1], "f", "i", 8, 8, [HUGE, -HUGE]]),
        (RAGGED, [1, None, [1, 1], "f", "i", 8, 8, [1, 2]]),
        (RAGGED, [1, None, [1, 1], "f", "i", 8, 8, None]),
        (RAGGED, [1, None, [1, 1], "f", "i", 8, 8, True]),
        (HIDDEN, [1, None, [HUGE, 0], "f", 0, 0]),
        (HIDDEN, [1, None, [1, 1], "f", 8, [1, 1]]),
        (HIDDEN, [1, None, [1, 1], "f", 8, HUGE]),
        (HIDDEN, [1, None, [1, 1], "i", 8, 1]),
    ],
)
def test_array_entry_that_does_not_fit_its_columns_is_refused(shape: int, entry: Any) -> None:
    with pytest.raises(PeerError):
        read(shape, entry, array("f", [1, 2]), array("i", [3, 4]))
