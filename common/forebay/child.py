"""One process under the supervisor: how it is started, what it said last, how it ends.

It gets a session of its own, so that Ctrl-C in a terminal reaches the supervisor alone. What it writes comes through a
pipe; the last lines are kept for the error text of a start that fails.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from forebay.lifetime import PARENT_PID
from forebay.patience import Patience
from forebay.relay import Lines
from forebay.rundir import RunDir
from forebay.settings import Settings
from forebay.topology import Peer, Topology

STRIPPED = ("FOREBAY_", "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "INVOCATION_ID", "JOURNAL_STREAM")
"""What a child must not take over from our own start: settings (they come as a file), our service manager."""
ALWAYS = {"PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
"""The second keeps a file in the working folder (`tokenizers.py`) from being imported in place of a package."""
UNLESS_SET = {
    "TOKENIZERS_PARALLELISM": "false",
    # Frames over 128 KB would cost a fresh mapping and its page faults each step (measured: 347 -> 151 us).
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
}


@dataclass(frozen=True)
class RoleSpec:
    """A process that the supervisor keeps running."""

    peer: Peer
    command: tuple[str, ...]


def role_specs(settings: Settings, run_dir: RunDir) -> list[RoleSpec]:
    """The processes of these settings and the commands that run them; with engine="none" the services alone."""
    topology = Topology.of(settings, run_dir.path)
    places = ("--run-dir", str(run_dir.path), "--config", str(run_dir.settings_file))
    return [
        RoleSpec(peer, (sys.executable, "-m", f"forebay_{peer.role}", "--index", str(peer.number), *places))
        for peer in topology.processes()
        if peer.role != "engine" or settings.engine != "none"
    ]


def child_environment(environ: Mapping[str, str], notify_socket: str, parent: int) -> dict[str, str]:
    """The environment of a process started by the supervisor `parent`, made from the supervisor's own."""
    kept = {name: value for name, value in environ.items() if not name.startswith(STRIPPED)}
    return {**UNLESS_SET, **kept, **ALWAYS, "NOTIFY_SOCKET": notify_socket, PARENT_PID: str(parent)}


class Child:
    """A running process. `fileno` is readable when it has ended: then call `reap`; `lines` when it has written."""

    def __init__(self, spec: RoleSpec, environ: Mapping[str, str]) -> None:
        """Start it; raises `OSError` when the command cannot be run. Call this in the main thread: see `lifetime`."""
        self.peer = spec.peer
        self.ready = False
        self.stale = False
        """Started with settings that have been reloaded since: it is told when it is ready."""
        self.exit_code: int | None = None
        self._process = subprocess.Popen(  # noqa: S603
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
        self._descriptor = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        self.lines = Lines(self._process.stdout.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._descriptor

    def terminate(self) -> None:
        """Ask it to stop in order."""
        if self.exit_code is None:
            signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def reload(self) -> None:
        """Let it read its settings again; at once if it is ready, else it has no handler for the signal yet."""
        self.stale = not self.ready
        if self.ready and self.exit_code is None:
            signal.pidfd_send_signal(self._descriptor, signal.SIGHUP)

    def kill(self) -> None:
        """End it at once."""
        if self.exit_code is None:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def reap(self) -> bytes:
        """Take its exit code and end what is left of its session; returns its last lines. It must have ended."""
        # Before it is reaped its number cannot belong to another process, so its group cannot either.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.exit_code = self._process.wait()
        os.close(self._descriptor)
        rest, more = self.lines.read()
        while more:
            lines, more = self.lines.read()
            rest += lines
        assert self._process.stdout is not None
        self._process.stdout.close()
        return rest

    def how_it_ended(self) -> str:
        """`exit code 3` or `signal SIGKILL`."""
        code = self.exit_code
        if code is None or code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
        return f"signal {-code}"

    def last_words(self) -> str:
        """Its last lines, indented, each on a line of its own; empty when it said nothing."""
        return "".join(f"\n  {line}" for line in self.lines.last())


class Slot:
    """The place of one process: the child that fills it now, or the time at which the next one is started."""

    def __init__(self, spec: RoleSpec, patience: Patience) -> None:
        self.spec = spec
        self.patience = patience
        self.child: Child | None = None
        self.restart_at: float | None = None
        self.ready_by = 0.0

    @property
    def ready(self) -> bool:
        return self.child is not None and self.child.ready
