"""The seven optional families of an egress frame: their layout and their writer; `families` reads them.

In the header a family is nil (inactive) or `[form, rows, ...]`, where `rows` are the row numbers that carry data
(nil: every row). Form 0 holds the nested lists as they are, since msgpack packs them faster than Python can flatten
them (79 us against 820 us at 4,096 rows):

    flat    [0, rows, values, ids]            ragged  [0, rows, values, ids]        hidden  [0, rows, values]

Form 1 holds shapes, and the arrays follow as raw little-endian columns (values, then ids):

    flat    [1, rows, lens, value type, id type, value bytes, id bytes]
    ragged  [1, rows, lens, value type, id type, value bytes, id bytes, width | position lengths]
    hidden  [1, rows, lens, value type, value bytes, width]

`lens` is the number of positions of each row (nil: one each). A NaN on the wire is a null value. A width of 0 stands
in a list of widths only, so that what a reader must make is never larger than what came.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count
from typing import Any

from forebay.batch import FlatFamily, HiddenFamily, RaggedFamily
from forebay.errors import WireError

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
FLOATS, INTS = ("e", "f", "d"), ("i", "q", "I")
"""Element types of values and of ids."""


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
    if not shape:
        raise WireError("a family column is a single value; pass an array")
    if code == "e":  # the bits of half floats: a memoryview cannot cast these before Python 3.12
        view = memoryview(values.view("u2") if hasattr(values, "view") else view.tobytes())
    return code, view.cast("B") if view.nbytes else memoryview(b""), shape


def encode_family(shape: int, family: Any, rows: int, columns: list[Any]) -> list[Any] | None:
    """The header entry of one family of a batch of `rows` rows; raw columns are appended to `columns`."""
    if shape == HIDDEN:
        return _encode_hidden(family, rows, columns)
    values = as_raw(family.values, FLOATS)
    if values is None:
        return _encode_nested(family, rows)
    ids = as_raw(family.ids, INTS)
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
    return shape[1] or [0] * positions


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
        whole = as_raw(values, FLOATS)
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
    arrays = [as_raw(cell, FLOATS) for cell in values]
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
    if not width and vectors:
        raise WireError("hidden states are vectors of at least one value")
    if size != vectors * width * ITEM_SIZE[code]:
        raise WireError(f"hidden states have {size} bytes where {vectors} vectors of {width} are due")
    columns.extend(raw[1] for raw in raws)
    return [1, numbers, list(lens) if lens is not None else None, code, size, width]
