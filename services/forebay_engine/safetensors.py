"""Reads weights from the `*.safetensors` files of a model folder. Standard library and numpy only.

Layout: header size u64, header (JSON: name -> dtype, shape, data_offsets), data.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forebay_engine.arrays import Bytes, Floats
from forebay_engine.errors import ModelError

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
MAX_HEADER = 100_000_000
"""The format's own limit of the header in bytes."""


class _Entry(NamedTuple):
    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


class SafetensorsWeights:
    """The `Weights` of all safetensors files in a folder."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder} holds no .safetensors file")
        self.entries = {name: entry for file in files for name, entry in _entries(file).items()}

    def has(self, name: str) -> bool:
        """Whether one of the files holds this tensor."""
        return name in self.entries

    def get(self, name: str) -> Floats:
        """One tensor as float32. Raises `ModelError`."""
        entry = self.entries.get(name)
        if entry is None:
            raise ModelError(f"the model has no tensor {name}")
        if entry.kind not in ITEM_BYTES:
            raise ModelError(f"the tensor {name} is stored as {entry.kind}; readable are {', '.join(ITEM_BYTES)}")
        if entry.size != math.prod(entry.shape) * ITEM_BYTES[entry.kind]:
            raise ModelError(f"the tensor {name} in {entry.file} has not the size of its shape {entry.shape}")
        try:
            raw = np.fromfile(entry.file, np.uint8, entry.size, offset=entry.start)
        except OSError as error:
            raise ModelError(f"{entry.file} cannot be read: {error.strerror}") from error
        if len(raw) != entry.size:
            raise ModelError(f"{entry.file} ends before the data of {name}: download it again")
        return _to_float32(raw, entry.kind).reshape(entry.shape)


def _to_float32(raw: Bytes, kind: str) -> Floats:
    if kind == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(np.float16 if kind == "F16" else np.float32).astype(np.float32, copy=False)


def _entries(file: Path) -> dict[str, _Entry]:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > MAX_HEADER:
            raise ModelError(f"{file} is not a safetensors file: its header would have {size} bytes")
        try:
            header: dict[str, Any] = json.loads(stream.read(size))
        except ValueError as error:
            raise ModelError(f"{file} is not a safetensors file, or its download is not complete") from error
    header.pop("__metadata__", None)
    return {name: _entry(file, row, 8 + size) for name, row in header.items()}


def _entry(file: Path, row: dict[str, Any], base: int) -> _Entry:
    start, end = row["data_offsets"]
    return _Entry(file, row["dtype"], tuple(row["shape"]), base + start, end - start)
