"""Requests on their way into the engine: the receiving half of `Front`, and its watch over the links."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from forebay.announce import Announcement
from forebay.counters import Counters
from forebay.errors import PeerError
from forebay.gated import Gated
from forebay.links import Links
from forebay.shards import ResumeLimits
from forebay.tally import Tally
from forebay.topology import Peer
from forebay.wire import control, ingress
from forebay.wire.frames import Buffer, Kind, kind_of
from forebay.wire.lives import Owners
from forebay.wire.messages import STALE, AbortRequest, RequestFault, RequestName
from forebay.wire.replay import decode_claim

DRAIN_LIMIT = 256
"""Requests that one `drain` returns unless it is told otherwise; also the frames beyond those that it may read."""
CATCH_UP_MS = 10
"""How long `wait_ingress` waits at most while a detokenizer has to be told what it missed."""
MONITOR_EVERY = 0.05
"""Seconds between looks at the links while the scheduler is busy (a look costs 1.5 us a link)."""

_ADMIT = int(Kind.ADMIT)

log = logging.getLogger("forebay.shim")


class Intake(Gated):
    """Waiting for requests, and draining them."""

    def __init__(
        self,
        links: Links,
        incarnation: int,
        announcement: Announcement,
        decoder: ingress.RequestDecoder | None = None,
        limits: ResumeLimits | None = None,
    ) -> None:
        super().__init__(links, incarnation, announcement, limits)
        self._decoder = decoder
        self._served = {peer.number for peer in self._apis}
        """The api processes whose requests are taken: all but those that went away."""
        self._lives = Owners()
        self._early = self._held_back = False
        """Whether there are aborts without a request yet, and whether the gate is closed."""
        self._next_look = 0.0
        self._tally: Tally | None = None
        self.bad_frames = 0
        """Frames that could not be read, or had no business here."""

    def publish(self, counters: Counters) -> None:
        """Let other processes read what the links of this one count: copied twice a second, while looking at them."""
        self._tally = Tally(counters, self._links, lambda: self.bad_frames)
        self._tally.show(lambda: len(self._waiting), "engine_inbox")
        resume = self._resume
        if resume is not None:
            self._tally.gauge(lambda: resume.kept.size, counters.gauge("kept_bytes"))
            self._tally.watch(lambda: resume.resumed, counters.counter("resumed_requests_total"))
        self._tally.introduce(self._links.me, ())

    def wait_ingress(self, timeout_ms: int) -> bool:
        """Sleep until something waits for `drain`, at most `timeout_ms`; True when something does.

        Lets go of the interpreter lock. Ends early, with False, when only a connection has changed.
        """
        if self._waiting:
            return True
        if self._closed:
            return False
        links = self._links
        if self._catching_up:
            timeout_ms = min(timeout_ms, CATCH_UP_MS)
        links.wait(timeout_ms)
        now = time.monotonic()
        if links.stirred or now >= self._next_look:
            self._look(now)
        return bool(self._waiting) or links.readable()

    wait_request = wait_ingress

    @property
    def _catching_up(self) -> bool:
        """Whether a detokenizer has to be told what it missed, so that each look may bring it further."""
        return self._resume is not None and self._resume.busy

    def drain(self, max_recv: int = 0) -> list[Any]:
        """What has arrived, in order; never waits. At most `max_recv` entries (0 or less: 256), the rest next time.

        Entries are `GenerateRequest` (or what the injected decoder makes), `AbortRequest` and `ControlRequest`. A
        request that cannot be decoded is answered with 400 and left out; its neighbours are not touched.
        """
        limit = max_recv if max_recv > 0 else DRAIN_LIMIT
        waiting = self._waiting
        if not self._closed:
            now = time.monotonic()
            if now >= self._next_look or self._catching_up:
                self._look(now)
            self._receive(limit)
            if self._gate.waits:
                self._settle()
        if len(waiting) > limit:
            return [waiting.popleft() for _ in range(limit)]
        out = list(waiting)
        waiting.clear()
        return out

    def _receive(self, limit: int) -> None:
        """Read frames until `limit` entries wait. The number of frames is bounded, too: one may hold no entry."""
        waiting = self._waiting
        if len(waiting) >= limit:
            return
        self._see()
        for frame in self._links.views(limit + DRAIN_LIMIT):
            self._take(frame)
            if len(waiting) >= limit:
                return

    def _see(self) -> None:
        """Note what new requests must be held against; only other frames than theirs change it while `drain` reads."""
        self._early, self._held_back = bool(self._ledger.early_aborts), self._gate.closed

    # ---------------------------------------------------------------- frames
    def _take(self, frame: Buffer) -> None:
        try:
            if len(frame) and frame[0] == _ADMIT:
                self._admit(frame)
                return
            kind = kind_of(frame)
            if kind is Kind.ABORT:
                for abort in control.decode_aborts(frame):
                    self._abort(abort)
            elif kind is Kind.CONTROL:
                request = control.decode_control(frame)
                if not request.rid:
                    raise PeerError(f"a {request.type} call without a rid cannot be answered")
                self._control(request)
            elif kind is Kind.HELLO:
                hello = control.decode_hello(frame)
                if hello.role == "api":
                    self._greeted(hello.index, hello.incarnation)
                elif hello.role == "detokenizer" and self._resume is not None:
                    now = time.monotonic()
                    self._look(now)  # the end of its life before comes first
                    self._encoder.send_full()
                    self._resume.greeted(hello, now)
            elif kind is Kind.CLAIM:
                if self._resume is not None:
                    self._resume.claimed(decode_claim(frame), time.monotonic())
            else:
                raise PeerError(f"a {kind.name} frame has no business in the engine")
        except PeerError as error:
            self.bad_frames += 1
            log.warning("dropped a frame: %s", error)
        self._see()

    def _admit(self, frame: Buffer) -> None:
        faults: Sequence[RequestFault] = ()
        try:
            own = ingress.decode_own(frame) if self._decoder is None else None
            names: Sequence[RequestName] = ()
            requests: Sequence[Any] = ()
            if own is None:
                names, requests, faults, opens = ingress.decode_admit(frame, self._decoder)
            else:
                names, opens = own
                requests = names
        except PeerError:
            for rid in ingress.rids_of(frame):
                self._refuse(RequestFault(rid, 500, "the request was damaged on its way to the engine"))
            raise
        resume = self._resume if opens else None
        begin, served, present, early = self._ledger.begin, self._served, self._lives.present, self._early
        for name, request in zip(names, requests, strict=True):
            if not begin(name):
                continue
            api = name.api
            if (early or api not in served or name.life != present.get(api)) and not self._wanted(name):
                continue
            if resume is not None:
                resume.begin(name.rid, name.api, opens)
            if self._held_back:
                self._enter(name.rid, request)
            else:
                self._waiting.append(request)
        for fault in faults:
            self._refuse(fault)
        if resume is not None and resume.apart:
            resume.look(time.monotonic())

    def _wanted(self, name: RequestName) -> bool:
        """Whether somebody waits for a new request: its abort may have come before it, its api process may be gone, or
        have started anew since."""
        rid = name.rid
        early = self._ledger.aborted_early(rid)
        if self._lives.over(name.api, name.life):
            self._ledger.end(rid)
            log.info("left out a request of an earlier life of api-%d", name.api)
            self._tell_stale(name.api, [rid])
            return False
        if early is None and name.api in self._served:
            return True
        if early is not None and early.reason == "user":
            self.push_abort(rid, "Abort in waiting queue")
        else:
            self._ledger.end(rid)
            if early is None and name.api >= len(self._apis):
                log.warning("left out a request of api-%d: this front was told of %d", name.api, len(self._apis))
        return False

    def _refuse(self, fault: RequestFault) -> None:
        log.warning("dropped a request that cannot be decoded (rid %r): %s", fault.rid, fault.message)
        if fault.rid:
            # The header that names the owner is the part that cannot be read, so every api hears of it; all but
            # the owner ignore an error for a request that they do not have.
            for peer in self._apis:
                self._tell(peer.number, [fault])

    def _abort(self, abort: AbortRequest) -> None:
        if abort.abort_all:
            self._abort_all(abort)
            self._waiting.append(abort)
            if abort.reason != "user":
                self._ledger.end_all()
            return
        rids = self._ledger.named(abort.rid)
        if abort.reason == "lost":
            self._tell_lost(rids, abort.message)
        for rid in rids:
            if self._end_held(rid, abort):
                continue
            self._waiting.append(AbortRequest(rid, abort.reason, abort.message))
            if abort.reason != "user":
                self._ledger.end(rid, said=abort.reason == "stop")
        if not rids and not self._abort_unknown(abort) and abort.reason != "stop":
            self._ledger.abort_early(abort)

    def _tell_lost(self, rids: list[str], message: str) -> None:
        """Something of these requests was lost on the way. Their owner may not know: who misses an announcement
        cannot tell whose it is."""
        for rid in rids:
            owner = self._ledger.owner(rid)
            if owner is not None:
                self._tell(owner, [RequestFault(rid, 503, f"{message}; send the request again", "unavailable_error")])

    # ---------------------------------------------------------------- links
    def _greeted(self, api: int, life: int) -> None:
        """An api process has introduced itself; what an earlier life of it has here is nobody's."""
        if self._lives.present.get(api) == life:
            # Its link to us has broken, ours to it may have stood: it has forgotten our greeting.
            self._links.post(Peer("api", api), self._links.greeting())
            return
        self._lives.greeted(api, life)
        stale = self._ledger.of_api(api, before=life)
        self._forsake(stale, f"api-{api} has started anew")
        self._settle()
        self._tell_stale(api, stale)

    def _tell_stale(self, api: int, rids: list[str]) -> None:
        """Mostly nobody knows these requests; but a greeting may have been wrong, or a clock set back."""
        if rids:
            why = f"the request is of an earlier life of api-{api}; send it again"
            self._tell(api, [RequestFault(rid, 503, why, STALE) for rid in rids])

    def _look(self, now: float) -> None:
        """See which links came up or went down, and send what could not be sent before."""
        self._next_look = now + MONITOR_EVERY
        if self._tally is not None and now >= self._tally.due:
            self._tally.copy(now)
        for peer, up in self._links.changes():
            log.info("link to %s is %s", peer, "up" if up else "down")
            if peer.role == "detokenizer":
                self._encoder.send_full()  # it may be another process, which knows no row
                if self._resume is not None:
                    self._resume.changed(peer, up, now)
                elif not up:
                    # What was handed over to a dead process is lost without a trace.
                    self._fail(list(self._ledger.of_shard(peer.number)), f"{peer} is away")
            elif peer.role == "api":
                (self._served.add if up else self._orphan)(peer.number)
        if self._resume is not None:
            self._resume.look(now)

    def _orphan(self, api: int) -> None:
        """The requests of an api process that is gone are nobody's any more."""
        self._served.discard(api)
        if self._resume is not None:
            self._resume.kept.forget_api(api)
        self._forsake(self._ledger.of_api(api), f"api-{api} is away")
        self._gate.cancel_api(api)  # may open the gate, so after its requests have left it
        self._settle()

    def _forsake(self, rids: list[str], why: str) -> None:
        """Requests that nobody waits for."""
        for rid in rids:
            self._ledger.end(rid)
            if self._gate.held.pop(rid, None) is None:
                self._waiting.append(AbortRequest(rid, "client", why))
