"""The envelope of every frame: kind, version, header length, header, raw columns."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

from forebay.errors import PeerError, WireError

VERSION = 1
PREFIX = struct.Struct("<BBHI")
"""kind u8, version u8, reserved u16 (0), header length u32."""
_unpack_prefix = PREFIX.unpack_from
MAX_HEADER = (1 << 32) - 1
NUMBERS = 1 << 63
"""The numbers of frames and lives are below it; one that is not was damaged."""

Buffer = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """The first byte of a frame."""

    HELLO = 1
    WORK = 2
    OPEN = 3
    ADMIT = 4
    EGRESS = 5
    DELTAS = 6
    ERROR = 7
    ABORT = 8
    CONTROL = 9
    REPLY = 10
    ADMITTED = 11
    EMBEDDINGS = 12
    STEP = 13
    TEXTS = 14
    UNHEARD = 15
    CLAIM = 16
    REPLAY = 17
    MARK = 18
    TAKEN = 19


_KINDS = {int(kind): kind for kind in Kind}


def pack_frame(kind: Kind, header: bytes, columns: Sequence[Buffer] = ()) -> bytes:
    """One frame of `kind` from an encoded header and its raw columns, in order."""
    if len(header) > MAX_HEADER:
        raise WireError(f"a frame header of {len(header)} bytes is over the limit of {MAX_HEADER}")
    return b"".join((PREFIX.pack(kind, VERSION, 0, len(header)), header, *columns))


def kind_of(frame: Buffer) -> Kind:
    """The kind of a frame; raises `PeerError` for a short frame, an unknown kind or another version."""
    if len(frame) < PREFIX.size:
        raise PeerError(f"a frame of {len(frame)} bytes is shorter than its {PREFIX.size} byte prefix")
    if frame[1] != VERSION:
        raise PeerError(
            f"frame version {frame[1]} is not the version {VERSION} of this process: "
            "run the same forebay version in all processes"
        )
    kind = _KINDS.get(frame[0])
    if kind is None:
        raise PeerError(f"unknown frame kind {frame[0]}")
    return kind


def open_frame(frame: Buffer, expected: Kind) -> tuple[memoryview, memoryview]:
    """Header and columns of a frame of the expected kind, without copying; raises `PeerError`."""
    kind = size = 0
    if len(frame) >= 8:
        kind, version, _, size = _unpack_prefix(frame)
    if kind != expected or version != VERSION:
        raise PeerError(f"a frame of kind {kind_of(frame).name} came where {expected.name} is due")
    view = frame if type(frame) is memoryview else memoryview(frame)
    end = 8 + size
    if end > len(view):
        raise PeerError(f"the header of a {expected.name} frame ends at byte {end} of {len(view)}")
    return view[8:end], view[end:]
