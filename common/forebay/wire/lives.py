"""Which life of a peer is the present one, so that a late frame of another is left out. Pure."""

from __future__ import annotations

INSISTS = 8
"""Frames in a row after which a life that nobody has announced is believed: then it was the greeting that was wrong."""


class Lives:
    """The lives of one peer, which numbers its frames from 1 in each."""

    __slots__ = ("_other", "present")

    def __init__(self) -> None:
        self.present: int | None = None
        """The life that the peer has told in its greeting; None before it: then every life is taken."""
        self._other = (-1, -1, 0)
        """Of the last frame of another life: that life, its number, and how many in a row it has been."""

    def greeted(self, epoch: int) -> None:
        """The peer has introduced itself."""
        self.present = epoch
        self._other = (-1, -1, 0)

    def takes(self, epoch: int, seq: int) -> bool:
        """Whether a frame is of the present life, or the one that shows that another one is."""
        if epoch == self.present or self.present is None:
            return True
        last, number, count = self._other
        count = count + 1 if (last, number) == (epoch, seq - 1) else 1
        self._other = (epoch, seq, count)
        if count < INSISTS:
            return False
        self.present = epoch
        return True
