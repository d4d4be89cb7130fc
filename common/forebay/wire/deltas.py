"""Detokenizer -> api: what the streams of one api process have to say after a step.

Header: a `Deltas` struct; column: the token ids of all rows (int64), only when a row wants them.
"""

from __future__ import annotations

import msgspec

from forebay.errors import PeerError
from forebay.wire.frames import NUMBERS, Buffer, Kind, open_frame, pack_frame
from forebay.wire.messages import End, Extra

_encode = msgspec.msgpack.Encoder().encode


class Deltas(msgspec.Struct, array_like=True):
    """One step of one detokenizer for one api process.

    Rows are the requests that stream and have something to say; a request that ends in this step has an entry in
    `ends` that carries its last text, ids and families, and no row.
    """

    source: int
    """The number of the sending detokenizer."""
    epoch: int
    """Names its life."""
    seq: int
    rids: list[str] | None = None
    """None: the rows of the previous frame of this sender."""
    texts: list[str] | None = None
    """One a row, "" where there is nothing new; None: no rows in this frame."""
    lens: list[int] | None = None
    """New tokens a row; None: one each."""
    has_ids: bool = False
    extras: list[tuple[int, Extra]] = []
    """(row, families) of the rows that asked for them."""
    ends: list[End] = []
    ids: memoryview | bytes = b""
    """The raw int64 ids of all rows; not part of the header."""
    starts: list[tuple[int, int, int]] = []
    """(row, prompt tokens, cached tokens) of the rows that speak for the first time."""
    step: int = 0
    """The step of the engine up to which everything has been said with this frame (its `seq`)."""


class _Header(msgspec.Struct, array_like=True):
    source: int
    epoch: int
    seq: int
    rids: list[str] | None
    texts: list[str] | None
    lens: list[int] | None
    has_ids: bool
    extras: list[tuple[int, Extra]]
    ends: list[End]
    starts: list[tuple[int, int, int]]
    step: int


_decode = msgspec.msgpack.Decoder(_Header).decode


def encode_deltas(deltas: Deltas) -> bytes:
    """The frame of one `Deltas`."""
    header = _encode(
        (
            deltas.source,
            deltas.epoch,
            deltas.seq,
            deltas.rids,
            deltas.texts,
            deltas.lens,
            deltas.has_ids,
            deltas.extras,
            deltas.ends,
            deltas.starts,
            deltas.step,
        )
    )
    return pack_frame(Kind.DELTAS, header, (deltas.ids,) if deltas.has_ids else ())


def decode_deltas(frame: Buffer) -> Deltas:
    """One `Deltas`; raises `PeerError` for a frame that is cut or whose columns do not fit each other."""
    head, columns = open_frame(frame, Kind.DELTAS)
    try:
        h = _decode(head)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"a deltas header cannot be read: {error}") from error
    if not 0 <= h.step < NUMBERS:
        raise PeerError(f"a deltas frame says that it is of step {h.step}")
    rows = None if h.texts is None else len(h.texts)
    if (h.rids is not None and rows is not None and len(h.rids) != rows) or (
        h.lens is not None and (len(h.lens) != rows or (h.lens and min(h.lens) < 0))
    ):
        raise PeerError("a deltas frame has columns of different lengths")
    count = 0 if not h.has_ids else sum(h.lens) if h.lens is not None else rows or 0
    if len(columns) != 8 * count:
        raise PeerError(f"a deltas frame has {len(columns)} bytes of ids where {8 * count} are due")
    named = [row for row, _ in h.extras] + [row for row, _, _ in h.starts]
    if any(not 0 <= row < (rows or 0) for row in named):
        raise PeerError("a deltas frame has families or a start for a row that it has not")
    return Deltas(
        h.source, h.epoch, h.seq, h.rids, h.texts, h.lens, h.has_ids, h.extras, h.ends, columns, h.starts, h.step
    )
