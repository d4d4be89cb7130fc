"""The post of one api process: every frame that comes in, and what the life and death of a peer means for whom."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from forebay.errors import PeerError, SettingsError
from forebay.facts import read_blob
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.deltas import decode_deltas
from forebay.wire.embeddings import decode_embeddings
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import STALE, AbortRequest, Hello, RequestFault
from forebay.wire.steady import open_texts
from forebay_api.calls import Choice, as_error
from forebay_api.delivery import Delivery
from forebay_api.table import ENGINE, Send

__all__ = ["ENGINE", "Mailbox", "Send"]

log = logging.getLogger("forebay.api")

_TEXTS_KIND = bytes([Kind.TEXTS])


class Mailbox(Delivery):
    """All running requests of this api process. Opens no socket: `send` hands a frame to a peer."""

    @property
    def engine_up(self) -> bool:
        """Whether the engine is linked and has introduced itself."""
        return self._reachable(ENGINE)

    @property
    def paused(self) -> bool:
        """Whether generation is paused: requests wait in the link to the engine."""
        hello = self.hellos.get(ENGINE)
        return hello is not None and hello.status == "paused"

    def missing(self) -> list[str]:
        """Roles without a live process, by name: not ready while there are any."""
        live = {peer.role for peer in self._up if peer in self.hellos}
        return [role for role in ("tokenizer", "detokenizer", "engine") if role not in live]

    def dead(self, expected: Iterable[Peer]) -> list[str]:
        """Of the expected processes those that are not linked now."""
        return [str(peer) for peer in expected if peer not in self._up]

    def take(self, frames: list[bytes], more: bool = False) -> None:
        """All frames that were waiting. One step's text is written as it comes; more are merged a stream at a time.

        `more`: others may wait still.
        """
        merged: list[Choice] | None = [] if len(frames) > 1 else None
        at = 0
        try:
            while at < len(frames):
                if merged is not None and (taken := self._steady_run(frames[at:], merged)):
                    at += taken
                    continue
                try:
                    self._take(frames[at], merged)
                except (PeerError, SettingsError) as error:
                    self.bad_frames += 1
                    log.warning("dropped a frame: %s", error)
                at += 1
        finally:
            for choice in merged or ():  # else these would hold what comes for ever
                choice.flush()
        if not more:
            self.settle()

    def settle(self) -> None:
        """The inbox is empty: what the lives before have said is read, and the new ones count."""
        while self.new_lives:
            self._welcome(self.new_lives.pop(0))

    def _take(self, frame: bytes, merged: list[Choice] | None) -> None:
        if frame[:1] == _TEXTS_KIND:
            self._texts(open_texts(frame), merged)
            return
        kind = kind_of(frame)
        if kind is Kind.DELTAS:
            self._deltas(decode_deltas(frame), merged)
        elif kind is Kind.ERROR:
            for fault in control.decode_faults(frame):
                self._fault(fault)
        elif kind is Kind.REPLY:
            reply = control.decode_reply(frame)
            self._alive()
            self._asks.answer(reply.rid, reply.payload)
        elif kind is Kind.ADMITTED:
            for item in control.decode_admitted(frame):
                choice = self._table.get(item.rid)
                if choice is not None:
                    choice.call.admitted(item)
        elif kind is Kind.HELLO:
            self._hello(control.decode_hello(frame))
        elif kind is Kind.EMBEDDINGS:
            self._alive()
            for vector in decode_embeddings(frame):
                self._vector(vector)
        elif kind is Kind.ABORT:
            for abort in control.decode_aborts(frame):
                self.abort(abort.rid, everything=abort.abort_all, relayed=True)
        elif kind is Kind.UNHEARD:
            self._disown(control.decode_unheard(frame))
        elif kind is Kind.CONTROL:
            self.on_control(control.decode_control(frame))
        else:
            raise PeerError(f"a {kind.name} frame has no business in an api process")

    def _fault(self, fault: RequestFault) -> None:
        choice = self._table.get(fault.rid)
        if choice is None:
            self._asks.answer(fault.rid, as_error(fault))
            return
        self._fail(choice, fault)
        if fault.type == STALE:
            self.greet()
        self._end_sent_before(choice.call, [choice])
        frame = control.encode_aborts([AbortRequest(fault.rid, "lost")])
        self._post(Peer("detokenizer", choice.detokenizer), frame)

    def _hello(self, hello: Hello) -> None:
        if hello.role == "detokenizer" and self._resume.is_new(hello.index, hello.incarnation):
            self.new_lives.append(hello)  # what its life before has said is still to be read
        else:
            self._welcome(hello)

    def _welcome(self, hello: Hello) -> None:
        peer = Peer(hello.role, hello.index)
        before = self.hellos.get(peer)
        self.hellos[peer] = hello
        if self._lives.get(peer) is None:
            self._lives[peer] = hello.incarnation
        if hello.blob is not None:
            self.facts = read_blob(hello.blob)
            self._alive()
        self._look_at(peer)
        if peer.role == "detokenizer":
            rows = self._rows_from(peer.number)
            rows.lives.greeted(hello.incarnation)
            self._due.pop(rows.due, None)
        if before is not None and before.incarnation != hello.incarnation:
            self._lost(peer)
        if peer.role == "detokenizer":
            self._resume.greeted(peer.number, hello.incarnation, self._rows_from(peer.number).step)
        if peer.role in ("tokenizer", "detokenizer"):
            self._send_unsent()
        self._pay_forsaken(peer)

    def _pay_forsaken(self, peer: Peer) -> None:
        """Abort what ended here while a peer was away."""
        if peer in self._forsaken:
            frame = control.encode_aborts([AbortRequest(rid, "client") for rid in self._forsaken[peer]])
            if self._post(peer, frame):
                del self._forsaken[peer]

    def link_changed(self, peer: Peer, up: bool) -> None:
        """A connection came up or went down."""
        if not up:
            self._up.discard(peer)
            hello = self.hellos.get(peer)
            # A greeting of the next life may be read before the end of this one is noticed: that one stays.
            if hello is not None and self._lives.get(peer) == hello.incarnation:
                del self.hellos[peer]
            self._look_at(peer)
            if peer.role != "detokenizer" or peer not in self.hellos:
                self._lost(peer)
            return
        self._up.add(peer)
        self._look_at(peer)
        known = self.hellos.get(peer)
        self._lives[peer] = None if known is None else known.incarnation
        if peer.role in ("tokenizer", "detokenizer"):
            self._send_unsent()
        self._pay_forsaken(peer)  # its greeting may have come before

    def _lost(self, peer: Peer) -> None:
        """A process died, or the connection to it broke: its requests are sent again or end with an error."""
        self._asks.lost(peer)
        if peer.role == "tokenizer":
            sent = self._sent.pop(peer, {})
            self._resend([(call, *work) for call, work in sent.items()])
        elif peer.role == "detokenizer":
            self._resume.lost(peer.number)
        elif peer == ENGINE:
            choices = list(self._table.values())
            self._fail_all(choices, 503, "engine connection lost")
            self._resume.lost_all()
            for rows in self._rows.values():
                rows.ahead = -rows.seq
            self._forsaken[ENGINE] += [choice.rid for choice in choices]
