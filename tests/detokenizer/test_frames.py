"""What goes to the api processes in a step: rows, columns, starts and ends; and how rows come together in it."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest

from forebay_detokenizer.rows import MAX_NOTED, where
from tests.detokenizer.rig import LENGTH, Heard, Rig, answer
from tests.detokenizer.samples import EMOJI, TEXT, byte_ids, byte_level, id_of, ids_of


def test_rows_are_named_once_while_they_stay_the_same() -> None:
    rig = Rig()
    rig.open("a")
    rig.open("b")
    for _ in range(3):
        rig.step({"a": byte_ids(b"x"), "b": byte_ids(b"y")})
    assert [deltas.rids for _, deltas in rig.frames] == [["a", "b"], None, None]


def test_rows_are_named_again_when_they_change() -> None:
    rig = Rig()
    rig.open("a")
    rig.open("b")
    rig.step({"a": byte_ids(b"x"), "b": byte_ids(b"y")})
    rig.step({"b": byte_ids(b"y")})
    assert rig.frames[-1][1].rids == ["b"]


def test_frames_of_each_api_process_are_numbered_without_gaps() -> None:
    rig = Rig()
    rig.open("a", api=0)
    rig.open("b", api=1)
    for _ in range(3):
        rig.step({"a": byte_ids(b"x"), "b": byte_ids(b"y")})
    numbers = [(api, deltas.source, deltas.epoch, deltas.seq) for api, deltas in rig.frames]
    assert numbers == [(api, 0, 7, seq) for seq in (1, 2, 3) for api in (0, 1)]


def test_each_api_process_gets_its_own_rows_in_their_order() -> None:
    rig = Rig()
    for n in range(6):
        rig.open(f"r{n}", api=n % 2, want_ids=n == 3)
    rig.step({f"r{n}": byte_ids(b"%d" % n) for n in range(6)})
    said = {api: (deltas.rids, deltas.texts, deltas.has_ids) for api, deltas in rig.frames}
    odd = (["r1", "r3", "r5"], ["1", "3", "5"], True)
    assert said == {0: (["r0", "r2", "r4"], ["0", "2", "4"], False), 1: odd}


def test_lengths_are_left_out_while_every_row_has_one_token() -> None:
    rig = Rig()
    rig.open()
    rig.step({"r": byte_ids(b"a")})
    rig.step({"r": byte_ids(b"bcd")})
    assert [deltas.lens for _, deltas in rig.frames] == [None, [3]]


def test_prompt_and_cached_tokens_come_with_the_first_row_only() -> None:
    rig = Rig()
    rig.open(prompt_tokens=9)
    rig.step({"r": byte_ids(b"a")}, prompt_tokens=[8], cached_tokens=[4])
    rig.step({"r": byte_ids(b"b")})
    assert [deltas.starts for _, deltas in rig.frames] == [[(0, 8, 4)], []]


def test_an_engine_that_counts_no_prompt_leaves_it_to_the_tokenizer() -> None:
    rig = Rig()
    rig.open(prompt_tokens=9)
    rig.step({"r": byte_ids(b"a")})
    assert rig.said("r").start == (9, 0)


def test_the_end_has_the_counts_and_columns_of_the_engine() -> None:
    rig = Rig()
    rig.open()
    columns = {"prompt_tokens": [8], "cached_tokens": [4], "reasoning_tokens": [1]}
    rig.step({"r": byte_ids(b"ab")}, {"r": LENGTH}, trailing={"weight_version": ["v2"], "latency": [None]}, **columns)
    end = rig.said("r").end
    assert end is not None
    counts = (end.prompt_tokens, end.completion_tokens, end.cached_tokens, end.reasoning_tokens)
    assert (counts, end.trailing) == ((8, 2, 4, 1), {"weight_version": "v2"})


def test_a_row_that_ends_is_empty_and_its_neighbours_speak() -> None:
    rig = Rig()
    rig.open("ends", want_ids=True)
    rig.open("goes", want_ids=True)
    rig.step({"ends": byte_ids(b"a"), "goes": byte_ids(b"x")}, {"ends": LENGTH})
    deltas = rig.frames[-1][1]
    assert (deltas.texts, deltas.lens, bytes(deltas.ids)) == (["", "x"], [0, 1], array("q", byte_ids(b"x")).tobytes())


def test_a_request_that_does_not_stream_is_sent_once() -> None:
    rig = Rig()
    rig.open(stream=False, want_ids=True)
    heard = rig.run(byte_ids(b"abc"))
    assert (len(rig.frames), heard.text, heard.ids, heard.tokens) == (1, "abc", byte_ids(b"abc"), 3)


def test_ids_of_four_bytes_are_sent_as_eight() -> None:
    rig = Rig()
    rig.open(want_ids=True)
    batch_ids = array("i", [5, -1])
    rig.step({"r": byte_ids(b"a")})
    rig.step_raw(["r"], batch_ids, [2])
    assert rig.said("r").ids == [*byte_ids(b"a"), 5, -1]


@pytest.mark.parametrize("per_step", [1, 2, 3])
def test_tokens_are_held_until_the_interval_is_full(per_step: int) -> None:
    rig = Rig()
    rig.open(stream_interval=3, want_ids=True)
    heard = rig.run(byte_ids(b"abcdefgh"), per_step=per_step)
    spoken = [text for text in heard.texts if text]
    assert (all(len(text) >= 3 for text in spoken[:-1]), heard.text, heard.tokens) == (True, "abcdefgh", 8)


def test_a_step_in_which_every_row_is_held_sends_nothing() -> None:
    rig = Rig()
    rig.open(stream_interval=3)
    rig.step({"r": byte_ids(b"a")})
    rig.step({"r": byte_ids(b"b")})
    assert len(rig.frames) == 1  # the first one tells of the start


def test_ids_that_were_held_stand_in_the_place_of_their_row() -> None:
    rig = Rig()
    for rid, interval in (("a", 1), ("b", 2), ("c", 1)):
        rig.open(rid, stream_interval=interval, want_ids=True)
    for n in range(4):
        rig.step({rid: byte_ids(b"%d" % n) for rid in ("a", "b", "c")})
    assert [rig.said(rid).ids for rid in ("a", "b", "c")] == [byte_ids(b"0123")] * 3


def test_an_empty_step_is_no_error() -> None:
    rig = Rig()
    rig.step({})
    assert rig.frames == []


def test_ids_noted_for_a_long_answer_keep_their_order() -> None:
    ids = byte_ids(bytes(32 + n % 90 for n in range(2 * MAX_NOTED + 5)))
    assert answer("byte_level", ids, stream=False, want_ids=True).ids == ids


@pytest.mark.parametrize("few", [1, 40])
def test_places_of_a_value_are_found_in_order(few: int) -> None:
    column = ["x"] * 100
    places = sorted(random.Random(1).sample(range(100), few))
    for place in places:
        column[place] = "y"
    assert where(column, "y") == places


@dataclass
class Player:
    """One request of a busy engine: what it will get, and how far it is."""

    ids: list[int]
    fields: dict[str, Any]
    at: int = 0
    chunks: list[int] = field(default_factory=list)


def _player(rng: random.Random) -> Player:
    size = byte_level().get_vocab_size()
    words = [byte_ids(EMOJI.encode()), ids_of(byte_level(), TEXT), [id_of(byte_level(), "<|turn|>")], [-1, 10**7]]
    ids = [i for _ in range(rng.randrange(1, 4)) for i in rng.choice(words)][: rng.randrange(1, 60)]
    ids += [rng.randrange(size) for _ in range(rng.randrange(3))]
    fields = {
        "stream": rng.random() < 0.6,
        "stop": rng.choice([[], [], ["lazy", "zzz"], ["o"], [EMOJI]]),
        "stop_regex": rng.choice([[], [], ["[xy] "]]),
        "want_ids": rng.random() < 0.5,
        "stream_interval": rng.choice([1, 1, 4]),
        "skip_special_tokens": rng.random() < 0.8,
        "min_new_tokens": rng.choice([0, 12]),
        "api": rng.randrange(2),
    }
    return Player(ids, fields)


@pytest.mark.parametrize("seed", range(12))
def test_every_request_of_a_busy_engine_hears_what_it_would_hear_alone(seed: int) -> None:
    rng, rig = random.Random(seed), Rig()
    players = {f"p{n}": _player(rng) for n in range(12)}
    late = set(rng.sample(sorted(players), 3))
    for rid in set(players) - late:
        rig.open(rid, **players[rid].fields)
    live = list(players)
    while live:
        rows = {rid: _chunk(rng, players[rid], seed % 3) for rid in rng.sample(live, rng.randrange(1, len(live) + 1))}
        done = {rid: LENGTH for rid in rows if players[rid].at >= len(players[rid].ids)}
        rig.step(rows, done)
        for rid in sorted(late & set(rows)):
            rig.open(rid, **players[rid].fields)
            late.discard(rid)
        live = [rid for rid in live if rid not in done and rig.said(rid).end is None]
    for rid, player in players.items():
        assert _summary(rig.said(rid), player) == _summary(answer("byte_level", player.ids, **player.fields), player)
    assert (len(rig.core), rig.core.waiting) == (0, 0)


def _summary(heard: Heard, player: Player) -> tuple[Any, ...]:
    """All that must not depend on the company of a request; its ids are those of its tokens, if it wants them."""
    assert heard.end is not None
    wanted = heard.ids == player.ids[: heard.tokens] or not player.fields["want_ids"]
    return heard.text, heard.reason, heard.tokens, heard.end.completion_tokens, wanted


def _chunk(rng: random.Random, player: Player, style: int) -> list[int]:
    size = 1 if style == 0 else rng.randrange(1, 4) if style == 1 else rng.choice([1, 1, 1, 0, 2])
    chunk = player.ids[player.at : player.at + size]
    player.at += size
    return chunk
