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
from forebay.errors import PeerError, WireError
from forebay.wire.columns import FAMILIES, SHAPES, encode_family
from forebay.wire.families import Family
from forebay.wire.frames import PREFIX, VERSION, Buffer, Kind, open_frame
from forebay.wire.lives import Lives
from forebay.wire.steady import Step, open_step, pack_step

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


class EgressFrame:
    """One decoded step. Columns that are None are trivial (nobody ends, one id each) or not reported."""

    __slots__ = (
        "cached_tokens",
        "epoch",
        "families",
        "finish",
        "id_width",
        "ids",
        "lens",
        "prompt_tokens",
        "reasoning_tokens",
        "rids",
        "same_rows",
        "seq",
        "trailing",
    )

    epoch: int
    seq: int
    rids: list[str]
    same_rows: bool
    ids: memoryview
    id_width: int
    lens: list[int] | None
    finish: list[dict[str, Any] | None] | None
    prompt_tokens: list[int] | None
    cached_tokens: list[int] | None
    reasoning_tokens: list[int] | None
    families: tuple[Family | None, ...]
    trailing: dict[str, list[Any]] | None


class _Header(msgspec.Struct, array_like=True):
    epoch: int
    seq: int
    rows: int
    rids: list[str] | None
    finish: list[dict[str, Any] | None] | None
    prompt_tokens: list[int] | None
    lens: list[int] | None
    cached_tokens: list[int] | None
    reasoning_tokens: list[int] | None
    id_width: int
    families: list[Any] | None
    trailing: dict[str, list[Any]] | None


_decode_header = msgspec.msgpack.Decoder(_Header).decode


