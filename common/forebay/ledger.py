"""Which requests are in the engine, whose they are, and which ones are over: the shim's account. Pure, no sockets."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Generic, TypeVar

from forebay.topology import shard_of
from forebay.wire.messages import AbortRequest, RequestName

REMEMBERED = 65_536
"""Ended requests, and early aborts, that are remembered at least, to know a frame that comes late or twice."""

T = TypeVar("T")


class Recent(Generic[T]):
    """A table that forgets: the newest `size` keys are in it for sure, and never more than twice as many.

    It drops half of itself at once. Dropping the oldest key of one dict each time costs 9 us instead of 0.1: the scan
    for the first key passes all places that became empty before it.
    """

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._new: dict[str, T] = {}
        self._old: dict[str, T] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._new or key in self._old

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def put(self, key: str, value: T) -> None:
        """Remember a value; it takes the place of an earlier one."""
        self._new[key] = value
        if len(self._new) >= self._size:
            self._old, self._new = self._new, {}

    def pop(self, key: str) -> T | None:
        """The value of a key, which is forgotten with that; None when there is none."""
        old = self._old.pop(key, None)
        return self._new.pop(key, old)


class Ledger:
    """The requests between `drain` and their last row, by wire id."""

    def __init__(self, shards: int = 1) -> None:
        """`shards`: number of detokenizers."""
        self._live: dict[str, tuple[int, str | None, int, int]] = {}
        """rid -> (owning api process, what the client calls it where that differs, detokenizer, life of the owner)"""
        self._shards: list[set[str]] = [set() for _ in range(shards)] if shards > 1 else []
        """The requests of each detokenizer; one alone has all of them."""
        self._public: dict[str, set[str]] = {}
        self._ended: Recent[None] = Recent()
        self._early: Recent[AbortRequest] = Recent()
        self.on_end: Callable[[str, bool], object] | None = None
        """Is told of each request that is over, and whether its detokenizer says so."""

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, rid: str) -> bool:
        return rid in self._live

    def owner(self, rid: str) -> int | None:
        """The api process of a live request."""
        entry = self._live.get(rid)
        return None if entry is None else entry[0]

    def of_api(self, number: int, before: int | None = None) -> list[str]:
        """The live requests of an api process, or those of its lives before `before`."""
        return [
            rid for rid, entry in self._live.items() if entry[0] == number and (before is None or entry[3] < before)
        ]

    def of_shard(self, number: int) -> Set[str]:
        """The live requests whose text a detokenizer makes. Changes with the ledger."""
        return self._shards[number] if self._shards else self._live.keys()

    def begin(self, request: RequestName) -> bool:
        """Enter a request that has come; False for one that came before (it is sent again when a tokenizer died)."""
        rid = request.rid
        if rid in self._live or (request.attempt and rid in self._ended):
            return False
        public, shard = request.public_rid, 0
        if self._shards:
            shard = shard_of(rid, len(self._shards))
            self._shards[shard].add(rid)
        self._live[rid] = (request.api, public, shard, request.life)
        if public is not None:
            self._public.setdefault(public, set()).add(rid)
        return True

    def end(self, rid: str, said: bool = False) -> bool:
        """A request is over; False when it was over already. `said`: by its last row or a stop string, so that its
        client hears it from its detokenizer."""
        entry = self._live.pop(rid, None)
        if entry is None:
            return False
        if self.on_end is not None:
            self.on_end(rid, said)
        _, public, shard, _ = entry
        if self._shards:
            self._shards[shard].discard(rid)
        self._ended.put(rid, None)
        if public is not None:
            self._public[public].discard(rid)
            if not self._public[public]:
                del self._public[public]
        return True

    def ended(self, rid: str) -> bool:
        """Whether a request was here and is over, as far as that is remembered."""
        return rid in self._ended

    def end_all(self) -> None:
        """Every live request is over."""
        for rid in list(self._live):
            self.end(rid)

    def named(self, rid: str) -> list[str]:
        """The live requests that a wire id, or a client's own id, stands for. Only the whole id counts."""
        if rid in self._live:
            return [rid]
        return sorted(self._public.get(rid, ()))

    def abort_early(self, abort: AbortRequest) -> None:
        """An abort that may have overtaken its request, which is in the tokenizer still."""
        if abort.rid not in self._ended:
            self._early.put(abort.rid, abort)

    @property
    def early_aborts(self) -> int:
        """Aborts whose requests have not come, or never will."""
        return len(self._early)

    def aborted_early(self, rid: str) -> AbortRequest | None:
        """The abort that came before this request, if any; it counts once."""
        return self._early.pop(rid)
