"""Looks for stop strings in the newest output, for fronts that leave this to the engine (`stop_match = engine`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included."""


class StopTexts:
    """The stop strings of one request; `tokens` is the length of the longest, in tokens."""

    def __init__(self, texts: list[str], tokens: int, decode: Decode) -> None:
        self.texts = texts
        # A match ends in the newest token, so it lies within the longest stop string and one more token.
        self.window = max(tokens, max(map(len, texts))) + 1
        self.decode = decode

    def match(self, output: Sequence[int]) -> str | None:
        """The first string of the list that stands in the last tokens of `output`."""
        tail = self.decode(output[-self.window :])
        return next((text for text in self.texts if text in tail), None)
