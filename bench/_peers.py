"""The fronts that forebay is compared with, under mock engines that speak their own links (see `fetch_peers.sh`)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _common import HERE, tied
from _control import Controlled
from _fronts import Threads

START_SECONDS = 60.0
STOP_SECONDS = 10.0


def free_port() -> int:
    """A port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes] | None, log: Path) -> None:
    """Wait until something listens; raises `RuntimeError`."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port}:\n{log.read_text(errors='replace')[-2000:]}")


class Sglang:
    """SGLang's embedded server: Rust threads inside the scheduler's process."""

    name = "sglang"
    rid_field = "rid"
    model = "mock"

    def __init__(self, peers: Path, text: Path, *, incremental: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.port = free_port()
        log = Path(self._folder.name, "sglang.log")
        command = [sys.executable, str(HERE / "peers" / "sglang_mock.py"), "--port", str(self.port)]
        command += ["--sglang", str(peers / "sglang"), "--model", str(peers / "model"), "--text", str(text)]
        try:
            self._engine = Controlled([*command, *(["--incremental"] if incremental else [])], log)
        except RuntimeError:
            self._folder.cleanup()
            raise
        self.pids = self.rss_pids = [int(self._engine.facts["pid"])]
        wait_for_port(self.port, None, log)

    def set_step(self, step_ms: float) -> None:
        self._engine.tell("step", step_ms)

    def link_cpu_s(self) -> float:
        return float(self._engine.tell("stats")["link_cpu_s"])

    def by_process(self, threads: Threads) -> dict[str, float]:
        """All threads but the scheduler's, which is the mock itself."""
        (names,) = threads.values()
        return {"server-threads": sum(spent for name, spent in names.items() if name != "main")}

    def log(self, path: str) -> None:
        self._engine.tell("log", path)

    def engine_name(self, rid: str) -> Sequence[str]:
        return (rid,)

    def close(self) -> None:
        self._engine.close()
        self._folder.cleanup()


class Vllm:
    """vLLM's Rust front, a process of its own; what its engine's process pays for the link is not counted."""

    name = "vllm-rs"
    rid_field = "request_id"
    model = "mock"

    def __init__(self, peers: Path, text: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fb-")
        folder, model = Path(self._folder.name), peers / "model"
        self.port, handshake = free_port(), free_port()
        command = [str(peers / "vllm/vllm/vllm-rs"), "serve", str(model), "--served-model-name", self.model]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--data-parallel-size-local", "0", "--data-parallel-rpc-port", str(handshake)]
        environ = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        log = folder / "server.log"
        with log.open("wb") as output:
            self._server = subprocess.Popen(
                tied(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environ
            )
        self._engine: Controlled | None = None
        try:
            mock = [sys.executable, str(HERE / "peers" / "vllm_mock.py"), "--model", str(model), "--text", str(text)]
            self._engine = Controlled([*mock, "--handshake", f"tcp://127.0.0.1:{handshake}"], folder / "mock.log")
            wait_for_port(self.port, self._server, log)
        except RuntimeError:
            self.close()
            raise
        self.pids = self.rss_pids = [self._server.pid]

    def _tell(self, *words: object) -> Mapping[str, Any]:
        assert self._engine is not None
        return self._engine.tell(*words)

    def set_step(self, step_ms: float) -> None:
        self._tell("step", step_ms)

    def link_cpu_s(self) -> float:
        return 0.0

    def by_process(self, threads: Threads) -> dict[str, float]:
        return {"vllm-rs": sum(sum(names.values()) for names in threads.values())}

    def log(self, path: str) -> None:
        self._tell("log", path)

    def engine_name(self, rid: str) -> Sequence[str]:
        return tuple(f"{prefix}{rid}{suffix}" for prefix in ("", "cmpl-", "chatcmpl-") for suffix in ("", "-0"))

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._folder.cleanup()
