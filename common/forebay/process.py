"""What every process of the front is: settings, core plan, lock, links, signals, reload, ready notice.

`Process.open` does the set-up and undoes it at the end. Signals only set `stopping` and end a wait.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import zmq

from forebay import affinity
from forebay._version import __version__
from forebay.counters import Counters, counts_path
from forebay.errors import SettingsError
from forebay.facts import LaunchFacts, read_blob
from forebay.housekeeping import settle_memory
from forebay.keys import load_keys
from forebay.lifetime import new_incarnation
from forebay.link import LINGER_MS
from forebay.links import Links
from forebay.notify import Notifier
from forebay.reload import RELOADED, reloaded, set_level
from forebay.rundir import check_private, clear_stale, lock_process
from forebay.settings import Settings
from forebay.tally import Tally
from forebay.topology import Peer, Topology
from forebay.wire import control
from forebay.wire.messages import Hello


class Process:
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
    def open(cls, me: Peer, settings: Settings, run_dir: Path, *, linked: bool = True) -> Iterator[Self]:
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
                role.links = Links(
                    context,
                    me,
                    role.topology.address,
                    role.topology.peers(me),
                    role.hello,
                    keys,
                    settings.max_link_bytes,
                )
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
        settle_memory()
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
