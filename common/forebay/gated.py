"""The part of `Front` between results and intake: pauses, calls in turn, changed facts, embeddings.

What is held and when it goes on is decided in `gate`; here it is joined to the links and to the account of requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from forebay.announce import Announcement, facts_after
from forebay.batch import EmbeddingBatch, GenerationBatch
from forebay.errors import LinkError
from forebay.gate import Gate, Reply
from forebay.housekeeping import HOUSEKEEPING
from forebay.links import Links
from forebay.results import Results
from forebay.shards import ResumeLimits
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.embeddings import Vector, encode_embeddings, vectors_of
from forebay.wire.messages import AbortRequest, ControlRequest

PROBE = "HEALTH_CHECK_"
"""What the ids of health probes begin with: while generation is paused they are answered here."""
log = logging.getLogger("forebay.shim")


class Gated(Results):
    """The `push_` methods whose answers open or close the gate, and what waits at it."""

    def __init__(
        self, links: Links, incarnation: int, announcement: Announcement, limits: ResumeLimits | None = None
    ) -> None:
        super().__init__(links, incarnation, announcement, limits)
        self._gate = Gate()

    def push_generation(self, batch: GenerationBatch) -> bool:
        sent = super().push_generation(batch)
        if self._gate.waits:
            self._settle()
        return sent

    push_generation.__doc__ = Results.push_generation.__doc__

    def push_embeddings(self, batch: EmbeddingBatch) -> bool:
        """Answer embedding requests (`GenerateRequest.embedding`): each ends with its vector.

        Never blocks; False once the front is closed. A vector whose api process is away is dropped with its request.
        Raises `WireError` for columns that do not fit each other.
        """
        vectors = vectors_of(batch)
        if self._closed:
            return False
        owners: dict[int, list[Vector]] = {}
        for vector in vectors:
            owner = self._ledger.owner(vector.rid)
            if owner is not None:
                self._ledger.end(vector.rid)
                owners.setdefault(owner, []).append(vector)
        for number, rows in owners.items():
            self._links.post(Peer("api", number), encode_embeddings(rows))
        if self._gate.waits:
            self._settle()
        return True

    def push_control_output(self, request: ControlRequest, output: Any) -> None:
        plain = control.to_builtin(output)
        changes = facts_after(request, plain)
        answer = self._gate.answered(request, plain)
        self._settle()
        if changes:
            self.update_facts(**changes)
        super().push_control_output(request, answer)

    push_control_output.__doc__ = Results.push_control_output.__doc__

    def update_facts(self, **changes: Any) -> None:
        """Replace launch facts (`weight_version`, ...) in every process. Raises `SettingsError` for a wrong type."""
        self._announcement.update(changes)
        self._greet()

    # ---------------------------------------------------------------- what comes
    def _enter(self, rid: str, request: Any) -> None:
        """A new request: the scheduler gets it, or it waits at the gate."""
        if not self._gate.closed:
            self._waiting.append(request)
        elif rid.startswith(PROBE):
            # The scheduler is alive, since it drains; a paused one would never answer.
            self._ledger.end(rid)
            self.push_health_ack()
        else:
            self._gate.held[rid] = request

    def _control(self, call: ControlRequest) -> None:
        if call.type in HOUSEKEEPING:
            # Every api process applies these, whichever of them was asked.
            self._to_apis(control.encode_control(call), but=call.api)
        self._gate.call(call, self._inside(), time.monotonic())
        self._settle()

    def _end_held(self, rid: str, abort: AbortRequest) -> bool:
        """Abort a request at the gate; False when it does not wait there."""
        if self._gate.held.pop(rid, None) is None:
            return False
        if abort.reason == "user":
            self.push_abort(rid, "Abort in waiting queue" if abort.message == "Aborted" else abort.message)
        else:
            self._ledger.end(rid)
        return True

    def _abort_all(self, abort: AbortRequest) -> None:
        """What the engine does not have yet is ended here and by the api processes."""
        if abort.reason == "user":
            self._to_apis(control.encode_aborts([abort]))
        for rid in list(self._gate.held):
            self._end_held(rid, abort)

    def _abort_unknown(self, abort: AbortRequest) -> bool:
        """An abort of something else than a request that is here; False when it may name one that is to come."""
        if abort.reason == "client" and self._gate.cancel(abort.rid):
            self._settle()
            return True
        if abort.reason == "user" and len(self._apis) > 1:
            self._to_apis(control.encode_aborts([abort]))  # one of them may know what the name stands for
        return False

    def _fail(self, rids: Sequence[str], why: str) -> None:
        for rid in rids:
            self._gate.held.pop(rid, None)
        super()._fail(rids, why)

    # ---------------------------------------------------------------- the gate
    def _inside(self) -> int:
        """Requests that the scheduler has, or that wait for its next `drain`."""
        return len(self._ledger) - len(self._gate.held)

    def _settle(self) -> None:
        """Hand on what the gate lets go, and tell everybody when generation was paused or goes on."""
        gate, announced = self._gate, self._announcement
        gate.look(self._inside(), time.monotonic())
        if announced.paused != (gate.mode is not None):
            announced.paused = gate.mode is not None
            self._greet()
        self._waiting.extend(gate.out)
        gate.out.clear()
        while gate.replies:
            self._reply(gate.replies.popleft())

    def _reply(self, reply: Reply) -> None:
        try:
            super().push_control_output(reply.call, reply.output)
        except LinkError as error:
            log.warning("the answer to %s was not sent: %s", reply.call.type, error)

    def _to_apis(self, frame: bytes, but: int | None = None) -> None:
        for peer in self._apis:
            if peer.number != but:
                self._links.post(peer, frame)

    def _greet(self) -> None:
        frame = self._links.greeting()
        for peer in self._links.links:
            self._links.post(peer, frame)
