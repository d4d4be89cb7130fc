"""Ids to text: the whole path of a step in the detokenizer, and the library's DecodeStream on the same ids."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import islice

from _common import median
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from forebay import GenerationBatch
from forebay.wire.deltas import encode_deltas
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.messages import OpenItem
from forebay_detokenizer.tables import Tables
from forebay_detokenizer.worker import Detokenizer

SKIPPED = 3
"""First steps of a run that are not counted: the row set is sorted and told there."""


def streams(ids: Sequence[int], rows: int, length: int) -> list[Sequence[int]]:
    """`rows` outputs of `length` ids, each from another place of a text's ids."""
    whole = list(ids)
    while len(whole) < length + 1:
        whole += ids
    chooser = random.Random(3)
    starts = [chooser.randrange(len(whole) - length) for _ in range(rows)]
    return [whole[start : start + length] for start in starts]


def ours(tables: Tables, rows: Sequence[Sequence[int]], each: int) -> float:
    """Nanoseconds of thread time a token: frame in, text, frame out. Every row streams, `each` tokens a step."""
    core, encoder, decoder = Detokenizer(tables, epoch=1), EgressEncoder(1), EgressDecoder()
    rids = [f"{number:032x}" for number in range(len(rows))]
    core.open([OpenItem(rid=rid, stream=True, prompt_tokens=7, prompt_tail=[1]) for rid in rids], 0.0)
    spent: list[float] = []
    for at in range(0, len(rows[0]), each):
        ids = [array("q", row[at : at + each]) for row in rows]
        frame = encoder.encode(GenerationBatch(rids=rids, output_ids=ids, finish_reasons=None))
        began = time.thread_time_ns()
        core.step(decoder.decode(frame), 0.0)
        for _, deltas in core.take().deltas:
            encode_deltas(deltas)
        spent.append((time.thread_time_ns() - began) / (len(rows) * each))
    return median(spent[SKIPPED:]) or 0.0


def theirs(tokenizer: Tokenizer, rows: Sequence[Sequence[int]], each: int) -> float:
    """Nanoseconds of thread time a token with one DecodeStream a row. An id run that it refuses starts a new one."""
    spent = []
    decoders = [DecodeStream(skip_special_tokens=True) for _ in rows]
    for at in range(0, len(rows[0]), each):
        began = time.thread_time_ns()
        for number, row in enumerate(rows):
            try:
                _step(decoders[number], tokenizer, row[at : at + each])
            except Exception:  # the library raises bare Exception for runs that are no text
                decoders[number] = DecodeStream(skip_special_tokens=True)
        spent.append((time.thread_time_ns() - began) / (len(rows) * each))
    return median(spent[1:]) or 0.0


def _step(decoder: DecodeStream, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    decoder.step(tokenizer, ids[0] if len(ids) == 1 else list(ids))


def compare(tokenizer: Tokenizer, tables: Tables, ids: Sequence[int], rows: int, each: int) -> tuple[float, float]:
    """Both costs, measured in turns: ours and the library's, the medians of three."""
    steps = 12 if each == 1 else 8
    outputs = streams(ids, rows, steps * each)
    few = [list(islice(row, 4 * each)) for row in outputs]
    pairs: list[tuple[float, float]] = []
    for _ in range(3):
        run: tuple[Callable[[], float], Callable[[], float]] = (
            lambda: ours(tables, outputs, each),
            lambda: theirs(tokenizer, few, each),
        )
        pairs.append((run[0](), run[1]()))
    return median(one for one, _ in pairs) or 0.0, median(other for _, other in pairs) or 0.0
