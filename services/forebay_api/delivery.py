"""Frames of results on their way in: which stream a row is for. One step's text is written as it comes."""

from __future__ import annotations

import abc
import asyncio
import logging
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from forebay.errors import PeerError
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.deltas import Deltas
from forebay.wire.embeddings import Vector
from forebay.wire.frames import NUMBERS
from forebay.wire.messages import AbortRequest, End
from forebay.wire.steady import TEXTS_SIZE, Texts, decode_texts, texts_head
from forebay_api.calls import Choice
from forebay_api.dispatch import Dispatch
from forebay_api.pace import clock
from forebay_api.table import Rows

log = logging.getLogger("forebay.api")


class Delivery(Dispatch, abc.ABC):
    """Hands what the detokenizers and the engine say to the streams that it is for."""

    @abc.abstractmethod
    def settle(self) -> None:
        """Let the greetings of new lives count that have waited for it."""

    def probe(self) -> asyncio.Future[None]:
        """Done with the next frame that shows the engine alive."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._probes.append(future)
        return future

    def _alive(self) -> None:
        self.engine_frames += 1
        if self._probes:
            for future in self._probes:
                if not future.done():
                    future.set_result(None)
            self._probes.clear()

    def steady(self, frame: bytes) -> bool:
        """Deliver the texts of a steady step, if the frame is the one that is due next from its detokenizer.

        False: it is another frame, of which nothing has been done.
        """
        rows = None if self.new_lives else self._due.get(frame[:TEXTS_SIZE])
        texts = None if rows is None else self._next_texts(rows, frame)
        if rows is None or texts is None:
            return False
        _say(rows.choices, texts)
        return True

    def _steady_run(self, frames: Sequence[bytes], merged: list[Choice]) -> int:
        """Hold the texts of the steady steps at the start of `frames`, all of one detokenizer; returns their number.

        They are joined stream by stream first: an engine that runs ahead costs a call a stream, not a token.
        """
        rows = self._due.get(frames[0][:TEXTS_SIZE])
        if rows is None:
            return 0
        columns: list[list[str]] = []
        for frame in frames:
            texts = self._next_texts(rows, frame) if frame.startswith(rows.due) else None
            if texts is None:
                break
            columns.append(texts)
        if columns:
            for choice, text in zip(rows.choices, map("".join, zip(*columns, strict=True)), strict=True):
                if choice is not None and choice.hold(text, len(columns), None, None):
                    merged.append(choice)
        return len(columns)

    def _next_texts(self, rows: Rows, frame: bytes) -> list[str] | None:
        """Read the frame that is due, whose header has been checked as a whole, and note it; None if it is damaged."""
        try:
            texts = decode_texts(memoryview(frame)[TEXTS_SIZE:])
        except (msgspec.DecodeError, RecursionError):
            return None
        if len(texts) != len(rows.choices):
            return None
        rows.seq += 1
        self._await_steady(rows)
        self._alive()
        self.pace.plain(rows.number, rows.choices, clock())
        return texts

    def _await_steady(self, rows: Rows) -> None:
        self._due.pop(rows.due, None)
        rows.due = texts_head(rows.number, rows.epoch, rows.seq + 1)
        self._due[rows.due] = rows

    def _deltas(self, deltas: Deltas, merged: list[Choice] | None) -> None:
        self._alive()
        rows = self._rows_of(deltas)
        if deltas.texts is not None:
            self.pace.step(deltas, rows, clock())
        for row, prompt_tokens, cached_tokens in deltas.starts:
            first = rows[row]
            if first is not None:
                self._started(first)
                first.first_at = clock()
                first.begin(prompt_tokens, cached_tokens)
        if deltas.texts is not None:
            if merged is not None:
                self._rows_held(deltas, rows, merged)
            elif deltas.lens is None and not deltas.has_ids and not deltas.extras:
                _say(rows, deltas.texts)
            else:
                for choice, text, tokens, ids, extra in _full_rows(deltas, rows):
                    if text or tokens or extra is not None:
                        choice.delta(text, tokens, ids, extra)
        for end in deltas.ends:
            ended = self._table.get(end.rid)
            if ended is not None:
                self._started(ended)
                self._close(ended)
                ended.finish(end)

    def _texts(self, step: Texts, merged: list[Choice] | None) -> None:
        """A steady step: a text for each row of the previous frame."""
        self._alive()
        _, _, source, texts = step
        rows = self._rows_at(source, step.epoch, step.seq, None, len(texts))
        self.pace.plain(source, rows, clock())
        if merged is None:
            _say(rows, texts)
            return
        for choice, text in zip(rows, texts, strict=True):
            if choice is not None and choice.hold(text, 1, None, None):
                merged.append(choice)

    def _vector(self, vector: Vector) -> None:
        choice = self._table.get(vector.rid)
        if choice is None:
            return
        self._started(choice)
        self._close(choice)
        # The detokenizer was told of it, too, for the ends that are no vectors; this one it does not see.
        frame = control.encode_aborts([AbortRequest(vector.rid, "stop")])
        self._post(Peer("detokenizer", choice.detokenizer), frame)
        choice.call.vectors[choice.index] = vector.raw
        choice.finish(
            End(
                rid=vector.rid,
                reason={"type": "stop", "matched": None},
                prompt_tokens=vector.prompt_tokens,
                cached_tokens=vector.cached_tokens,
            )
        )

    def _rows_held(self, deltas: Deltas, rows: list[Choice | None], merged: list[Choice]) -> None:
        for choice, text, tokens, ids, extra in _full_rows(deltas, rows):
            if (text or tokens or extra is not None) and choice.hold(text, tokens, ids, extra):
                merged.append(choice)

    def _rows_from(self, number: int) -> Rows:
        found = self._rows.get(number)
        if found is None:
            found = self._rows[number] = Rows(number)
        return found

    def _rows_of(self, deltas: Deltas) -> list[Choice | None]:
        """The choices of a frame's rows. Raises `PeerError` when the frame leans on one that was missed."""
        count = None if deltas.texts is None else len(deltas.texts)
        rows = self._rows_at(deltas.source, deltas.epoch, deltas.seq, deltas.rids, count)
        self._rows_from(deltas.source).ahead = deltas.step - deltas.seq
        return rows

    def _rows_at(
        self, number: int, epoch: int, seq: int, rids: list[str] | None, count: int | None
    ) -> list[Choice | None]:
        if not (0 <= number < self._shards and 0 <= epoch < NUMBERS and 0 < seq < NUMBERS):
            raise PeerError(f"a frame says that it is number {seq} of life {epoch} of detokenizer-{number}")
        if any((hello.index, hello.incarnation) == (number, epoch) for hello in self.new_lives):
            self.settle()  # it speaks already: nothing of the life before it is still to be read
        known = self._rows_from(number)
        if epoch != known.lives.present and not known.lives.takes(epoch, seq):
            raise PeerError(f"a frame came from a life of detokenizer-{number} that is not the present one")
        follows = known.epoch == epoch and seq == known.seq + 1
        last = known.seq if known.epoch == epoch else 0
        if known.epoch != -1 and seq != last + 1:
            log.warning("deltas %d to %d of detokenizer-%d are missing", last + 1, seq - 1, number)
            self._end_shard(number, "a part of the output was lost; send the request again")
        if not follows:
            self._resume.heard(number)
        known.epoch, known.seq = epoch, seq
        if rids is not None:
            known.choices = list(map(self._table.get, rids))
        elif count is not None and (not follows or count != len(known.choices)):
            known.choices = []
            raise PeerError("a deltas frame repeats the rows of one that was missed")
        self._await_steady(known)
        return known.choices


def _say(choices: list[Choice | None], texts: list[str]) -> None:
    """One token for each choice."""
    for choice, text in zip(choices, texts, strict=True):
        if choice is not None:
            if text:
                choice.text(text)
            else:
                choice.silent()


def _full_rows(deltas: Deltas, rows: list[Choice | None]) -> Iterable[tuple[Choice, str, int, array[int] | None, Any]]:
    """Each row of a frame with its text, number of tokens, ids (if it wants them) and families."""
    extras = dict(deltas.extras)
    raw = memoryview(deltas.ids).cast("B") if deltas.has_ids else None
    at = 0
    assert deltas.texts is not None
    lens = deltas.lens or [1] * len(deltas.texts)
    for row, (choice, text, tokens) in enumerate(zip(rows, deltas.texts, lens, strict=True)):
        end = at + 8 * tokens
        if choice is not None:
            ids: array[int] | None = None
            if raw is not None and choice.item.open.want_ids:
                ids = array("q")
                ids.frombytes(raw[at:end])
            yield choice, text, tokens, ids, extras.get(row)
        at = end
