"""The request table of one api process: it owns every request's life.

A request leaves it exactly once, through `_close`, whatever ends it: its end or an error from the other processes, the
client leaving, a peer that died, a timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay.facts import LaunchFacts
from forebay.housekeeping import keep_house
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.lives import Lives
from forebay.wire.messages import AbortRequest, ControlRequest, Hello, Ids, RequestFault, Unheard
from forebay_api.asks import Asks
from forebay_api.calls import Call, Choice
from forebay_api.pace import Pace, clock
from forebay_api.resumption import Resumption

if TYPE_CHECKING:
    from forebay_api.dispatch import Work

log = logging.getLogger("forebay.api")

ENGINE = Peer("engine", 0)

Send = Callable[[Peer, bytes], bool]


class Rows:
    """The rows of the previous frame of one detokenizer."""

    __slots__ = ("ahead", "choices", "due", "epoch", "lives", "number", "seq")

    def __init__(self, number: int) -> None:
        self.number = number
        self.due = b""
        """What its next frame begins with if it is a steady one."""
        self.epoch = self.seq = -1
        self.ahead = 1
        """How far the numbers of the engine's steps are ahead of those of the frames."""
        self.choices: list[Choice | None] = []
        self.lives = Lives()

    @property
    def step(self) -> int:
        """The engine's step up to which everything has come: a frame of texts stands for the step after the last."""
        return self.seq + self.ahead


class Table:
    """The running requests, their names, and all the ways in which they end. Opens no socket."""

    def __init__(
        self,
        number: int,
        detokenizers: int,
        send: Send,
        loop: asyncio.AbstractEventLoop,
        *,
        apis: int = 1,
        life: int = 0,
        dispatch_wait: float = 30.0,
        resume_timeout: float = 0.0,
        post: Send | None = None,
    ) -> None:
        """`apis`: how many processes like this one share the engine. `life`: `Hello.incarnation` of this one.
        `dispatch_wait`: how long a call waits for a tokenizer and its detokenizer to run (seconds).
        `resume_timeout`: how long requests wait for the next life of a detokenizer that died. `post`: like `send`, for
        what must not be lost to a full queue."""
        self.number = number
        self.on_control: Callable[[ControlRequest], object] = keep_house
        """Applies a control call that another api process was asked and that concerns all of them."""
        self.greet: Callable[[], object] = list
        """Introduces this process to the others anew."""
        self.facts: LaunchFacts | None = None
        self.engine_frames = 0
        """Frames that show the engine at work; a health probe waits for the next one."""
        self.bad_frames = 0
        self.hellos: dict[Peer, Hello] = {}
        self._send = send
        self._post = post or send
        self._loop = loop
        self._shards = detokenizers
        self._apis = apis
        self._life = life
        self._table: dict[str, Choice] = {}
        self._public: dict[str, Call] = {}
        self._asks = Asks(number, self._post, loop)
        self._rows: dict[int, Rows] = {}
        self._due: dict[bytes, Rows] = {}
        self.pace = Pace()
        self._up: set[Peer] = set()
        self._lives: dict[Peer, int | None] = {}
        """Whose life the present connection to a peer belongs to, once it has greeted."""
        self.shut_shards: set[int] = set()
        """Detokenizers that are away or about to stop: no new request is given to them while there are others."""
        self._takers: list[Peer] = []
        """Tokenizers that take new requests, in order."""
        self._unsent: dict[Call, tuple[list[Choice], list[Ids]]] = {}
        self._dispatch_wait = dispatch_wait
        self._overdue: dict[Call, asyncio.TimerHandle] = {}
        """When the calls that have waited in `_unsent` are given up."""
        """Calls that found no tokenizer, or not their detokenizer; sent as soon as there is one."""
        self._gathered: list[Work] = []
        """Work that is sent at the end of this turn of the event loop, or as soon as a frame is full."""
        self._gathered_size = 0
        self._in_turn = False
        """Whether work was sent in this turn already."""
        self._sent: dict[Peer, dict[Call, tuple[list[Choice], list[Ids]]]] = {}
        """Per tokenizer: calls of which a choice has not started, kept to be sent again if it dies."""
        self._next_tokenizer = 0
        self._probes: list[asyncio.Future[None]] = []
        self.new_lives: list[Hello] = []
        """Greetings of detokenizers that have started anew: they count once the inbox is empty."""
        self._resume = Resumption(
            number, resume_timeout, self._post, loop, self._sent_to, self._of_shard, self._lose_shard
        )
        self._forsaken: dict[Peer, list[str]] = defaultdict(list)
        """Requests that ended here while the engine, or their detokenizer, was away; aborted there when it is back: a
        tokenizer may still bring it what it had of them."""

    def __len__(self) -> int:
        return len(self._table)

    def owns(self, public_rid: str) -> bool:
        """Whether a running request goes by this name."""
        return public_rid in self._public

    def calls(self) -> list[Call]:
        """Every call that still runs."""
        return list({id(choice.call): choice.call for choice in self._table.values()}.values())

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
        for peer in {ENGINE, *(Peer("detokenizer", choice.detokenizer) for choice in choices)}:
            if not self._post(peer, frame):
                self._forsaken[peer] += [choice.rid for choice in choices]
        for tokenizer in {choice.call.tokenizer for choice in choices if not choice.started}:
            if tokenizer is not None:
                self._post(tokenizer, frame)

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
            self._post(ENGINE, control.encode_aborts(aborts))
        return len(fresh)

    def _disown(self, asked: Unheard) -> None:
        """A detokenizer has heard nothing of these requests but their announcement: end those that are not ours."""
        gone = [AbortRequest(rid, "client") for rid in asked.rids if rid not in self._table]
        if gone:
            for peer in (Peer("detokenizer", asked.source), ENGINE):
                self._send(peer, control.encode_aborts(gone))

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
        if self._overdue:
            self._unsent.pop(call, None)
            timer = self._overdue.pop(call, None)
            if timer is not None:
                timer.cancel()
        if call.tokenizer is not None:
            self._sent.get(call.tokenizer, {}).pop(call, None)

    def _started(self, choice: Choice) -> None:
        if not choice.started:
            choice.started = True
            self._settled(choice)

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

    def _end_shard(self, number: int, message: str) -> None:
        """End every request of a detokenizer with an error, and in the engine."""
        choices = self._of_shard(number)
        self._fail_all(choices, 503, message)
        self._tell_abort(choices, "lost")

    def _lose_shard(self, number: int) -> None:
        """A detokenizer died: its requests end with an error; those that have not been sent yet wait for the next."""
        choices = self._sent_to(number)
        self._fail_all(choices, 503, f"detokenizer-{number} went away; send the request again")
        self._tell_abort(choices, "lost")

    def _sent_to(self, number: int) -> list[Choice]:
        return [choice for choice in self._of_shard(number) if choice.call not in self._unsent]

    def _of_shard(self, number: int) -> list[Choice]:
        return [choice for choice in self._table.values() if choice.detokenizer == number]
