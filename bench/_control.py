"""How a benchmark talks to an engine process that it has started: commands on stdin, one JSON line back for each."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import tied

START_SECONDS = 120.0
ANSWER_SECONDS = 30.0
STOP_SECONDS = 20.0


class Commands:
    """The engine's side. The lines are read by a thread, which costs nothing between commands."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line.split())
        self._lines.put(["quit"])

    def next(self) -> list[str] | None:
        """The words of the next command, or None. Never waits."""
        try:
            return self._lines.get_nowait() if not self._lines.empty() else None
        except queue.Empty:
            return None

    @staticmethod
    def answer(**facts: Any) -> None:
        """One line back."""
        print(json.dumps(facts), flush=True)


class StepLog:
    """When an engine took each request, and when it gave each step; joined with the client's times afterwards."""

    def __init__(self) -> None:
        self.requests: dict[str, list[int]] = {}
        """name of a request -> [ns when the engine had it, number of its first step or -1]"""
        self.steps: list[int] = []
        """ns at the end of each step, before its results are sent"""

    def took(self, name: str, now: int) -> None:
        self.requests[name] = [now, -1]

    def write(self, path: str) -> None:
        """Write it to a file, and start anew. Running requests are forgotten: write between runs."""
        Path(path).write_text(json.dumps({"requests": self.requests, "steps": self.steps}))
        self.requests, self.steps = {}, []


class Controlled:
    """The benchmark's side: a process that says `{"ready": ...}` and then answers commands."""

    def __init__(self, command: Sequence[str], log: Path, environ: dict[str, str] | None = None) -> None:
        """Start it and wait until it is ready; what it prints to stderr goes to `log`. Raises `RuntimeError`."""
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                tied(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environ, text=True
            )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.facts = self._answer(START_SECONDS)
        except RuntimeError:
            self.close()
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            found = self._answers.get(timeout=seconds)
        except queue.Empty:
            found = None
        if found is None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.process.args!r} gave no answer within {seconds:g} s, or has ended:\n{tail}")
        return found

    def tell(self, *words: object) -> dict[str, Any]:
        """Send a command; returns its answer. Raises `RuntimeError` when there is none."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError(f"{self.process.args!r} has ended:\n{self.log.read_text()[-2000:]}") from error
        return self._answer(ANSWER_SECONDS)

    def close(self) -> None:
        """Ask it to stop; kill it if it does not."""
        if self.process.poll() is None:
            with contextlib.suppress(RuntimeError, OSError):
                assert self.process.stdin is not None
                self.process.stdin.close()  # the end of its input is its `quit`
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
