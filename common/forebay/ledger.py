"""Which requests are in the engine, whose they are, and which ones are over: the shim's account. Pure, no sockets."""

from __future__ import annotations

from typing import Any

from forebay.wire.messages import AbortRequest

REMEMBERED = 65_536
"""Ended requests and early aborts that are remembered, to know a frame that comes late or twice."""


class Ledger:
    """The requests between `drain` and their last row, by wire id."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[int, str | None]] = {}
        """rid -> (owning api process, what the client calls it where that differs)"""
        self._public: dict[str, set[str]] = {}
        self._ended: dict[str, None] = {}
        self._early: dict[str, AbortRequest] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, rid: str) -> bool:
        return rid in self._live

    def owner(self, rid: str) -> int | None:
        """The api process of a live request."""
        entry = self._live.get(rid)
        return None if entry is None else entry[0]

    def of_api(self, number: int) -> list[str]:
        """The live requests of an api process."""
        return [rid for rid, entry in self._live.items() if entry[0] == number]

    def begin(self, request: Any) -> bool:
        """Enter a request that has come; False for one that came before (it is sent again when a tokenizer died)."""
        rid: str = request.rid
        if getattr(request, "attempt", 0) and (rid in self._live or rid in self._ended):
            return False
        public: str | None = getattr(request, "public_rid", None)
        self._live[rid] = (getattr(request, "api", 0), public)
        if public is not None:
            self._public.setdefault(public, set()).add(rid)
        return True

    def end(self, rid: str) -> bool:
        """A request is over; False when it was over already."""
        entry = self._live.pop(rid, None)
        if entry is None:
            return False
        _remember(self._ended, rid, None)
        public = entry[1]
        if public is not None and public in self._public:
            self._public[public].discard(rid)
            if not self._public[public]:
                del self._public[public]
        return True

    def named(self, rid: str) -> list[str]:
        """The live requests that a wire id, or a client's own id, stands for."""
        if rid in self._live:
            return [rid]
        return sorted(self._public.get(rid, ()))

    def abort_early(self, abort: AbortRequest) -> None:
        """An abort that may have overtaken its request, which is in the tokenizer still."""
        if abort.rid not in self._ended:
            _remember(self._early, abort.rid, abort)

    def aborted_early(self, rid: str) -> AbortRequest | None:
        """The abort that came before this request, if any; it counts once."""
        return self._early.pop(rid, None) if self._early else None


def _remember(table: dict[str, Any], key: str, value: Any) -> None:
    table[key] = value
    if len(table) > REMEMBERED:
        del table[next(iter(table))]
