"""Log probabilities of a row of four logits."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest

from forebay import GenerateRequest
from forebay_engine.logprobs import normaliser, score, top_ids

ROW = np.log(np.array([0.1, 0.4, 0.3, 0.2], np.float32)) + np.float32(7)


def request(top: int = 0, given: list[int] | None = None) -> GenerateRequest:
    return GenerateRequest(rid="r", input_ids=array("q", [1]), top_logprobs_num=top, token_ids_logprob=given)


def test_chosen_value_is_the_log_of_its_probability() -> None:
    assert score(ROW, 2, request()).value == pytest.approx(math.log(0.3), abs=1e-6)


def test_lists_are_absent_unless_wanted() -> None:
    found = score(ROW, 2, request())
    assert (found.top, found.given) == (None, None)


def test_top_list_is_best_first() -> None:
    found = score(ROW, 0, request(top=3)).top
    assert found is not None
    assert found[1] == [1, 2, 3]
    assert np.exp(found[0]) == pytest.approx([0.4, 0.3, 0.2], abs=1e-6)


def test_given_ids_keep_their_order() -> None:
    found = score(ROW, 0, request(given=[3, 1])).given
    assert found is not None
    assert found[1] == [3, 1]
    assert np.exp(found[0]) == pytest.approx([0.2, 0.4], abs=1e-6)


def test_top_ids_prefer_the_lower_id_among_equals() -> None:
    assert top_ids(np.array([1, 2, 2, 0], np.float32), 3).tolist() == [1, 2, 0]


def test_more_top_ids_than_the_vocabulary_are_all_of_it() -> None:
    assert len(top_ids(ROW, 9)) == 4


def test_large_logits_do_not_overflow() -> None:
    assert normaliser(np.array([1e4, 1e4], np.float32)) == pytest.approx(1e4 + math.log(2), rel=1e-6)
