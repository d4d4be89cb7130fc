"""The reading side of `egress`: what the frames leave out is filled in, and those that are missing are noticed."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.errors import PeerError
from forebay.wire.columns import FAMILIES, SHAPES
from forebay.wire.families import Family
from forebay.wire.frames import NUMBERS, Buffer, Kind, open_frame
from forebay.wire.lives import Lives
from forebay.wire.steady import Step, open_step

_STEP_KIND = bytes([Kind.STEP])


class EgressFrame:
    """One decoded step. Columns that are None are trivial (nobody ends, one id each) or not reported."""

    __slots__ = (
        "cached_tokens",
        "epoch",
        "families",
        "finish",
        "id_width",
        "ids",
        "lens",
        "prompt_tokens",
        "reasoning_tokens",
        "rids",
        "same_rows",
        "seq",
        "trailing",
    )

    epoch: int
    seq: int
    rids: list[str]
    same_rows: bool
    ids: memoryview
    id_width: int
    lens: list[int] | None
    finish: list[dict[str, Any] | None] | None
    prompt_tokens: list[int] | None
    cached_tokens: list[int] | None
    reasoning_tokens: list[int] | None
    families: tuple[Family | None, ...]
    trailing: dict[str, list[Any]] | None


class _Header(msgspec.Struct, array_like=True):
    epoch: int
    seq: int
    rows: int
    rids: list[str] | None
    finish: list[dict[str, Any] | None] | None
    prompt_tokens: list[int] | None
    lens: list[int] | None
    cached_tokens: list[int] | None
    reasoning_tokens: list[int] | None
    id_width: int
    families: list[Any] | None
    trailing: dict[str, list[Any]] | None


_decode_header = msgspec.msgpack.Decoder(_Header).decode


class EgressDecoder:
    """Reads the frames of one engine and fills in what they leave out."""

    def __init__(self) -> None:
        self._epoch = self._seq = -1
        self._width = 8
        self._past: set[int] = set()
        """Lives of the engine that are over: frames of theirs that are still on the way say nothing any more."""
        self._lives = Lives()
        self._rids: list[str] | None = None
        """The rows of the previous frame; None: not known, because a frame was missed."""
        self._columns: list[list[int] | None] = [None, None, None]
        self.lost = False
        """True after a frame that shows that rows are missing: it did not follow the one before it in the same life
        of the engine, or its header could be read and the rest could not."""

    def anew(self) -> None:
        """The next frame may have any number: what was missed is told again, or nobody's."""
        self._epoch = self._seq = -1
        self._rids = None

    def greeted(self, epoch: int) -> None:
        """The engine has introduced itself: frames of other lives are left out from now on."""
        self._lives.greeted(epoch)

    def steady(self, frame: Buffer) -> Step:
        """A steady step (a frame of the kind STEP), checked against the rows before it; raises `PeerError`."""
        self.lost = False
        step = open_step(frame)
        self._follow(step.epoch, step.seq)
        if self._rids is None or len(self._rids) != step.rows:
            self.lost, self._rids = self.lost or self._rids is not None, None
            raise PeerError(f"steady step {step.seq} repeats the rows of a frame that was missed")
        self._width = step.width
        return step

    def place(self) -> tuple[int, int, int, int] | None:
        """Of the last frame: epoch, number, rows and id width; None where a steady step cannot follow it."""
        if self._rids is None or self._lives.present not in (None, self._epoch):
            return None
        return self._epoch, self._seq, len(self._rids), self._width

    def passed(self, steps: int) -> None:
        """Steady steps that were read by somebody else, who knows `place`."""
        self._seq += steps
        self.lost = False

    @property
    def rids(self) -> list[str]:
        """The rows of the last frame that was read."""
        return self._rids or []

    def whole(self, step: Step) -> EgressFrame:
        """A steady step that `steady` has just read, in the general form."""
        out = EgressFrame()
        out.epoch, out.seq, out.same_rows, out.rids = step.epoch, step.seq, True, self.rids
        out.ids, out.id_width, out.lens, out.finish = step.ids, step.width, None, None
        out.families, out.trailing = (None,) * len(FAMILIES), None
        out.prompt_tokens, out.cached_tokens, out.reasoning_tokens = self._columns
        return out

    def decode(self, frame: Buffer) -> EgressFrame:
        """One step; raises `PeerError` for a frame that is cut, stale, inconsistent, or leans on a missed one."""
        if frame[0:1] == _STEP_KIND:
            return self.whole(self.steady(frame))
        self.lost = False
        head, columns = open_frame(frame, Kind.EGRESS)
        try:
            header = _decode_header(head)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PeerError(f"an egress header cannot be read: {error}") from error
        self._follow(header.epoch, header.seq)
        rids = self._rids if header.rids is None else header.rids
        if rids is None:
            raise PeerError(f"egress frame {header.seq} repeats the rows of a frame that was missed")
        try:
            out = self._read(header, rids, columns)
        except PeerError:
            self.lost, self._rids = True, None
            raise
        self._rids = rids
        return out

    def _follow(self, epoch: int, seq: int) -> None:
        """Take note of the place of a frame; raises `PeerError` for one of a life that is not the present one."""
        if not (0 <= epoch < NUMBERS and 0 <= seq < NUMBERS):
            self.lost, self._rids = True, None
            raise PeerError(f"an egress frame says that it is number {seq} of life {epoch}")
        if epoch != self._lives.present and not self._lives.takes(epoch, seq):
            raise PeerError("an egress frame came from an engine that is not the one that has greeted")
        if epoch == self._epoch:
            if seq != self._seq + 1:
                self.lost, self._rids = True, None
        elif epoch in self._past and epoch != self._lives.present:
            raise PeerError("an egress frame came from an engine that is gone")
        else:
            if self._epoch != -1:
                self._past.add(self._epoch)
                self.lost = seq != 1
            self._rids = None
        self._epoch, self._seq = epoch, seq

    def _read(self, header: _Header, rids: list[str], columns: memoryview) -> EgressFrame:
        out = EgressFrame()
        out.epoch, out.seq, out.same_rows = header.epoch, header.seq, header.rids is None
        self._check(header, rids)
        out.rids = rids
        out.id_width, out.lens, out.finish = header.id_width, header.lens, header.finish
        self._width = header.id_width
        count = len(rids) if header.lens is None else sum(header.lens)
        end = count * header.id_width
        if end > len(columns):
            raise PeerError(f"an egress frame has {len(columns)} bytes of columns where its ids need {end}")
        out.ids = columns[:end]
        out.families, rest = self._families(header.families, len(rids), columns[end:])
        if rest:
            raise PeerError(f"an egress frame has {rest} bytes behind its last column")
        out.trailing = header.trailing
        given = (header.prompt_tokens, header.cached_tokens, header.reasoning_tokens)
        if not out.same_rows:
            self._columns = list(given)
        else:
            self._columns = [new if new is not None else old for new, old in zip(given, self._columns, strict=True)]
        out.prompt_tokens, out.cached_tokens, out.reasoning_tokens = self._columns
        return out

    @staticmethod
    def _check(header: _Header, rids: list[str]) -> None:
        if header.rows != len(rids):
            raise PeerError(f"an egress frame of {header.rows} rows has {len(rids)} request ids")
        if header.id_width not in (4, 8):
            raise PeerError(f"an egress frame has ids of {header.id_width} bytes; 4 and 8 are known")
        dense = (header.finish, header.prompt_tokens, header.lens, header.cached_tokens, header.reasoning_tokens)
        if any(column is not None and len(column) != len(rids) for column in dense):
            raise PeerError("an egress frame has a column with more or fewer entries than rows")
        if header.lens is not None and len(header.lens) and min(header.lens) < 0:
            raise PeerError("an egress frame has a negative token count")
        if header.trailing is not None and any(len(column) != len(rids) for column in header.trailing.values()):
            raise PeerError("an egress frame has a trailing column with more or fewer entries than rows")

    @staticmethod
    def _families(entries: list[Any] | None, rows: int, columns: memoryview) -> tuple[tuple[Family | None, ...], int]:
        if entries is None:
            return (None,) * len(FAMILIES), len(columns)
        if len(entries) != len(FAMILIES):
            raise PeerError(f"an egress frame has {len(entries)} families where {len(FAMILIES)} have a place")
        out: list[Family | None] = []
        for shape, entry in zip(SHAPES, entries, strict=True):
            family = None if entry is None else Family(shape, entry, rows, columns)
            if family is not None:
                columns = columns[family.nbytes :]
            out.append(family)
        return tuple(out), len(columns)
