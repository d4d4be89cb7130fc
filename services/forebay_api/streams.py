"""Event streams: from what the detokenizer says to the bytes of one event, and one write a stream and step.

What the events of an API family look like is left to `openai_streams` and `native_stream`.

The token path is `text`: prefix + escaped text + suffix, straight to the transport (0.15 us to build; 4 us with
`json.dumps`). Everything else (first event, families, ids, a paused client, merging) goes through `delta`. While the
client's connection is full, or when several steps came at once, deltas are held and merged: fewer events, no lost
token, bounded memory.
"""

from __future__ import annotations

import abc
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.wire.messages import End, Extra, RequestFault, WorkItem
from forebay_api import errorbody, logprobs, replies
from forebay_api.calls import Call, Choice, as_error
from forebay_api.server import CHUNK_SIZES, EventWriter, chunk_head

if TYPE_CHECKING:
    import asyncio

    from forebay_api.plan import Plan

Buffer = bytes | bytearray
json_text = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
NO_EXTRA = Extra()
_SIZES = len(CHUNK_SIZES)


def event(body: Any) -> bytes:
    """One server-sent event with a JSON body."""
    return b"data: %b\n\n" % json_text(body)


class Held:
    """Deltas of one choice that wait to be sent as one."""

    __slots__ = ("extra", "ids", "texts", "tokens")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = 0
        self.ids: array[int] = array("q")
        self.extra: Extra | None = None


class StreamCall(Call):
    """A call that answers with an event stream."""

    choices: list[StreamChoice]  # type: ignore[assignment]

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop, request_id: str, backlog: int) -> None:
        super().__init__(plan, loop, request_id)
        self.writer: EventWriter
        self.backlog = 0
        """Bytes of text that wait for the client to read."""
        self.max_backlog = backlog
        self.too_slow: Callable[[], None] = lambda: None
        self.failed: RequestFault | None = None
        """The error that ended the stream after its first event, or instead of it."""

    def choice_failed(self, choice: Choice, fault: RequestFault) -> None:
        """One failed choice ends the whole stream: its client cannot use a part of it."""
        self.faults[choice.index] = fault
        self.failed = fault
        if not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        super().close()
        del self.writer, self.too_slow

    def room(self) -> None:
        """The client has read on: send what was held."""
        for choice in self.choices:
            choice.flush()
            choice.go_on()
        self.backlog = 0

    def full(self) -> None:
        """The client does not read as fast as the engine writes: hold what comes."""
        for choice in self.choices:
            choice.plain = False

    def refuse(self, data: bytes) -> None:
        """In place of the connection until the first event is out."""
        raise RuntimeError("an event was written before the response began")

    def last_events(self) -> bytes:
        """What closes the stream: the error, or the usage if it was asked for, and `[DONE]`."""
        if self.failed is not None:
            return event(self.error_body(self.failed)) + DONE
        return self.closing() + DONE

    def closing(self) -> bytes:
        """Events between the last choice's end and `[DONE]`."""
        if not self.plan.include_usage:
            return b""
        return event({**replies.envelope(self), "choices": [], "usage": replies.usage_of(self)})

    def error_body(self, fault: RequestFault) -> dict[str, Any]:
        """The body of the error event."""
        return errorbody.openai_stream_error(as_error(fault, self.plan.kind))


_parts: dict[tuple[type, str, int, bool], tuple[bytes, bytes, bytes]] = {}
"""What stands between id and time, between time and text, and behind the text (a line end included)."""
MAX_PARTS = 256
_ID = b'data: {"id":'
_CREATED = b',"created":'


def constant_parts(choice: StreamChoice) -> tuple[bytes, bytes]:
    """The bytes before the text of a plain event, and behind it with a line end.

    Made by `affixes` once for each model and index; other calls differ by their id and time alone.
    """
    call = choice.call
    own = _ID + json_text(call.plan.id), _CREATED + b"%d" % call.created
    key = (type(choice), call.plan.model, choice.index, call.plan.include_usage)
    known = _parts.get(key)
    if known is None:
        before, after = choice.affixes()
        middle, _, rest = before.removeprefix(own[0]).partition(own[1])
        if len(_parts) >= MAX_PARTS:
            _parts.clear()
        known = _parts[key] = middle, rest, after + b"\r\n"
    return b"".join((own[0], known[0], own[1], known[1])), known[2]


