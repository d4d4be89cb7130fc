"""The services beside an engine: `start_services` runs them under a supervisor process that ends with the engine.

It returns as soon as the processes run, before they are ready: the warm-up request needs the engine's own loop.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from forebay import config
from forebay.child import child_environment
from forebay.errors import StartError
from forebay.listen import settle_address
from forebay.notify import NotifyInbox
from forebay.rundir import RunDir, lock_front, open_run_dir
from forebay.settings import Settings

START_WAIT = 30.0
"""Seconds until the supervisor must have started its processes (it waits for none of them)."""
STOP_SLACK = 15.0
"""Seconds beyond `drain_timeout` until a supervisor that does not stop is killed; its processes end with it."""


class Services:
    """The running services of one engine. `state` never waits; `stop` ends them in order."""

    def __init__(
        self, settings: Settings, run_dir: RunDir, inbox: NotifyInbox, process: subprocess.Popen[bytes]
    ) -> None:
        self.settings = settings
        """As given, with the port that was taken and engine="none"."""
        self.run_dir: Path = run_dir.path
        self.error = ""
        """Why the services could not start, once `state` is `failed`."""
        self._folder = run_dir
        self._inbox = inbox
        self._process = process
        self._state = "launched"

    def state(self) -> str:
        """`launched`, `started` (processes run), `ready` (they serve), `failed` or `ended`."""
        for notice in self._inbox.receive() if self._state not in ("failed", "ended") else ():
            if notice.pid == self._process.pid:
                self._heard(notice.fields)
        if self._state not in ("failed", "ended") and self._process.poll() is not None:
            self._state = "ended"
        return self._state

    def _heard(self, fields: dict[str, str]) -> None:
        if fields.get("READY") == "1":
            self._state = "ready"
        elif fields.get("X_FOREBAY") in ("started", "failed"):
            self._state = fields["X_FOREBAY"]
            self.error = fields.get("STATUS", "") if self._state == "failed" else ""

    def wait_started(self, seconds: float) -> None:
        """Wait until the processes run; raises `StartError` with the reason when they cannot."""
        deadline = time.monotonic() + seconds
        while self.state() == "launched":
            left = deadline - time.monotonic()
            if left <= 0:
                raise StartError(f"the supervisor of the services has not started them within {seconds:g} s")
            select.select([self._inbox], [], [], min(left, 0.2))  # 0.2: its end makes nothing readable
        if self._state in ("failed", "ended"):
            raise StartError(self.error or f"the supervisor ended with exit code {self._process.returncode}")

    def stop(self) -> None:
        """Stop the services in order, within `drain_timeout` and some seconds. Safe to call twice."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(self.settings.drain_timeout + STOP_SLACK)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.state()
        self._inbox.close()
        self._folder.close()


def start_services(settings: Settings) -> Services:
    """Start api, tokenizer and detokenizer processes for an engine in this process.

    Raises `StartError` when the port is taken, the run folder is in use, or a process cannot be started.
    """
    settings = msgspec.structs.replace(settle_address(settings), engine="none")
    run_dir = open_run_dir(settings.run_dir)
    with lock_front(run_dir.path):
        config.save(settings, run_dir.settings_file)
        inbox = NotifyInbox(run_dir.path / "launcher.sock")
    command = [sys.executable, "-m", "forebay.supervisor", "--run-dir", str(run_dir.path)]
    command += ["--config", str(run_dir.settings_file), *(["--remove-run-dir"] if run_dir.made else [])]
    environ = child_environment(os.environ, str(inbox.path), os.getpid())
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ, start_new_session=True)  # noqa: S603
    services = Services(settings, run_dir, inbox, process)
    try:
        services.wait_started(START_WAIT)
    except StartError:
        services.stop()
        raise
    return services
