"""Reads a GGUF file: its metadata, and its tensors as float arrays. Standard library and numpy only.

Layout (little-endian): `GGUF`, version u32, tensor count u64, metadata count u64, metadata, tensor table,
padding to the alignment, tensor data. Dimensions stand innermost first, so shapes are reversed here.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from forebay_engine.arrays import Floats
from forebay_engine.errors import ModelError
from forebay_engine.gguf_blocks import BLOCKS

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Metadata type number -> struct format of one value; 8 is a text, 9 a list."""
TEXT, LIST = 8, 9
MAX_ITEMS = 1 << 24
"""No count in a file may be larger: it would be a damaged file, not a vocabulary."""


class TensorInfo(NamedTuple):
    """Where one tensor lies: `shape` outermost first, `type` by GGUF's number, `offset` from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


class _Cursor:
    """Reads values one after the other; a short file becomes a `ModelError`."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def unpack(self, form: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from("<" + form, self.data, self.at)
        except struct.error as error:
            raise ModelError(f"{self.path} ends in the middle of its header: download it again") from error
        self.at += struct.calcsize("<" + form)
        return values

    def count(self) -> int:
        number: int = self.unpack("Q")[0]
        if number > MAX_ITEMS:
            raise ModelError(f"{self.path} has a count of {number} in its header: the file is damaged")
        return number

    def text(self) -> str:
        size = self.count()
        raw: bytes = self.unpack(f"{size}s")[0]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path} has a text in its header that is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == LIST:
            return self._list()
        if kind not in SCALARS:
            raise ModelError(f"{self.path} has a metadata value of the unknown type {kind}")
        return self.unpack(SCALARS[kind])[0]

    def _list(self) -> list[Any]:
        kind: int = self.unpack("I")[0]
        size = self.count()
        if kind in SCALARS:
            return list(self.unpack(f"{size}{SCALARS[kind]}"))
        return [self.value(kind) for _ in range(size)]


class GgufFile:
    """An open GGUF file: `metadata` by key, `tensors` by name, `read(name)` for the values of one tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        cursor = _Cursor(self._data, path)
        version = cursor.unpack("4xI")[0]
        if version not in (2, 3):
            raise ModelError(f"{path} is GGUF version {version}; versions 2 and 3 can be read")
        tensor_count, value_count = cursor.count(), cursor.count()
        self.metadata: dict[str, Any] = {}
        for _ in range(value_count):
            key = cursor.text()
            self.metadata[key] = cursor.value(cursor.unpack("I")[0])
        self.tensors = self._table(cursor, tensor_count)

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file. Arrays that `read` returned stay valid: they are copies."""
        self._data.close()

    def _table(self, cursor: _Cursor, count: int) -> dict[str, TensorInfo]:
        rows: list[TensorInfo] = []
        for _ in range(count):
            name = cursor.text()
            dimensions = cursor.unpack("I")[0]
            if dimensions > 4:
                raise ModelError(f"{self.path} has a tensor {name} of {dimensions} dimensions")
            shape = cursor.unpack(f"{dimensions}Q")[::-1]
            rows.append(TensorInfo(name, shape, *cursor.unpack("IQ")))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-cursor.at // alignment) * alignment
        return {row.name: row._replace(offset=row.offset + start) for row in rows}

    def read(self, name: str) -> Floats:
        """The values of one tensor as float32, shape outermost first. Raises `ModelError`."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path} has no tensor {name}")
        block = BLOCKS.get(info.type)
        if block is None:
            raise ModelError(
                f"{self.path} stores {name} in the quantisation type {info.type}, which cannot be read; readable are "
                + ", ".join(known.name for known in BLOCKS.values())
            )
        values = math.prod(info.shape)
        size = values // block.values * block.bytes
        if values % block.values or info.offset + size > len(self._data):
            raise ModelError(f"{self.path} ends before the data of {name}: download it again")
        raw = np.frombuffer(self._data, np.uint8, size, info.offset)
        decode: Callable[[Any], Floats] = block.decode
        out = np.array(decode(raw.reshape(-1, block.bytes)), np.float32).reshape(info.shape)
        del raw  # a living view would keep the file from being unmapped
        return out
