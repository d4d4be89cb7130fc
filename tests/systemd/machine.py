"""A systemd that `deploy/try-systemd` has booted, with forebay installed in it: commands, files and requests."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx

from forebay.topology import ROLES
from tests.helpers.front import wait_for

PROCESS_1 = "FOREBAY_SYSTEMD"
"""Set by `deploy/try-systemd`: the number of the systemd's process 1, as this process sees it."""
URL = "http://127.0.0.1:8000"
"""The default address: `deploy/try-systemd` runs us in the network of the new systemd."""
CONFIG = "etc/forebay/forebay.toml"
UNITS = tuple(f"forebay-{role}@0.service" for role in ROLES)
ALL = ("forebay.target", "forebay-*.service")
"""What a stop must name to wait for the processes: the job of the target alone is done before theirs."""


class Machine:
    """Handle of the new systemd. `root` is its file system, seen from here."""

    def __init__(self, environ: os._Environ[str]) -> None:
        self._pid = int(environ[PROCESS_1])
        self.root = Path(f"/proc/{self._pid}/root")

    def run(self, *words: str, seconds: float = 100.0) -> str:
        """Standard output of a command in the machine; it must succeed."""
        enter = ("nsenter", "-t", str(self._pid), "-a", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
        done = subprocess.run([*enter, *words], capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}\n{self.journal()[-8000:]}"
        return done.stdout

    def systemctl(self, *words: str) -> None:
        self.run("systemctl", *words)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).strip()

    def restarts(self, unit: str) -> int:
        return int(self.show(unit, "NRestarts"))

    def journal(self, *words: str) -> str:
        """What the units and systemd about them have written."""
        return self.run("journalctl", "--no-pager", "-o", "short-precise", *(words or ("-u", "forebay*")))

    def configure(self, **settings: str | int | float) -> None:
        """Replace the settings file, its owner and mode kept."""
        lines = [
            f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}" for name, value in settings.items()
        ]
        (self.root / CONFIG).write_text("\n".join(lines) + "\n")

    def drop_in(self, unit: str, text: str | None) -> None:
        """Add a drop-in to a unit, or take it back (None), and let systemd read it."""
        folder = self.root / "etc/systemd/system" / f"{unit}.d"
        folder.mkdir(exist_ok=True)
        (folder / "test.conf").unlink(missing_ok=True)
        if text is not None:
            (folder / "test.conf").write_text(text)
        self.systemctl("daemon-reload")

    def start(self) -> None:
        """`systemctl start forebay.target`, with the counters of earlier restarts forgotten."""
        self.systemctl("reset-failed")
        self.systemctl("start", "forebay.target")

    def stop(self) -> None:
        """Stop the front and wait until its processes have ended."""
        self.systemctl("stop", *ALL)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(URL + path, timeout=30, **options)

    def generate(self, **headers: str) -> httpx.Response:
        """A short generation of the echo engine."""
        body = {"text": "fox", "sampling_params": {"max_new_tokens": 4}}
        return httpx.post(f"{URL}/generate", json=body, headers=headers, timeout=30)

    def ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.get("/ready").status_code == 200
        return False

    def wait_ready(self, seconds: float = 60.0) -> None:
        try:
            wait_for(self.ready, seconds, "the front")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.journal()[-8000:]}") from None

    def left(self) -> list[str]:
        """Files of the run folder but the counters, which stay so that sums never go back."""
        folder = self.root / "run/forebay"
        return sorted(path.name for path in folder.iterdir() if path.suffix != ".counts")

    def processes(self) -> list[str]:
        """Command lines of the user of the units."""
        done = self.run("sh", "-c", "ps -u forebay -o args= || true")
        return done.splitlines()
