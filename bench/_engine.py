"""The engine process of the benchmarks: the echo engine, which launches a real front and notes when it did what.

It is used by the other scripts, which start it with forebay's own flags behind `--` and steer it through `_control`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from _control import Commands, StepLog

from forebay import Front, GenerateRequest, GenerationBatch
from forebay.cli import Parser
from forebay.config import load
from forebay.flags import add_flags, given_flags
from forebay.settings import Settings
from forebay_engine import loop
from forebay_engine.echo import EchoEngine, open_echo


class LoggedEcho:
    """An `EchoEngine` with a log: when each request came, when its first token was made, when each step was."""

    def __init__(self, engine: EchoEngine) -> None:
        self.engine = engine
        self.log = StepLog()
        self._fresh: list[str] = []
        for name in ("abort", "embeddings", "pause", "resume", "patience", "flush", "state"):
            setattr(self, name, getattr(engine, name))

    def add(self, request: GenerateRequest) -> None:
        name = request.public_rid or request.rid
        self.log.took(name, time.monotonic_ns())
        self._fresh.append(name)
        self.engine.add(request)

    def step(self) -> GenerationBatch | None:
        batch = self.engine.step()
        if batch is not None:
            log = self.log
            for name in self._fresh:
                if name in log.requests:
                    log.requests[name][1] = len(log.steps)
            self._fresh.clear()
            log.steps.append(time.monotonic_ns())
        return batch


class Steering:
    """Called once a turn of the loop: says when the front is ready, obeys commands, says when to stop."""

    def __init__(self, front: Front, engine: LoggedEcho) -> None:
        assert front.services is not None
        self.front, self.engine, self.services = front, engine, front.services
        self.commands = Commands()
        self.ready = False

    def __call__(self) -> bool:
        if not self.ready:
            self._look()
        words = self.commands.next()
        if words is None:
            return False
        if words[0] == "quit":
            return True
        self._obey(words)
        return False

    def _look(self) -> None:
        state = self.services.state()
        if state in ("failed", "ended"):
            raise SystemExit(f"the front did not start: {self.services.error or state}")
        if state == "ready":
            self.ready = True
            folder = self.services.run_dir
            pids = {path.stem: int(path.read_text()) for path in folder.glob("*.lock")}
            pids["engine-0"] = os.getpid()
            self.commands.answer(ready=True, port=self.services.settings.port, pids=pids)

    def _obey(self, words: list[str]) -> None:
        if words[0] == "step":
            self.engine.engine.step_seconds = float(words[1]) / 1000
        elif words[0] == "log":
            self.engine.log.write(words[1])
        else:
            self.commands.answer(error=f"unknown command {words[0]}")
            return
        self.commands.answer(ok=True)


def settings_from(flags: Sequence[str], text: str) -> Settings:
    """The settings of these flags, on a free port of the loopback unless they say otherwise."""
    parser = Parser(prog="forebay", allow_abbrev=False)
    add_flags(parser)
    chosen: dict[str, Any] = {"port": 0, "log_level": "warning", "echo_text": text}
    chosen |= given_flags(parser.parse_args(flags))
    return load(config=None, environ=os.environ, overrides=chosen)


def main() -> int:
    """Serve until told to quit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    settings = settings_from(options.flags, options.text.read_text(encoding="utf-8"))
    engine, facts = open_echo(settings)
    logged = LoggedEcho(engine)
    # The services hear of the tokenizer and of the model's name by the facts; the text is the engine's own.
    with Front.launch(facts, msgspec.structs.replace(settings, echo_text=None)) as front:
        loop.run(front, logged, Steering(front, logged))  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
