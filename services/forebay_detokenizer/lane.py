"""Steady steps, one after the other, with all that they need in local variables.

After 10 ms of other work a process finds its caches cold and pays for every object and line of code that it touches:
0.1 ms a step on the long way, for one stream as for sixty-four. A `Lane` is good until a frame comes that is anything
else than the next steady step of the same rows; then the account is settled and that frame goes the long way.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

import zmq

from forebay.wire.steady import STEP_SIZE, encode_texts, step_head, texts_head

if TYPE_CHECKING:
    from forebay.wire.egress_decoder import EgressDecoder
    from forebay_detokenizer.outbox import Outbox
    from forebay_detokenizer.rows import Group, RowSet
    from forebay_detokenizer.tables import Table

Sender = Callable[[bytes], bool]
"""Hands a frame over; False when it is not taken. Never waits."""


class Passed(NamedTuple):
    """What a lane has done."""

    frame: bytes | None
    """The first frame that is not a steady step: nothing of it has been done. None: none came, or the time was over."""
    steps: int
    received: int
    """Frames taken from the inbox; `received_bytes` theirs."""
    received_bytes: int
    undelivered: list[Group]
    """Whose api process did not take the last step."""
    seconds: float
    """What the first step took."""


class Way:
    """The rows of one api process, and the frames to it."""

    __slots__ = ("group", "pick", "source", "told")

    def __init__(self, group: Group, place: tuple[int, int, int]) -> None:
        self.group = group
        self.pick = None if group.whole else group.pick
        self.source, self.told = place[:2], place[2]

    def frame(self, texts: list[str]) -> bytes:
        """The frame of the next step. Raises `UnicodeEncodeError` for a part of a character."""
        body = encode_texts(texts if self.pick is None else self.pick(texts))
        return texts_head(*self.source, self.told + 1) + body


def _nobody(frame: bytes) -> bool:
    """In place of an api process that this front does not have."""
    return False


class Lane:
    """The way of the steady steps of one row set to the api processes that it streams to."""

    __slots__ = ("_decoder", "_out", "_rows", "_step", "_table", "_ways")

    def __init__(
        self, decoder: EgressDecoder, rows: RowSet, table: Table, out: Outbox, step: tuple[int, int, int, int]
    ) -> None:
        self._decoder, self._rows, self._table, self._out = decoder, rows, table, out
        self._step = step
        self._ways: list[Way] = []

    @classmethod
    def of(cls, decoder: EgressDecoder, rows: RowSet, table: Table, out: Outbox) -> Self | None:
        """The lane of a row set that needs only the table; None while a steady frame cannot follow on either side."""
        step = decoder.place()
        if step is None:
            return None
        lane = cls(decoder, rows, table, out, step)
        for group in rows.groups:
            place = None if group.fresh else out.steady(group.api, group.rids)
            if place is None:
                return None
            lane._ways.append(Way(group, place))
        return lane

    def run(self, receive: Callable[[], bytes], senders: Mapping[int, Sender], until: float) -> Passed:
        """Serve steady steps until another frame comes, or none does, or it is `until` (monotonic seconds; at least one
        step is served). `receive` raises `zmq.Again`; `senders`: by the number of the api process."""
        epoch, number, count, width = self._step
        text, clock, again = self._table.text.__getitem__, time.monotonic, zmq.Again
        note = self._rows.count
        ways = [(way, way.frame, senders.get(way.group.api, _nobody)) for way in self._ways]
        # As unsigned numbers: an id below 0 is beyond every table, and not counted from its end.
        ids_of = struct.Struct(f"<{count}{'Q' if width == 8 else 'I'}")
        size = STEP_SIZE + ids_of.size
        steps = received = received_bytes = 0
        seconds = 0.0
        undelivered: list[Group] = []
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
                ids = ids_of.unpack_from(frame, STEP_SIZE)
                texts = list(map(text, ids))
                frames = [make(texts) for _, make, _ in ways]
            except (IndexError, UnicodeEncodeError):
                break
            steps += 1
            for (way, _, send), out in zip(ways, frames, strict=True):
                way.told += 1
                if not send(out):
                    undelivered.append(way.group)
            note(ids)
            now = clock()
            if steps == 1:
                seconds = now - begin
            if now >= until or undelivered:
                frame = None
                break
        self._decoder.passed(steps)
        self._out.step = number + steps
        for way in self._ways:
            self._out.passed(way.group.api, steps)
        return Passed(frame, steps, received, received_bytes, undelivered, seconds)
