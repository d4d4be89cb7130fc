"""The block formats of GGUF tensors, each decoded to float32 by numpy.

A block is a fixed number of neighbouring values. Every decoder takes the raw blocks (n, bytes) and gives
(n, values). Only the formats with one scale a block of 32, and the usual "K" formats of 256, are covered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from forebay_engine.arrays import AnyArray, Bytes, Floats


class Block(NamedTuple):
    """One format: its usual name, values and bytes a block, and its decoder."""

    name: str
    values: int
    bytes: int
    decode: Callable[[Bytes], Floats]


def _half(raw: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, as a column (n, 1)."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """Low halves of all bytes, then the high halves: (n, k) -> (n, 2k)."""
    return np.concatenate((raw & 15, raw >> 4), axis=1)


def _f32(raw: Bytes) -> Floats:
    return raw.view(np.float32)


def _f16(raw: Bytes) -> Floats:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(raw: Bytes) -> Floats:
    return (_nibbles(raw[:, 2:]).astype(np.float32) - 8) * _half(raw, 0)


def _q4_1(raw: Bytes) -> Floats:
    return _nibbles(raw[:, 4:]).astype(np.float32) * _half(raw, 0) + _half(raw, 2)


def _fifth_bit(raw: Bytes) -> Bytes:
    """32 bits in 4 bytes -> (n, 32) values of 0 or 16."""
    return np.unpackbits(raw, axis=1, bitorder="little") * np.uint8(16)


def _q5_0(raw: Bytes) -> Floats:
    return ((_nibbles(raw[:, 6:]) | _fifth_bit(raw[:, 2:6])).astype(np.float32) - 16) * _half(raw, 0)


def _q5_1(raw: Bytes) -> Floats:
    return (_nibbles(raw[:, 8:]) | _fifth_bit(raw[:, 4:8])).astype(np.float32) * _half(raw, 0) + _half(raw, 2)


def _q8_0(raw: Bytes) -> Floats:
    return raw[:, 2:].view(np.int8).astype(np.float32) * _half(raw, 0)


def _scales(raw: Bytes) -> tuple[Floats, Floats]:
    """8 scales and 8 minima of 6 bits each, packed in 12 bytes: (n, 12) -> two of (n, 8, 1)."""
    low, mid, high = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scale = np.concatenate((low & 63, (high & 15) | ((low >> 6) << 4)), axis=1)
    minimum = np.concatenate((mid & 63, (high >> 4) | ((mid >> 6) << 4)), axis=1)
    return scale[:, :, None].astype(np.float32), minimum[:, :, None].astype(np.float32)


def _pairs_of_32(raw: Bytes) -> Bytes:
    """128 bytes -> (n, 8, 32): of each 32 bytes the low halves, then the high halves."""
    groups = raw.reshape(-1, 4, 1, 32)
    return np.concatenate((groups & 15, groups >> 4), axis=2).reshape(-1, 8, 32)


def _k_values(raw: Bytes, codes: AnyArray) -> Floats:
    scale, minimum = _scales(raw[:, 4:16])
    out: Floats = codes.astype(np.float32) * (scale * _half(raw, 0)[:, None]) - minimum * _half(raw, 2)[:, None]
    return out.reshape(len(raw), 256)


def _q4_k(raw: Bytes) -> Floats:
    return _k_values(raw, _pairs_of_32(raw[:, 16:]))


def _q5_k(raw: Bytes) -> Floats:
    bits = np.arange(8, dtype=np.uint8)[None, :, None]
    high = ((raw[:, 16:48][:, None, :] >> bits) & 1) << 4
    return _k_values(raw, _pairs_of_32(raw[:, 48:]) | high)


def _q6_k(raw: Bytes) -> Floats:
    low = raw[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = (raw[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    codes = (low | (high << 4)).astype(np.float32).reshape(-1, 16, 16) - np.float32(32)
    scale = raw[:, 192:208].view(np.int8).astype(np.float32)[:, :, None] * _half(raw, 208)[:, None]
    out: Floats = (codes * scale).reshape(len(raw), 256)
    return out


BLOCKS: dict[int, Block] = {
    0: Block("F32", 1, 4, _f32),
    1: Block("F16", 1, 2, _f16),
    2: Block("Q4_0", 32, 18, _q4_0),
    3: Block("Q4_1", 32, 20, _q4_1),
    6: Block("Q5_0", 32, 22, _q5_0),
    7: Block("Q5_1", 32, 24, _q5_1),
    8: Block("Q8_0", 32, 34, _q8_0),
    12: Block("Q4_K", 256, 144, _q4_k),
    13: Block("Q5_K", 256, 176, _q5_k),
    14: Block("Q6_K", 256, 210, _q6_k),
    30: Block("BF16", 1, 2, _bf16),
}
