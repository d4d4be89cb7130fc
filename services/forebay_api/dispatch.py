"""Requests on their way out of an api process: which tokenizer gets them, and who gets them when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from forebay.errors import RequestError
from forebay.topology import Peer, shard_of
from forebay.wire import ingress
from forebay.wire.messages import Ids, RequestFault, WorkItem
from forebay_api.calls import Call, Choice
from forebay_api.table import Table

GATHER = 8
"""Calls that one frame brings to a tokenizer at the most: more would keep the first of them waiting for 0.5 ms."""
GATHER_SIZE = 64 << 10
"""Bytes of prompts from which on a frame waits for no more."""

log = logging.getLogger("forebay.api")


class Work(NamedTuple):
    """Choices of a call that are to be sent; `ids[i]` are the prompt ids of the `i`-th item among them."""

    call: Call
    choices: list[Choice]
    ids: list[Ids]

    def items(self) -> list[WorkItem]:
        """The items of the choices, each once."""
        if len(self.choices) == 1:
            return [self.choices[0].item]
        return list({id(choice.item): choice.item for choice in self.choices}.values())

    def size(self) -> int:
        """Bytes of the prompts, roughly."""
        size = sum(8 * len(column) for column in self.ids)
        for item in self.items():
            if item.text is not None:
                size += len(item.text)
            elif item.chat is not None:
                size += len(item.chat.messages)
        return size


class Dispatch(Table):
    """Sends work to the tokenizers and control calls to every peer."""

    def submit(self, call: Call, choices: list[Choice], ids: list[Ids]) -> None:
        """Take a call's choices in and send their work; `ids[i]` are the prompt ids of item `i` (empty for texts)."""
        call.choices = call.choices or choices
        for choice in choices:
            choice.detokenizer = shard_of(choice.rid, self._shards)
            self._table[choice.rid] = choice
            public = choice.item.head.public_rid
            if public is not None:
                self._public[public] = call
        if call.plan.parent_rid is not None:
            self._public[call.plan.parent_rid] = call
        self._dispatch(call, choices, ids)

    def _dispatch(self, call: Call, choices: list[Choice], ids: list[Ids]) -> None:
        """Send the work of a call. What comes in the same turn of the event loop travels together, all but the first:
        that one is not kept waiting, and the tokenizer is at it while the others are read."""
        work = Work(call, choices, ids)
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._turn_over)
            self._send_work([work])
            return
        self._gathered.append(work)
        self._gathered_size += work.size()
        if len(self._gathered) >= GATHER or self._gathered_size >= GATHER_SIZE:
            self._send_gathered()

    def _turn_over(self) -> None:
        self._in_turn = False
        self._send_gathered()

    def _send_gathered(self) -> None:
        works, self._gathered, self._gathered_size = self._gathered, [], 0
        works = [work for work in works if not all(choice.ended for choice in work.choices)]
        if not works:
            return
        try:
            self._send_work(works)
        except Exception:
            # One of them cannot be sent, and is told so and logged; its neighbours can. Nobody else would answer them:
            # this runs from the event loop.
            for work in works:
                self._send_alone(work)

    def _send_alone(self, work: Work) -> None:
        try:
            self._send_work([work])
        except Exception:
            log.exception("the work of a request cannot be sent")
            self._fail_all(work.choices, 500, "Internal server error")

    def _send_work(self, works: list[Work]) -> None:
        """One frame to one tokenizer; a call whose way is not open waits, and one that nobody takes fails."""
        live = self._takers
        ready = []
        for work in works:
            if live and all(self._welcomes(Peer("detokenizer", choice.detokenizer)) for choice in work.choices):
                ready.append(work)
            else:
                self._put_aside(work)
        if not ready:
            return
        items = [item for work in ready for item in work.items()]
        for item in items:
            item.head.life = item.open.life = self._life
        frame = ingress.encode_work(items, [column for work in ready for column in work.ids])
        for turn in range(len(live)):
            peer = live[(self._next_tokenizer + turn) % len(live)]
            if self._send(peer, frame):
                self._next_tokenizer += turn + 1
                sent = self._sent.setdefault(peer, {})
                for work in ready:
                    work.call.tokenizer = peer
                    sent[work.call] = (work.choices, work.ids)
                    # Some of its samples may have ended while it waited.
                    self._tell_abort([choice for choice in work.choices if choice.ended], "lost")
                return
        for work in ready:
            for choice in work.choices:
                self._fail(choice, RequestFault(choice.rid, 503, "the tokenizer's queue is full"))
            self._end_sent_before(work.call, work.choices)

    def _put_aside(self, work: Work) -> None:
        """Keep work until somebody takes it, for a bounded time."""
        call = work.call
        self._unsent[call] = (work.choices, work.ids)
        if call not in self._overdue:
            self._overdue[call] = self._loop.call_later(self._dispatch_wait, self._give_up, call)

    def _give_up(self, call: Call) -> None:
        """Nobody took a call's work in time, or somebody did and died."""
        self._overdue.pop(call, None)
        work = self._unsent.pop(call, None)
        if work is not None:
            missing = "no tokenizer is running" if not self._takers else "a detokenizer is not running"
            self._fail_all(work[0], 503, f"{missing}; send the request again")
            self._end_sent_before(call, work[0])

    def _end_sent_before(self, call: Call, choices: list[Choice]) -> None:
        """End failed choices in the engine, too: a tokenizer that has died since may have brought them there."""
        if call.attempt:
            self._tell_abort(choices, "lost")

    def _resend(self, calls: Iterable[tuple[Call, list[Choice], list[Ids]]]) -> None:
        for call, choices, ids in calls:
            waiting: list[Choice] = []
            kept: list[Ids] = []
            items: dict[int, WorkItem] = {}
            order = list({id(choice.item): choice.item for choice in choices}.values())
            call.attempt += 1
            for item, column in zip(order, ids, strict=True):
                open_choices = [c for c in choices if c.item is item and not c.started and not c.ended]
                if open_choices:
                    item.head.attempt = call.attempt
                    waiting += open_choices
                    kept.append(column)
                    items[id(item)] = item
            if waiting:
                self._send_work([Work(call, waiting, kept)])

    def _send_unsent(self) -> None:
        if self._unsent and self._takers:
            unsent, self._unsent = self._unsent, {}
            self._resend([(call, *work) for call, work in unsent.items()])

    def control(
        self, peer: Peer, type_: str, fields: dict[str, Any], rid: str, *, exclusive: bool = False
    ) -> asyncio.Future[Any]:
        """Send a control request; the future gets the answer's payload, or a `RequestError` when the peer dies."""
        return self._asks.ask(peer, type_, fields, rid, reachable=self._reachable(peer), exclusive=exclusive)

    def _reachable(self, peer: Peer) -> bool:
        """Whether a peer is linked in both directions: its greeting has come, so its answers will."""
        return peer in self._up and peer in self.hellos

    def _welcomes(self, peer: Peer) -> bool:
        """Whether a peer takes new work: one that is about to stop only finishes what it has."""
        hello = self.hellos.get(peer)
        return peer in self._up and hello is not None and hello.status != "stopping"

    def _look_at(self, peer: Peer) -> None:
        """Something has changed with a peer: see who takes new work now."""
        if peer.role == "detokenizer":
            (self.shut_shards.discard if self._welcomes(peer) else self.shut_shards.add)(peer.number)
        elif peer.role == "tokenizer":
            self._takers = sorted(peer for peer in self._up if peer.role == "tokenizer" and self._welcomes(peer))

    def open_rid(self, fresh: Callable[[], str]) -> str:
        """A wire id whose detokenizer takes new requests, if any does."""
        rid = fresh()
        while self._shards > len(self.shut_shards) > 0 and shard_of(rid, self._shards) in self.shut_shards:
            rid = fresh()
        return rid

    def tokenizer(self) -> Peer:
        """A live tokenizer for a control request; raises `RequestError` (503) when there is none."""
        live = self._takers
        if not live:
            raise RequestError("no tokenizer is running", 503, retry_after=1)
        self._next_tokenizer += 1
        return live[self._next_tokenizer % len(live)]
