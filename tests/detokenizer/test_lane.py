"""Steady steps on the short way: the same frames as on the long way, and anything else is left alone."""

from __future__ import annotations

import time
from array import array
from collections import deque
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from forebay.batch import GenerationBatch
from forebay.wire.deltas import encode_deltas
from forebay.wire.egress import EgressDecoder, EgressEncoder
from forebay.wire.frames import Kind
from forebay.wire.messages import OpenItem
from forebay.wire.steady import open_texts
from forebay_detokenizer.worker import Detokenizer
from tests.detokenizer.rig import LENGTH, Heard, Rig, tables
from tests.detokenizer.samples import EMOJI, byte_ids

FOREVER = float("inf")


class Shard:
    """A detokenizer with its decoder, as the service holds them; an engine writes to it, one api process listens."""

    def __init__(self, name: str = "byte_level", rids: tuple[str, ...] = ("a", "b"), **fields: Any) -> None:
        self.rids = list(rids)
        self.engine, self.decoder = EgressEncoder(3), EgressDecoder()
        self.core = Detokenizer(tables(name), epoch=7)
        self.core.open([OpenItem(rid=rid, **{"stream": True, **fields}) for rid in rids], 0.0)
        self.inbox: deque[bytes] = deque()
        self.sent: list[bytes] = []
        self.full = False

    def step(self, *ids: int, width: str = "q", **columns: Any) -> bytes:
        """The engine's frame of a step with one id a row."""
        batch = GenerationBatch(self.rids, [array(width, [token]) for token in ids], **columns)
        return self.engine.encode(batch)

    def first(self, *ids: int, width: str = "q") -> None:
        """The first step: it goes the long way, and names the rows to the api process."""
        self.long_way(self.step(*ids, width=width))

    def long_way(self, frame: bytes) -> None:
        """What the service does with a frame that no lane takes."""
        self.core.step(self.decoder.decode(frame), 0.0)
        self.sent += [encode_deltas(deltas) for _, deltas in self.core.take().deltas]

    def receive(self) -> bytes:
        """The next frame of the inbox."""
        if not self.inbox:
            raise zmq.Again
        return self.inbox.popleft()

    def send(self, frame: bytes, flags: int) -> None:
        """Towards the api process."""
        if self.full:
            raise zmq.Again
        self.sent.append(frame)

    def run(self, *frames: bytes, until: float = FOREVER) -> bytes | None:
        """Let a lane take frames; the one that it does not."""
        self.inbox.extend(frames)
        lane = self.core.lane(self.decoder)
        assert lane is not None
        return lane.run(self.receive, self.send, until)[0]


@pytest.mark.parametrize("width", ["i", "q"])
def test_steady_steps_are_sent_as_texts_numbered_on(width: str) -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"), width=width)
    left = shard.run(*(shard.step(*byte_ids(pair), width=width) for pair in (b"ab", b"cd")))
    texts = [open_texts(frame) for frame in shard.sent[1:]]
    assert (left, [(one.epoch, one.seq, one.source, one.texts) for one in texts]) == (
        None,
        [(7, 2, 0, ["a", "b"]), (7, 3, 0, ["c", "d"])],
    )


@pytest.mark.parametrize("bad", [-1, -400, 1 << 20, -(1 << 63)])
def test_an_id_outside_the_vocabulary_goes_the_long_way_and_has_no_text(bad: int) -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    odd = shard.step(bad, *byte_ids(b"z"))
    assert shard.run(odd) == odd
    shard.long_way(odd)
    assert shard.run(shard.step(*byte_ids(b"ab"))) is None
    assert open_texts(shard.sent[-1]).seq == 3


def test_a_part_of_a_character_goes_the_long_way() -> None:
    shard = Shard(rids=("a",))
    shard.first(*byte_ids(b"x"))
    part = shard.step(*byte_ids(EMOJI.encode()[:1]))
    assert shard.run(part) == part
    shard.long_way(part)
    assert shard.core.lane(shard.decoder) is None


def test_a_frame_that_is_no_steady_step_is_handed_back_untouched() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    steady, last = shard.step(*byte_ids(b"ab")), shard.step(*byte_ids(b"cd"), finish_reasons=[None, LENGTH])
    assert shard.run(steady, last) == last
    shard.long_way(last)
    assert shard.core.lane(shard.decoder) is None, "the rows have changed"


