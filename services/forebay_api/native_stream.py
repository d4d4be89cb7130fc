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
from forebay_api.streams import Buffer, StreamCall, StreamChoice, event

_encode = msgspec.json.Encoder().encode


class Grown:
    """A JSON list or text without its brackets or quotes, to which is added: nothing is encoded a second time."""

    __slots__ = ("count", "json")

    def __init__(self) -> None:
        self.json = bytearray()
        self.count = 0
        """Items of a list, characters of a text."""

    def add(self, more: list[Any] | str) -> None:
        """Append the items of a list, or a piece of text."""
        if not more:
            return
        if self.count and isinstance(more, list):
            self.json += b","
        self.json += _encode(more)[1:-1]
        self.count += len(more)


class GenerateCall(StreamCall):
    """The event stream of `/generate`."""

    def closing(self) -> bytes:
        return b""

    def error_body(self, fault: RequestFault) -> dict[str, Any]:
        return errorbody.native_error(as_error(fault), in_stream=True)


class GenerateChoice(StreamChoice):
    """Frames of one item of `/generate`."""

    __slots__ = ("_first", "_grown", "_ids", "_inputs", "_rest", "_text")

    def __init__(self, call: StreamCall, rid: str, index: int, item: WorkItem, prompt: int) -> None:
        super().__init__(call, rid, index, item, prompt)
        self._first = True
        self._text, self._ids = Grown(), Grown()
        self._grown: dict[str, Grown] = {}
        """The output families of `meta_info` by name."""
        self._rest: bytes | None = None
        """What follows `meta_info`, the same in every frame."""
        self._inputs = b""
        """The prompt families, as members of a JSON object: they come once."""

    def affixes(self) -> tuple[bytes, bytes]:
        return b"", b""

    def is_plain(self) -> bool:
        return False

    def events(self, text: str, ids: array[int] | None, extra: Extra | None) -> list[Buffer]:
        return self._frame(text, [] if ids is None else ids.tolist(), extra, None)

    def end_events(self, end: End) -> list[Buffer]:
        return self._frame(end.text, ids_of(end.ids), end.extra, end)

    def _frame(self, text: str, ids: list[int], extra: Extra | None, end: End | None) -> list[Buffer]:
        first, self._first = self._first, False
        meta = replies.meta_info(self, (self.prompt_tokens, self.completion_tokens, self.cached_tokens), end)
        if end is not None:
            meta["ttft"] = (self.first_at or time.perf_counter()) - self.call.began
        if self.item.head.return_hidden_states and end is not None:
            meta["hidden_states"] = logprobs.nested(self.hidden, self.call.plan.hidden_size)
        wanted = self.item.head.return_logprob
        found = replies.native_logprobs(self, extra, prompt=first) if wanted else {}
        if self.call.plan.incremental:
            return [event(replies.generate_body(self, text, ids, {**meta, **found}))]
        self._text.add(text)
        self._ids.add(ids)
        return self._everything(meta, self._grow(found) if wanted else [])

    def _everything(self, meta: dict[str, Any], families: list[Buffer]) -> list[Buffer]:
        """A frame with all so far. In pieces, so that what is long is copied once only, into the client's socket."""
        if self._rest is None:
            rest = replies.generate_body(self, None, None, None)
            del rest["text"], rest["output_ids"], rest["meta_info"]
            self._rest = b"},%b\n\n" % _encode(rest)[1:] if rest else b"}}\n\n"
        return [
            b'data: {"text":"',
            self._text.json,
            b'","output_ids":[',
            self._ids.json,
            b'],"meta_info":',
            _encode(meta)[:-1],
            *families,
            self._rest,
        ]

    def _grow(self, found: dict[str, Any]) -> list[Buffer]:
        """The logprob entries since the start, of those of one delta, as further members of `meta_info`."""
        out: list[Buffer] = []
        for name, value in found.items():
            if name.startswith("input_"):
                self._inputs += b',"%b":%b' % (name.encode(), _encode(value))
            elif isinstance(value, list):
                grown = self._grown.setdefault(name, Grown())
                grown.add(value)
                out += (b',"%b":[' % name.encode(), grown.json, b"]")
        count = self._grown["output_token_logprobs"].count
        return [*out, b',"output_token_logprobs_length":%d' % count, self._inputs]
