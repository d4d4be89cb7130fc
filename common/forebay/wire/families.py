"""The reader of the families of an egress frame, whose layout `columns` draws. A bad one is a `PeerError`."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from forebay.errors import PeerError
from forebay.wire.columns import FLAT, FLOATS, HIDDEN, INTS, ITEM_SIZE, RAGGED
from forebay.wire.messages import Pairs


class Family:
    """One decoded family: iterates over the rows that carry data, and over nothing else."""

    __slots__ = ("_entry", "_ids", "_rows", "_shape", "_values", "nbytes")

    def __init__(self, shape: int, entry: Any, rows: int, columns: memoryview) -> None:
        """Check the entry against the batch and its raw columns; raises `PeerError`."""
        self._shape, self._entry = shape, entry
        self._values: Any = None
        self._ids: Any = None
        self.nbytes = 0
        """Bytes of raw columns that belong to this family."""
        if not isinstance(entry, list) or len(entry) < 3 or entry[0] not in (0, 1):
            raise PeerError("a family entry is not [form, rows, ...]")
        numbers = entry[1]
        if numbers is not None and not (
            isinstance(numbers, list) and all(type(i) is int and 0 <= i < rows for i in numbers)
        ):
            raise PeerError("a family names rows that are not in the batch")
        self._rows: Sequence[int] = range(rows) if numbers is None else numbers
        if entry[0] == 0:
            self._check_nested()
        else:
            self._check_arrays(columns)

    def _check_nested(self) -> None:
        cells = self._entry[2:]
        if len(cells) != (1 if self._shape == HIDDEN else 2):
            raise PeerError("a family of lists has a wrong number of columns")
        if any(not isinstance(column, list) or len(column) != len(self._rows) for column in cells):
            raise PeerError("a family of lists has not one cell a row")

    def _check_arrays(self, columns: memoryview) -> None:
        entry, hidden = self._entry, self._shape == HIDDEN
        if len(entry) != (6, 7, 8)[(not hidden) + (self._shape == RAGGED)]:
            raise PeerError("a family of arrays has a wrong number of header fields")
        lens = entry[2]
        if lens is None:
            lens = [1] * len(self._rows)
        if not _natural(lens) or len(lens) != len(self._rows):
            raise PeerError("a family of arrays has not one length a row")
        kinds, sizes = (entry[3:4], entry[4:5]) if hidden else (entry[3:5], entry[5:7])
        known = all(kind in kinds_of for kind, kinds_of in zip(kinds, (FLOATS, INTS), strict=False))
        if not known or not _natural(sizes) or sum(sizes) > len(columns):
            raise PeerError("a family of arrays has an unknown element type or runs over the end of the frame")
        total = self._elements(sum(lens), entry[-1] if self._shape != FLAT else 1)
        if any(size != total * ITEM_SIZE[kind] for kind, size in zip(kinds, sizes, strict=True)):
            raise PeerError("a family of arrays has more or fewer elements than its lengths say")
        self._entry = [*entry[:2], lens, *entry[3:]]
        self.nbytes = sum(sizes)
        self._values = _read(columns[: sizes[0]], kinds[0])
        if not hidden:
            self._ids = _read(columns[sizes[0] : self.nbytes], kinds[1])

    def _elements(self, positions: int, width: Any) -> int:
        """The number of values of a family: never fewer than its positions, unless a width stands for each."""
        if isinstance(width, list) and self._shape == RAGGED:
            if not _natural(width) or len(width) != positions:
                raise PeerError("a family of arrays has not one width a position")
            return sum(width)
        if type(width) is not int or width < (1 if positions else 0):
            raise PeerError("a family of arrays has a width that is no count")
        return positions * width

    def items(self) -> Iterator[tuple[int, Any]]:
        """(row, Pairs) for a flat family, (row, [Pairs or None]) for a ragged one, (row, [vectors]) for hidden states.

        Raises `PeerError` when a cell has not the family's shape; rows before it have been given already.
        """
        give = (self._flat, self._ragged, self._hidden)[self._shape]
        try:
            yield from give()
        except (TypeError, ValueError, AttributeError) as error:
            raise PeerError(f"a cell of a family has a wrong shape: {error}") from error

    def _flat(self) -> Iterator[tuple[int, Pairs]]:
        if self._entry[0] == 0:
            for row, values, ids in zip(self._rows, *self._entry[2:4], strict=True):
                yield row, _pairs(values, ids)
            return
        at = 0
        for row, length in zip(self._rows, self._entry[2], strict=True):
            yield row, self._slice(at, at + length)
            at += length

    def _slice(self, start: int, end: int) -> Pairs:
        assert self._values is not None
        assert self._ids is not None
        values = [None if v != v else v for v in self._values[start:end].tolist()]
        return Pairs(values, self._ids[start:end].tolist())

    def _ragged(self) -> Iterator[tuple[int, list[Pairs | None]]]:
        if self._entry[0] == 0:
            for row, values, ids in zip(self._rows, *self._entry[2:4], strict=True):
                if len(values) != len(ids):
                    raise ValueError(f"{len(values)} positions of values and {len(ids)} of ids")
                yield row, [_pairs(v or [], i or []) if v or i else None for v, i in zip(values, ids, strict=True)]
            return
        widths, at, position = self._entry[7], 0, 0
        for row, length in zip(self._rows, self._entry[2], strict=True):
            cells: list[Pairs | None] = []
            for p in range(position, position + length):
                width = widths[p] if isinstance(widths, list) else widths
                cells.append(self._slice(at, at + width) if width else None)
                at += width
            position += length
            yield row, cells

    def _hidden(self) -> Iterator[tuple[int, list[list[float]]]]:
        if self._entry[0] == 0:
            for row, vectors in zip(self._rows, self._entry[2], strict=True):
                yield row, msgspec.convert(vectors, list[list[float]])
            return
        assert self._values is not None
        width, at = self._entry[5], 0
        for row, length in zip(self._rows, self._entry[2], strict=True):
            yield row, [self._values[at + k * width : at + (k + 1) * width].tolist() for k in range(length)]
            at += length * width


def _natural(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _read(raw: memoryview, kind: str) -> memoryview:
    if kind == "e":  # a memoryview cannot read half floats before Python 3.12
        return memoryview(array("f", struct.unpack(f"<{len(raw) // 2}e", raw)))
    return raw.cast(kind)  # type: ignore[call-overload,no-any-return]


def _pairs(values: Any, ids: Any) -> Pairs:
    pairs = msgspec.convert((values, ids), Pairs)
    if len(pairs.values) != len(pairs.ids):
        raise ValueError(f"{len(pairs.values)} values and {len(pairs.ids)} ids")
    if any([v != v for v in pairs.values]):  # noqa: C419  (a list is quicker than a generator)
        pairs.values = [None if v != v else v for v in pairs.values]
    return pairs