def test_a_step_after_a_gap_is_handed_back() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    shard.step(*byte_ids(b"ab"))
    after = shard.step(*byte_ids(b"cd"))
    assert shard.run(after) == after


@pytest.mark.parametrize("cut", [1, 8, 15])
def test_a_step_that_is_cut_is_handed_back(cut: int) -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    frame = shard.step(*byte_ids(b"ab"))[:-cut]
    assert shard.run(frame) == frame


def test_a_step_that_is_too_long_is_handed_back() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    frame = shard.step(*byte_ids(b"ab")) + bytes(8)
    assert shard.run(frame) == frame


def test_a_step_that_the_api_does_not_take_is_handed_back_uncounted() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    frame = shard.step(*byte_ids(b"ab"))
    shard.full = True
    assert shard.run(frame) == frame
    shard.full = False
    assert shard.run(frame) is None
    assert open_texts(shard.sent[-1]).seq == 2


def test_a_lane_ends_in_time() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    frames = [shard.step(*byte_ids(b"ab")) for _ in range(3)]
    assert shard.run(*frames, until=time.monotonic()) is None
    assert len(shard.inbox) == 2


@pytest.mark.parametrize(
    "fields",
    [{"stream": False}, {"stop": ["zz"]}, {"want_ids": True}, {"stream_interval": 2}, {"skip_special_tokens": False}],
)
def test_there_is_no_lane_for_rows_that_need_more_than_the_table(fields: dict[str, Any]) -> None:
    shard = Shard(**fields)
    shard.first(*byte_ids(b"xy"))
    assert shard.core.lane(shard.decoder) is None


def test_there_is_no_lane_without_a_table() -> None:
    shard = Shard("word_piece")
    shard.first(0, 1)
    assert shard.core.lane(shard.decoder) is None


def test_there_is_no_lane_before_the_rows_are_known() -> None:
    shard = Shard()
    assert shard.core.lane(shard.decoder) is None


def test_there_is_no_lane_for_rows_of_two_api_processes() -> None:
    shard = Shard(rids=("a",))
    shard.core.open([OpenItem(rid="b", api=1, stream=True)], 0.0)
    shard.rids = ["a", "b"]
    shard.first(*byte_ids(b"xy"))
    assert shard.core.lane(shard.decoder) is None


def test_there_is_no_lane_for_another_life_of_the_engine() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    shard.decoder.greeted(4)
    assert shard.core.lane(shard.decoder) is None


def test_a_new_request_ends_the_lane_at_the_first_row_of_it() -> None:
    shard = Shard(rids=("a",))
    shard.first(*byte_ids(b"x"))
    shard.core.open([OpenItem(rid="b", stream=True)], 0.0)
    shard.rids = ["a", "b"]
    joined = shard.step(*byte_ids(b"ab"))
    assert shard.run(joined) == joined


TOKEN = st.sampled_from([*byte_ids("aß\U0001f600".encode()), *byte_ids(b" word"), 0, 399, 1 << 20, -1])
STEPS = st.lists(st.tuples(TOKEN, TOKEN), min_size=1, max_size=24)


def heard_by(sent: list[bytes]) -> dict[str, Heard]:
    """What an api process makes of frames on either way."""
    rig = Rig()
    for frame in sent:
        if frame[0] == Kind.TEXTS:
            for rid, text in zip(rig._rows[0], open_texts(frame).texts, strict=True):
                rig.said(rid).texts.append(text)
                rig.said(rid).tokens += 1
        else:
            rig.hear_frame(0, frame)
    return rig.heard


@given(STEPS)
def test_both_ways_say_the_same(steps: list[tuple[int, int]]) -> None:
    short, long = Shard(), Shard()
    for number, ids in enumerate(steps):
        reasons: dict[str, Any] = {"finish_reasons": [LENGTH, LENGTH]} if number == len(steps) - 1 else {}
        long.long_way(long.step(*ids, **reasons))
        frame: bytes | None = short.step(*ids, **reasons)
        lane = short.core.lane(short.decoder)
        if lane is not None and frame is not None:
            short.inbox.append(frame)
            frame, passed = lane.run(short.receive, short.send, FOREVER)
            assert (frame is None) == (passed.steps == 1)
        if frame is not None:
            short.long_way(frame)
    assert heard_by(short.sent) == heard_by(long.sent)
