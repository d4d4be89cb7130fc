"""Steady steps, one after the other, with all that they need in local variables.

After 10 ms of other work a process finds its caches cold and pays for every object and line of code that it touches:
0.1 ms a step on the long way, for one stream as for sixty-four. A `Lane` is good until a frame comes that is anything
else than the next steady step of the same rows; then the account is settled and that frame goes the long way.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Self

import zmq

from forebay.links import NOBLOCK
from forebay.wire.steady import STEP_SIZE, encode_texts, step_head, texts_head

if TYPE_CHECKING:
    from forebay.wire.egress import EgressDecoder
    from forebay_detokenizer.outbox import Outbox
    from forebay_detokenizer.rows import Group, RowSet
    from forebay_detokenizer.tables import Table


class Passed(NamedTuple):
    """What a lane has done: frames received and sent, their bytes, and how long the first step took (seconds)."""

    steps: int
    received: int
    received_bytes: int
    sent_bytes: int
    seconds: float


class Lane:
    """The way of the steady steps of one row set to the one api process that it streams to."""

    __slots__ = ("_decoder", "_out", "_rows", "_step", "_table", "_texts", "api")

    def __init__(
        self,
        decoder: EgressDecoder,
        rows: RowSet,
        api: int,
        table: Table,
        out: Outbox,
        step: tuple[int, int, int, int],
        texts: tuple[int, int, int],
    ) -> None:
        self._decoder, self._rows, self._table, self._out = decoder, rows, table, out
        self.api = api
        """The number of the api process."""
        self._step, self._texts = step, texts

    @classmethod
    def of(cls, decoder: EgressDecoder, rows: RowSet, group: Group, table: Table, out: Outbox) -> Self | None:
        """The lane of the group that has all the rows; None while a steady frame cannot follow on either side."""
        step, texts = decoder.place(), out.steady(group.api, group.rids)
        if step is None or texts is None:
            return None
        return cls(decoder, rows, group.api, table, out, step, texts)

    def run(
        self, receive: Callable[[], bytes], send: Callable[[bytes, int], object], until: float
    ) -> tuple[bytes | None, Passed]:
        """Serve steady steps until another frame comes, which is returned (nothing of it is done), or none does, or it
        is `until` (monotonic seconds; at least one step is served). `receive` and `send` raise `zmq.Again`."""
        epoch, number, count, width = self._step
        source, life, told = self._texts
        text, clock, again = self._table.text.__getitem__, time.monotonic, zmq.Again
        # As unsigned numbers: an id below 0 is beyond every table, and not counted from its end.
        ids_of = struct.Struct(f"<{count}{'Q' if width == 8 else 'I'}")
        size = STEP_SIZE + ids_of.size
        steps = received = received_bytes = sent_bytes = 0
        seconds = 0.0
        frame: bytes | None
        while True:
            due = step_head(epoch, number + steps + 1, count, width)
            try:
                frame = receive()
            except again:
                frame = None
                break
            begin = clock()
            received += 1
            received_bytes += len(frame)
            if not frame.startswith(due) or len(frame) != size:
                break
            try:
                # A part of a character stands in the table as what cannot be encoded.
                body = encode_texts(list(map(text, ids_of.unpack_from(frame, STEP_SIZE))))
                out = texts_head(source, life, told + steps + 1) + body
                send(out, NOBLOCK)
            except (IndexError, UnicodeEncodeError, again):
                break
            steps += 1
            sent_bytes += len(out)
            now = clock()
            if steps == 1:
                seconds = now - begin
            if now >= until:
                frame = None
                break
        self._decoder.passed(steps)
        self._rows.count_plain(steps)
        self._out.passed(self.api, steps)
        return frame, Passed(steps, received, received_bytes, sent_bytes, seconds)