class EgressDecoder:
    """Reads the frames of one engine and fills in what they leave out."""

    def __init__(self) -> None:
        self._epoch = self._seq = -1
        self._width = 8
        self._past: set[int] = set()
        """Lives of the engine that are over: frames of theirs that are still on the way say nothing any more."""
        self._lives = Lives()
        self._rids: list[str] | None = None
        """The rows of the previous frame; None: not known, because a frame was missed."""
        self._columns: list[list[int] | None] = [None, None, None]
        self.lost = False
        """True after a frame that shows that rows are missing: it did not follow the one before it in the same life
        of the engine, or its header could be read and the rest could not."""

    def anew(self) -> None:
        """The next frame may have any number: what was missed is told again, or nobody's."""
        self._epoch = self._seq = -1
        self._rids = None

    def greeted(self, epoch: int) -> None:
        """The engine has introduced itself: frames of other lives are left out from now on."""
        self._lives.greeted(epoch)

    def steady(self, frame: Buffer) -> Step:
        """A steady step (a frame of the kind STEP), checked against the rows before it; raises `PeerError`."""
        self.lost = False
        step = open_step(frame)
        self._follow(step.epoch, step.seq)
        if self._rids is None or len(self._rids) != step.rows:
            self.lost, self._rids = self.lost or self._rids is not None, None
            raise PeerError(f"steady step {step.seq} repeats the rows of a frame that was missed")
        self._width = step.width
        return step

    def place(self) -> tuple[int, int, int, int] | None:
        """Of the last frame: epoch, number, rows and id width; None where a steady step cannot follow it."""
        if self._rids is None or self._lives.present not in (None, self._epoch):
            return None
        return self._epoch, self._seq, len(self._rids), self._width

    def passed(self, steps: int) -> None:
        """Steady steps that were read by somebody else, who knows `place`."""
        self._seq += steps
        self.lost = False

    @property
    def rids(self) -> list[str]:
        """The rows of the last frame that was read."""
        return self._rids or []

    def whole(self, step: Step) -> EgressFrame:
        """A steady step that `steady` has just read, in the general form."""
        out = EgressFrame()
        out.epoch, out.seq, out.same_rows, out.rids = step.epoch, step.seq, True, self.rids
        out.ids, out.id_width, out.lens, out.finish = step.ids, step.width, None, None
        out.families, out.trailing = (None,) * len(FAMILIES), None
        out.prompt_tokens, out.cached_tokens, out.reasoning_tokens = self._columns
        return out

    def decode(self, frame: Buffer) -> EgressFrame:
        """One step; raises `PeerError` for a frame that is cut, stale, inconsistent, or leans on a missed one."""
        if frame[0:1] == _STEP_KIND:
            return self.whole(self.steady(frame))
        self.lost = False
        head, columns = open_frame(frame, Kind.EGRESS)
        try:
            header = _decode_header(head)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PeerError(f"an egress header cannot be read: {error}") from error
        self._follow(header.epoch, header.seq)
        rids = self._rids if header.rids is None else header.rids
        if rids is None:
            raise PeerError(f"egress frame {header.seq} repeats the rows of a frame that was missed")
        try:
            out = self._read(header, rids, columns)
        except PeerError:
            self.lost, self._rids = True, None
            raise
        self._rids = rids
        return out

    def _follow(self, epoch: int, seq: int) -> None:
        """Take note of the place of a frame; raises `PeerError` for one of a life that is not the present one."""
        if epoch != self._lives.present and not self._lives.takes(epoch, seq):
            raise PeerError("an egress frame came from an engine that is not the one that has greeted")
        if epoch == self._epoch:
            if seq != self._seq + 1:
                self.lost, self._rids = True, None
        elif epoch in self._past and epoch != self._lives.present:
            raise PeerError("an egress frame came from an engine that is gone")
        else:
            if self._epoch != -1:
                self._past.add(self._epoch)
                self.lost = seq != 1
            self._rids = None
        self._epoch, self._seq = epoch, seq

    def _read(self, header: _Header, rids: list[str], columns: memoryview) -> EgressFrame:
        out = EgressFrame()
        out.epoch, out.seq, out.same_rows = header.epoch, header.seq, header.rids is None
        self._check(header, rids)
        out.rids = rids
        out.id_width, out.lens, out.finish = header.id_width, header.lens, header.finish
        self._width = header.id_width
        count = len(rids) if header.lens is None else sum(header.lens)
        end = count * header.id_width
        if end > len(columns):
            raise PeerError(f"an egress frame has {len(columns)} bytes of columns where its ids need {end}")
        out.ids = columns[:end]
        out.families, rest = self._families(header.families, len(rids), columns[end:])
        if rest:
            raise PeerError(f"an egress frame has {rest} bytes behind its last column")
        out.trailing = header.trailing
        given = (header.prompt_tokens, header.cached_tokens, header.reasoning_tokens)
        if not out.same_rows:
            self._columns = list(given)
        else:
            self._columns = [new if new is not None else old for new, old in zip(given, self._columns, strict=True)]
        out.prompt_tokens, out.cached_tokens, out.reasoning_tokens = self._columns
        return out

    @staticmethod
    def _check(header: _Header, rids: list[str]) -> None:
        if header.rows != len(rids):
            raise PeerError(f"an egress frame of {header.rows} rows has {len(rids)} request ids")
        if header.id_width not in (4, 8):
            raise PeerError(f"an egress frame has ids of {header.id_width} bytes; 4 and 8 are known")
        dense = (header.finish, header.prompt_tokens, header.lens, header.cached_tokens, header.reasoning_tokens)
        if any(column is not None and len(column) != len(rids) for column in dense):
            raise PeerError("an egress frame has a column with more or fewer entries than rows")
        if header.lens is not None and len(header.lens) and min(header.lens) < 0:
            raise PeerError("an egress frame has a negative token count")
        if header.trailing is not None and any(len(column) != len(rids) for column in header.trailing.values()):
            raise PeerError("an egress frame has a trailing column with more or fewer entries than rows")

    @staticmethod
    def _families(entries: list[Any] | None, rows: int, columns: memoryview) -> tuple[tuple[Family | None, ...], int]:
        if entries is None:
            return (None,) * len(FAMILIES), len(columns)
        if len(entries) != len(FAMILIES):
            raise PeerError(f"an egress frame has {len(entries)} families where {len(FAMILIES)} have a place")
        out: list[Family | None] = []
        for shape, entry in zip(SHAPES, entries, strict=True):
            family = None if entry is None else Family(shape, entry, rows, columns)
            if family is not None:
                columns = columns[family.nbytes :]
            out.append(family)
        return tuple(out), len(columns)
