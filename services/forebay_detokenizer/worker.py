"""The detokenizer without its sockets: requests and steps go in, deltas, aborts and errors come out.

A steady step of rows without stop strings costs one map over the ids, and for each api process one selection. What a
row needs beyond that is done row by row, for the rows that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, compress
from typing import TYPE_CHECKING

from forebay.errors import PeerError
from forebay_detokenizer.lane import Lane
from forebay_detokenizer.resuming import Resuming
from forebay_detokenizer.rows import NOBODY, RowSet
from forebay_detokenizer.sessions import ABSENT, EAGER, NOTHING, STREAM, Session
from forebay_detokenizer.shaping import extras_of
from forebay_detokenizer.steps import Step
from forebay_detokenizer.windows import DecodeError

if TYPE_CHECKING:
    from forebay.wire.egress_decoder import EgressDecoder, EgressFrame


class Detokenizer(Resuming):
    """One detokenizer shard: `open` and `step` in any order, `tick` now and then, `take` what is to be sent.

    Times are seconds of any one clock.
    """

    def step(self, frame: EgressFrame, now: float) -> None:
        """One step of the engine."""
        self._out.step = frame.seq
        rows = self._rows_of(frame.rids)
        step = Step(frame, self._tables.fast)
        if any(frame.families):
            self._read_families(frame, rows, step)
        if step.ends is None:
            rows.count(step.ids)
        else:
            rows.count_ragged(step.ids, step.ends, step.each)
        finished = _finished(frame)
        self._own_rows(rows, step, finished)
        for number in rows.expected:
            self._give_up(self._waiting.put(rows.rids[number], step.row(number), now))
        if finished:
            rows.settle()
            for number in finished:
                session = rows.sessions[number]
                if not session.kind & ABSENT:
                    self._guard(session, partial(self._finish, rows, step, number))
        self._say(rows, step)

    def lane(self, decoder: EgressDecoder) -> Lane | None:
        """What serves the steady steps that come next; None while the rows need more than the table, or an api process
        must be told more than texts."""
        rows, table = self._rows, self._tables.fast
        if self.replaying or self._stale or rows.rids is not decoder.rids:
            return None
        if not rows.plain or rows.busy or table is None:
            return None
        return Lane.of(decoder, rows, table, self._out)

    def _read_families(self, frame: EgressFrame, rows: RowSet, step: Step) -> None:
        try:
            found = extras_of(frame.families, rows.sessions)
        except PeerError as error:
            for number, session in enumerate(rows.sessions):
                if session.want_logprobs or session.want_hidden:
                    self._fail_row(rows, step, number, f"the engine sent families that cannot be read: {error}")
            return
        for number, extra in found.items():
            session = rows.sessions[number]
            if session.deferred:
                session.add(extra)
            else:
                step.extras[number] = extra

    def _fail_row(self, rows: RowSet, step: Step, number: int, message: str) -> None:
        session = rows.sessions[number]
        if not session.kind & ABSENT:
            self._fail(session, message)
            self._gone(rows, step, number)

    def _gone(self, rows: RowSet, step: Step, number: int) -> None:
        """The request of this row is over: the row says nothing."""
        if rows.sessions[number].stream:
            step.say(number, NOTHING)
        rows.sessions[number] = NOBODY

    def _own_rows(self, rows: RowSet, step: Step, finished: Sequence[int]) -> None:
        """The rows that the table cannot serve: decode, search, hold."""
        for number in step.partial_rows():
            if rows.sessions[number].kind & (STREAM | EAGER) == STREAM:
                rows.busy.add(number)
        if not rows.busy and not rows.eager:
            return
        skip, one_each = set(finished), step.ends is None
        for number in chain(rows.eager, list(rows.busy)):
            session = rows.sessions[number]
            if number in skip or session.kind & ABSENT:
                continue
            if one_each and session.skims and session.skim(step.texts[number]):
                continue
            try:
                self._own_row(rows, step, number, session)
            except DecodeError as error:
                self._fail_row(rows, step, number, str(error))

    def _own_row(self, rows: RowSet, step: Step, number: int, session: Session) -> None:
        if session.direct:
            step.texts[number], used, stop = session.speak(step.chunk(number))
            if not session.kind & EAGER and not session.note_busy():
                rows.busy.discard(number)
        else:
            used, stop = session.accept(step.chunk(number), step.extras.get(number))
            if stop is None:
                step.extras.pop(number, None)
                if session.kind & STREAM:
                    step.say(number, session.release() if session.held >= session.interval else NOTHING)
        if stop is not None:
            self._stop(session, stop, used, step.row(number))
            self._gone(rows, step, number)

    def _finish(self, rows: RowSet, step: Step, number: int) -> None:
        session = rows.sessions[number]
        row = step.row(number)
        self._gone(rows, step, number)
        self._end(session, row)

    def _say(self, rows: RowSet, step: Step) -> None:
        for number, extra in step.extras.items():
            rows.sessions[number].name(extra)
        for group in rows.groups:
            starts = []
            for number in group.fresh:
                session = rows.sessions[number]
                if not session.kind & ABSENT:
                    starts.append((group.place(number) or 0, *session.start(*step.counts(number))))
            group.fresh = []
            if group.api in self._out.muted:
                continue
            deltas = step.deltas(group, starts)
            if deltas is not None:
                self._out.say(group.api, deltas, group.rids)


def _finished(frame: EgressFrame) -> Sequence[int]:
    """The rows that end in this step."""
    finish = frame.finish
    if finish is None:
        return ()
    rows = list(compress(range(len(finish)), finish))
    if len(rows) + finish.count(None) < len(finish):  # an empty reason is one, too
        return [row for row, reason in enumerate(finish) if reason is not None]
    return rows
