"""What the shim keeps from the scheduler: requests while generation is paused or weights change, and calls in turn.

It stands in the link, so a pause is the same for every api process. Pure: entries and answers in and out.

Calls of one type reach the engine one after the other, each when the one before it was answered. An *exclusive* call
(new weights) waits until the engine is empty and holds new requests meanwhile, unless generation is paused already.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from forebay.wire.messages import AbortRequest, ControlRequest

PAUSE, RESUME = "PauseGeneration", "ContinueGeneration"
AGAIN_SECONDS = 1.0
"""How often everything is aborted anew while a pause waits for the engine to be empty."""
PAUSED = {"success": True, "message": "Generation paused successfully."}
RESUMED = {"success": True, "message": "Generation continued successfully."}


class Reply(NamedTuple):
    """An answer that the link itself gives."""

    call: ControlRequest
    output: dict[str, Any]


class Gate:
    """Decides what the scheduler sees now: that is appended to `out`, and what the link answers itself to `replies`."""

    def __init__(self) -> None:
        self.mode: str | None = None
        """How generation was paused (`abort`, `retract`, `in_place`); None: it goes on."""
        self.held: dict[str, Any] = {}
        """Requests that wait, by rid, in the order of their arrival."""
        self.out: deque[Any] = deque()
        self.replies: deque[Reply] = deque()
        self._pausing: list[ControlRequest] = []
        """Calls to pause by abort that wait until the engine is empty."""
        self._again = 0.0
        self._exclusive: deque[ControlRequest] = deque()
        """Exclusive calls: the first waits for an empty engine, or is being worked on."""
        self._with_engine: dict[str, ControlRequest] = {}
        self._behind: dict[str, deque[ControlRequest]] = {}

    @property
    def closed(self) -> bool:
        """Whether new requests are held."""
        return self.mode is not None or bool(self._exclusive)

    @property
    def waits(self) -> bool:
        """Whether something waits for the engine to be empty."""
        return bool(self._pausing or (self._exclusive and self._exclusive[0].type not in self._with_engine))

    # ---------------------------------------------------------------- what comes
    def call(self, call: ControlRequest, inside: int, now: float) -> None:
        """A control call; `inside`: requests that the engine has."""
        if call.type == PAUSE and call.fields.get("mode", "abort") == "abort":
            self.mode = "abort"
            self._pausing.append(call)
            self._again = now
            self.look(inside, now)
        elif call.exclusive and self.mode is None:
            self._exclusive.append(call)
            if call.fields.get("abort_all_requests") and inside:
                self.out.append(AbortRequest("", "user", abort_all=True))
            self.look(inside, now)
        else:
            self._in_turn(call)

    def _in_turn(self, call: ControlRequest) -> None:
        if call.type in self._with_engine:
            self._behind.setdefault(call.type, deque()).append(call)
            return
        self._with_engine[call.type] = call
        if call.type == PAUSE:
            self.mode = str(call.fields.get("mode"))
        self.out.append(call)

    def look(self, inside: int, now: float) -> None:
        """See whether what waits for an empty engine may go on; repeat the abort of a pause that waits."""
        if self._pausing and not inside:
            self.replies.extend(Reply(call, PAUSED) for call in self._pausing)
            self._pausing.clear()
        if self._pausing and now >= self._again:
            self._again = now + AGAIN_SECONDS
            self.out.append(AbortRequest("", "user", abort_all=True))
        if self.waits and not inside:
            self._in_turn(self._exclusive[0])

    # ---------------------------------------------------------------- what goes
    def answered(self, call: ControlRequest, output: Any) -> Any:
        """The engine has answered a call; what its client is told."""
        success = isinstance(output, dict) and output.get("success") is True
        if call.type == RESUME and not success and self.mode == "abort":
            output, success = RESUMED, True  # only the link was paused: the engine need not know of pauses
        if (call.type, success) in ((RESUME, True), (PAUSE, False)):
            self.mode = None
        self._done(call)
        return output

    def cancel(self, rid: str) -> bool:
        """Nobody waits for a call any more: it gives up its turn, and is dropped if the engine has not seen it."""
        for call in [*self._pausing, *self._exclusive, *self._with_engine.values(), *_flat(self._behind)]:
            if call.rid == rid:
                self._done(call)
                return True
        return False

    def cancel_api(self, number: int) -> None:
        """An api process is gone, and with it everybody who waited for its calls."""
        for call in [*self._pausing, *self._exclusive, *self._with_engine.values(), *_flat(self._behind)]:
            if call.api == number:
                self.cancel(call.rid)

    def _done(self, call: ControlRequest) -> None:
        for group in (self._pausing, self._exclusive, self._behind.get(call.type, ())):
            if call in group:
                group.remove(call)  # type: ignore[union-attr]
        if self._with_engine.get(call.type) is call:
            del self._with_engine[call.type]
            behind = self._behind.get(call.type)
            if behind:
                self._in_turn(behind.popleft())
        self._release()

    def _release(self) -> None:
        if not self.closed and self.held:
            self.out.extend(self.held.values())
            self.held.clear()


def _flat(queues: dict[str, deque[ControlRequest]]) -> list[ControlRequest]:
    return [call for queue in queues.values() for call in queue]
