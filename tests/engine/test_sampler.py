"""Each rule of the sampler on rows of five logits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from forebay import SamplingParams
from forebay_engine.arrays import Floats
from forebay_engine.sampler import Chooser, candidates, draw

ROW = np.array([1.0, 3.0, 2.0, -1.0, 0.0], np.float32)


def chooser(prompt: tuple[int, ...] = (), ending: tuple[int, ...] = (), **params: Any) -> Chooser:
    return Chooser(SamplingParams(**{"top_k": 1, **params}), prompt, ending, len(ROW))


def row(*values: float) -> Floats:
    return np.array(values, np.float32)


def kept(weights: Floats, **params: Any) -> list[int] | None:
    found = candidates(weights, SamplingParams(**params))
    return None if found is None else found.tolist()


def test_greedy_takes_the_largest_logit() -> None:
    assert chooser().choose(ROW) == 1


def test_greedy_takes_the_lower_id_among_equals() -> None:
    assert chooser().choose(row(0, 2, 2, 1, 2)) == 1


def test_given_logits_are_not_changed() -> None:
    before = ROW.copy()
    chooser(prompt=(1,), repetition_penalty=2.0, logit_bias={0: 5.0}).choose(ROW)
    assert ROW.tolist() == before.tolist()


def test_repetition_penalty_divides_positive_logits_of_the_prompt() -> None:
    assert chooser(prompt=(1,), repetition_penalty=1.6).choose(ROW) == 2


def test_repetition_penalty_multiplies_negative_logits() -> None:
    assert chooser(prompt=(0,), repetition_penalty=2.0).choose(row(-1, -1.5, -9, -9, -9)) == 1


def test_repetition_penalty_counts_output_tokens() -> None:
    one = chooser(repetition_penalty=1.6)
    assert [one.choose(ROW), one.choose(ROW)] == [1, 2]


def test_presence_penalty_is_the_same_for_any_number_of_occurrences() -> None:
    one = chooser(presence_penalty=0.9)
    assert [one.choose(ROW) for _ in range(3)] == [1, 1, 1]
    assert chooser(presence_penalty=1.5).choose(ROW) == 1


def test_presence_penalty_ignores_the_prompt() -> None:
    assert chooser(prompt=(1,), presence_penalty=2.0).choose(ROW) == 1


def test_frequency_penalty_grows_with_each_occurrence() -> None:
    one = chooser(frequency_penalty=0.6)
    assert [one.choose(ROW) for _ in range(4)] == [1, 1, 2, 1]


def test_logit_bias_is_added() -> None:
    assert chooser(logit_bias={3: 4.5}).choose(ROW) == 3


def test_end_tokens_are_kept_back_until_the_minimum_length() -> None:
    one = chooser(ending=(1, 99), min_new_tokens=2)
    assert [one.choose(ROW) for _ in range(3)] == [2, 2, 1]


def test_bias_cannot_bring_an_end_token_before_the_minimum_length() -> None:
    assert chooser(ending=(1,), min_new_tokens=1, logit_bias={1: 100.0}).choose(ROW) == 2


def test_top_k_keeps_the_likeliest() -> None:
    assert kept(row(0.2, 1.0, 0.5, 0.1), top_k=2) == [1, 2]


def test_top_k_over_the_vocabulary_limits_nothing() -> None:
    assert kept(row(0.2, 1.0), top_k=5) is None


def test_top_p_keeps_the_fewest_that_reach_the_mass() -> None:
    # Probabilities 0.5, 0.25, 0.125, 0.125.
    weights = row(0.25, 1.0, 0.5, 0.25)
    assert kept(weights, top_p=0.5) == [1]
    assert kept(weights, top_p=0.7) == [1, 2]
    assert kept(weights, top_p=0.8) == [1, 2, 0]


def test_top_p_counts_the_mass_that_top_k_leaves() -> None:
    # Of the two best, 1.0 and 0.5, the first holds two thirds.
    assert kept(row(0.25, 1.0, 0.5, 0.25), top_k=2, top_p=0.6) == [1]


def test_top_p_of_a_flat_vocabulary_looks_beyond_its_first_candidates() -> None:
    found = candidates(np.ones(5000, np.float32), SamplingParams(top_p=0.5))
    assert found is not None
    assert len(found) == 2500


def test_min_p_is_relative_to_the_best() -> None:
    assert kept(row(0.2, 1.0, 0.5, 0.1), min_p=0.2) == [0, 1, 2]
    assert kept(row(0.2, 1.0, 0.5, 0.1), min_p=0.3, top_k=3) == [1, 2]


@pytest.mark.parametrize(("chance", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.99, 1)])
def test_draw_follows_the_probabilities(chance: float, token: int) -> None:
    assert draw(row(0, 0), SamplingParams(), chance) == token


def test_temperature_sharpens_and_flattens() -> None:
    logits = row(0, 1)
    assert draw(logits, SamplingParams(temperature=0.1), 0.01) == 1
    assert draw(logits, SamplingParams(temperature=100.0), 0.49) == 0


def test_token_without_probability_is_never_drawn() -> None:
    logits = row(-np.inf, 0, -np.inf)
    assert {draw(logits, SamplingParams(), chance) for chance in (0.0, 0.5, 0.999999)} == {1}


def test_same_seed_gives_the_same_tokens() -> None:
    runs = [[one.choose(ROW) for _ in range(20)] for one in (chooser(top_k=1 << 30, sampling_seed=-7) for _ in "ab")]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


def test_other_seed_gives_other_tokens() -> None:
    runs = [[one.choose(ROW) for _ in range(20)] for one in (chooser(top_k=5, sampling_seed=s) for s in (1, 2))]
    assert runs[0] != runs[1]


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    one = chooser(top_k=1 << 30, sampling_seed=5)
    counts = Counter(one.choose(ROW) for _ in range(4000))
    expected = np.exp(ROW) / np.exp(ROW).sum()
    assert all(abs(counts[token] / 4000 - expected[token]) < 0.03 for token in range(len(ROW)))


@pytest.mark.parametrize("top_k", [1, 4, 1 << 30])
def test_row_that_is_not_finite_is_an_error(top_k: int) -> None:
    with pytest.raises(FloatingPointError):
        chooser(top_k=top_k).choose(row(0, np.nan, 1, 1, 1))
