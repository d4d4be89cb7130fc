"""What every process of the front does: set-up, core plan, lock, links, signals, ready notice, ordered stop.

    set up -> run -> close

`Role.open` does the set-up; a service then runs its own loop (`serve` for those without an event loop of their own)
and calls `ready` once it can work. Signals only set `stopping` and end a wait.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import zmq

from forebay import affinity
from forebay._version import __version__
from forebay.config import load
from forebay.counters import Counters, counts_path
from forebay.errors import ForebayError, PeerError, SettingsError
from forebay.facts import LaunchFacts, read_blob
from forebay.housekeeping import HOUSEKEEPING, keep_house
from forebay.keys import load_keys
from forebay.lifetime import die_with_parent, parent_pid
from forebay.links import LINGER_MS, Links
from forebay.logs import set_up
from forebay.notify import Notifier
from forebay.reload import RELOADED, reloaded, set_level
from forebay.rundir import check_private, clear_stale, lock_process
from forebay.settings import Settings
from forebay.tally import Tally
from forebay.topology import Peer, Topology, new_incarnation
from forebay.wire import control
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import Hello

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


class Role:
    """One process of the front: its settings, links and life."""

    def __init__(self, me: Peer, settings: Settings, run_dir: Path) -> None:
        self.me = me
        self.settings = settings
        self.run_dir = run_dir
        self.incarnation = new_incarnation()
        self.log = logging.getLogger(f"forebay.{me.role}")
        self.notifier = Notifier.from_environ(os.environ)
        self.topology = Topology.of(settings, run_dir)
        self.cores: tuple[int, ...] = ()
        self.stopping = False
        self.signals = 0
        self.hellos: dict[Peer, Hello] = {}
        self.facts: LaunchFacts | None = None
        self.bad_frames = 0
        self._woken = False
        self._reload: Callable[[], Settings] | None = None
        self._reload_asked = False
        self.links: Links
        self.counters: Counters
        """What this process publishes; see `forebay.metric_table` for the names."""
        self.tally: Tally
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)

    # ---------------------------------------------------------------- life
    @classmethod
    @contextmanager
    def open(cls, me: Peer, settings: Settings, run_dir: Path, *, linked: bool = True) -> Iterator[Role]:
        """Lock, pin and link one process; everything is undone at the end. Raises `StartError`.

        `linked` False: without links (an engine, whose links are its `Front`'s).
        """
        check_private(run_dir)
        role = cls(me, settings, run_dir)
        with lock_process(run_dir, me), role._wake_out, role._wake_in:
            clear_stale(run_dir, [me])
            role._pin()
            if not linked:
                yield role
                return
            keys = None if settings.keys_dir is None else load_keys(settings.keys_dir)
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            try:
                role.counters = Counters(counts_path(run_dir, me))
                role.links = Links(context, me, role.topology.address, role.topology.peers(me), role.hello, keys)
                role.tally = Tally(role.counters, role.links, lambda: role.bad_frames)
                role.tally.introduce(me, role.cores)
                with role.links:
                    role.links.watch(role._wake_out.fileno())
                    yield role
            finally:
                context.destroy(LINGER_MS)

    def _pin(self) -> None:
        # Before the ZeroMQ context is made: its threads keep the cores that the process has at that moment.
        s = self.settings
        plan = affinity.plan(affinity.allowed_cores(), s.apis, s.tokenizers, s.detokenizers, s.cores)
        cores = plan.of(self.me)
        if not cores:
            self.log.info("not pinned: %s", plan.reason)
        elif affinity.apply(cores):
            self.cores = cores
            self.log.info("pinned to cores %s", affinity.show_cores(cores))

    def hello(self) -> bytes:
        """The greeting that goes to a peer whenever a link to it comes up."""
        return control.encode_hello(
            Hello(
                role=self.me.role,
                index=self.me.number,
                incarnation=self.incarnation,
                pid=os.getpid(),
                version=__version__,
                cores=list(self.cores),
                status="stopping" if self.stopping else "up",
            )
        )

    def ready(self, status: str = "") -> None:
        """Tell who started this process that it works now."""
        self.log.info("ready%s", f": {status}" if status else "")
        self.notifier.ready(status)

    def wake(self) -> None:
        """End a wait of `serve`, from any thread or signal handler."""
        self._woken = True
        try:
            self._wake_in.send(b"!")
        except BlockingIOError:
            return  # it is full of wake-ups already

    def stop(self) -> None:
        """Begin an ordered stop."""
        self.signals += 1
        if not self.stopping:
            self.stopping = True
            self.notifier.stopping()
        self.wake()

    def on_signals(self) -> None:
        """SIGTERM and SIGINT begin an ordered stop, the second one ends the process at once."""

        def handle(number: int, _frame: Any) -> None:
            if self.stopping:
                os._exit(128 + number)
            self.stop()

        signal.signal(signal.SIGTERM, handle)
        signal.signal(signal.SIGINT, handle)
        signal.signal(signal.SIGHUP, lambda number, frame: self.ask_reload())

    # ---------------------------------------------------------------- reload
    def reload_from(self, read: Callable[[], Settings]) -> None:
        """Where the settings come from when they are read again."""
        self._reload = read

    def ask_reload(self) -> None:
        """A SIGHUP: read the settings again in the next turn of the loop."""
        self._reload_asked = True
        self.wake()

    def reload_if_asked(self) -> bool:
        """Take keys and log level from the settings file, if a SIGHUP asks for it; True if that was done.

        A file that cannot be read changes nothing.
        """
        if not self._reload_asked or self._reload is None:
            return False
        self._reload_asked = False
        try:
            new = self._reload()
        except SettingsError as error:
            self.log.error("nothing is reloaded: %s", error)
            return False
        self.settings = reloaded(self.settings, new)
        set_level(self.settings)
        self.log.info("reloaded %s", ", ".join(RELOADED))
        return True

    # ---------------------------------------------------------------- peers
    def greeted(self, frame: bytes) -> tuple[Peer, bool]:
        """Take a Hello frame in: who it is from, and whether that process has started anew since the last one."""
        hello = control.decode_hello(frame)
        peer = Peer(hello.role, hello.index)
        before = self.hellos.get(peer)
        self.hellos[peer] = hello
        if hello.version != __version__:
            self.log.warning("%s runs forebay %s, this process %s", peer, hello.version, __version__)
        if hello.blob is not None:
            self.facts = read_blob(hello.blob)
        return peer, before is not None and before.incarnation != hello.incarnation

    # ---------------------------------------------------------------- the loop of a service
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
                flowing = links.received != received
            else:
                links.sleep(patience)
        self._part(service)

    def _flow(self, service: FlowService) -> None:
        """While frames keep coming, one waiting receive for each: 40 us less than a poll and two receives."""
        self.links.stirred = True  # nothing watches the connections meanwhile: look at them afterwards
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
            if kind is Kind.HELLO:
                known = set(self.hellos)
                peer, anew = self.greeted(frame)
                if peer.role in ("api", "engine") and peer in known and not anew:
                    # Its link to us has broken, ours to it may have stood: it has forgotten our greeting.
                    self.links.send(peer, self.hello())
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
        self.links.send(Peer("api", call.api), control.encode_reply(call.rid, keep_house(call)))
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


def arguments(role: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a role: which one of its kind it is, and where its front lives."""
    parser = argparse.ArgumentParser(
        prog=f"python -m forebay_{role}", description=f"The {role} process of a forebay front; usually started for you."
    )
    parser.add_argument("--index", type=int, default=0, help="number of this process among those of its role (0)")
    parser.add_argument("--run-dir", help="folder of sockets and locks that all processes of one front share")
    parser.add_argument("--config", type=Path, help="settings file, .toml or .json (FOREBAY_CONFIG)")
    return parser.parse_args(argv)


def settings_for(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Settings, Path]:
    """The settings of this process and its run folder; raises `SettingsError`."""
    config = args.config or (Path(environ["FOREBAY_CONFIG"]) if environ.get("FOREBAY_CONFIG") else None)
    overrides = {} if args.run_dir is None else {"run_dir": args.run_dir}
    settings = load(config=config, environ=environ, overrides=overrides)
    if settings.run_dir is None:
        raise SettingsError("run_dir: a single process needs the folder that it shares with the others: --run-dir")
    return settings, Path(settings.run_dir)


def main(role: str, run: Callable[[Role], None], argv: Sequence[str] | None = None, *, linked: bool = True) -> int:
    """The whole life of a role's process; returns its exit code. Errors are one line on standard error."""
    args = arguments(role, argv)
    me = Peer(role, args.index)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.umask(0o077)
    try:
        die_with_parent(parent_pid(os.environ))
        settings, run_dir = settings_for(args, os.environ)
        set_up(str(me), settings.log_level, settings.log_format)
        with Role.open(me, settings, run_dir, linked=linked) as opened:
            opened.on_signals()
            opened.reload_from(lambda: settings_for(args, os.environ)[0])
            run(opened)
    except ForebayError as error:
        print(f"forebay {me}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