class StreamChoice(Choice, abc.ABC):
    """One choice of an event stream. Subclasses say what their events look like."""

    __slots__ = (
        "_after",
        "_before",
        "_framing",
        "_spoken",
        "_write",
        "cached_tokens",
        "completion_tokens",
        "held",
        "hidden",
        "plain",
        "prompt_tokens",
    )

    call: StreamCall

    def __init__(self, call: StreamCall, rid: str, index: int, item: WorkItem, prompt: int) -> None:
        super().__init__(call, rid, index, item, prompt)
        self.held: Held | None = None
        self.plain = False
        """Whether the next event is nothing but prefix, text and suffix and may be written at once: true from the
        first event on, while the connection has room."""
        self._spoken = False
        self._write: Callable[[bytes], object] = call.refuse
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.hidden: list[Any] = []
        """Hidden-state rows so far: the end sends them all, as a whole answer does."""
        self._before = self._after = b""
        self._framing = 0

    def prepare(self) -> None:
        """Make the constant parts of a plain event."""
        self._before, self._after = constant_parts(self)
        self._framing = len(self._before) + len(self._after) - 2

    def plain_event(self, text: str) -> bytes:
        """One event with nothing but text."""
        return b"".join((self._before, json_text(text), self._after[:-2]))

    # -- what a family of events looks like
    @abc.abstractmethod
    def affixes(self) -> tuple[bytes, bytes]:
        """The bytes before and behind the escaped text of a plain event."""

    @abc.abstractmethod
    def is_plain(self) -> bool:
        """Whether the events of this choice need nothing but text once the first is out."""

    @abc.abstractmethod
    def events(self, text: str, ids: array[int] | None, extra: Extra | None) -> Sequence[Buffer]:
        """The events of one delta that is not plain, in pieces; also the first one of a choice."""

    @abc.abstractmethod
    def end_events(self, end: End) -> Sequence[Buffer]:
        """The events of the end, with the last text, in pieces."""

    # -- what arrives
    def begin(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens, self.cached_tokens = prompt_tokens, cached_tokens

    def text(self, text: str) -> None:
        if self.plain:
            escaped = json_text(text)
            size = self._framing + len(escaped)
            head = CHUNK_SIZES[size] if size < _SIZES else chunk_head(size)
            self._write(b"".join((head, self._before, escaped, self._after)))
            return
        self.delta(text, 1, None, None)

    def silent(self) -> None:
        self.completion_tokens += 1

    def close(self) -> None:
        self.ended = True
        self.plain = False

    def delta(self, text: str, tokens: int, ids: array[int] | None, extra: Extra | None) -> None:
        call = self.call
        if self.ended:
            return
        if not call.writer.open or self.held is not None:
            self.hold(text, tokens, ids, extra)
            call.backlog += len(text) + 8 * tokens
            if call.backlog > call.max_backlog:
                call.too_slow()
            return
        self.completion_tokens += tokens
        extra = self._without_hidden(extra)
        if not text and not ids and extra is None:
            return
        call.writer.write(*self.events(text, ids, extra))
        if not self._spoken:
            self._spoken = True
            # Kept here: at 256 streams each object on the way to it costs a cache miss a token.
            self._write = call.writer.transport.write
        self.go_on()

    def go_on(self) -> None:
        """Write plain events at once, if that is possible now."""
        self.plain = self._spoken and not self.ended and self.call.writer.open and self.is_plain()

    def _without_hidden(self, extra: Extra | None) -> Extra | None:
        if extra is None or extra.hidden_states is None:
            return extra
        self.hidden += extra.hidden_states
        extra.hidden_states = None
        return None if extra == NO_EXTRA else extra

    def hold(self, text: str, tokens: int, ids: array[int] | None, extra: Extra | None) -> bool:
        held = self.held
        first = held is None
        if held is None:
            held = self.held = Held()
        held.texts.append(text)
        held.tokens += tokens
        if ids is not None:
            held.ids += ids
        held.extra = logprobs.merge(held.extra, extra)
        return first

    def flush(self) -> None:
        held, self.held = self.held, None
        if held is None or self.ended:
            return
        self.delta("".join(held.texts), held.tokens, held.ids, held.extra)

    def finish(self, end: End) -> None:
        held, self.held = self.held, None
        if held is not None:
            end.text = "".join((*held.texts, end.text))
            end.tokens += held.tokens
            end.extra = logprobs.merge(held.extra, end.extra)
            if end.ids is not None:
                end.ids = held.ids.tobytes() + end.ids
        self.call.choice_ended(self, end)
        if self.index in self.call.ends and not self.call.client_left:
            self.prompt_tokens, self.cached_tokens = end.prompt_tokens, end.cached_tokens
            self.completion_tokens = end.completion_tokens
            end.extra = self._without_hidden(end.extra)
            # Also on a full transport: this is one bounded write, and the stream ends with it.
            self.call.writer.write(*self.end_events(end))
