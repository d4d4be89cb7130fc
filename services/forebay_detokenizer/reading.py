"""The text of one request: ids through its decoder, its stop strings and its patterns, to what may be shown."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.wire.messages import OpenItem
from forebay_detokenizer.incremental import PARTIAL
from forebay_detokenizer.patterns import PatternMatcher
from forebay_detokenizer.stops import StopMatcher, cut
from forebay_detokenizer.tables import Table
from forebay_detokenizer.windows import WindowTable


class Reader:
    """Reads the rows of one request in order; `take` gives the text that may be shown since the last call."""

    __slots__ = ("_decoder", "_item", "_matcher", "_out", "_patterns")

    def __init__(self, item: OpenItem, table: Table | WindowTable, front_stops: bool) -> None:
        """`front_stops`: stop strings and patterns end the text here; else the engine says where they do.

        Raises `RequestError` for a `stop_regex` that cannot be served, `DecodeError` for a prompt's tail.
        """
        self._item = item
        self._decoder = table.decoder(item.prompt_tail, item.prompt_tokens)
        stops = tuple(item.stop)
        self._matcher = StopMatcher(stops, keep=item.no_stop_trim, ends=front_stops) if stops else None
        self._patterns = PatternMatcher(item.stop_regex) if item.stop_regex and front_stops else None
        self._out: list[str] = []

    @property
    def searches(self) -> bool:
        """Whether a stop string or pattern must see every piece."""
        return self._matcher is not None or self._patterns is not None

    @property
    def idle(self) -> bool:
        """Whether the decoder holds nothing, so that the table's own text is the text of the next id."""
        return self._decoder.idle

    def take(self) -> str:
        """The text that may be shown now."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def skim(self, text: str) -> bool:
        """Whether the table's text of the next id is simply the next text: nothing is held, and no stop string can
        begin in it."""
        matcher = self._matcher
        return (
            matcher is not None
            and not matcher.held
            and self._patterns is None
            and self._decoder.idle
            and matcher.starts.isdisjoint(text)
            and text is not PARTIAL
        )

    def read(self, ids: Sequence[int], before: int) -> tuple[int, str | None]:
        """The number of ids that count, and the stop string or pattern that the last of them completed.

        `before`: tokens of the request in front of these. Raises `DecodeError`.
        """
        if self._matcher is None and self._patterns is None:
            self._out.append(self._decoder.one(ids[0]) if len(ids) == 1 else self._decoder.feed(ids))
            return len(ids), None
        for used, i in enumerate(ids, 1):
            stop = self._show(self._decoder.one(i), before + used)
            if stop is not None:
                return used, stop
        return len(ids), None

    def read_last(self, ids: Sequence[int], before: int, matched: object) -> tuple[int, str | None]:
        """Like `read` for the last row: nothing stays held. `matched`: what the engine says that it found.

        When that is a stop string, the occurrence that the last id completed ends the text; a pattern trims nothing.
        """
        if isinstance(matched, str) and matched not in self._item.stop_regex:
            used, stop = self.read(ids[:-1], before)
            if stop is not None:
                return used, stop
            text = self._decoder.feed(ids[-1:]) + self._decoder.flush()
            if self._matcher is not None:
                self._out.append(self._matcher.cut(text, matched))
            else:
                self._out.append(cut(text, 0, matched, self._item.no_stop_trim))
            return len(ids), None
        used, stop = self.read(ids, before)
        if stop is None:
            stop = self._show(self._decoder.flush(), before + used)
        if stop is None and self._matcher is not None:
            self._out.append(self._matcher.flush())
        return used, stop

    def _show(self, text: str, tokens: int) -> str | None:
        """Let a piece of text through; the stop string or pattern that it completed. Below `min_new_tokens` nothing
        is completed: an occurrence is ordinary text then."""
        if not text:
            return None
        shown, stop, ripe = text, None, tokens >= self._item.min_new_tokens
        if self._matcher is not None:
            shown, stop = self._matcher.feed(text, ripe)
        self._out.append(shown)
        if stop is None and self._patterns is not None:
            stop = self._patterns.feed(text, ripe)
            if stop is not None:  # nothing is trimmed
                self._out.append(self._matcher.flush() if self._matcher is not None else "")
                self._out.append(self._decoder.flush())
        return stop
