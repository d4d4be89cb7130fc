"""Steady steps on the short way: the same frames as on the long way, and anything else is left alone."""

from __future__ import annotations

import time
import zlib
from array import array
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from forebay.batch import GenerationBatch
from forebay.errors import PeerError
from forebay.wire.deltas import decode_deltas, encode_deltas
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.frames import Kind, pack_frame
from forebay.wire.messages import OpenItem
from forebay.wire.steady import Texts, open_texts
from forebay_detokenizer.lane import Passed
from forebay_detokenizer.worker import Detokenizer
from tests.detokenizer.rig import LENGTH, Heard, Rig, tables
from tests.detokenizer.samples import EMOJI, byte_ids

FOREVER = float("inf")


class Shard:
    """A detokenizer with its decoder, as the service holds them; an engine writes to it, one api process listens."""

    def __init__(
        self, name: str = "byte_level", rids: Iterable[str] = "ab", index: int = 0, shards: int = 1, **fields: Any
    ) -> None:
        self.rids = list(rids)
        self.engine, self.decoder = EgressEncoder(3), EgressDecoder()
        self.core = Detokenizer(tables(name), epoch=7, index=index, shards=shards)
        mine = [rid for rid in self.rids if zlib.crc32(rid.encode()) % shards == index]
        self.core.open([OpenItem(rid=rid, **{"stream": True, **fields}) for rid in mine], 0.0)
        self.inbox: deque[bytes] = deque()
        self.sent: list[tuple[int, bytes]] = []
        self.full: set[int] = set()

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
        self.sent += [(api, encode_deltas(deltas)) for api, deltas in self.core.take().deltas]

    def receive(self) -> bytes:
        """The next frame of the inbox."""
        if not self.inbox:
            raise zmq.Again
        return self.inbox.popleft()

    def send(self, api: int, frame: bytes) -> bool:
        """Towards an api process."""
        if api not in self.full:
            self.sent.append((api, frame))
        return api not in self.full

    def lane(self, *frames: bytes, until: float = FOREVER) -> Passed:
        """Let a lane take frames."""
        self.inbox.extend(frames)
        lane = self.core.lane(self.decoder)
        assert lane is not None
        return lane.run(self.receive, {api: partial(self.send, api) for api in (0, 1)}, until)

    def run(self, *frames: bytes, until: float = FOREVER) -> bytes | None:
        """Let a lane take frames; the one that it does not."""
        return self.lane(*frames, until=until).frame

    def texts(self, api: int = 0) -> list[Texts]:
        """The steady frames for an api process."""
        return [open_texts(frame) for to, frame in self.sent if to == api and frame[0] == Kind.TEXTS]


def two_apis() -> Shard:
    """Two streams that have begun, one of each api process."""
    shard = Shard(rids="a")
    shard.core.open([OpenItem(rid="b", api=1, stream=True)], 0.0)
    shard.rids = ["a", "b"]
    shard.first(*byte_ids(b"xy"))
    return shard


