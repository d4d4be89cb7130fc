"""The frames of `/generate` streams: everything since the start in each frame, or only what is new.

Cumulative frames repeat what was said, so their bytes grow with the answer; the work does not: what was said is kept
as the JSON text that it was sent as, and each token adds its own part.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

import msgspec

from forebay.wire.messages import End, Extra, RequestFault, WorkItem
from forebay_api import errorbody, logprobs, replies
from forebay_api.calls import as_error, ids_of
from forebay_api.streams import StreamCall, StreamChoice, event

_encode = msgspec.json.Encoder().encode


class Grown:
    """A JSON list or text to which is added. `raw` is its JSON text now: one copy, nothing is encoded again."""

    __slots__ = ("_close", "_open", "_parts", "count")

    def __init__(self, *, text: bool = False) -> None:
        self._open, self._close = (b'"', b'"') if text else (b"[", b"]")
        self._parts = bytearray()
        self.count = 0
        """Items of a list, pieces of a text."""

    def add(self, more: list[Any] | str) -> None:
        """Append the items of a list, or a piece of text."""
        if not more:
            return
        if self.count and isinstance(more, list):
            self._parts += b","
        self._parts += _encode(more)[1:-1]
        self.count += len(more)

    def raw(self) -> msgspec.Raw:
        """The whole value, as JSON text."""
        return msgspec.Raw(b"".join((self._open, self._parts, self._close)))


class GenerateCall(StreamCall):
    """The event stream of `/generate`."""

    def closing(self) -> bytes:
        return b""

    def error_body(self, fault: RequestFault) -> dict[str, Any]:
        return errorbody.native_error(as_error(fault), in_stream=True)


class GenerateChoice(StreamChoice):
    """Frames of one item of `/generate`."""

    __slots__ = ("_first", "_grown", "_ids", "_inputs", "_text")

    def __init__(self, call: StreamCall, rid: str, index: int, item: WorkItem, prompt: int) -> None:
        super().__init__(call, rid, index, item, prompt)
        self._first = True
        self._text, self._ids = Grown(text=True), Grown()
        self._grown: dict[str, Grown] = {}
        """The output families of `meta_info` by name."""
        self._inputs: dict[str, Any] = {}
        """The prompt families, as JSON text: they come once."""

    def affixes(self) -> tuple[bytes, bytes]:
        return b"", b""

    def is_plain(self) -> bool:
        return False

    def events(self, text: str, ids: array[int] | None, extra: Extra | None) -> bytes:
        return event(self._frame(text, [] if ids is None else ids.tolist(), extra, None))

    def end_events(self, end: End) -> bytes:
        return event(self._frame(end.text, ids_of(end.ids), end.extra, end))

    def _frame(self, text: str, ids: list[int], extra: Extra | None, end: End | None) -> dict[str, Any]:
        first, self._first = self._first, False
        meta = replies.meta_info(self, (self.prompt_tokens, self.completion_tokens, self.cached_tokens), end)
        if end is not None:
            meta["ttft"] = (self.first_at or time.perf_counter()) - self.call.began
        cumulative = not self.call.plan.incremental
        if self.item.head.return_logprob:
            found = replies.native_logprobs(self, extra, prompt=first)
            meta.update(self._grow(found) if cumulative else found)
        if self.item.head.return_hidden_states and end is not None:
            meta["hidden_states"] = logprobs.nested(self.hidden, self.call.plan.hidden_size)
        if not cumulative:
            return replies.generate_body(self, text, ids, meta)
        self._text.add(text)
        self._ids.add(ids)
        return replies.generate_body(self, self._text.raw(), self._ids.raw(), meta)

    def _grow(self, found: dict[str, Any]) -> dict[str, Any]:
        """The logprob entries since the start, of those of one delta."""
        out: dict[str, Any] = {}
        for name, value in found.items():
            if name.startswith("input_"):
                self._inputs[name] = msgspec.Raw(_encode(value))
            elif isinstance(value, list):
                grown = self._grown.setdefault(name, Grown())
                grown.add(value)
                out[name] = grown.raw()
        out["output_token_logprobs_length"] = self._grown["output_token_logprobs"].count
        return {**out, **self._inputs}
