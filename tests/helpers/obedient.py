"""An engine in a thread of the test's process: it notes what it is asked, and answers what the test has laid down."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forebay
from forebay import AbortRequest, ControlRequest, GenerateRequest, GenerationBatch
from tests.helpers.front import START_SECONDS, Front, running, wait_for

DONE = {"success": True, "message": "done"}


class Obedient(threading.Thread):
    """Serves a front that was started with `--engine none`. Each request gets one token, unless `holding`."""

    def __init__(self, run_dir: Path, facts: dict[str, Any]) -> None:
        super().__init__(name="obedient engine", daemon=True)
        self.run_dir, self.facts = run_dir, facts
        self.answers: dict[str, Any] = {}
        """The answer to a call by its type; None: no answer; a type without one gets success."""
        self.calls: list[ControlRequest] = []
        self.requests: list[GenerateRequest] = []
        self.held: list[GenerateRequest] = []
        self.holding = False
        self.over = threading.Event()
        self._late: list[tuple[ControlRequest, Any]] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        wait_for(lambda: (self.run_dir / "api-0.lock").exists(), START_SECONDS, "the run folder")
        with forebay.Front.connect(self.run_dir, self.facts) as front:
            while not self.over.is_set():
                front.wait_ingress(10)
                for entry in front.drain():
                    self._take(front, entry)
                self._answer_late(front)

    def _take(self, front: forebay.Front, entry: Any) -> None:
        if isinstance(entry, ControlRequest):
            self.calls.append(entry)
            answer = self.answers.get(entry.type, DONE)
            if answer is not None:
                front.push_control_output(entry, answer)
        elif isinstance(entry, AbortRequest):
            for request in [one for one in self.held if entry.abort_all or one.rid == entry.rid]:
                self.held.remove(request)
                if entry.reason == "user":
                    front.push_abort(request.rid, entry.message)
        else:
            self.requests.append(entry)
            if self.holding:
                self.held.append(entry)
            elif entry.sampling.json_schema is not None:
                front.push_error(entry.rid, "the schema cannot be compiled", param="json_schema")
            else:
                self._finish(front, entry)

    def _finish(self, front: forebay.Front, request: GenerateRequest) -> None:
        length = 0 if request.sampling.max_new_tokens == 0 else 1
        reason = {"type": "length", "length": length}
        ids = array("q", [40] * length)
        front.push_generation(GenerationBatch([request.rid], [ids], [reason], [len(request.input_ids)]))

    def _answer_late(self, front: forebay.Front) -> None:
        with self._lock:
            late, self._late = self._late, []
        for call, answer in late:
            front.push_control_output(call, answer)
        if not self.holding:
            for request in self.held:
                self._finish(front, request)
            self.held.clear()

    def answer(self, call: ControlRequest, answer: Any) -> None:
        """Answer a call that has not got an answer yet; from any thread."""
        with self._lock:
            self._late.append((call, answer))

    def stop(self) -> None:
        """Leave the front."""
        self.over.set()
        self.join(10)
        assert not self.is_alive()

    def seen(self, type_: str) -> list[ControlRequest]:
        """The calls of a type so far."""
        return [call for call in self.calls if call.type == type_]

    def last(self, type_: str) -> ControlRequest:
        """The newest call of a type."""
        return self.seen(type_)[-1]


@contextmanager
def obeyed(folder: Path, facts: dict[str, Any], *flags: str, **options: Any) -> Iterator[tuple[Front, Obedient]]:
    """A front like that of `running`, and the obedient engine that it serves."""
    engine = Obedient(folder / "run", facts)
    engine.start()
    try:
        with running(folder, "--engine", "none", *flags, **options) as front:
            try:
                yield front, engine
            finally:
                engine.stop()
    finally:
        engine.over.set()
