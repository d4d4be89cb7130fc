"""The latest bodies that differed in more than their prompt and names, with what came of each."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")
MAX_SHAPES = 8


class Shapes(Generic[T]):
    """A few bodies and their results; comparing two bodies of 90 fields takes 0.5 us, checking one 10."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, T]] = []

    def find(self, body: Any) -> T | None:
        """The result of an equal body."""
        for known, result in self._known:
            if known == body:
                return result
        return None

    def keep(self, body: Any, result: T) -> None:
        """Remember a body; the oldest is forgotten."""
        if len(self._known) == MAX_SHAPES:
            self._known.pop()
        self._known.insert(0, (body, result))
