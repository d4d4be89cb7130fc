"""The supervisor: starts the processes of a front, waits until all are ready, restarts them, stops them in order.

    start   all at once; one that ends before everybody is ready fails the whole start, with its last lines
    run     one that ends is started again, with growing patience; one that ends too often stops everything
    stop    api (it drains), tokenizer, detokenizer, engine: SIGTERM, then SIGKILL, within one time budget

It sleeps in one `select` over signals, notices, the ends of all children and the end of its parent. `forebay serve`
runs it in process; `python -m forebay.supervisor` is what `forebay.launch` starts beside an engine.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from forebay import config, logs
from forebay.child import Child, RoleSpec, Slot, child_environment, role_specs
from forebay.errors import ForebayError, SettingsError, StartError
from forebay.lifetime import parent_pid
from forebay.notify import Notifier, NotifyInbox
from forebay.orphans import is_process_one, reap_orphans
from forebay.patience import Patience
from forebay.relay import RETRY, Relay
from forebay.reload import RELOADED, reloaded, set_level
from forebay.rundir import RunDir, clear_stale, lock_front, open_run_dir
from forebay.settings import Settings
from forebay.signals import StopSignals, has_terminal
from forebay.topology import ROLES

log = logging.getLogger("forebay.supervisor")

DRAIN_GRACE = 2.0
"""Seconds an api process gets beyond `drain_timeout` before it is killed."""
STAGE_GRACE = 2.0
"""Seconds that the processes of each later role get."""
LOG_GRACE = 0.5
"""Seconds for a slow reader to take the last log lines."""
KILL_GRACE = 5.0
"""Seconds until we no longer wait for a killed process (one that hangs in the kernel)."""


class Supervisor:
    """Keeps the processes of one front running. Make it and call `run` in the main thread."""

    def __init__(
        self,
        settings: Settings,
        run_dir: RunDir,
        roles: Sequence[RoleSpec],
        *,
        on_ready: Callable[[], None] = lambda: None,
        parent: int | None = None,
        read: Callable[[], Settings] | None = None,
    ) -> None:
        """`parent`: a process at whose end everything is stopped, too. `read`: reads the settings again; with it a
        SIGHUP reloads, without it a SIGHUP stops."""
        self._settings = settings
        self._run_dir = run_dir
        self._slots = [Slot(spec, Patience(settings.restart_limit, settings.restart_window)) for spec in roles]
        self._on_ready = on_ready
        self._parent = parent
        self._inherits = is_process_one()
        self._read = read
        self._terminal = has_terminal()
        self._notifier = Notifier.from_environ(os.environ)
        self._selector = selectors.DefaultSelector()
        self._relay = Relay(sys.__stderr__.fileno() if sys.__stderr__ is not None else os.open(os.devnull, os.O_WRONLY))
        self._environ: dict[str, str] = {}
        self._ended: list[Slot] = []
        self._stops = 0
        """Stop signals so far: the first stops in order, the second at once."""
        self._failed = False

    def run(self) -> int:
        """Start, run until a stop signal, stop. Returns the exit code: 0 after an ordered stop, 1 after a forced one
        or when a process died too often. Raises `StartError` when the start fails; nothing is left running then.
        """
        with lock_front(self._run_dir.path), self._listening() as inbox:
            was_ready = False
            try:
                self._start_all(str(inbox.path))
                was_ready = self._until_ready()
                if was_ready:
                    self._notifier.ready()
                    self._on_ready()
                    self._watch()
            finally:
                self._stop_all(self._settings.drain_timeout if was_ready else 0.0)
                self._relay.finish(LOG_GRACE)
        return 1 if self._failed or self._stops > 1 else 0

    # ---------------------------------------------------------------- start
    @contextlib.contextmanager
    def _listening(self) -> Iterator[NotifyInbox]:
        """Everything that can wake us, registered with the selector."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            signals = stack.enter_context(StopSignals(children=self._inherits))
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._signalled(signals.take()))
            inbox = NotifyInbox(self._run_dir.path / "notify.sock")
            stack.callback(inbox.close)
            self._selector.register(inbox, selectors.EVENT_READ, lambda: self._heard(inbox))
            if self._parent is not None:
                self._watch_parent(self._parent, stack)
            yield inbox

    def _watch_parent(self, parent: int, stack: contextlib.ExitStack) -> None:
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError as error:
            raise StartError(f"the process that wants these services ({parent}) is gone") from error
        stack.callback(os.close, descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._parent_ended(descriptor))

    def _start_all(self, notify_socket: str) -> None:
        config.save(self._settings, self._run_dir.settings_file)
        self._environ = child_environment(os.environ, notify_socket, os.getpid())
        for slot in self._slots:
            self._start(slot)
        self._notifier.send(STATUS="starting", X_FOREBAY="started")

    def _start(self, slot: Slot) -> None:
        slot.restart_at = None
        slot.ready_by = time.monotonic() + self._settings.start_timeout
        clear_stale(self._run_dir.path, [slot.spec.peer])
        try:
            child = Child(slot.spec, self._environ)
        except OSError as error:
            raise StartError(f"{slot.spec.peer} cannot be started ({slot.spec.command[0]}): {error}") from error
        slot.child = child
        self._selector.register(child, selectors.EVENT_READ, lambda: self._reap(slot, child))
        self._selector.register(child.lines, selectors.EVENT_READ, lambda: self._pass_on(child))
        log.info("started %s (process %d)", child.peer, child.pid)

    def _until_ready(self) -> bool:
        """Wait until every process has said READY; False when a stop signal came first."""
        while not self._stops:
            late = [str(slot.spec.peer) for slot in self._slots if not slot.ready]
            if not late:
                return True
            left = min(slot.ready_by for slot in self._slots) - time.monotonic()
            if left <= 0:
                raise StartError(
                    f"not ready within start_timeout ({self._settings.start_timeout:g} s): {', '.join(late)}"
                )
            self._wait(left)
            for slot in self._ended:
                assert slot.child is not None
                words = slot.child.last_words()
                raise StartError(f"{slot.spec.peer} ended with {slot.child.how_it_ended()} while starting{words}")
        return False

    # ---------------------------------------------------------------- run
    def _watch(self) -> None:
        while not self._stops and not self._failed:
            now = time.monotonic()
            for slot in self._slots:
                self._tend(slot, now)
            if self._notifier.watchdog_interval is not None:
                self._notifier.watchdog()
            self._wait(self._sleep(now))
            while self._ended and not self._stops:
                self._plan_restart(self._ended.pop())

    def _tend(self, slot: Slot, now: float) -> None:
        """Start a process that is due, and end one that was restarted and does not get ready."""
        if slot.restart_at is not None and now >= slot.restart_at:
            self._start(slot)
        elif slot.child is not None and not slot.child.ready and now >= slot.ready_by:
            log.error("%s was not ready within start_timeout and is killed", slot.spec.peer)
            slot.child.kill()

    def _sleep(self, now: float) -> float | None:
        """Seconds until something is due; None: until something happens."""
        due = [slot.restart_at for slot in self._slots if slot.restart_at is not None]
        due += [slot.ready_by for slot in self._slots if slot.child is not None and not slot.child.ready]
        seconds = [max(0.0, time_due - now) for time_due in due]
        if self._notifier.watchdog_interval is not None:
            seconds.append(self._notifier.watchdog_interval)
        return min(seconds, default=None)

    def _plan_restart(self, slot: Slot) -> None:
        assert slot.child is not None
        how = slot.child.how_it_ended()
        slot.child = None
        now = time.monotonic()
        delay = slot.patience.next_delay(now)
        if delay is None:
            log.error("%s ended with %s, too often (restart_limit); stopping everything", slot.spec.peer, how)
            self._failed = True
            return
        log.warning("%s ended with %s; it is started again in %.1f s", slot.spec.peer, how, delay)
        slot.restart_at = now + delay

    # ---------------------------------------------------------------- what wakes us
    def _wait(self, seconds: float | None) -> None:
        if self._relay.waiting:
            seconds = RETRY if seconds is None else min(RETRY, seconds)
        for key, _ in self._selector.select(seconds):
            key.data()
        if self._inherits:
            children = (slot.child for slot in self._slots if slot.child is not None)
            reap_orphans({child.pid for child in children if child.exit_code is None})
        self._relay.flush()

    def _signalled(self, numbers: list[int]) -> None:
        for number in numbers:
            if number == signal.SIGHUP and self._read is not None and not self._terminal_closed():
                self._reload(self._read)
            else:
                self._stops += 1

    def _terminal_closed(self) -> bool:
        return self._terminal and not has_terminal()

    def _reload(self, read: Callable[[], Settings]) -> None:
        """Take keys and log level from the settings file; a file that cannot be read changes nothing."""
        try:
            new = read()
        except SettingsError as error:
            log.error("nothing is reloaded: %s", error)
            return
        self._settings = reloaded(self._settings, new)
        set_level(self._settings)
        config.save(self._settings, self._run_dir.settings_file)
        for slot in self._slots:
            if slot.child is not None:
                slot.child.reload()
        log.info("reloaded %s", ", ".join(RELOADED))

    def _parent_ended(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        log.info("the process that wanted these services has ended")
        self._stops += 1

    def _heard(self, inbox: NotifyInbox) -> None:
        children = {slot.child.pid: slot.child for slot in self._slots if slot.child is not None}
        for notice in inbox.receive():
            child = children.get(notice.pid)
            if child is not None and notice.ready and not child.ready:
                child.ready = True
                if child.stale:
                    child.reload()
                log.info("%s is ready", child.peer)

    def _pass_on(self, child: Child) -> None:
        if child.exit_code is None:
            self._relay.put(child.lines.read()[0])
            if child.lines.closed:
                self._selector.unregister(child.lines)

    def _reap(self, slot: Slot, child: Child) -> None:
        self._selector.unregister(child)
        if not child.lines.closed:
            self._selector.unregister(child.lines)
        self._relay.put(child.reap())
        child.ready = False
        self._ended.append(slot)

    # ---------------------------------------------------------------- stop
    def _stop_all(self, drain: float) -> None:
        """Role after role, the first reader of requests first, so that what runs can finish."""
        self._notifier.stopping()
        for role in ROLES:
            for child in self._living(role):
                child.terminate()
            self._wait_for(role, drain + DRAIN_GRACE if role == "api" else STAGE_GRACE)
            for child in self._living(role):
                log.warning("%s did not stop in time and is killed", child.peer)
                child.kill()
            self._wait_for(role, KILL_GRACE, even_if_forced=True)

    def _wait_for(self, role: str, seconds: float, *, even_if_forced: bool = False) -> None:
        """Wait until a role's processes have ended; a second stop signal cuts that short."""
        deadline = time.monotonic() + seconds
        while self._living(role) and (even_if_forced or self._stops < 2):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._wait(left)

    def _living(self, role: str) -> list[Child]:
        children = [slot.child for slot in self._slots if slot.spec.peer.role == role]
        return [child for child in children if child is not None and child.exit_code is None]


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m forebay.supervisor`: run the processes that a settings file names; stop when our parent ends."""
    parser = argparse.ArgumentParser(prog="python -m forebay.supervisor", description=main.__doc__)
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--remove-run-dir", action="store_true", help="the run folder was made for this front alone")
    args = parser.parse_args(argv)
    run_dir: RunDir | None = None
    try:
        settings = config.load(config=args.config, environ={}, overrides={})
        logs.set_up("supervisor", settings.log_level, settings.log_format)
        run_dir = open_run_dir(str(args.run_dir))
        run_dir.made = run_dir.made or args.remove_run_dir
        roles = role_specs(settings, run_dir)
        return Supervisor(settings, run_dir, roles, parent=parent_pid(os.environ)).run()
    except ForebayError as error:
        Notifier.from_environ(os.environ).send(X_FOREBAY="failed", STATUS=str(error))
        print(f"forebay: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    finally:
        if run_dir is not None:
            run_dir.close()


if __name__ == "__main__":
    sys.exit(main())
