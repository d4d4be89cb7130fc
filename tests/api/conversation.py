"""A call of one api process without sockets: a plan and a detokenizer's frames go in, the client's bytes come out."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.deltas import Deltas, encode_deltas
from forebay.wire.messages import Admitted, End, Extra, Hello, Pairs, RequestFault
from forebay_api import replies
from forebay_api.calls import Call, Choice
from forebay_api.mailbox import Mailbox
from forebay_api.plan import Plan
from forebay_api.routes.generation import STREAMS
from forebay_api.streams import StreamCall

CREATED = 1_700_000_000


class Wire:
    """Stands for the writer of a stream and its transport: keeps what the client would read, chunks undone."""

    def __init__(self) -> None:
        self.open = True
        self.started = False
        self.events = b""
        self.transport = self

    def write(self, *parts: bytes | bytearray) -> None:
        self.started = True
        data = b"".join(parts)
        if not data.startswith(b"data: "):
            size, _, rest = data.partition(b"\r\n")
            assert len(rest) == int(size, 16) + 2
            assert rest.endswith(b"\r\n")
            data = rest[:-2]
        self.events += data


class Conversation:
    """One call with its frames. `sent`: the frames that left the api process, by receiver."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        self.sent: list[tuple[Peer, bytes]] = []
        self.unreachable: set[Peer] = set()
        self.mailbox = Mailbox(plan.items[0].head.api, 1, self._send, loop)
        for role in ("tokenizer", "detokenizer", "engine"):
            self.mailbox.take([control.encode_hello(Hello(role=role, index=0, incarnation=1, pid=1, version="0"))])
            self.mailbox.link_changed(Peer(role, 0), True)
        self.plan = plan
        if plan.id:
            plan.id = "answer-1"
        self.wire = Wire()
        self.call: Call
        kind: type[Choice] = Choice
        if plan.stream:
            call_type, kind = STREAMS[plan.kind]
            stream = call_type(plan, loop, "request", 1 << 20)
            stream.writer = self.wire  # type: ignore[assignment]
            self.call = stream
        else:
            self.call = Call(plan, loop, "request")
        self.call.created = CREATED
        choices: list[Choice] = []
        for prompt, item in enumerate(plan.items):
            for rid in item.rids:
                choices.append(kind(self.call, rid, len(choices), item, prompt))
        self.mailbox.submit(self.call, choices, plan.ids)
        self.rids = [choice.rid for choice in choices]
        self._seq = 0
        self._fresh = set(self.rids)

    def _send(self, peer: Peer, frame: bytes) -> bool:
        if peer in self.unreachable:
            return False
        self.sent.append((peer, frame))
        return True

    def admit(self, index: int, ids: list[int], text: str | None = None) -> None:
        """The tokenizer tells the prompt."""
        item = Admitted(rid=self.rids[index], prompt_ids=array("q", ids).tobytes(), prompt_text=text)
        self.mailbox.take([control.encode_admitted([item])])

    def say(self, *rows: tuple[int, str, list[int], Extra | None], prompt: int = 5, cached: int = 0) -> None:
        """One step: (index, text, ids, families) of each choice that has something to say."""
        self.mailbox.take([self.step(*rows, prompt=prompt, cached=cached)])

    def step(self, *rows: tuple[int, str, list[int], Extra | None], prompt: int = 5, cached: int = 0) -> bytes:
        """The frame of one step."""
        self._seq += 1
        rids = [self.rids[index] for index, *_ in rows]
        starts = [(row, prompt, cached) for row, rid in enumerate(rids) if rid in self._fresh]
        self._fresh -= set(rids)
        wants = any(item.open.want_ids for item in self.plan.items)
        return encode_deltas(
            Deltas(
                source=0,
                epoch=1,
                seq=self._seq,
                step=self._seq,
                rids=rids,
                texts=[text for _, text, _, _ in rows],
                lens=None if all(len(ids) == 1 for _, _, ids, _ in rows) else [len(ids) for _, _, ids, _ in rows],
                has_ids=wants,
                extras=[(at, extra) for at, (*_, extra) in enumerate(rows) if extra is not None],
                ids=array("q", [i for _, _, ids, _ in rows for i in ids]).tobytes() if wants else b"",
                starts=starts,
            )
        )

    def end(
        self, index: int, reason: dict[str, Any], text: str = "", ids: list[int] | None = None, **more: Any
    ) -> None:
        """The end of a choice. `more`: fields of `End`."""
        self._seq += 1
        wants = self.plan.items[0].open.want_ids
        fields: dict[str, Any] = {"prompt_tokens": 5, "completion_tokens": 2, "tokens": len(ids or []), **more}
        raw = array("q", ids or []).tobytes() if wants else None
        end = End(rid=self.rids[index], reason=reason, text=text, ids=raw, **fields)
        self.mailbox.take([encode_deltas(Deltas(source=0, epoch=1, seq=self._seq, step=self._seq, ends=[end]))])

    def fail(self, index: int, status: int, message: str) -> None:
        """An error in place of an end."""
        self.mailbox.take([control.encode_faults([RequestFault(self.rids[index], status, message)])])

    @property
    def bytes(self) -> bytes:
        """Everything that a streaming client has read by its end."""
        assert isinstance(self.call, StreamCall)
        assert self.call.done.done()
        return self.wire.events + self.call.last_events()

    @property
    def chunks(self) -> list[Any]:
        """The JSON of the events of a stream that is over; the last event must be [DONE]."""
        events = [event.removeprefix(b"data: ") for event in self.bytes.split(b"\n\n") if event]
        assert events.pop() == b"[DONE]"
        return [msgspec.json.decode(event) for event in events]

    @property
    def answer(self) -> Any:
        """The whole answer of a call that does not stream."""
        assert self.call.done.done()
        return msgspec.json.decode(replies.whole(self.call))


Talk = Callable[[Plan], Conversation]


def pairs(*found: tuple[float | None, int]) -> Pairs:
    """Values and ids of a family."""
    return Pairs([value for value, _ in found], [token for _, token in found])
