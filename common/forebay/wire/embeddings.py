"""Engine -> api: the vectors of finished embedding requests. They need no text, so they do not pass a detokenizer.

Header: `[rids, widths, prompt tokens, cached tokens]`; column: the vectors, float32, one after the other.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from forebay.batch import EmbeddingBatch
from forebay.errors import PeerError, WireError
from forebay.wire.columns import FLOATS, as_raw
from forebay.wire.frames import Buffer, Kind, open_frame, pack_frame

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[str], list[int], list[int], list[int]]).decode


class Vector(NamedTuple):
    """One request's embedding: raw little-endian float32, and what the engine counted."""

    rid: str
    raw: bytes
    prompt_tokens: int
    cached_tokens: int


def vectors_of(batch: EmbeddingBatch) -> list[Vector]:
    """The rows of a batch; raises `WireError` for columns that do not fit each other or values that are no floats."""
    count = len(batch.rids)
    rows = _rows(batch.embeddings, count)
    cached = [0] * count if batch.cached_tokens is None else batch.cached_tokens
    if not len(rows) == len(batch.prompt_tokens) == len(cached) == count:
        raise WireError(
            f"an embedding batch has {count} rids, {len(rows)} vectors, {len(batch.prompt_tokens)} prompt counts "
            f"and {len(cached)} cached counts"
        )
    return [Vector(*row) for row in zip(batch.rids, rows, batch.prompt_tokens, cached, strict=True)]


def _rows(embeddings: Any, count: int) -> list[bytes]:
    whole = as_raw(embeddings, FLOATS)
    if whole is None:
        return [_row(one) for one in embeddings]
    code, raw, shape = whole
    if len(shape) != 2 or shape[0] != count:
        raise WireError(f"embeddings as one array are [rows, width] with {count} rows, not {list(shape)}")
    flat = _float32(code, raw)
    size = 4 * shape[1]
    return [flat[at : at + size] for at in range(0, count * size, size)] if size else [b""] * count


def _row(values: Any) -> bytes:
    raw = as_raw(values, FLOATS)
    if raw is not None:
        return _float32(raw[0], raw[1])
    try:
        return array("f", values).tobytes()
    except (TypeError, OverflowError) as error:
        raise WireError(f"an embedding is not a list of floats: {error}") from error


def _float32(code: str, raw: memoryview) -> bytes:
    if code == "f":
        return raw.tobytes()
    width = {"e": 2, "d": 8}[code]
    return array("f", struct.unpack(f"={len(raw) // width}{code}", raw)).tobytes()


def encode_embeddings(vectors: Sequence[Vector]) -> bytes:
    """One frame of vectors for one api process."""
    rids, raws, prompts, cached = zip(*vectors, strict=True) if vectors else ((), (), (), ())
    return pack_frame(Kind.EMBEDDINGS, _encode((rids, [len(raw) // 4 for raw in raws], prompts, cached)), raws)


def decode_embeddings(frame: Buffer) -> list[Vector]:
    """The vectors of a frame; raises `PeerError` for a frame that is cut or whose columns do not fit each other."""
    header, columns = open_frame(frame, Kind.EMBEDDINGS)
    try:
        rids, widths, prompts, cached = _decode(header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"an embeddings header cannot be read: {error}") from error
    if not len(rids) == len(widths) == len(prompts) == len(cached):
        raise PeerError("an embeddings frame has columns of different lengths")
    if (widths and min(widths) < 0) or 4 * sum(widths) != len(columns):
        raise PeerError(f"an embeddings frame has {len(columns)} bytes of vectors where {4 * sum(widths)} are due")
    out, at = [], 0
    for rid, width, prompt, hit in zip(rids, widths, prompts, cached, strict=True):
        out.append(Vector(rid, bytes(columns[at : at + 4 * width]), prompt, hit))
        at += 4 * width
    return out
