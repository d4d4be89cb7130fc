"""A detokenizer between an engine and api processes that are played by the test; all frames go over the real wire."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from forebay.batch import GenerationBatch
from forebay.wire.deltas import Deltas, decode_deltas, encode_deltas
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.messages import AbortRequest, End, Extra, OpenItem, RequestFault
from forebay_detokenizer.tables import Tables
from forebay_detokenizer.worker import Detokenizer
from tests.detokenizer import samples

LENGTH = {"type": "length", "length": 9}
TOKENIZERS = {
    "byte_level": samples.byte_level,
    "byte_fallback": samples.byte_fallback,
    "word_piece": samples.word_piece,
}


@cache
def tables(name: str = "byte_level") -> Tables:
    """The tables of one of the sample tokenizers."""
    return Tables(TOKENIZERS[name]())


@dataclass
class Heard:
    """What an api process has heard of one request."""

    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    tokens: int = 0
    extras: list[Extra] = field(default_factory=list)
    start: tuple[int, int] | None = None
    end: End | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    @property
    def reason(self) -> dict[str, Any]:
        """The finish reason."""
        assert self.end is not None
        return self.end.reason

    def finish(self, end: End) -> None:
        """Take the last word."""
        assert self.end is None, "a request ended twice"
        self.end = end
        self.texts.append(end.text)
        self.tokens += end.tokens
        if end.ids is not None:
            self.ids += array("q", end.ids)
        if end.extra is not None:
            self.extras.append(end.extra)


class Rig:
    """One detokenizer and both sides of it."""

    def __init__(self, name: str = "byte_level", **options: Any) -> None:
        self.core = Detokenizer(tables(name), epoch=7, **options)
        self.now = 0.0
        self._encoder, self._decoder = EgressEncoder(1), EgressDecoder()
        self.heard: dict[str, Heard] = {}
        self.frames: list[tuple[int, Deltas]] = []
        self.aborts: list[AbortRequest] = []
        self.faults: list[tuple[int, RequestFault]] = []
        self._rows: dict[int, list[str]] = {}

    def open(self, rid: str = "r", **fields: Any) -> None:
        """Announce a request; it streams unless the fields say otherwise."""
        self.core.open([OpenItem(rid=rid, **{"stream": True, **fields})], self.now)
        self.listen()

    def step(
        self, rows: Mapping[str, Sequence[int]], finish: Mapping[str, dict[str, Any]] | None = None, **more: Any
    ) -> None:
        """One step of the engine: the new ids of each request, and the reasons of those that end."""
        reasons = [finish.get(rid) for rid in rows] if finish else None
        ids = [array("q", chunk) for chunk in rows.values()]
        batch = GenerationBatch(rids=list(rows), output_ids=ids, finish_reasons=reasons, **more)
        self._step(batch)

    def step_raw(self, rids: list[str], ids: array[int], lens: list[int], finish: list[Any] | None = None) -> None:
        """One step whose columns are as the engine makes them, ids in one array."""
        self._step(GenerationBatch(rids=rids, output_ids=ids, tok_lens=lens, finish_reasons=finish))

    def _step(self, batch: GenerationBatch) -> None:
        self.core.step(self._decoder.decode(self._encoder.encode(batch)), self.now)
        self.listen()

    def run(self, ids: Sequence[int], *, per_step: int = 1, reason: dict[str, Any] | None = None) -> Heard:
        """Let request `r` get these ids, and end with the last of them, unless a stop string ends it before."""
        chunks = [list(ids[at : at + per_step]) for at in range(0, len(ids), per_step)] or [[]]
        for chunk in chunks[:-1]:
            if self.said("r").end is None:
                self.step({"r": chunk})
        if self.said("r").end is None:
            self.step({"r": chunks[-1]}, {"r": reason or LENGTH})
        return self.said("r")

    def said(self, rid: str) -> Heard:
        """What was said of a request."""
        return self.heard.setdefault(rid, Heard())

    def tick(self, now: float) -> None:
        """Let time go on."""
        self.now = now
        self.core.tick(now)
        self.listen()

    def listen(self) -> None:
        """Take what the detokenizer has to send."""
        mail = self.core.take()
        self.aborts += mail.aborts
        self.faults += mail.faults
        for api, sent in mail.deltas:
            self.hear_frame(api, encode_deltas(sent))

    def hear_frame(self, api: int, frame: bytes) -> None:
        """Take a frame for an api process."""
        deltas = decode_deltas(frame)
        self.frames.append((api, deltas))
        self._hear(api, deltas)

    def _hear(self, api: int, deltas: Deltas) -> None:
        if deltas.rids is not None:
            self._rows[api] = deltas.rids
        rids = self._rows.get(api, []) if deltas.texts is not None else []
        lens = deltas.lens or [1] * len(rids)
        ids, at = array("q", bytes(deltas.ids)), 0
        for row, (rid, text, count) in enumerate(zip(rids, deltas.texts or [], lens, strict=True)):
            heard = self.said(rid)
            assert heard.end is None or (not text and not count), "a request spoke after its end"
            heard.texts.append(text)
            heard.tokens += count
            heard.ids += ids[at : at + count]
            at += count
            heard.extras += [extra for place, extra in deltas.extras if place == row]
            heard.start = next((start[1:] for start in deltas.starts if start[0] == row), heard.start)
        for end in deltas.ends:
            self.said(end.rid).finish(end)


def answer(
    name: str, ids: Sequence[int], per_step: int = 1, reason: dict[str, Any] | None = None, **fields: Any
) -> Heard:
    """What a client hears of one request that gets these ids."""
    rig = Rig(name)
    rig.open(**fields)
    return rig.run(ids, per_step=per_step, reason=reason)


def whole(name: str, ids: Sequence[int], hide: bool = True) -> str:
    """The tokenizer's own decode of all ids."""
    return str(TOKENIZERS[name]().decode(list(ids), skip_special_tokens=hide))
