"""The frames of the tokenizer process: what waits together leaves together, an abort finds what came before it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.counters import Counters
from forebay.settings import Settings
from forebay.topology import Peer, shard_of
from forebay.wire import control, ingress
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import AbortRequest
from forebay_tokenizer.service import TokenizerService
from forebay_tokenizer.worker import INLINE_COUNT
from tests.helpers.models import make_tokenizer
from tests.tokenizer.samples import LOG, work

SHARDS = 2
NAMES = [f"request-{at}" for at in range(INLINE_COUNT)]


class Frames:
    """A service whose links keep what it sends."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[tuple[Peer, bytes]] = []
        settings = Settings(tokenizer_path=str(make_tokenizer(folder)), detokenizers=SHARDS)
        role: Any = SimpleNamespace(
            settings=settings,
            facts=None,
            log=LOG,
            wake=lambda: None,
            ready=lambda status: None,
            counters=Counters(None),
            tally=SimpleNamespace(show=lambda present, stage: None),
            links=SimpleNamespace(send=self._send, is_up=lambda peer: True),
        )
        self.service = TokenizerService(role)
        self.turn()

    def _send(self, peer: Peer, frame: bytes) -> bool:
        self.sent.append((peer, frame))
        return True

    def work(self, names: list[str]) -> None:
        """One Work frame."""
        items = [work(text="hello", rids=[name]) for name in names]
        for item, name in zip(items, names, strict=True):
            item.head.rid = item.open.rid = name
        self.service.handle(Kind.WORK, ingress.encode_work(items, [array("q")] * len(items)))

    def turn(self) -> None:
        self.service.turn(time.monotonic())

    def admitted(self) -> list[str]:
        """The requests that the engine has been sent so far, in order."""
        frames = [frame for peer, frame in self.sent if kind_of(frame) is Kind.ADMIT]
        return [request.rid for frame in frames for request in ingress.decode_admit(frame).requests]


@pytest.fixture
def frames(tmp_path: Path) -> Iterator[Frames]:
    made = Frames(tmp_path / "model")
    yield made
    made.service.stop()


def test_a_burst_leaves_in_one_frame_for_each_receiver(frames: Frames) -> None:
    frames.work(NAMES[:1])
    frames.work(NAMES[1:6])
    frames.work(NAMES[6:])
    assert frames.sent == []
    frames.turn()
    assert frames.admitted() == NAMES
    shards = {Peer("detokenizer", shard_of(name, SHARDS)) for name in NAMES}
    assert sorted((peer, kind_of(frame)) for peer, frame in frames.sent) == sorted(
        [*((peer, Kind.OPEN) for peer in shards), (Peer("engine", 0), Kind.ADMIT)]
    )
    assert kind_of(frames.sent[-1][1]) is Kind.ADMIT


def test_an_abort_finds_what_came_before_it_in_the_same_turn(frames: Frames) -> None:
    frames.work(NAMES[:3])
    frames.service.handle(Kind.ABORT, control.encode_aborts([AbortRequest(NAMES[1])]))
    frames.turn()
    assert frames.admitted() == [NAMES[0], NAMES[2]]


def test_a_turn_without_work_sends_nothing(frames: Frames) -> None:
    frames.turn()
    assert frames.sent == []
    assert frames.service.idle()
