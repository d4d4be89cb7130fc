"""The frames of a steady step: the rows of the sender's previous frame, one token each, nobody ends, nothing else.

Most steps of a busy engine are such. After 10 ms of other work a process pays for every line of code and every object
that it touches (0.3 ms a step for the general frames of one stream), so these two have fixed headers:

    STEP   engine -> detokenizer    epoch u64 | seq u64 | rows u32 | id width u32    then the ids, raw
    TEXTS  detokenizer -> api       epoch u64 | seq u64 | source u32                 then msgpack [text, ...]
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from forebay.errors import PeerError
from forebay.wire.frames import PREFIX, VERSION, Buffer, Kind, open_frame

_STEP = struct.Struct("<QQII")
_STEP_HEAD = struct.Struct(PREFIX.format + _STEP.format[1:])
_TEXTS = struct.Struct("<QQI")
_TEXTS_HEAD = struct.Struct(PREFIX.format + _TEXTS.format[1:])
_STEP_START = PREFIX.pack(Kind.STEP, VERSION, 0, _STEP.size)
_TEXTS_START = PREFIX.pack(Kind.TEXTS, VERSION, 0, _TEXTS.size)
encode_texts = msgspec.msgpack.Encoder().encode
decode_texts = msgspec.msgpack.Decoder(list[str]).decode


class Step(NamedTuple):
    """A steady step: `ids` are `rows` integers of `width` bytes."""

    epoch: int
    seq: int
    rows: int
    width: int
    ids: memoryview


class Texts(NamedTuple):
    """The texts of a steady step, one a row of the previous frame of this detokenizer."""

    epoch: int
    seq: int
    source: int
    texts: list[str]


STEP_SIZE = _STEP_HEAD.size
"""Bytes before the ids of a steady step."""


TEXTS_SIZE = _TEXTS_HEAD.size
"""Bytes before the texts of a steady step."""


def step_head(epoch: int, seq: int, rows: int, width: int) -> bytes:
    """What a steady step begins with: everything but its ids."""
    return _STEP_HEAD.pack(Kind.STEP, VERSION, 0, _STEP.size, epoch, seq, rows, width)


def texts_head(source: int, epoch: int, seq: int) -> bytes:
    """What the texts of a steady step begin with: everything but the texts."""
    return _TEXTS_HEAD.pack(Kind.TEXTS, VERSION, 0, _TEXTS.size, epoch, seq, source)


def pack_step(epoch: int, seq: int, rows: int, width: int, ids: Iterable[Buffer]) -> bytes:
    """The frame of a steady step; `ids` are buffers that make `rows` ids of `width` bytes together."""
    return b"".join((step_head(epoch, seq, rows, width), *ids))


def open_step(frame: Buffer) -> Step:
    """A steady step; raises `PeerError` for a frame that is cut or whose ids do not fit."""
    if len(frame) < _STEP_HEAD.size or bytes(frame[:8]) != _STEP_START:
        header, _ = open_frame(frame, Kind.STEP)
        raise PeerError(f"the header of a STEP frame has {len(header)} bytes where {_STEP.size} are due")
    epoch, seq, rows, width = _STEP.unpack_from(frame, PREFIX.size)
    ids = memoryview(frame)[_STEP_HEAD.size :]
    if width not in (4, 8) or len(ids) != rows * width:
        raise PeerError(f"a STEP frame has {len(ids)} bytes of ids where {rows} of {width} bytes are due")
    return Step(epoch, seq, rows, width, ids)


def pack_texts(source: int, epoch: int, seq: int, texts: list[str]) -> bytes:
    """The frame of a steady step for one api process."""
    return texts_head(source, epoch, seq) + encode_texts(texts)


def open_texts(frame: Buffer) -> Texts:
    """The texts of a steady step; raises `PeerError` for a frame that cannot be read."""
    if len(frame) < _TEXTS_HEAD.size or bytes(frame[:8]) != _TEXTS_START:
        header, _ = open_frame(frame, Kind.TEXTS)
        raise PeerError(f"the header of a TEXTS frame has {len(header)} bytes where {_TEXTS.size} are due")
    epoch, seq, source = _TEXTS.unpack_from(frame, PREFIX.size)
    try:
        return Texts(epoch, seq, source, decode_texts(memoryview(frame)[_TEXTS_HEAD.size :]))
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"the texts of a TEXTS frame cannot be read: {error}") from error
