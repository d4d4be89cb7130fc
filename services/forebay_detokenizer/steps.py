"""One step on its way: the texts of its rows, what differs from "one token a row", and the `Deltas` made of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from forebay.wire.messages import Extra
from forebay_detokenizer.incremental import PARTIAL
from forebay_detokenizer.outbox import new_deltas
from forebay_detokenizer.rows import Group, where
from forebay_detokenizer.sessions import Piece, Row
from forebay_detokenizer.tables import Table

if TYPE_CHECKING:
    from forebay.wire.deltas import Deltas
    from forebay.wire.egress_decoder import EgressFrame


class Step:
    """The rows of one egress frame while their texts are made."""

    __slots__ = ("_frame", "ends", "extras", "ids", "odd", "texts")

    def __init__(self, frame: EgressFrame, table: Table | None) -> None:
        """`table` serves the plain rows; None: no row is plain."""
        self._frame = frame
        self.ids: list[int] = frame.ids.cast("q" if frame.id_width == 8 else "i").tolist()
        self.ends: list[int] | None = None if frame.lens is None else list(accumulate(frame.lens, initial=0))
        """Where each row's ids end, with a 0 in front; None: one id a row."""
        self.odd: dict[int, Piece] = {}
        """The rows that say something else than their own tokens of this step."""
        self.extras: dict[int, Extra] = {}
        """The families of rows, by row."""
        self.texts = self._texts(table)

    def _texts(self, table: Table | None) -> list[str]:
        if table is None:
            return [""] * len(self._frame.rids)
        width = self._frame.id_width
        # An id below 0 has its high byte set (so has one over 2**24, which no vocabulary has): 1 ns a row.
        negative = self._frame.ids.tobytes()[width - 1 :: width].count(0) != len(self.ids)
        texts = table.texts(self.ids, negative)
        if self.ends is None:
            return texts
        each = self.each
        if each:  # a seventh cheaper than by slices
            return list(map("".join, zip(*[iter(texts)] * each, strict=True)))
        return ["".join(texts[start:end]) for start, end in pairwise(self.ends)]

    @property
    def each(self) -> int:
        """The number of ids of every row where all have the same; else 0."""
        lens = self._frame.lens
        if lens is None:
            return 1
        return int(lens[0]) if lens and lens.count(lens[0]) == len(lens) else 0

    def partial_rows(self) -> list[int]:
        """The rows whose tokens are a part of a character."""
        texts = self.texts
        if self.ends is not None:
            return [row for row, text in enumerate(texts) if PARTIAL in text]
        return where(texts, PARTIAL)

    def chunk(self, row: int) -> Sequence[int]:
        """The new ids of a row."""
        if self.ends is None:
            return self.ids[row : row + 1]
        return self.ids[self.ends[row] : self.ends[row + 1]]

    def row(self, number: int) -> Row:
        """A row with everything that the engine says of it."""
        frame = self._frame
        prompt_tokens, cached_tokens = self.counts(number)
        return Row(
            ids=self.chunk(number),
            reason=None if frame.finish is None else frame.finish[number],
            extra=self.extras.pop(number, None),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            reasoning_tokens=0 if frame.reasoning_tokens is None else frame.reasoning_tokens[number],
            trailing=self._trailing(number),
        )

    def counts(self, number: int) -> tuple[int | None, int]:
        """Prompt tokens (None: the engine does not say) and cached tokens of a row."""
        prompt, cached = self._frame.prompt_tokens, self._frame.cached_tokens
        return None if prompt is None else prompt[number], 0 if cached is None else cached[number]

    def _trailing(self, row: int) -> dict[str, object] | None:
        columns = self._frame.trailing
        if not columns:
            return None
        return {name: column[row] for name, column in columns.items() if column[row] is not None} or None

    def say(self, row: int, piece: Piece) -> None:
        """What a streaming row says in this step, in place of what the table gave for it (`NOTHING`: it is held, or
        its request has ended and speaks in its `End`)."""
        self.texts[row] = piece.text
        if piece.tokens != len(self.chunk(row)):
            self.odd[row] = piece
        if piece.extra is not None:
            self.extras[row] = piece.extra

    def deltas(self, group: Group, starts: list[tuple[int, int, int]]) -> Deltas | None:
        """What the rows of a group say (not numbered, without rids and ends); None when that is nothing."""
        odd = self._odd_of(group)
        lens = self._lens(group, odd)
        extras = []
        for row, extra in self.extras.items():
            place = group.place(row)
            if place is not None:
                extras.append((place, extra))
        if lens is not None and not any(lens) and not extras and not starts:
            return None
        ids = self._id_column(group, odd) if group.wants_ids else None
        return new_deltas(group.pick(self.texts), lens, extras, ids, starts)

    def _odd_of(self, group: Group) -> dict[int, Piece]:
        places = {group.place(row): piece for row, piece in self.odd.items()}
        return {place: piece for place, piece in places.items() if place is not None}

    def _lens(self, group: Group, odd: dict[int, Piece]) -> list[int] | None:
        lens = self._frame.lens
        if lens is None and not odd:
            return None
        out = [1] * len(group.rows) if lens is None else list(group.pick(lens))
        for place, piece in odd.items():
            out[place] = piece.tokens
        return out

    def _id_column(self, group: Group, odd: dict[int, Piece]) -> bytes | memoryview:
        if self.ends is None:
            if group.whole and not odd and self._frame.id_width == 8:
                return self._frame.ids
            ids = list(group.pick(self.ids))
            for place in sorted(odd, reverse=True):
                ids[place : place + 1] = odd[place].ids or ()
            return array("q", ids).tobytes()
        column = array("q")
        for place, row in enumerate(group.rows):
            column.extend((odd[place].ids or ()) if place in odd else self.chunk(row))
        return column.tobytes()
