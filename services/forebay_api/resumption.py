"""Requests whose detokenizer has died wait here for its next life, for a bounded time, and go on where they were.

Each frame of text names the step of the engine up to which everything has come. When another life of a detokenizer
greets, that number and the names of the requests that wait go to the link in the engine (`forebay.wire.replay`), which
has their rows and tells the new life of them. What cannot be taken up again, the link ends with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from forebay.topology import Peer
from forebay.wire.replay import Claim, encode_claim

if TYPE_CHECKING:
    from forebay_api.calls import Choice

log = logging.getLogger("forebay.api")

ENGINE = Peer("engine", 0)


class Resumption:
    """Which detokenizers are waited for, and until when."""

    def __init__(
        self,
        number: int,
        seconds: float,
        send: Callable[[Peer, bytes], bool],
        loop: asyncio.AbstractEventLoop,
        sent: Callable[[int], Iterable[Choice]],
        claimed: Callable[[int], Iterable[Choice]],
        end: Callable[[int], None],
    ) -> None:
        """`seconds`: 0 is not at all. `sent` gives the requests that a detokenizer may know, `end` ends them;
        `claimed` gives all: what has been put aside may be in the engine, too, and what never was is not missed."""
        self._number, self._seconds = number, seconds
        self._send, self._loop = send, loop
        self._sent, self._claimed, self._end = sent, claimed, end
        self._lives: dict[int, int] = {}
        self._gone: dict[int, int | None] = {}
        """The life that was lost last."""
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def is_new(self, shard: int, life: int) -> bool:
        """Whether a detokenizer greets that is another process than the one before it."""
        return self._lives.get(shard, life) != life

    def lost(self, shard: int) -> None:
        """A detokenizer is away."""
        self._gone[shard] = self._lives.get(shard)
        if not self._seconds:
            self._end(shard)
        elif shard not in self._timers and self._has_sent(shard):
            self._wait(shard)

    def greeted(self, shard: int, life: int, step: int) -> None:
        """A detokenizer has introduced itself; everything up to `step` has come from the life before it."""
        before = self._lives.get(shard)
        self._lives[shard] = life
        if life == before:
            # If it was away it was frozen. What it has said since then is lost, and it does not know that.
            if life == self._gone.get(shard) and self._stop(shard):
                self._end(shard)
            return
        choices = list(self._claimed(shard))
        begun = [choice.rid for choice in choices if choice.started]
        fresh = [choice.rid for choice in choices if not choice.started]
        claim = encode_claim(Claim(self._number, shard, life, step, begun, fresh))
        waiting = self._stop(shard)
        if not self._send(ENGINE, claim) and choices:
            self._end(shard)
        elif waiting and self._has_sent(shard):
            self._wait(shard)

    def heard(self, shard: int) -> None:
        """The first frame of a new life: what can go on goes on."""
        if self._stop(shard):
            log.info("detokenizer-%d goes on", shard)

    def lost_all(self) -> None:
        """All requests have ended: nobody waits."""
        for shard in list(self._timers):
            self._stop(shard)

    def _has_sent(self, shard: int) -> bool:
        return any(True for _ in self._sent(shard))

    def _wait(self, shard: int) -> None:
        self._timers[shard] = self._loop.call_later(self._seconds, self._give_up, shard)

    def _stop(self, shard: int) -> bool:
        timer = self._timers.pop(shard, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _give_up(self, shard: int) -> None:
        del self._timers[shard]
        self._end(shard)
