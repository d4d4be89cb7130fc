"""One detokenizer as the link in the engine sees it: how far it has got, and what it is still to be told."""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

from forebay.topology import Peer
from forebay.wire.replay import Claim


class ResumeLimits(NamedTuple):
    """How much is kept, and how long a request may wait for its detokenizer. Either 0: nothing is resumed."""

    kept_bytes: int = 64 << 20
    seconds: float = 5.0


class State(enum.Enum):
    """How far a detokenizer has got."""

    LIVE = enum.auto()
    AWAY = enum.auto()
    CLAIMS = enum.auto()
    BEHIND = enum.auto()


class Shard:
    """One detokenizer as the link sees it."""

    __slots__ = (
        "claims",
        "cursor",
        "grace",
        "life",
        "old",
        "opens",
        "overdue",
        "peer",
        "pending",
        "replaying",
        "since",
        "state",
        "told",
    )

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.state = State.LIVE
        self.life: int | None = None
        """The incarnation that has greeted last."""
        self.since = 0.0
        """When the state, or the last progress, began."""
        self.overdue = False
        """Whether the last look found that claims are late; by the next one the inbox has been read."""
        self.old: frozenset[str] = frozenset()
        """The requests that an earlier life knew: they go on only if their api process claims them."""
        self.claims: dict[int, Claim] = {}
        self.cursor = 0
        """The number of the next frame that it gets."""
        self.pending: deque[bytes] = deque()
        """What it gets before that."""
        self.opens: list[str] = []
        """Requests that it has to be told of before the next frame."""
        self.replaying = False
        """Whether it still has to be told the end of a replay."""
        self.grace = 0.0
        self.told: deque[tuple[float, frozenset[str]]] = deque()
        """Which requests were taken up again, and when, in the last minute."""
