"""How much of what a peer was sent it has not taken from its inbox yet: a bound in bytes. Pure, no sockets, no clock.

ZeroMQ bounds a queue by its frames alone, and a frame may hold a prompt of megabytes or the hidden states of a whole
step. So the sender puts marks between its frames, and the reader sends each of them back when it has come to it.
"""

from __future__ import annotations

LINK_BYTES = 512 << 20
"""Bytes on their way to one peer, from which on a link refuses more, unless a setting says otherwise."""
MARKS = 16
"""Marks that stand in a full backlog."""
AGAIN_SECONDS = 1.0
"""How often a full link asks anew how far its peer is: a mark, or its way back, may have been lost."""


class Backlog:
    """The account of one link. `sent` is what the sender has counted since it began, in bytes.

    A link whose `sent` is below `attend_at` has nothing to do: neither a mark is due, nor is it full.
    """

    __slots__ = ("_again", "_limit", "_marked", "_taken", "attend_at", "name")

    def __init__(self, name: int, limit: int = LINK_BYTES) -> None:
        """`name`: a number that no other link has, so that the marks of another life of this process are known."""
        self.name = name
        self._limit = limit
        self._taken = self._marked = 0
        self._again = 0.0
        self._plan()

    def full(self, sent: int) -> bool:
        """Whether the peer has to take something first."""
        return sent - self._taken >= self._limit

    def wants_mark(self, sent: int, now: float) -> bool:
        """Whether a mark shall be sent now; then tell `marked`."""
        return sent - self._marked >= self._every or (self.full(sent) and now >= self._again)

    def marked(self, sent: int, now: float) -> None:
        """A mark has been sent behind everything so far."""
        self._marked, self._again = sent, now + AGAIN_SECONDS
        self._plan()

    def returned(self, name: int, mark: int, sent: int) -> None:
        """A mark has come back: the peer has taken all before it. One that this link has not sent is ignored."""
        if name == self.name and self._taken < mark <= sent:
            self._taken = mark
            self._plan()

    def broken(self, sent: int) -> None:
        """The connection is gone, and with it everything on its way."""
        self._taken = self._marked = sent
        self._plan()

    @property
    def _every(self) -> int:
        return max(1, self._limit // MARKS)

    def _plan(self) -> None:
        self.attend_at = min(self._marked + self._every, self._taken + self._limit)
