"""The processes as systemd starts them: each unit's own command and environment, a notify socket, no supervisor."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.notify import NotifyInbox
from forebay.topology import ROLES
from tests.helpers.front import wait_for
from tests.helpers.models import make_tokenizer
from tests.helpers.tied import tied
from tests.shim.test_keys import free_address

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
WATCHDOG_SECONDS = 1.0
INNER = ("tokenizer", "detokenizer", "engine")
"""What the order of the units starts before the api, and stops after it."""


def setting(role: str, key: str) -> list[str]:
    return re.findall(rf"(?m)^{key}=(.*)$", (UNITS / f"forebay-{role}@.service").read_text())


class Units:
    """Stands in for systemd: starts units, hears their notices, signals them."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.folder, self._config = folder, config
        self.run_dir = folder / "run"
        self.run_dir.mkdir(mode=0o700)
        self._inbox = NotifyInbox(folder / "notify.sock")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._notices: dict[int, list[dict[str, str]]] = defaultdict(list)

    def start(self, role: str) -> None:
        """Run the unit's ExecStart, with this test's Python and folders in place of the installed ones."""
        words = shlex.split(setting(role, "ExecStart")[0])
        exchange = {
            "/opt/forebay/bin/python": sys.executable,
            "/run/forebay": str(self.run_dir),
            "/etc/forebay/forebay.toml": str(self._config),
            "%i": "0",
        }
        unit = dict(pair.partition("=")[::2] for line in setting(role, "Environment") for pair in line.split())
        unit["XDG_CACHE_HOME"] = str(self.folder)
        ours = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        watch = {"NOTIFY_SOCKET": str(self._inbox.path), "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}
        with (self.folder / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                tied([exchange.get(word, word) for word in words]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**ours, **unit, **watch},
            )

    def said(self, role: str, key: str) -> list[str]:
        """What the process of a role has told under a key so far."""
        for notice in self._inbox.receive():
            self._notices[notice.pid].append(notice.fields)
        return [fields[key] for fields in self._notices[self.processes[role].pid] if key in fields]

    def log(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text()

    def wait_ready(self, role: str) -> None:
        def ready() -> bool:
            assert self.processes[role].poll() is None, self.log(role)
            return self.said(role, "READY") == ["1"]

        wait_for(ready, 30, f"READY of {role}")

    def start_all(self) -> None:
        for role in INNER:
            self.start(role)
        for role in INNER:
            self.wait_ready(role)
        self.start("api")
        self.wait_ready("api")

    def stop(self, role: str) -> int:
        """SIGTERM, as `systemctl stop`; the exit code."""
        self.processes[role].send_signal(signal.SIGTERM)
        code = self.processes[role].wait(20)
        self.said(role, "")
        return code

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self._inbox.close()


@contextlib.contextmanager
def started(folder: Path, settings: str = "") -> Iterator[Units]:
    """All four units, ready."""
    port = free_address().rpartition(":")[2]
    config = folder / "forebay.toml"
    tokenizer = make_tokenizer(folder / "model")
    config.write_text(f'port = {port}\nengine = "echo"\ntokenizer_path = "{tokenizer}"\n{settings}')
    units = Units(folder, config)
    try:
        units.start_all()
        yield units
    finally:
        units.close()


def watched(units: Units, role: str) -> bool:
    return len(units.said(role, "WATCHDOG")) >= 2


def reloaded(units: Units, role: str) -> bool:
    return "reloaded api_key" in units.log(role)


def ask(units: Units, **headers: str) -> httpx.Response:
    found = re.search(r"http://127\.0\.0\.1:\d+", units.log("api"))
    assert found is not None
    body: dict[str, Any] = {"text": "fox", "sampling_params": {"max_new_tokens": 4}}
    return httpx.post(f"{found[0]}/generate", json=body, headers=headers, timeout=20)


def test_units_of_one_front_work_without_a_supervisor(tmp_path: Path) -> None:
    with started(tmp_path) as units:
        assert ask(units).json()["meta_info"]["completion_tokens"] == 4
        for role in ROLES:
            wait_for(partial(watched, units, role), 10, f"the watchdog of {role}")
        units.processes["tokenizer"].kill()  # Restart=always
        assert units.processes["tokenizer"].wait(5) == -signal.SIGKILL
        units.start("tokenizer")
        units.wait_ready("tokenizer")
        assert ask(units).status_code == 200
        assert {role: units.stop(role) for role in ("api", *INNER)} == dict.fromkeys(ROLES, 0)
        assert {role: units.said(role, "STOPPING") for role in ROLES} == {role: ["1"] for role in ROLES}
        left = [path.name for path in units.run_dir.iterdir() if path.suffix != ".counts"]
        assert left == []  # the counters stay, so that sums never go back
        assert [role for role in ROLES if "Traceback" in units.log(role)] == []


def test_reload_of_each_unit_takes_the_new_key(tmp_path: Path) -> None:
    with started(tmp_path, 'api_key = "old"\n') as units:
        assert ask(units, authorization="Bearer old").status_code == 200
        config = tmp_path / "forebay.toml"
        config.write_text(config.read_text().replace('"old"', '"new"'))
        for role in ROLES:
            units.processes[role].send_signal(signal.SIGHUP)
        for role in ROLES:
            wait_for(partial(reloaded, units, role), 5, f"the line of {role}")
        assert ask(units, authorization="Bearer old").status_code == 401
        assert ask(units, authorization="Bearer new").status_code == 200


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """Settings for processes on TCP, as on four hosts."""
    made = subprocess.run(
        [sys.executable, "-m", "forebay.cli", "keys", str(tmp_path / "keys")], check=True, capture_output=True
    )
    assert made.stderr == b""
    endpoints = ", ".join(f'"{role}-0" = "{free_address()}"' for role in ROLES)
    return f'keys_dir = "{tmp_path / "keys"}"\nendpoints = {{{endpoints}}}\n'


def test_processes_on_tcp_with_keys_serve_as_those_on_sockets(tmp_path: Path, keys: str) -> None:
    with started(tmp_path, keys) as units:
        assert ask(units).json()["meta_info"]["completion_tokens"] == 4
        assert list(units.run_dir.glob("*-0.sock")) == []
        assert {role: units.stop(role) for role in ("api", *INNER)} == dict.fromkeys(ROLES, 0)


def test_engine_with_other_keys_stays_out_and_the_log_says_why(tmp_path: Path, keys: str) -> None:
    with started(tmp_path, keys) as units:
        units.stop("engine")
        (tmp_path / "keys").rename(tmp_path / "theirs")
        subprocess.run([sys.executable, "-m", "forebay.cli", "keys", str(tmp_path / "keys")], check=True)
        units.start("engine")
        wait_for(lambda: "refuses our connections: it has other keys" in units.log("engine"), 10, "the engine's line")
        assert "without the keys of this front tried to connect" in units.log("api")
        assert ask(units).status_code == 503
