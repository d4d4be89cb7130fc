"""Engine -> detokenizer: one frame a scheduler step, for all requests of the step.

Header, positional (`same`: nil says "as in the previous frame of this sender"):

    [epoch, seq, rows, rids|same, finish_reasons|nil, prompt_tokens|same, tok_lens|nil, cached_tokens|same,
     reasoning_tokens|same, id width, families|nil, trailing|nil]

`finish_reasons` nil: nobody ends; `tok_lens` nil: one id a row. Columns: token ids (4 or 8 bytes each), then the
arrays of the families in their order. `epoch` names the life of the sending shim, `seq` counts its frames without
gaps: a reader that misses one must not trust `same`.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any

import msgspec

from forebay.batch import GenerationBatch
from forebay.errors import WireError
from forebay.wire.columns import FAMILIES, SHAPES, encode_family
from forebay.wire.frames import PREFIX, VERSION, Kind, open_frame
from forebay.wire.steady import pack_step

_encode = msgspec.msgpack.Encoder().encode
_STEP_KIND = bytes([Kind.STEP])


_NOT_COLUMNS = (TypeError, ValueError, OverflowError, LookupError, AttributeError)
"""What Python raises for a value that is no column at all."""


def _id_column(batch: GenerationBatch, n: int) -> tuple[list[Any], int, list[int] | None]:
    """Raw id buffers, element width and the lengths (None: one each) of the new tokens of a step."""
    ids = batch.output_ids
    if isinstance(ids, (list, tuple)):
        if len(ids) != n:
            raise WireError(f"output_ids has {len(ids)} rows, rids has {n}")
        return _list_ids(ids, n)
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().contiguous().numpy()
    view = memoryview(ids)
    if view.itemsize not in (4, 8) or view.format not in ("i", "l", "q") or not view.c_contiguous:
        raise WireError(f"output_ids as one array must be contiguous int32 or int64, not {view.format!r}")
    lens, count = batch.tok_lens, view.nbytes // view.itemsize
    if lens is not None and (len(lens) != n or (n and min(lens) < 0)):
        raise WireError(f"tok_lens must have one count for each of {n} rows")
    if (n if lens is None else sum(lens)) != count:
        raise WireError(f"output_ids has {count} ids for {n} rows; give tok_lens, one a row, that add up to it")
    return [view.cast("B") if count else b""], view.itemsize, lens


def _list_ids(ids: Any, n: int) -> tuple[list[Any], int, list[int] | None]:
    try:
        first = memoryview(ids[0]) if n else memoryview(array("q"))
        size = first.itemsize
        if size not in (4, 8) or first.format not in ("i", "l", "q"):
            raise WireError(f"output_ids must be 4 or 8 byte integers, not elements of type {first.format!r}")
        flat = b"".join(ids)  # arrays are buffers: 10 ns a row, against 75 for chaining them into a new array
    except TypeError:  # lists of ints, or lists and arrays mixed
        flat, size = array("q", list(chain.from_iterable(ids))).tobytes(), 8
    if len(flat) == size * n and _none_empty(ids):
        return [flat], size, None
    lens = list(map(len, ids))
    if sum(lens) * size != len(flat):
        raise WireError("output_ids must all be arrays of one integer type, 4 or 8 bytes wide")
    return [flat], size, None if lens.count(1) == n else lens


def _none_empty(ids: Any) -> bool:
    try:
        return all(ids)
    except ValueError:  # numpy arrays do not say whether they are empty
        return False


def _finish_column(finish: list[dict[str, Any] | None] | None, n: int) -> list[dict[str, Any] | None] | None:
    if finish is None:
        return None
    _check_length("finish_reasons", finish, n)
    if finish.count(None) == n:
        return None
    # A reader types these strictly, and one wrong entry would cost it the frame of all rows.
    found = list(filter(None, finish))
    if len(found) + finish.count(None) < n or not all(map(_is_reason, found)):
        raise WireError("a finish reason is a map of names, one of them `type`")
    return finish


def _is_reason(reason: Any) -> bool:
    return isinstance(reason, dict) and isinstance(reason.get("type"), str) and all(isinstance(k, str) for k in reason)


def _family_entries(batch: GenerationBatch, n: int, columns: list[Any]) -> list[Any] | None:
    """The header entries of the families (None: there are none); their arrays are appended to `columns`."""
    entries: list[Any] | None = None
    for number, name in enumerate(FAMILIES):
        family = getattr(batch, name)
        if family is None:
            continue
        try:
            entry = encode_family(SHAPES[number], family, n, columns)
        except WireError as error:
            raise WireError(f"{name}: {error}") from error
        except _NOT_COLUMNS as error:
            raise WireError(f"{name} has no columns that can be sent: {error}") from error
        if entry is not None:
            entries = entries or [None] * len(FAMILIES)
            entries[number] = entry
    return entries


class EgressEncoder:
    """Encodes the steps of one engine; keeps what the previous frame said, so that it need not be said again."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self.seq = 0
        """The number of the last frame."""
        self._rids: list[str] | None = None
        self._told: list[list[int] | None] = [None, None, None]
        """Prompt, cached and reasoning tokens as they were last sent."""

    def send_full(self) -> None:
        """The next frame says everything: a reader has come, or come back."""
        self._rids = None

    def encode(self, batch: GenerationBatch) -> bytes:
        """The frame of one step; raises `WireError` for columns that do not fit each other."""
        try:
            return self._encode(batch)
        except _NOT_COLUMNS as error:
            raise WireError(f"a column of the batch cannot be sent: {error}") from error

    def _encode(self, batch: GenerationBatch) -> bytes:
        rids, n = batch.rids, len(batch.rids)
        same = rids == self._rids
        columns, width, lens = _id_column(batch, n)
        if same and lens is None and self._is_steady(batch, n):
            return self._steady(n, width, columns)
        finish = _finish_column(batch.finish_reasons, n)
        families = _family_entries(batch, n, columns)
        prompt, cached, reasoning = batch.prompt_tokens, batch.cached_tokens, batch.reasoning_tokens
        for name, column in (("prompt_tokens", prompt), ("cached_tokens", cached), ("reasoning_tokens", reasoning)):
            if column is not None:
                _check_length(name, column, n)
        trailing = batch.trailing or None
        for name, column in (trailing or {}).items():
            _check_length(name, column, n)
        told = [same and column == old for column, old in zip((prompt, cached, reasoning), self._told, strict=True)]
        if same and all(told) and finish is None and lens is None and families is None and trailing is None:
            return self._steady(n, width, columns)
        header = _encode(
            (
                self._epoch,
                self.seq + 1,
                n,
                None if same else rids,
                finish,
                None if told[0] else prompt,
                lens,
                None if told[1] else cached,
                None if told[2] else reasoning,
                width,
                families,
                trailing,
            )
        )
        frame = b"".join((PREFIX.pack(Kind.EGRESS, VERSION, 0, len(header)), header, *columns))
        self.seq += 1
        # Lists are kept by value: an engine may reuse the list that it handed over.
        if not same:
            self._rids = list(rids)
        self._told = [None if column is None else list(column) for column in (prompt, cached, reasoning)]
        return frame

    def _steady(self, n: int, width: int, columns: list[Any]) -> bytes:
        frame = pack_step(self._epoch, self.seq + 1, n, width, columns)
        self.seq += 1
        return frame

    def _is_steady(self, batch: GenerationBatch, n: int) -> bool:
        """Whether a step of the same rows says nothing but one token each. One look at each column, no call: with cold
        caches that is half of what reading the columns one by one costs."""
        finish = batch.finish_reasons
        return (
            batch.output_token_logprobs is None
            and batch.input_token_logprobs is None
            and batch.output_top_logprobs is None
            and batch.input_top_logprobs is None
            and batch.output_token_ids_logprobs is None
            and batch.input_token_ids_logprobs is None
            and batch.output_hidden_states is None
            and (finish is None or (len(finish) == n and finish.count(None) == n))
            and not batch.trailing
            and [batch.prompt_tokens, batch.cached_tokens, batch.reasoning_tokens] == self._told
        )


def _check_length(name: str, column: list[Any], n: int) -> None:
    if len(column) != n:
        raise WireError(f"{name} has {len(column)} entries for {n} rows")


class _Start(msgspec.Struct, array_like=True):
    epoch: int
    seq: int
    rows: int
    rids: list[str] | None


_decode_start = msgspec.msgpack.Decoder(_Start).decode


def names_rows(frame: bytes) -> bool:
    """Whether a frame of `EgressEncoder` names its rows, so that a reader may begin with it."""
    return frame[:1] != _STEP_KIND and _decode_start(open_frame(frame, Kind.EGRESS)[0]).rids is not None
