"""One HTTP call and the engine requests (choices) that it became; every choice has exactly one end.

`Call` keeps the account: which choices still run, what failed, when all is done. What its answer looks like is left
to `streams` (event streams) and `replies` (whole answers).
"""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.topology import Peer
from forebay.wire.messages import Admitted, End, Extra, RequestFault, WorkItem

if TYPE_CHECKING:
    from forebay_api.plan import Plan


class Choice:
    """One engine request of a call: sample `index` of the answer.

    This base collects nothing: it is the choice of a call that does not stream, whose text comes with its end.
    """

    __slots__ = (
        "aborted",
        "call",
        "detokenizer",
        "ended",
        "ended_at",
        "first_at",
        "index",
        "item",
        "prompt",
        "rid",
        "started",
    )

    def __init__(self, call: Call, rid: str, index: int, item: WorkItem, prompt: int) -> None:
        self.call = call
        self.rid = rid
        self.index = index
        self.item = item
        self.prompt = prompt
        self.started = False
        """Whether the engine has been heard of: from then on the request is never sent again."""
        self.ended = False
        self.aborted = False
        """Whether the engine has been asked to end it."""
        self.detokenizer = 0
        self.first_at = self.ended_at = 0.0
        """When the first token of a stream came, and when the request ended (`time.perf_counter`); 0: not yet."""

    def text(self, text: str) -> None:
        """One new token of a plain row."""

    def silent(self) -> None:
        """One new token that gave no text yet."""

    def close(self) -> None:
        """Out of the table: nothing that still arrives may reach the client."""
        self.ended = True

    def delta(self, text: str, tokens: int, ids: array[int] | None, extra: Extra | None) -> None:
        """New tokens, with ids and families."""

    def hold(self, text: str, tokens: int, ids: array[int] | None, extra: Extra | None) -> bool:
        """Keep a delta until `flush`; True when it is the first that is kept."""
        return False

    def flush(self) -> None:
        """Send what was held."""

    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The engine has produced the first tokens."""

    def finish(self, end: End) -> None:
        """The request is over."""
        self.call.choice_ended(self, end)

    def fail(self, fault: RequestFault) -> None:
        """The request is over with an error."""
        self.call.choice_failed(self, fault)


class Call:
    """One HTTP request with its choices. `done` is set when the answer can be completed, whatever its end."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop, request_id: str) -> None:
        self.plan = plan
        self.request_id = request_id
        self.created = int(time.time())
        self.began = time.perf_counter()
        self.done: asyncio.Future[None] = loop.create_future()
        self.choices: list[Choice] = []
        self.ends: dict[int, End] = {}
        self.faults: dict[int, RequestFault] = {}
        self.prompts: dict[str, Admitted] = {}
        """By wire id: the prompt as the engine got it, when the client asked for it."""
        self.vectors: dict[int, bytes] = {}
        """Embeddings by index, raw float32."""
        self.client_left = False
        self.expired = False
        """Whether its own time limit has ended it."""
        self.tokenizer: Peer | None = None
        self.attempt = 0

    @property
    def running(self) -> list[Choice]:
        """The choices that have not ended."""
        return [choice for choice in self.choices if not choice.ended]

    @property
    def fault(self) -> RequestFault | None:
        """The first failure, in the order of the choices."""
        return self.faults[min(self.faults)] if self.faults else None

    def choice_ended(self, choice: Choice, end: End) -> None:
        """A choice came to its end; an end with a refusal of the engine counts as a failure."""
        fault = refusal(end)
        if fault is not None:
            choice.fail(fault)
            return
        self.ends[choice.index] = end
        self.settle()

    def choice_failed(self, choice: Choice, fault: RequestFault) -> None:
        """A choice failed."""
        self.faults[choice.index] = fault
        self.settle()

    def settle(self) -> None:
        """Say that the call is done once every choice has ended."""
        if not self.done.done() and len(self.ends) + len(self.faults) >= len(self.choices):
            self.done.set_result(None)

    def leave(self) -> None:
        """The client has left: nobody waits for the answer any more."""
        self.client_left = True
        if not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        """The call is over and counted: let go of its choices, which refer to it."""
        self.choices = []

    def admitted(self, item: Admitted) -> None:
        """The prompt of one of the choices."""
        self.prompts[item.rid] = item

    def prompt_of(self, choice: Choice) -> Admitted | None:
        """The prompt of a choice; the samples of one prompt share it."""
        return next((self.prompts[rid] for rid in choice.item.rids if rid in self.prompts), None)


def refusal(end: End) -> RequestFault | None:
    """The error that a finish reason stands for: an abort of the engine with a status from 400 to 599."""
    status = end.reason.get("status_code")
    if end.reason.get("type") != "abort" or not isinstance(status, int) or not 400 <= status <= 599:
        return None
    kind = end.reason.get("err_type")
    return RequestFault(
        end.rid, status, str(end.reason.get("message") or "aborted"), kind if isinstance(kind, str) else None
    )


_NAMES = {
    "completion": {"text": "prompt", "input_ids": "prompt", "max_new_tokens": "max_tokens"},
    "chat": {"max_new_tokens": "max_tokens"},
    "embedding": {"text": "input", "input_ids": "input"},
}
"""By kind of plan: what the OpenAI routes call the fields that the other processes know by their native names."""


def as_error(fault: RequestFault, kind: str = "generate") -> RequestError:
    """The error that a client is shown for a fault; it names the field that the route's own body has."""
    type_ = fault.type if fault.type and fault.type.endswith("_error") else None
    message, native = fault.message, fault.param or ""
    param = _NAMES.get(kind, {}).get(native, fault.param)
    if param != fault.param and message.startswith(f"{native} "):
        message = f"{param}{message.removeprefix(native)}"
    # An engine may give any number; of one that is no error nobody could make an answer.
    status = fault.status if 400 <= fault.status <= 599 else 500
    return RequestError(message, status, param=param, type=type_)


def ids_of(raw: bytes | memoryview | None) -> list[int]:
    """The token ids of a raw int64 column."""
    if not raw:
        return []
    return memoryview(raw).cast("B").cast("q").tolist()


def finish_reason(end: End) -> dict[str, Any]:
    """The finish reason as the engine gave it."""
    return end.reason
