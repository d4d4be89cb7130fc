"""A real front for tests: `forebay serve` on a free port, in a private run folder, with nothing left at the end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.helpers.tied import tied

T = TypeVar("T")
START_SECONDS = 60.0
STOP_SECONDS = 20.0


def wait_for(condition: Callable[[], T], seconds: float = 20.0, what: str = "the condition") -> T:
    """Poll until `condition` gives something true, and return that; fails the test at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds:g} s")
        time.sleep(0.02)


class Front:
    """A running front."""

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path, log: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self.log = log
        self.url = ""

    def text(self) -> str:
        """What the processes have printed so far."""
        return self.log.read_text(errors="replace")

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait for the ready line and take the address from it."""

        def ready() -> re.Match[str] | None:
            if self.process.poll() is not None:
                raise AssertionError(f"the front ended with {self.process.returncode}:\n{self.text()}")
            return re.search(r"forebay is ready at ((?:https?://|unix:)\S+)", self.text())

        try:
            found = wait_for(ready, seconds, "the ready line")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None
        assert found is not None
        self.url = found[1]

    def pids(self) -> dict[str, int]:
        """Process ids by name (`api-0`, ...), from the lock files."""
        found = {path.stem: path.read_text() for path in self.run_dir.glob("*.lock")}
        return {name: int(text) for name, text in found.items() if text}  # empty: it is just being taken

    def client(self, **options: Any) -> httpx.Client:
        """An HTTP client of this front."""
        if self.url.startswith("unix:"):
            options["transport"] = httpx.HTTPTransport(uds=self.url.removeprefix("unix:"))
        base = "http://localhost" if "transport" in options else self.url
        return httpx.Client(base_url=base, timeout=30, **options)

    def connect(self) -> socket.socket:
        """A plain connection, for bytes that no client sends."""
        url = httpx.URL(self.url)
        made = socket.create_connection((url.host, url.port or 80), timeout=10)
        made.settimeout(10)
        return made

    def state(self) -> dict[str, Any]:
        """The engine's live state."""
        with self.client() as client:
            answer = client.get("/get_internal_state")
            answer.raise_for_status()
            state: dict[str, Any] = answer.json()[0]
            return state

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    out = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            out += data
    return out


@contextlib.contextmanager
def running(
    folder: Path, *flags: str, environ: dict[str, str] | None = None, seconds: float = START_SECONDS
) -> Iterator[Front]:
    """`forebay serve` with these flags, ready to serve; at the end it is stopped and must have left nothing."""
    run_dir, log = folder / "run", folder / "front.log"
    command = [sys.executable, "-m", "forebay.cli", "serve", "--port", "0", "--run-dir", str(run_dir), *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            tied(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
    front = Front(process, run_dir, log)
    family: list[psutil.Process] = []
    try:
        front.wait_ready(seconds)
        family = psutil.Process(process.pid).children(recursive=True)
        yield front
        with contextlib.suppress(psutil.NoSuchProcess):  # the test stopped it
            family += [child for child in psutil.Process(process.pid).children(recursive=True) if child not in family]
    except BaseException:
        print(front.text()[-20_000:])
        raise
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            front.stop()
        if process.poll() is None:
            process.kill()
            process.wait()
        left = [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        for child in left:
            child.kill()
    assert not left, f"processes were left running: {left}\n{front.text()}"
    files = sorted(path.name for path in run_dir.iterdir()) if run_dir.exists() else []
    assert not files, f"files were left in the run folder: {files}"
    assert "Traceback" not in front.text(), front.text()
