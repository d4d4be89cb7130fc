"""The request table of one api process, and its post: which stream a frame is for, and what a death means for whom.

The table owns every request's life. A request leaves it exactly once, through `_close`, whatever ends it: its end
or an error from the other processes, the client leaving, a peer that died, a timeout.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from forebay.errors import PeerError, RequestError
from forebay.facts import LaunchFacts, read_blob
from forebay.housekeeping import keep_house
from forebay.topology import Peer, shard_of
from forebay.wire import control, ingress
from forebay.wire.deltas import Deltas, decode_deltas
from forebay.wire.embeddings import Vector, decode_embeddings
from forebay.wire.frames import Kind, kind_of
from forebay.wire.lives import Lives
from forebay.wire.messages import AbortRequest, ControlRequest, End, Hello, Ids, RequestFault, WorkItem
from forebay.wire.steady import Texts, open_texts
from forebay_api.asks import Asks
from forebay_api.calls import Call, Choice, as_error
from forebay_api.pace import Pace, clock

log = logging.getLogger("forebay.api")

ENGINE = Peer("engine", 0)
_TEXTS_KIND = bytes([Kind.TEXTS])
Send = Callable[[Peer, bytes], bool]


class _Rows:
    """The rows of the previous frame of one detokenizer."""

    __slots__ = ("choices", "epoch", "lives", "seq")

    def __init__(self) -> None:
        self.epoch = self.seq = -1
        self.choices: list[Choice | None] = []
        self.lives = Lives()


class Mailbox:
    """All running requests of this api process. Opens no socket: `send` hands a frame to a peer."""

    def __init__(
        self, number: int, detokenizers: int, send: Send, loop: asyncio.AbstractEventLoop, *, apis: int = 1
    ) -> None:
        """`apis`: how many processes like this one share the engine."""
        self.number = number
        self.on_control: Callable[[ControlRequest], object] = keep_house
        """Applies a control call that another api process was asked and that concerns all of them."""
        self.facts: LaunchFacts | None = None
        self.engine_frames = 0
        """Frames that show the engine at work; a health probe waits for the next one."""
        self.bad_frames = 0
        self.hellos: dict[Peer, Hello] = {}
        self._send = send
        self._loop = loop
        self._shards = detokenizers
        self._apis = apis
        self._table: dict[str, Choice] = {}
        self._public: dict[str, Call] = {}
        self._asks = Asks(number, send, loop)
        self._rows: dict[int, _Rows] = {}
        self.pace = Pace()
        self._up: set[Peer] = set()
        self._lives: dict[Peer, int | None] = {}
        """Whose life the present connection to a peer belongs to, once it has greeted."""
        self.shut_shards: set[int] = set()
        """Detokenizers that are away or about to stop: no new request is given to them while there are others."""
        self._unsent: dict[Call, tuple[list[Choice], list[Ids]]] = {}
        """Calls that found no tokenizer, or not their detokenizer; sent as soon as there is one."""
        self._sent: dict[Peer, dict[Call, tuple[list[Choice], list[Ids]]]] = {}
        """Per tokenizer: calls of which a choice has not started, kept to be sent again if it dies."""
        self._next_tokenizer = 0
        self._probes: list[asyncio.Future[None]] = []
        self._forsaken: list[str] = []
        """Requests that ended here while the engine was away; aborted there when it is back."""

    # ---------------------------------------------------------------- what others ask
    def __len__(self) -> int:
        return len(self._table)

    @property
    def engine_up(self) -> bool:
        """Whether the engine is linked and has introduced itself."""
        return self._reachable(ENGINE)

    @property
    def paused(self) -> bool:
        """Whether generation is paused: requests wait in the link to the engine."""
        hello = self.hellos.get(ENGINE)
        return hello is not None and hello.status == "paused"

    def missing(self) -> list[str]:
        """Roles without a live process, by name: not ready while there are any."""
        live = {peer.role for peer in self._up if peer in self.hellos}
        return [role for role in ("tokenizer", "detokenizer", "engine") if role not in live]

    def dead(self, expected: Iterable[Peer]) -> list[str]:
        """Of the expected processes those that are not linked now."""
        return [str(peer) for peer in expected if peer not in self._up]

    def owns(self, public_rid: str) -> bool:
        """Whether a running request goes by this name."""
        return public_rid in self._public

    # ---------------------------------------------------------------- requests out
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
        live = self._tokenizers()
        if not live or not all(self._welcomes(Peer("detokenizer", choice.detokenizer)) for choice in choices):
            self._unsent[call] = (choices, ids)
            return
        items = list({id(choice.item): choice.item for choice in choices}.values())
        frame = ingress.encode_work(items, ids)
        for turn in range(len(live)):
            peer = live[(self._next_tokenizer + turn) % len(live)]
            if self._send(peer, frame):
                self._next_tokenizer += turn + 1
                call.tokenizer = peer
                self._sent.setdefault(peer, {})[call] = (choices, ids)
                return
        for choice in choices:
            self._fail(choice, RequestFault(choice.rid, 503, "the tokenizer's queue is full"))
        self._end_sent_before(call, choices)

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
                self._dispatch(call, waiting, kept)

    def control(
        self, peer: Peer, type_: str, fields: dict[str, Any], rid: str, *, exclusive: bool = False
    ) -> asyncio.Future[Any]:
        """Send a control request; the future gets the answer's payload, or a `RequestError` when the peer dies."""
        return self._asks.ask(peer, type_, fields, rid, reachable=self._reachable(peer), exclusive=exclusive)

    def _reachable(self, peer: Peer) -> bool:
        """Whether a peer is linked in both directions: its greeting has come, so its answers will."""
        return peer in self._up and peer in self.hellos

    def _tokenizers(self) -> list[Peer]:
        """The tokenizers that take new work."""
        return sorted(peer for peer in self._up if peer.role == "tokenizer" and self._welcomes(peer))

    def _welcomes(self, peer: Peer) -> bool:
        """Whether a peer takes new work: one that is about to stop only finishes what it has."""
        hello = self.hellos.get(peer)
        return peer in self._up and hello is not None and hello.status != "stopping"

    def _look_at(self, peer: Peer) -> None:
        if peer.role == "detokenizer":
            (self.shut_shards.discard if self._welcomes(peer) else self.shut_shards.add)(peer.number)

    def open_rid(self, fresh: Callable[[], str]) -> str:
        """A wire id whose detokenizer takes new requests, if any does."""
        rid = fresh()
        while self._shards > len(self.shut_shards) > 0 and shard_of(rid, self._shards) in self.shut_shards:
            rid = fresh()
        return rid

    def tokenizer(self) -> Peer:
        """A live tokenizer for a control request; raises `RequestError` (503) when there is none."""
        live = self._tokenizers()
        if not live:
            raise RequestError("no tokenizer is running", 503, retry_after=1)
        self._next_tokenizer += 1
        return live[self._next_tokenizer % len(live)]

    def probe(self) -> asyncio.Future[None]:
        """Done with the next frame that shows the engine alive."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._probes.append(future)
        return future

    # ---------------------------------------------------------------- ends
    def abandon(self, call: Call, reason: str = "client") -> None:
        """The call ends here and now (client left, too slow, timeout): free everything that it has elsewhere."""
        running = [choice for choice in call.choices if not choice.ended]
        for choice in running:
            self._close(choice)
        self._tell_abort(running, reason)

    def _tell_abort(self, choices: list[Choice], reason: str) -> None:
        if not choices:
            return
        frame = control.encode_aborts([AbortRequest(choice.rid, reason) for choice in choices])
        if not self._send(ENGINE, frame):
            self._forsaken += [choice.rid for choice in choices]
        for peer in {Peer("detokenizer", choice.detokenizer) for choice in choices}:
            self._send(peer, frame)
        for tokenizer in {choice.call.tokenizer for choice in choices if not choice.started}:
            if tokenizer is not None:
                self._send(tokenizer, frame)

    def calls(self) -> list[Call]:
        """Every call that still runs."""
        return list({id(choice.call): choice.call for choice in self._table.values()}.values())

    def shut(self, call: Call) -> None:
        """End a call because this process stops: an error to its client, an abort to the engine."""
        running = call.running
        self._fail_all(running, 503, "server is shutting down")
        self._tell_abort(running, "client")

    def expire(self, call: Call, seconds: float) -> None:
        """The time that a client has set for its call is over: 504 to it, an abort to the engine."""
        call.expired = True
        running = call.running
        self._fail_all(running, 504, f"the request was not finished within {seconds:g} s")
        self._tell_abort(running, "client")

    def abort(self, public_rid: str, *, everything: bool = False, relayed: bool = False) -> int:
        """A client or operator asks the engine to end requests; they come to their end by its answer.

        A name of ours stands for all of its samples, the name of a batch for all of its items. A name that is not
        ours may be another api process's: the link knows. `relayed`: it comes from the link. Returns the number of
        requests of ours that are ended by it; those that were told already do not count.
        """
        choices = list(self._table.values()) if everything else self._named(public_rid)
        fresh = [choice for choice in choices if not choice.aborted]
        for choice in fresh:
            choice.aborted = True
        aborts = [AbortRequest(choice.rid, "user") for choice in fresh]
        if everything:
            # The engine ends what it has; those that may be on their way to it are named besides.
            aborts = [AbortRequest(choice.rid, "user") for choice in fresh if not choice.started]
            if not relayed:
                aborts.insert(0, AbortRequest("", "user", abort_all=True))
        elif not choices and not relayed and self._apis > 1:
            aborts = [AbortRequest(public_rid, "user")]
        if aborts:
            self._send(ENGINE, control.encode_aborts(aborts))
        return len(fresh)

    def _named(self, public_rid: str) -> list[Choice]:
        """The running requests that a client's own name, or a wire id, stands for."""
        call = self._public.get(public_rid)
        if call is None:
            choice = self._table.get(public_rid)
            return [] if choice is None else [choice]
        if public_rid == call.plan.parent_rid:
            return call.running
        return [choice for choice in call.running if choice.item.head.public_rid == public_rid]

    def _close(self, choice: Choice) -> bool:
        """The one place where a request leaves the table."""
        if choice.ended:
            return False
        choice.close()
        choice.ended_at = clock()
        self._table.pop(choice.rid, None)
        call = choice.call
        if not any(not other.ended for other in call.choices):
            for name in [name for name, owner in self._public.items() if owner is call] if self._public else ():
                del self._public[name]
        self._settled(choice)
        return True

    def _settled(self, choice: Choice) -> None:
        """Forget the work of a call once all of its choices have started or ended."""
        call = choice.call
        if not all(c.started or c.ended for c in call.choices):
            return
        if self._unsent:
            self._unsent.pop(call, None)
        if call.tokenizer is not None:
            self._sent.get(call.tokenizer, {}).pop(call, None)

    def _fail(self, choice: Choice, fault: RequestFault) -> None:
        if self._close(choice):
            choice.fail(fault)
            if not choice.call.plan.keeps_going:
                rest = [other for other in choice.call.choices if not other.ended]
                for other in rest:
                    self._close(other)
                    other.call.faults[other.index] = RequestFault(other.rid, fault.status, fault.message, fault.type)
                self._tell_abort(rest, "client")
                choice.call.settle()

    def _fail_all(self, choices: list[Choice], status: int, message: str) -> None:
        for choice in choices:
            if not choice.ended:
                self._fail(choice, RequestFault(choice.rid, status, message))

    # ---------------------------------------------------------------- frames in
    def take(self, frames: list[bytes]) -> None:
        """All frames that were waiting. One step's text is written as it comes; more are merged a stream at a time."""
        merged: list[Choice] | None = [] if len(frames) > 1 else None
        for frame in frames:
            try:
                self._take(frame, merged)
            except PeerError as error:
                self.bad_frames += 1
                log.warning("dropped a frame: %s", error)
        if merged:
            for choice in merged:
                choice.flush()

    def _take(self, frame: bytes, merged: list[Choice] | None) -> None:
        if frame[:1] == _TEXTS_KIND:
            self._texts(open_texts(frame), merged)
            return
        kind = kind_of(frame)
        if kind is Kind.DELTAS:
            self._deltas(decode_deltas(frame), merged)
        elif kind is Kind.ERROR:
            for fault in control.decode_faults(frame):
                self._fault(fault)
        elif kind is Kind.REPLY:
            reply = control.decode_reply(frame)
            self._alive()
            self._asks.answer(reply.rid, reply.payload)
        elif kind is Kind.ADMITTED:
            for item in control.decode_admitted(frame):
                choice = self._table.get(item.rid)
                if choice is not None:
                    choice.call.admitted(item)
        elif kind is Kind.HELLO:
            self._hello(control.decode_hello(frame))
        elif kind is Kind.EMBEDDINGS:
            self._alive()
            for vector in decode_embeddings(frame):
                self._vector(vector)
        elif kind is Kind.ABORT:
            for abort in control.decode_aborts(frame):
                self.abort(abort.rid, everything=abort.abort_all, relayed=True)
        elif kind is Kind.CONTROL:
            self.on_control(control.decode_control(frame))
        else:
            raise PeerError(f"a {kind.name} frame has no business in an api process")

    def _fault(self, fault: RequestFault) -> None:
        choice = self._table.get(fault.rid)
        if choice is None:
            self._asks.answer(fault.rid, as_error(fault))
            return
        self._fail(choice, fault)
        self._end_sent_before(choice.call, [choice])
        frame = control.encode_aborts([AbortRequest(fault.rid, "lost")])
        self._send(Peer("detokenizer", choice.detokenizer), frame)

    def _alive(self) -> None:
        self.engine_frames += 1
        if self._probes:
            for future in self._probes:
                if not future.done():
                    future.set_result(None)
            self._probes.clear()

    def _deltas(self, deltas: Deltas, merged: list[Choice] | None) -> None:
        self._alive()
        rows = self._rows_of(deltas)
        if deltas.texts is not None:
            self.pace.step(deltas, rows, clock())
        for row, prompt_tokens, cached_tokens in deltas.starts:
            first = rows[row]
            if first is not None:
                self._started(first)
                first.first_at = clock()
                first.begin(prompt_tokens, cached_tokens)
        if deltas.texts is not None:
            if merged is not None:
                self._rows_held(deltas, rows, merged)
            elif deltas.lens is None and not deltas.has_ids and not deltas.extras:
                for choice, text in zip(rows, deltas.texts, strict=True):
                    if choice is not None:
                        if text:
                            choice.text(text)
                        else:
                            choice.silent()
            else:
                for choice, text, tokens, ids, extra in _full_rows(deltas, rows):
                    if text or tokens or extra is not None:
                        choice.delta(text, tokens, ids, extra)
        for end in deltas.ends:
            ended = self._table.get(end.rid)
            if ended is not None:
                self._started(ended)
                self._close(ended)
                ended.finish(end)

    def _texts(self, step: Texts, merged: list[Choice] | None) -> None:
        """A steady step: a text for each row of the previous frame."""
        self._alive()
        _, _, source, texts = step
        rows = self._rows_at(source, step.epoch, step.seq, None, len(texts))
        self.pace.plain(source, rows, clock())
        if merged is None:
            for choice, text in zip(rows, texts, strict=True):
                if choice is not None:
                    if text:
                        choice.text(text)
                    else:
                        choice.silent()
            return
        for choice, text in zip(rows, texts, strict=True):
            if choice is not None and choice.hold(text, 1, None, None):
                merged.append(choice)

    def _vector(self, vector: Vector) -> None:
        choice = self._table.get(vector.rid)
        if choice is None:
            return
        self._started(choice)
        self._close(choice)
        # The detokenizer was told of it, too, for the ends that are no vectors; this one it does not see.
        frame = control.encode_aborts([AbortRequest(vector.rid, "stop")])
        self._send(Peer("detokenizer", choice.detokenizer), frame)
        choice.call.vectors[choice.index] = vector.raw
        choice.finish(
            End(
                rid=vector.rid,
                reason={"type": "stop", "matched": None},
                prompt_tokens=vector.prompt_tokens,
                cached_tokens=vector.cached_tokens,
            )
        )

    def _rows_held(self, deltas: Deltas, rows: list[Choice | None], merged: list[Choice]) -> None:
        for choice, text, tokens, ids, extra in _full_rows(deltas, rows):
            if (text or tokens or extra is not None) and choice.hold(text, tokens, ids, extra):
                merged.append(choice)

    def _rows_from(self, number: int) -> _Rows:
        found = self._rows.get(number)
        if found is None:
            found = self._rows[number] = _Rows()
        return found

    def _rows_of(self, deltas: Deltas) -> list[Choice | None]:
        """The choices of a frame's rows. Raises `PeerError` when the frame leans on one that was missed."""
        count = None if deltas.texts is None else len(deltas.texts)
        return self._rows_at(deltas.source, deltas.epoch, deltas.seq, deltas.rids, count)

    def _rows_at(
        self, number: int, epoch: int, seq: int, rids: list[str] | None, count: int | None
    ) -> list[Choice | None]:
        known = self._rows_from(number)
        if epoch != known.lives.present and not known.lives.takes(epoch, seq):
            raise PeerError(f"a frame came from a life of detokenizer-{number} that is not the present one")
        follows = known.epoch == epoch and seq == known.seq + 1
        if known.epoch == epoch and not follows:
            log.warning("deltas %d to %d of detokenizer-%d are missing", known.seq + 1, seq - 1, number)
            self._end_shard(number, "a part of the output was lost; send the request again")
        known.epoch, known.seq = epoch, seq
        if rids is not None:
            known.choices = list(map(self._table.get, rids))
        elif count is not None and (not follows or count != len(known.choices)):
            known.choices = []
            raise PeerError("a deltas frame repeats the rows of one that was missed")
        return known.choices

    def _started(self, choice: Choice) -> None:
        if not choice.started:
            choice.started = True
            self._settled(choice)

    # ---------------------------------------------------------------- peers
    def _hello(self, hello: Hello) -> None:
        peer = Peer(hello.role, hello.index)
        before = self.hellos.get(peer)
        self.hellos[peer] = hello
        if self._lives.get(peer) is None:
            self._lives[peer] = hello.incarnation
        if hello.blob is not None:
            self.facts = read_blob(hello.blob)
            self._alive()
        self._look_at(peer)
        if peer.role == "detokenizer":
            self._rows_from(peer.number).lives.greeted(hello.incarnation)
        if before is not None and before.incarnation != hello.incarnation:
            self._lost(peer)
        if peer.role in ("tokenizer", "detokenizer"):
            self._send_unsent()
        if peer == ENGINE and self._forsaken:
            frame = control.encode_aborts([AbortRequest(rid, "client") for rid in self._forsaken])
            if self._send(ENGINE, frame):
                self._forsaken.clear()

    def link_changed(self, peer: Peer, up: bool) -> None:
        """A connection came up or went down."""
        if not up:
            self._up.discard(peer)
            hello = self.hellos.get(peer)
            # A greeting of the next life may be read before the end of this one is noticed: that one stays.
            if hello is not None and self._lives.get(peer) == hello.incarnation:
                del self.hellos[peer]
            self._look_at(peer)
            self._lost(peer)
            return
        self._up.add(peer)
        self._look_at(peer)
        known = self.hellos.get(peer)
        self._lives[peer] = None if known is None else known.incarnation
        if peer.role in ("tokenizer", "detokenizer"):
            self._send_unsent()

    def _send_unsent(self) -> None:
        if self._unsent and self._tokenizers():
            unsent, self._unsent = self._unsent, {}
            self._resend([(call, *work) for call, work in unsent.items()])

    def _lost(self, peer: Peer) -> None:
        """A process died, or the connection to it broke: its requests are sent again or end with an error."""
        self._asks.lost(peer)
        if peer.role == "tokenizer":
            sent = self._sent.pop(peer, {})
            self._resend([(call, *work) for call, work in sent.items()])
        elif peer.role == "detokenizer":
            # Those that have not been sent yet wait for the restarted one.
            choices = [choice for choice in self._of_shard(peer.number) if choice.call not in self._unsent]
            self._fail_all(choices, 503, f"{peer} went away; send the request again")
            self._tell_abort(choices, "lost")
        elif peer == ENGINE:
            choices = list(self._table.values())
            self._fail_all(choices, 503, "engine connection lost")
            self._forsaken += [choice.rid for choice in choices]

    def _end_shard(self, number: int, message: str) -> None:
        """End every request of a detokenizer with an error, and in the engine."""
        choices = self._of_shard(number)
        self._fail_all(choices, 503, message)
        self._tell_abort(choices, "lost")

    def _of_shard(self, number: int) -> list[Choice]:
        return [choice for choice in self._table.values() if choice.detokenizer == number]


def _full_rows(deltas: Deltas, rows: list[Choice | None]) -> Iterable[tuple[Choice, str, int, array[int] | None, Any]]:
    """Each row of a frame with its text, number of tokens, ids (if it wants them) and families."""
    extras = dict(deltas.extras)
    raw = memoryview(deltas.ids).cast("B") if deltas.has_ids else None
    at = 0
    assert deltas.texts is not None
    lens = deltas.lens or [1] * len(deltas.texts)
    for row, (choice, text, tokens) in enumerate(zip(rows, deltas.texts, lens, strict=True)):
        end = at + 8 * tokens
        if choice is not None:
            ids: array[int] | None = None
            if raw is not None and choice.item.open.want_ids:
                ids = array("q")
                ids.frombytes(raw[at:end])
            yield choice, text, tokens, ids, extras.get(row)
        at = end
