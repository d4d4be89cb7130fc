"""Runs an engine until it is done, and collects what it said about each request."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from forebay import GenerateRequest, GenerationBatch, SamplingParams
from forebay.wire.columns import FAMILIES
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder
from forebay_engine.engine import Engine


@dataclass
class Said:
    """All rows of one request: its ids, how it ended, and each family's cells in order."""

    ids: list[int] = field(default_factory=list)
    finish: dict[str, Any] | None = None
    ends: int = 0
    prompt_tokens: int = 0
    families: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))


class Collector:
    """Reads batches as a detokenizer would: encoded and decoded again."""

    def __init__(self) -> None:
        self.said: dict[str, Said] = defaultdict(Said)
        self._encoder, self._decoder = EgressEncoder(1), EgressDecoder()

    def take(self, batch: GenerationBatch) -> None:
        frame = self._decoder.decode(self._encoder.encode(batch))
        ids = frame.ids.cast("q").tolist()
        at = 0
        for row, rid in enumerate(frame.rids):
            size = 1 if frame.lens is None else frame.lens[row]
            said = self.said[rid]
            said.ids += ids[at : at + size]
            at += size
            assert frame.prompt_tokens is not None
            said.prompt_tokens = frame.prompt_tokens[row]
            if frame.finish is not None and frame.finish[row] is not None:
                said.finish = frame.finish[row]
                said.ends += 1
        for name, cells in zip(FAMILIES, frame.families, strict=True):
            for row, cell in cells.items() if cells is not None else ():
                self.said[frame.rids[row]].families[name].append(cell)


def run(engine: Engine, *requests: GenerateRequest, steps: int = 10_000) -> dict[str, Said]:
    """Add the requests, and step until there is nothing to do; rid -> what was said."""
    collector = Collector()
    for one in requests:
        engine.add(one)
    while engine.patience() is not None:
        assert steps, "the engine does not come to an end"
        steps -= 1
        batch = engine.step()
        if batch is not None:
            collector.take(batch)
    return collector.said


def request(
    rid: str, ids: list[int] | range | str, *, sampling: dict[str, Any] | None = None, **fields: Any
) -> GenerateRequest:
    """A greedy request of 8 tokens unless told otherwise."""
    prompt = array("q", [3 + byte for byte in ids.encode()] if isinstance(ids, str) else ids)
    params = {"top_k": 1, "max_new_tokens": 8, "ignore_eos": True, **(sampling or {})}
    return GenerateRequest(rid=rid, input_ids=prompt, sampling=SamplingParams(**params), **fields)
