"""Results on their way out of the engine: the sending half of `Front`. Nothing here ever blocks a step.

What a peer does not take is answered at once: an error to the request's client, an abort to the engine.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import compress
from typing import Any

from forebay.announce import Announcement
from forebay.batch import GenerationBatch
from forebay.errors import LinkError
from forebay.ledger import Ledger
from forebay.links import Links
from forebay.resume import Resumption
from forebay.shards import ResumeLimits
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.egress import EgressEncoder
from forebay.wire.messages import AbortRequest, ControlRequest, RequestFault

log = logging.getLogger("forebay.shim")


class Results:
    """The `push_` methods of a front, and the account of the requests that they end."""

    def __init__(
        self, links: Links, incarnation: int, announcement: Announcement, limits: ResumeLimits | None = None
    ) -> None:
        """`limits`: how much is kept for a detokenizer that has to start anew (None: nothing)."""
        self._links = links
        self._announcement = announcement
        self._encoder = EgressEncoder(incarnation)
        self._apis = links.of_role("api")
        self._detokenizers = links.of_role("detokenizer")
        self._ledger = Ledger(len(self._detokenizers))
        self._waiting: deque[Any] = deque()
        """What the next `drain` gives."""
        self._closed = False
        self._warned = False
        self.lost_rows = 0
        """Requests whose rows a detokenizer could not take; each was answered with an error."""
        self._resume: Resumption | None = None
        if limits is not None and limits.kept_bytes and limits.seconds:
            self._resume = Resumption(limits, links, self._ledger, self._fail, self._tell)
            self._ledger.on_end = self._resume.kept.end
            announcement.replays = True

    def push_generation(self, batch: GenerationBatch) -> bool:
        """Send one step's rows. Never blocks; False once the front is closed (one warning says how many were lost).

        Rows that a missing or stopped detokenizer cannot take are kept for its next life. Those that cannot be kept end
        with an error at their client, and come back as `AbortRequest` with the next `drain`. Raises `WireError` for
        columns that do not fit each other.
        """
        if self._closed:
            if not self._warned and batch.rids:
                self._warned = True
                log.warning("the front is closed; dropped the output of %d requests", len(batch.rids))
            return False
        frame = self._encoder.encode(batch)
        send = self._links.send
        resume = self._resume
        if resume is None:
            for peer in self._detokenizers:
                if not send(peer, frame):
                    self._encoder.send_full()
                    self._lost(batch.rids, peer)
        else:
            resume.keep(frame, self._encoder.seq)
            for peer in resume.direct:
                if not send(peer, frame) and not resume.refused(peer):
                    self._encoder.send_full()
                    self._lost(batch.rids, peer)
            for peer in resume.apart:
                self._lost(batch.rids, peer)
        if batch.finish_reasons is not None:
            end = self._ledger.end
            for rid in compress(batch.rids, batch.finish_reasons):
                end(rid, said=True)
        return True

    def push_abort(self, rid: str, message: str, status_code: int | None = None, err_type: str | None = None) -> None:
        """End one request outside the output stream: its client gets the text so far, or an error with
        `status_code` (400 to 599)."""
        text = control.to_text(message)
        reason = {"type": "abort", "message": text, "status_code": status_code, "err_type": err_type}
        self.push_generation(GenerationBatch([rid], [array("q")], [reason]))

    def push_error(self, rid: str, text: str, status: int = 400, param: str | None = None) -> None:
        """Refuse one request: its client gets `status` and `text`. Raises `LinkError` when its api is away."""
        owner = self._ledger.owner(rid)
        if owner is None:
            return
        self._ledger.end(rid)
        if not self._tell(owner, [RequestFault(rid, status, control.to_text(text), None, param)]):
            raise LinkError(f"api-{owner} is away: the error was not sent")

    def push_control_output(self, request: ControlRequest, output: Any) -> None:
        """Answer a control request: a struct becomes a map of field names, foreign values become strings.

        Raises `ValueError` for a request without a rid (a programming error), `WireError` for an output that contains
        itself, and `LinkError` when the api process that asked is away.
        """
        if not getattr(request, "rid", None):
            raise ValueError("a control answer needs the request that it answers: this one has no rid")
        peer = Peer("api", request.api)
        if not self._links.post(peer, control.encode_reply(request.rid, output)):
            raise LinkError(f"{peer} is away: the answer was not sent")

    def push_health_ack(self) -> None:
        """Tell every api process that the engine is alive, while it is too busy for output."""
        if self._closed:
            return
        frame = self._links.greeting()
        for peer in self._apis:
            self._links.post(peer, frame)

    # ---------------------------------------------------------------- what a peer did not take
    def _lost(self, rids: Sequence[str], peer: Peer) -> None:
        """Rows that did not reach a detokenizer, and are not kept. Costs nothing when no live request is its."""
        mine = self._ledger.of_shard(peer.number) if self._resume is None else set(self._resume.lost(peer))
        if mine:
            reason = "does not take what it is sent" if self._links.is_up(peer) else "is away"
            self._fail([rid for rid in rids if rid in mine], f"{peer} {reason}")

    def _fail(self, rids: Sequence[str], why: str) -> None:
        """End live requests: an error to the client of each, and an abort to the engine."""
        faults: dict[int, list[RequestFault]] = {}
        for rid in rids:
            owner = self._ledger.owner(rid)
            if owner is None:
                continue
            self.lost_rows += 1
            self._ledger.end(rid)
            self._waiting.append(AbortRequest(rid, "lost", why))
            fault = RequestFault(rid, 503, f"{why}; send the request again", "unavailable_error")
            faults.setdefault(owner, []).append(fault)
        for api, items in faults.items():
            self._tell(api, items)

    def _tell(self, api: int, faults: list[RequestFault]) -> bool:
        """Send errors to an api process; False when it is away."""
        return self._links.post(Peer("api", api), control.encode_faults(faults))
