"""The seven optional families of an egress frame: writer and reader of each side by side.

In the header a family is nil (inactive) or `[form, rows, ...]`, where `rows` are the row numbers that carry data
(nil: every row). Form 0 holds the nested lists as they are, since msgpack packs them faster than Python can flatten
them (79 us against 820 us at 4,096 rows):

    flat    [0, rows, values, ids]            ragged  [0, rows, values, ids]        hidden  [0, rows, values]

Form 1 holds shapes, and the arrays follow as raw little-endian columns (values, then ids):

    flat    [1, rows, lens, value type, id type, value bytes, id bytes]
    ragged  [1, rows, lens, value type, id type, value bytes, id bytes, width | position lengths]
    hidden  [1, rows, lens, value type, value bytes, width]

`lens` is the number of positions of each row (nil: one each). A NaN on the wire is a null value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, count
from typing import Any

from forebay.batch import FlatFamily, HiddenFamily, RaggedFamily
from forebay.errors import PeerError, WireError
from forebay.wire.messages import Pairs

FAMILIES = (
    "output_token_logprobs",
    "input_token_logprobs",
    "output_top_logprobs",
    "input_top_logprobs",
    "output_token_ids_logprobs",
    "input_token_ids_logprobs",
    "output_hidden_states",
)
"""The order of the families in the frame."""
FLAT, RAGGED, HIDDEN = range(3)
SHAPES = (FLAT, FLAT, RAGGED, RAGGED, RAGGED, RAGGED, HIDDEN)
ITEM_SIZE = {"e": 2, "f": 4, "d": 8, "i": 4, "q": 8, "I": 4}
_TYPES = {"l": "q", "L": "q", "<f": "f", "<i": "i", "<q": "q", "<d": "d", "<e": "e"}
_FLOATS, _INTS = ("e", "f", "d"), ("i", "q", "I")


def as_raw(values: Any, kinds: Sequence[str]) -> tuple[str, memoryview, tuple[int, ...]] | None:
    """Type, bytes and shape of a contiguous array, or None for a list.

    Raises `WireError` for an array that is not contiguous or has an element type that is not in `kinds`.
    """
    if isinstance(values, (list, tuple)):
        return None
    if hasattr(values, "detach"):  # a torch tensor: no buffer protocol of its own
        tensor = values.detach().cpu()
        values = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).contiguous().numpy()
    try:
        view = memoryview(values)
    except TypeError as error:
        raise WireError(f"a family column is neither a list nor an array: {type(values).__name__}") from error
    if not view.c_contiguous:
        raise WireError("a family array must be contiguous; pass numpy.ascontiguousarray(values)")
    code = _TYPES.get(view.format, view.format)
    if code not in kinds:
        raise WireError(f"a family array has element type {view.format!r}; use one of {', '.join(kinds)}")
    shape = tuple(view.shape or ())
    return code, view.cast("B") if view.nbytes else memoryview(b""), shape


def encode_family(shape: int, family: Any, rows: int, columns: list[Any]) -> list[Any] | None:
    """The header entry of one family of a batch of `rows` rows; raw columns are appended to `columns`."""
    if shape == HIDDEN:
        return _encode_hidden(family, rows, columns)
    values = as_raw(family.values, _FLOATS)
    if values is None:
        return _encode_nested(family, rows)
    ids = as_raw(family.ids, _INTS)
    if ids is None:
        raise WireError("a family with an array of values needs an array of ids")
    _check_rows(family.rows, rows)
    entry = [1, family.rows, family.lens, values[0], ids[0], values[1].nbytes, ids[1].nbytes]
    positions = sum(family.lens) if family.lens is not None else _row_count(family.rows, rows)
    if shape == RAGGED:
        width = _width(family, values[2], positions)
        entry.append(width)
        positions = positions * width if isinstance(width, int) else sum(width)
    for name, raw in (("values", values), ("ids", ids)):
        if raw[1].nbytes != positions * ITEM_SIZE[raw[0]]:
            raise WireError(
                f"a family has {raw[1].nbytes // ITEM_SIZE[raw[0]]} {name} where its rows and lengths say {positions}"
            )
    columns += (values[1], ids[1])
    return entry


def _width(family: RaggedFamily, shape: tuple[int, ...], positions: int) -> int | list[int]:
    if family.pos_lens is not None:
        if len(family.pos_lens) != positions:
            raise WireError(f"a family has {len(family.pos_lens)} position lengths for {positions} positions")
        return list(family.pos_lens)
    if len(shape) != 2:
        raise WireError("a ragged family as an array is [positions, width], or 1-D with pos_lens")
    return shape[1]


def _row_count(numbers: Sequence[int] | None, rows: int) -> int:
    return rows if numbers is None else len(numbers)


def _check_rows(numbers: Sequence[int] | None, rows: int) -> None:
    if numbers is not None and numbers and not 0 <= min(numbers) <= max(numbers) < rows:
        raise WireError(f"a family names row {max(numbers)} (or a negative one) of a batch of {rows} rows")


def _encode_nested(family: FlatFamily | RaggedFamily, rows: int) -> list[Any] | None:
    numbers, values, ids = family.rows, family.values, family.ids
    if len(values) != len(ids) or len(values) != _row_count(numbers, rows):
        raise WireError(
            f"a family has {len(values)} value cells and {len(ids)} id cells for {_row_count(numbers, rows)} rows"
        )
    _check_rows(numbers, rows)
    if numbers is None and not all(values):
        # Accumulators fill every cell once one client asks; only the rows with data may cost anything.
        numbers = list(compress(count(), values))
        if not numbers:
            return None
        values, ids = [values[i] for i in numbers], [ids[i] for i in numbers]
    return [0, numbers, values, ids] if values else None


def _encode_hidden(family: HiddenFamily, rows: int, columns: list[Any]) -> list[Any] | None:
    numbers, values, lens = family.rows, family.values, family.lens
    if not isinstance(values, (list, tuple)):
        whole = as_raw(values, _FLOATS)
        assert whole is not None
        return _hidden_array(numbers, lens, [whole], rows, columns)
    if len(values) != _row_count(numbers, rows):
        raise WireError(f"hidden states have {len(values)} cells for {_row_count(numbers, rows)} rows")
    _check_rows(numbers, rows)
    if numbers is None:
        numbers = [i for i, cell in enumerate(values) if len(cell)]
        if len(numbers) < rows:
            values = [values[i] for i in numbers]
    if not values:
        return None
    if isinstance(values[0], (list, tuple)):
        return [0, numbers, values]
    arrays = [as_raw(cell, _FLOATS) for cell in values]
    if any(a is None for a in arrays):
        raise WireError("hidden states mix lists and arrays; use one form for all rows of a step")
    raws = [a for a in arrays if a is not None]
    return _hidden_array(numbers, [_vectors(a[2]) for a in raws], raws, rows, columns)


def _vectors(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 2 else 1


def _hidden_array(
    numbers: Sequence[int] | None,
    lens: Sequence[int] | None,
    raws: list[tuple[str, memoryview, tuple[int, ...]]],
    rows: int,
    columns: list[Any],
) -> list[Any]:
    _check_rows(numbers, rows)
    codes, widths = {raw[0] for raw in raws}, {raw[2][-1] for raw in raws}
    if len(codes) != 1 or len(widths) != 1:
        raise WireError("the hidden state arrays of one step must have one element type and one width")
    code, width, size = codes.pop(), widths.pop(), sum(raw[1].nbytes for raw in raws)
    vectors = sum(lens) if lens is not None else _row_count(numbers, rows)
    if size != vectors * width * ITEM_SIZE[code]:
        raise WireError(f"hidden states have {size} bytes where {vectors} vectors of {width} are due")
    columns.extend(raw[1] for raw in raws)
    return [1, numbers, list(lens) if lens is not None else None, code, size, width]


class Family:
    """One decoded family: iterates over the rows that carry data, and over nothing else."""

    __slots__ = ("_entry", "_ids", "_rows", "_shape", "_values")

    def __init__(self, shape: int, entry: Any, rows: int, columns: memoryview) -> None:
        """Check the entry against the batch and its raw columns; raises `PeerError`."""
        self._shape, self._entry = shape, entry
        self._values: Any = None
        self._ids: Any = None
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
        if any(k not in ITEM_SIZE for k in kinds) or not _natural(sizes) or sum(sizes) > len(columns):
            raise PeerError("a family of arrays has an unknown element type or runs over the end of the frame")
        total, width = sum(lens), entry[-1] if self._shape != FLAT else 1
        if isinstance(width, list) and not hidden:
            if not _natural(width) or len(width) != total:
                raise PeerError("a family of arrays has not one width a position")
            total = sum(width)
        elif type(width) is int and width >= 0:
            total *= width
        else:
            raise PeerError("a family of arrays has a width that is no count")
        if any(size != total * ITEM_SIZE[kind] for kind, size in zip(kinds, sizes, strict=True)):
            raise PeerError("a family of arrays has more or fewer elements than its lengths say")
        self._entry = [*entry[:2], lens, *entry[3:]]
        self._values = columns[: sizes[0]].cast(kinds[0])
        if not hidden:
            self._ids = columns[sizes[0] : sum(sizes)].cast(kinds[1])

    @property
    def nbytes(self) -> int:
        """Bytes of raw columns that belong to this family."""
        return sum(view.nbytes for view in (self._values, self._ids) if view is not None)

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
                yield row, [_pairs(v, i) if v and i else None for v, i in zip(values, ids, strict=True)]
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
            yield from zip(self._rows, self._entry[2], strict=True)
            return
        assert self._values is not None
        width, at = self._entry[5], 0
        for row, length in zip(self._rows, self._entry[2], strict=True):
            yield row, [self._values[at + k * width : at + (k + 1) * width].tolist() for k in range(length)]
            at += length * width


def _natural(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _pairs(values: list[Any], ids: list[Any]) -> Pairs:
    if len(values) != len(ids):
        raise ValueError(f"{len(values)} values and {len(ids)} ids")
    if not all(type(i) is int for i in ids):
        raise TypeError("an id is not an integer")
    return Pairs([None if v is None or v != v else float(v) for v in values], ids)