@pytest.mark.parametrize("width", ["i", "q"])
def test_steady_steps_are_sent_as_texts_numbered_on(width: str) -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"), width=width)
    left = shard.run(*(shard.step(*byte_ids(pair), width=width) for pair in (b"ab", b"cd")))
    assert (left, [(one.epoch, one.seq, one.source, one.texts) for one in shard.texts()]) == (
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
    assert shard.texts()[-1].seq == 3


def test_a_part_of_a_character_goes_the_long_way() -> None:
    shard = Shard(rids="a")
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


def test_rows_that_their_api_does_not_take_are_named() -> None:
    shard = two_apis()
    shard.full = {1}
    passed = shard.lane(shard.step(*byte_ids(b"ab")), shard.step(*byte_ids(b"cd")))
    assert ([group.rids for group in passed.undelivered], passed.steps, len(shard.inbox)) == ([["b"]], 1, 1)
    assert [one.texts for one in shard.texts()] == [["a"]]


def test_a_lane_ends_in_time() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    frames = [shard.step(*byte_ids(b"ab")) for _ in range(3)]
    assert shard.run(*frames, until=time.monotonic()) is None
    assert len(shard.inbox) == 2


@pytest.mark.parametrize(
    "fields",
    [{"stop": ["zz"]}, {"want_ids": True}, {"stream_interval": 2}, {"skip_special_tokens": False}],
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


def test_each_api_process_gets_its_own_rows() -> None:
    shard = two_apis()
    assert shard.run(shard.step(*byte_ids(b"ab")), shard.step(*byte_ids(b"cd"))) is None
    assert [[(one.seq, one.texts) for one in shard.texts(api)] for api in (0, 1)] == [
        [(2, ["a"]), (3, ["c"])],
        [(2, ["b"]), (3, ["d"])],
    ]


def test_rows_of_another_shard_are_passed_over() -> None:
    shard = Shard(shards=2, index=1, rids="ad")
    shard.first(*byte_ids(b"xy"))
    assert shard.run(shard.step(*byte_ids(b"ab"))) is None
    assert shard.texts()[0].texts == ["a"]


def test_requests_that_do_not_stream_are_noted() -> None:
    shard = Shard(rids="a")
    shard.core.open([OpenItem(rid="b")], 0.0)
    shard.rids = ["a", "b"]
    shard.first(*byte_ids(b"xy"))
    assert shard.run(*(shard.step(*byte_ids(b"ab")) for _ in range(100))) is None
    shard.long_way(shard.step(*byte_ids(b"ab"), finish_reasons=[None, LENGTH]))
    (end,) = decode_deltas(shard.sent[-1][1]).ends
    assert (end.text, end.completion_tokens) == ("y" + "b" * 101, 102)


def test_there_is_no_lane_for_another_life_of_the_engine() -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    shard.decoder.greeted(4)
    assert shard.core.lane(shard.decoder) is None


def test_a_new_request_ends_the_lane_at_the_first_row_of_it() -> None:
    shard = Shard(rids="a")
    shard.first(*byte_ids(b"x"))
    shard.core.open([OpenItem(rid="b", stream=True)], 0.0)
    shard.rids = ["a", "b"]
    joined = shard.step(*byte_ids(b"ab"))
    assert shard.run(joined) == joined


TOKEN = st.sampled_from([*byte_ids("aß\U0001f600".encode()), *byte_ids(b" word"), 0, 399, 1 << 20, -1])
STEPS = st.lists(st.tuples(TOKEN, TOKEN), min_size=1, max_size=24)


def heard_by(sent: list[tuple[int, bytes]]) -> dict[str, Heard]:
    """What an api process makes of frames on either way."""
    rig = Rig()
    for _, frame in sent:
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
        if short.core.lane(short.decoder) is not None:
            assert frame is not None
            passed = short.lane(frame)
            assert (passed.frame is None) == (passed.steps == 1)
            frame = passed.frame
        if frame is not None:
            short.long_way(frame)
    assert heard_by(short.sent) == heard_by(long.sent)


def test_rows_of_an_api_process_that_is_not_there_are_undelivered() -> None:
    shard = Shard(rids="a", api=9)
    shard.first(*byte_ids(b"x"))
    assert [group.api for group in shard.lane(shard.step(*byte_ids(b"a"))).undelivered] == [9]


@pytest.mark.parametrize("seq", [-16, -1, (1 << 63), (1 << 64) - 1])
def test_a_damaged_number_is_a_lost_frame_and_no_lane(seq: int) -> None:
    shard = Shard()
    shard.first(*byte_ids(b"xy"))
    header = [3, seq, 2, None, None, None, None, None, None, 8, None, None]
    damaged = pack_frame(Kind.EGRESS, msgspec.msgpack.encode(header), [array("q", byte_ids(b"ab")).tobytes()])
    with pytest.raises(PeerError, match="number"):
        shard.decoder.decode(damaged)
    assert shard.decoder.lost
    shard.core.fail_all("lost")
    assert shard.core.lane(shard.decoder) is None
