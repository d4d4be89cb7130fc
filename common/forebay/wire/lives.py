"""Which life of a peer is the present one, so that what another has left is left out. Pure."""

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


class Owners:
    """The present lives of the api processes, for whoever gets their work by way of a tokenizer.

    A tokenizer that was frozen brings work of a life that has ended since. That of a new life may come before its own
    greeting does, since they take different ways: so a life is over only when a later one has greeted.
    """

    __slots__ = ("present",)

    def __init__(self) -> None:
        self.present: dict[int, int] = {}
        """By number of the api process: the life that has greeted last."""

    def greeted(self, api: int, life: int) -> None:
        """An api process has introduced itself. Its word counts also when an older life comes back by a clock that
        was set back."""
        self.present[api] = life

    def over(self, api: int, life: int) -> bool:
        """Whether a life of an api process has ended."""
        return life < self.present.get(api, 0)
