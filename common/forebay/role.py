"""The loop of a process without an event loop of its own: frames in, a turn of its service, frames out; then a stop."""

from __future__ import annotations

import time
from typing import Protocol

from forebay.errors import PeerError, SettingsError
from forebay.housekeeping import HOUSEKEEPING, keep_house
from forebay.process import Process
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.frames import Kind, kind_of

SECOND_MS = 1000
LOOK_EVERY = 0.1
"""Seconds between looks at the connections while frames keep coming."""
BURST = 256
"""Frames that are taken in before what they have brought is sent, however many more wait."""
FAREWELL = 0.1
"""Seconds between the news that a process stops and its end at the earliest: what is on its way to it arrives."""


class Service(Protocol):
    """What `Role.serve` drives."""

    def handle(self, kind: Kind, frame: bytes) -> None:
        """One frame from the inbox. `PeerError` drops the frame and nothing else."""

    def peer_changed(self, peer: Peer, up: bool) -> None:
        """A connection came up or went down, or (`up` False) a peer was found to have started anew."""

    def turn(self, now: float) -> float | None:
        """After the frames of one wake-up: send what is due. Returns seconds until it wants another turn, or None."""

    def idle(self) -> bool:
        """Whether nothing is left to do for anybody: a process that stops waits for that."""


class FlowService(Service, Protocol):
    """A service to which nothing but frames gives work: no threads of its own."""

    def next_frame(self, until: float) -> bytes | None:
        """The next frame for `handle`, waited for as `Links.next` does it; None for none, or when it is `until`."""


class Role(Process):
    """One process of the front, and the loop that drives its service."""

    def serve(self, service: Service) -> None:
        """Run a service until `stop`: frames as they come, one `turn` after each batch of them."""
        service.turn(time.monotonic())
        self.links.wait(0)
        while not self.stopping:
            self.links.sleep(self._once(service))
        self._part(service)

    def serve_flow(self, service: FlowService) -> None:
        """The same for a service to which frames alone give work."""
        links = self.links
        service.turn(time.monotonic())
        links.wait(0)
        flowing = False
        while not self.stopping:
            received = links.received
            patience = self._once(service)
            if flowing or links.received != received:
                received = links.received
                self._flow(service)
                links.sleep(0)  # nothing has watched the connections meanwhile: one call to the system for all of them
                flowing = links.received != received
            else:
                links.sleep(patience)
        self._part(service)

    def _flow(self, service: FlowService) -> None:
        """While frames keep coming, one waiting receive for each: 40 us less than a poll and two receives."""
        now = time.monotonic()
        until = now + LOOK_EVERY
        while now < until and not (self.stopping or self._woken):
            frame = service.next_frame(until)
            if frame is None:
                return
            self._hand(service, frame)
            now = time.monotonic()
            service.turn(now)

    def _once(self, service: Service) -> int:
        """Everything that waits now; returns the milliseconds that the loop may sleep."""
        links = self.links
        if self._woken:
            self._drain_wakes()
            self.reload_if_asked()
        if links.stirred:
            for peer, up in links.changes():
                self.log.debug("link to %s is %s", peer, "up" if up else "down")
                service.peer_changed(peer, up)
        more = self._take(service)
        now = time.monotonic()
        patience = self._beat(service.turn(now))
        if now >= self.tally.due:
            self.tally.copy(now)
        return 0 if more else patience

    def _take(self, service: Service) -> bool:
        """Take a bounded number of frames in; whether more may wait."""
        receive = self.links.receive
        for _ in range(BURST):
            if (frame := receive()) is None:
                return False
            self._hand(service, frame)
        return True

    def _part(self, service: Service) -> None:
        """Tell the peers, who give us no new work then, and finish what is here, within the drain time.

        Without an api process that is linked nobody waits for anything.
        """
        links, now = self.links, time.monotonic()
        links.greet_all()
        earliest, latest = now + FAREWELL, now + self.settings.drain_timeout
        while any(map(links.is_up, links.of_role("api"))):
            patience = self._once(service)
            now = time.monotonic()
            if now >= latest or (now >= earliest and service.idle()):
                return
            links.sleep(min(patience, int(FAREWELL * 1000)))

    def _hand(self, service: Service, frame: bytes) -> None:
        try:
            kind = kind_of(frame)
            if kind >= Kind.MARK and self.links.is_own(frame):  # it came past `Links.next`
                return
            if kind is Kind.HELLO:
                known = set(self.hellos)
                peer, anew = self.greeted(frame)
                if peer.role in ("api", "engine") and peer in known and not anew:
                    # Its link to us has broken, ours to it may have stood: it has forgotten our greeting.
                    self.links.post(peer, self.hello())
                if anew:
                    service.peer_changed(peer, False)
                    service.peer_changed(peer, True)
            if kind is not Kind.CONTROL or not self._kept_house(frame):
                service.handle(kind, frame)
        except (PeerError, SettingsError) as error:
            self.bad_frames += 1
            self.log.warning("dropped a frame: %s", error)

    def _kept_house(self, frame: bytes) -> bool:
        """Answer a call that is the same for every process; False when it is the service's own."""
        call = control.decode_control(frame)
        if call.type not in HOUSEKEEPING:
            return False
        self.links.post(Peer("api", call.api), control.encode_reply(call.rid, keep_house(call)))
        return True

    def _beat(self, due: float | None) -> int:
        """Milliseconds that the loop may sleep; tells a service manager's watchdog that it turns."""
        interval = self.notifier.watchdog_interval
        if interval is None and due is None:
            return SECOND_MS
        if interval is not None:
            self.notifier.watchdog()
        waits = [w for w in (due, interval) if w is not None]
        return max(0, min(SECOND_MS, *(int(w * 1000) + 1 for w in waits)))

    def _drain_wakes(self) -> None:
        self._woken = False
        try:
            while self._wake_out.recv(4096):
                pass
        except BlockingIOError:
            return
