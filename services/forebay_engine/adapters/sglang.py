"""forebay in the place of SGLang's own front, inside SGLang's unmodified scheduler. Written against SGLang 0.5.23.

SGLang loads `register` through its plug-in group `sglang.srt.plugins` in every process it starts. With FOREBAY=1 it
replaces one method, `Scheduler.get_rust_server_class`: the scheduler then calls `SGLangFront` where it would call its
embedded server. What the calls carry is translated in `sglang_requests` and `sglang_outputs`.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing.util
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from forebay import (
    AbortRequest,
    ControlRequest,
    ForebayError,
    Front,
    GenerationBatch,
    LinkError,
    StartError,
    WireError,
    should_launch,
)
from forebay_engine.adapters.sglang_facts import Launch, read_launch
from forebay_engine.adapters.sglang_outputs import Outputs, to_maps
from forebay_engine.adapters.sglang_requests import Requests, UnknownControl, load_types

SWITCH = "FOREBAY"
"""The environment variable that puts forebay into SGLang."""
UNANSWERED = 1024
"""Control requests that are remembered until SGLang answers; it never answers some, and those must not pile up."""
REPLACED = "sglang.srt.managers.scheduler.Scheduler.get_rust_server_class"

log = logging.getLogger("forebay.sglang")


def register() -> None:
    """The plug-in. Does nothing, and imports nothing of SGLang, unless the switch is on."""
    if not should_launch(os.environ, 0, SWITCH):
        return
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    # SGLang asks for its embedded server by this name; the processes it starts later inherit it.
    os.environ["SGLANG_RUST_SERVER"] = "1"
    hooks.HookRegistry.register(REPLACED, lambda scheduler: SGLangFront, hooks.HookType.REPLACE)


class SGLangFront:
    """What SGLang's scheduler calls in place of its `RustServer`. One thread calls it, the scheduler's.

    An exception that leaves a method ends the scheduler process with all its requests, so after the launch none does.
    """

    def __init__(self, front: Front, requests: Requests, http_port: int, load: Callable[[], Any] | None = None) -> None:
        """`load` gives SGLang's `LoadSnapshot`: how busy the scheduler is."""
        self.http_port = http_port
        self.startup_time: dict[str, Any] | None = None
        self._front = front
        self._requests = requests
        self._load = load
        self._outputs = Outputs()
        self._asked: dict[str, ControlRequest] = {}
        self._refused: list[str] = []
        """Requests whose step could not be sent: SGLang is told to abort them with the next `drain`."""

    # ---------------------------------------------------------------- life
    @classmethod
    def launch(cls, scheduler: Any) -> Self:
        """Start the front's services beside this scheduler. Raises `StartError` or `SettingsError` with the reason.

        Returns at once: clients are served when the services are ready and the scheduler's loop runs.
        """
        launch = read_launch(scheduler, os.environ)
        requests = Requests(load_types(), launch.lora_ids, engine_stops=launch.engine_stops)
        front = Front.launch(launch.facts, launch.settings, decoder=requests.decode)
        made = cls(front, requests, cls._port(front, launch), lambda: scheduler.load_inquirer.get_loads())
        # SGLang's processes end without running `atexit`; this is what multiprocessing runs in its place.
        multiprocessing.util.Finalize(None, front.close, exitpriority=10)
        return made

    @staticmethod
    def _port(front: Front, launch: Launch) -> int:
        if front.services is None:
            raise StartError("the front runs without services")
        return front.services.settings.port if launch.settings.uds is None else 0

    def set_startup_time(self, scheduler_startup_time: dict[str, Any]) -> None:
        """How long the scheduler took to start, shown in its internal state."""
        self.startup_time = {"scheduler": scheduler_startup_time}

    def mm_transport_stats(self) -> dict[str, int]:
        """Media hand-over counts: forebay carries none."""
        return {}

    # ---------------------------------------------------------------- requests in
    def wait_request(self, timeout_ms: int) -> None:
        """Sleep until something waits for `drain`, at most `timeout_ms`, without the interpreter lock."""
        self._front.wait_ingress(timeout_ms)

    def drain(self, max_recv: int) -> list[Any]:
        """What has arrived, as SGLang's own request types, in order; never waits."""
        entries: Sequence[Any] = self._front.drain(max_recv)
        if self._refused:
            entries = [AbortRequest(rid, "lost") for rid in self._refused] + list(entries)
            self._refused.clear()
        if not entries:
            return []
        out = []
        for entry in entries:
            typed = self._typed(entry)
            if typed is not None:
                out.append(typed)
        return out

    def _typed(self, entry: Any) -> Any:
        """A drained entry as SGLang's type; generation requests have it already, from the decoder."""
        if isinstance(entry, AbortRequest):
            return self._requests.abort(entry)
        if isinstance(entry, ControlRequest):
            return self._control(entry)
        return entry

    def _control(self, entry: ControlRequest) -> Any:
        try:
            request = self._requests.control(entry)
        except UnknownControl as error:
            self._answer(entry, {"success": False, "message": str(error)})
            return None
        if self._requests.is_silent(request):
            self._answer(entry, {"success": True})
        else:
            self._asked[entry.rid] = entry
            if len(self._asked) > UNANSWERED:
                del self._asked[next(iter(self._asked))]
        return request

    # ---------------------------------------------------------------- results out
    def push_generation(self, payload: Any, decode_latencies: Mapping[int, float] | None = None) -> None:
        """One step of the scheduler: a `BatchTokenIDOutput`, and the decode latencies of finished rows by row."""
        if payload.rids:
            self._push(self._outputs.batch(payload, decode_latencies))

    def push_abort(self, abort: Any, request: Any) -> None:
        """The end of a request outside the output stream: aborted while it waited, preempted, refused."""
        reason = abort.finished_reason or {
            "type": "abort",
            "message": abort.abort_message or "Abort in waiting queue",
            "status_code": None,
            "err_type": None,
        }
        self._outputs.forget(abort.rid)
        batch = GenerationBatch(
            [abort.rid],
            [array("q")],
            [reason],
            prompt_tokens=[len(request.origin_input_ids)],
            cached_tokens=[request.cached_tokens],
            reasoning_tokens=[request.reasoning_tokens],
        )
        if abort.weight_versions is not None:
            batch.trailing = {"weight_versions": [to_maps(abort.weight_versions)]}
        self._push(batch)

    def push_control_output(self, request: Any, output: Any) -> None:
        """The answer to a control request, routed by its rid; one that forebay did not ask for is dropped."""
        asked = self._asked.pop(request.rid, None)
        if asked is None:
            return
        answer = self._requests.answer(output)
        if asked.type == "GetInternalState" and self._load is not None and isinstance(answer, dict):
            # Where /v1/loads and the metrics look for it; SGLang's own front reads shared memory.
            answer = {**answer, **self._requests.answer(self._load())}
        self._answer(asked, answer)

    def push_health_ack(self) -> None:
        """The engine is alive, though too busy for output."""
        self._front.push_health_ack()

    def _answer(self, asked: ControlRequest, output: Any) -> None:
        try:
            self._front.push_control_output(asked, output)
        except ForebayError as error:
            log.warning("the answer to %s could not be sent: %s", asked.type, error)

    def _push(self, batch: GenerationBatch) -> None:
        try:
            self._front.push_generation(batch)
        except WireError as error:
            log.error("a step of %d requests could not be encoded, they end: %s", len(batch.rids), error)
            self._refuse(batch.rids)

    def _refuse(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self._outputs.forget(rid)
            try:
                self._front.push_error(rid, "the engine's output could not be encoded", 500)
            except LinkError as error:
                log.warning("the error of %s could not be sent: %s", rid, error)
        self._refused += rids
