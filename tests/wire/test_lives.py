"""Frames of a life that is not the present one."""

from __future__ import annotations

import pytest

from forebay.batch import GenerationBatch
from forebay.errors import PeerError
from forebay.lifetime import new_incarnation
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.lives import INSISTS, Lives, Owners


def step() -> GenerationBatch:
    return GenerationBatch(["a"], [[1]], [None], [3])


def test_every_life_is_taken_before_the_greeting() -> None:
    lives = Lives()
    assert lives.takes(1, 1)
    assert lives.takes(2, 7)


def test_a_frame_of_another_life_than_the_greeted_one_is_left_out() -> None:
    lives = Lives()
    lives.greeted(1)
    assert not lives.takes(2, 1)
    assert lives.takes(1, 5)


def test_a_life_that_goes_on_and_on_is_believed_in_the_end() -> None:
    lives = Lives()
    lives.greeted(1)
    assert [lives.takes(2, seq) for seq in range(1, INSISTS + 1)] == [False] * (INSISTS - 1) + [True]
    assert lives.present == 2


def test_frames_without_an_order_are_never_believed() -> None:
    lives = Lives()
    lives.greeted(1)
    assert not any(lives.takes(2, 5) for _ in range(3 * INSISTS))


def test_a_step_of_a_stranger_does_not_shut_the_engine_out() -> None:
    decoder, engine = EgressDecoder(), EgressEncoder(1)
    decoder.greeted(1)
    decoder.decode(engine.encode(step()))
    with pytest.raises(PeerError, match="has greeted"):
        decoder.decode(EgressEncoder(2).encode(step()))
    assert not decoder.lost
    assert decoder.decode(engine.encode(step())).seq == 2


def test_a_new_life_whose_first_steps_were_missed_has_a_gap() -> None:
    decoder, engine = EgressDecoder(), EgressEncoder(2)
    decoder.decode(EgressEncoder(1).encode(step()))
    engine.encode(step())
    engine.send_full()
    decoder.decode(engine.encode(step()))
    assert decoder.lost


# ---------------------------------------------------------------- whose work it is
def test_every_life_of_an_owner_is_taken_before_its_greeting() -> None:
    assert not Owners().over(0, 1)


def test_an_earlier_life_of_an_owner_is_over_and_a_later_one_is_not() -> None:
    owners = Owners()
    owners.greeted(1, 5)
    assert [owners.over(1, life) for life in (4, 5, 6)] == [True, False, False]
    assert not owners.over(0, 4)


def test_the_word_of_an_owner_counts_also_when_its_clock_was_set_back() -> None:
    owners = Owners()
    owners.greeted(0, 5)
    owners.greeted(0, 3)
    assert not owners.over(0, 3)


def test_later_lives_have_larger_numbers() -> None:
    lives = [new_incarnation() for _ in range(100)]
    assert lives == sorted(lives)
    assert max(lives) < 1 << 63  # it travels as a 64-bit number
