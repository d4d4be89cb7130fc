"""The unfinished requests of one detokenizer shard: how they come, and all the ways they go but their last row."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial, reduce
from itertools import compress, repeat
from operator import is_

from forebay.errors import RequestError
from forebay.wire.deltas import Deltas
from forebay.wire.lives import Owners
from forebay.wire.messages import STALE, OpenItem
from forebay_detokenizer.outbox import Mail, Outbox, new_deltas
from forebay_detokenizer.rows import EXPECTED, NOBODY, RowSet
from forebay_detokenizer.sessions import Piece, Row, Session
from forebay_detokenizer.shaping import merged, wanted
from forebay_detokenizer.tables import Tables
from forebay_detokenizer.waiting import Closed, ClosedRids, WaitingRows
from forebay_detokenizer.windows import DecodeError


class Requests:
    """The requests of one detokenizer shard. Times are seconds of any one clock.

    A row belongs to this shard when the CRC-32 of its rid, modulo `shards`, is `index`.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        epoch: int,
        index: int = 0,
        shards: int = 1,
        max_states: int = 65_536,
        open_wait: float = 5.0,
        front_stops: bool = True,
        keep_stop_ids: Iterable[int] = (),
    ) -> None:
        """`epoch` names the life of this process in its frames. `front_stops`: stop strings are found here, not by
        the engine. `keep_stop_ids`: stop tokens that stay in the text."""
        self._tables = tables
        self._index, self._shards = index, shards
        self._max_states = max_states
        self._front_stops = front_stops
        self._keep_ids = frozenset(keep_stop_ids)
        self._sessions: dict[str, Session] = {}
        self._waiting = WaitingRows(open_wait)
        self._closed = ClosedRids()
        self._foreign: set[str] = set()
        """Rids of the row set that belong to other shards."""
        self._rows = RowSet([], [])
        self._stale = False
        self._out = Outbox(index, epoch)
        self.lives = Owners()
        self._doubts: set[str] = set()
        """Requests without a row when `unheard` was called last."""
        self.expects: set[str] | None = None
        """The requests whose rows may come before they are opened; None: all of this shard."""
        self.once = False
        """Whether a request may be announced again after it has ended."""

    def __len__(self) -> int:
        """Unfinished requests."""
        return len(self._sessions)

    @property
    def waiting(self) -> int:
        """Requests of which rows came, but no announcement."""
        return len(self._waiting)

    def take(self) -> Mail:
        """What has to be sent since the last call."""
        return self._out.take()

    def forget_rows(self, api: int) -> None:
        """The next frame for this api process names its rows: a frame was not delivered, or the process is new."""
        self._out.forget_rows(api)

    def open(self, items: Sequence[OpenItem], now: float) -> None:
        """Requests whose rows will come, or wait here already."""
        for item in items:
            if item.rid in self._sessions:  # announced twice, because a tokenizer died in between
                continue
            closed = self._closed.get(item.rid)
            if self.lives.over(item.api, item.life):
                why = f"the request is of an earlier life of api-{item.api}; send it again"
                self._refuse(item, 503, why, type_=STALE)
            elif closed is Closed.LOST:
                self._out.fault(item.api, item.rid, 503, "the request was announced too late; send it again")
            elif closed is Closed.STOPPED:  # the id is used again
                self._closed.discard(item.rid)
                self._stale = True
                self._open(item)
            elif closed is None:
                self._open(item)

    def _open(self, item: OpenItem) -> None:
        if len(self._sessions) >= self._max_states:
            self._refuse(item, 503, f"the detokenizer is full: {self._max_states} requests are unfinished")
            return
        try:
            session = Session(item, self._tables, self._front_stops)
        except RequestError as error:
            self._refuse(item, error.status, error.message, error.param)
            return
        except DecodeError as error:
            self._refuse(item, 500, str(error))
            return
        self._sessions[item.rid] = session
        if item.rid in self._waiting:
            self._stale = True
            rows, pieces = self._waiting.take(item.rid), list[Piece]()
            for row in rows:
                if item.rid in self._sessions:
                    self._guard(session, partial(self._replay, session, row, pieces))
            if pieces:
                self._say_alone(session, rows[0], pieces)

    def _refuse(
        self, item: OpenItem, status: int, message: str, param: str | None = None, type_: str | None = None
    ) -> None:
        self._out.fault(item.api, item.rid, status, message, param, type_)
        self._out.abort(item.rid, "lost", message)
        self._waiting.take(item.rid)
        self._closed.add(item.rid, Closed.REFUSED)
        self._stale = True

    def abort(self, rids: Iterable[str]) -> None:
        """Requests that the api has ended: nothing more is said of them."""
        for rid in rids:
            self._sessions.pop(rid, None)
            self._waiting.take(rid)
            self._closed.add(rid, Closed.ABORTED)
        self._stale = True

    def fail(self, rids: Collection[str], message: str, status: int = 503) -> None:
        """End requests with an error and stop them in the engine."""
        for rid in rids:
            session = self._sessions.get(rid)
            if session is not None:
                self._fail(session, message, status)

    def fail_all(self, message: str, status: int = 503) -> None:
        """End every request with an error: what the engine said of them was lost. Those whose rows wait for their
        announcement get it with that."""
        self.fail(list(self._sessions), message, status)
        self._give_up(self._waiting.take_all())

    def undelivered(self, api: int, deltas: Deltas) -> None:
        """A frame could not be handed to its api process: the requests in it have a gap, so they end in an error."""
        message = "the api process does not take what it is sent"
        rids = self._out.rows_of(api) if deltas.rids is None else deltas.rids
        if deltas.texts is not None:
            self.fail(rids, message)
        for end in deltas.ends:
            self._out.fault(api, end.rid, 503, message)
        self._out.forget_rows(api)

    def forget_all(self) -> None:
        """The engine is gone, and with it every row that could come. The api processes mostly know it themselves."""
        for session in self._sessions.values():
            self._out.fault(session.api, session.rid, 503, "engine connection lost")
        self._sessions.clear()
        self._waiting.clear()
        self._closed.clear()
        self._stale = True

    def unheard(self) -> dict[int, list[str]]:
        """By api process: the requests that have had no row since the call before this one. To be called now and then.

        An engine with a long queue has many of these; but one that nobody has sent stays for ever, so the api process
        is asked whether it has them.
        """
        rows = set(self._rows.rids)
        without = [one for one in self._sessions.values() if not one.tokens and one.rid not in rows]
        out: dict[int, list[str]] = {}
        for session in without:
            if session.rid in self._doubts:
                out.setdefault(session.api, []).append(session.rid)
        self._doubts = {session.rid for session in without}
        return out

    def forget_api(self, api: int, but: int | None = None) -> None:
        """An api process is gone: its requests end in the engine. `but`: the life that has taken its place, whose
        requests may have come before its greeting."""
        for rid in [rid for rid, one in self._sessions.items() if one.api == api and (but is None or one.life != but)]:
            self._close(self._sessions[rid])
            self._out.abort(rid, "lost", "the api process is gone")
        self._out.forget_rows(api)

    def tick(self, now: float) -> None:
        """Give up the requests that were not announced in time."""
        self._give_up(self._waiting.expired(now))

    def _give_up(self, rids: Iterable[str]) -> None:
        for rid in rids:
            self._out.abort(rid, "lost", "the request was not announced in time")
            self._closed.add(rid, Closed.LOST)
            self._stale = True

    def _close(self, session: Session) -> None:
        """Forget a request whose rows may still come."""
        self._sessions.pop(session.rid, None)
        self._closed.add(session.rid, Closed.STOPPED)
        self._stale = True

    def _fail(self, session: Session, message: str, status: int = 500) -> None:
        self._close(session)
        self._out.fault(session.api, session.rid, status, message)
        self._out.abort(session.rid, "lost", message)

    def _guard(self, session: Session, work: Callable[[], None]) -> None:
        """A text that cannot be decoded fails its own request only."""
        try:
            work()
        except DecodeError as error:
            self._fail(session, str(error))

    def _replay(self, session: Session, row: Row, pieces: list[Piece]) -> None:
        """A row that has waited for its session; what it says is added to `pieces`."""
        extra = None if row.extra is None else wanted(row.extra, session)
        row = row._replace(extra=extra)
        session.note(row.ids)
        if row.reason is not None:
            self._end(session, row)
            return
        if session.deferred:
            if extra is not None:
                session.add(extra)
            return
        used, stop = session.accept(row.ids, extra)
        if stop is not None:
            self._stop(session, stop, used, row)
        elif session.direct or (session.stream and session.held >= session.interval):
            pieces.append(session.release())

    def _say_alone(self, session: Session, first: Row, pieces: list[Piece]) -> None:
        """What the rows that have waited say, in one frame with the end, if they have one: all of it arrives or
        nothing."""
        starts = [(0, *session.start(first.prompt_tokens, first.cached_tokens))] if session.fresh else []
        extra = reduce(merged, (piece.extra for piece in pieces if piece.extra is not None), None)
        ids = session.id_bytes([i for piece in pieces for i in piece.ids or ()])
        text, tokens = "".join(piece.text for piece in pieces), sum(piece.tokens for piece in pieces)
        extras = [] if extra is None else [(0, extra)]
        self._out.say(session.api, new_deltas([text], [tokens], extras, ids, starts), [session.rid])
        session.note_busy()

    def _stop(self, session: Session, stop: str, used: int, row: Row) -> None:
        if session.rid not in self._sessions:  # a frame with one request in two rows
            return
        self._out.end(session.api, session.stopped(stop, used, row))
        self._out.abort(session.rid, "stop")
        self._close(session)

    def _end(self, session: Session, row: Row) -> None:
        if session.rid not in self._sessions:
            return
        self._out.end(session.api, session.finish(row, self._keep_ids))
        del self._sessions[session.rid]
        if self.once:
            self._closed.add(session.rid, Closed.ABORTED)
        self._stale = True

    def _rows_of(self, rids: list[str]) -> RowSet:
        if self._stale or rids is not self._rows.rids:
            self._rows.settle()
            self._rows = RowSet(rids, self._find(rids))
            self._stale = False
        return self._rows

    def _find(self, rids: list[str]) -> list[Session]:
        sessions = list(map(self._sessions.get, rids, repeat(NOBODY)))
        missing = list(compress(rids, map(is_, sessions, repeat(NOBODY))))
        self._foreign.intersection_update(missing)
        for rid in set(missing) - self._foreign:
            if zlib.crc32(rid.encode()) % self._shards != self._index:
                self._foreign.add(rid)
            elif self._is_expected(rid):
                sessions[rids.index(rid)] = EXPECTED
        return sessions

    def _is_expected(self, rid: str) -> bool:
        closed = self._closed.get(rid)
        if closed is None and self.expects is not None and rid not in self.expects:
            self._closed.add(rid, Closed.ABORTED)  # it has ended, or is one of those that are not taken up again
            return False
        if closed is Closed.REFUSED:  # the engine had not admitted it when it was told to stop it
            self._out.abort(rid, "lost", "the request was refused")
            self._closed.add(rid, Closed.STOPPED)
        return closed is None
