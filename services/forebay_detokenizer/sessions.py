"""One request in the detokenizer: what it has read, counted, and not said yet.

Most rows never come here: a streaming request without stop strings, whose decoder holds nothing, is served by the
batch (`rows`), and a request that does not stream only has its ids noted until it ends (it is *deferred*).
Everything else is *eager*: it decodes and counts its own tokens, one call a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from forebay.wire.messages import End, Extra, OpenItem
from forebay_detokenizer.reading import Reader
from forebay_detokenizer.shaping import merged, name_tokens, without_last
from forebay_detokenizer.tables import Tables

# What a row set must know of a session, as bits of one number: 4,096 rows are sorted by a pass over it.
STREAM, EAGER, BUSY, IDS, FRESH, ABSENT = 1, 2, 4, 8, 16, 32
API_SHIFT = 6
"""The number of the api process stands above the bits."""


class Piece(NamedTuple):
    """What a request says: text, the number of tokens it stands for, their ids if kept, and families."""

    text: str
    tokens: int
    ids: Sequence[int] | None
    extra: Extra | None


NOTHING = Piece("", 0, (), None)


class Row(NamedTuple):
    """One request's part of a step, with what the engine has counted so far."""

    ids: Sequence[int]
    reason: dict[str, Any] | None = None
    extra: Extra | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    trailing: dict[str, Any] | None = None


class Session:
    """The state of one request, from its `OpenItem` to its `End`."""

    __slots__ = (
        "_extra",
        "_item",
        "_reader",
        "_table",
        "api",
        "direct",
        "held",
        "ids",
        "interval",
        "kind",
        "life",
        "rid",
        "skims",
        "tokens",
        "want_hidden",
        "want_logprobs",
    )

    def __init__(self, item: OpenItem, tables: Tables, front_stops: bool = True) -> None:
        """Raises `RequestError` for a `stop_regex` that cannot be served, `DecodeError` for a prompt's tail."""
        self._item = item
        self.rid = item.rid
        self.api, self.life = item.api, item.life
        self.interval = max(1, item.stream_interval)
        self.want_logprobs = item.return_logprob
        self.want_hidden = item.return_hidden_states
        self._table = tables.of(item.skip_special_tokens, item.spaces_between_special_tokens)
        self._reader = Reader(item, self._table, front_stops)
        own = item.stream and (self.interval > 1 or self._table is not tables.fast)
        flags = EAGER * (self._reader.searches or own) | IDS * item.want_ids | (STREAM | FRESH) * item.stream
        self.kind = item.api << API_SHIFT | flags
        self.direct = item.stream and self.interval == 1
        """Whether what a row says is said at once."""
        self.skims = self.direct and self._reader.searches and self._table is tables.fast
        """Whether `skim` may be asked."""
        self.tokens = 0
        """Output tokens so far; of a session that is not eager, up to the last time its row set was settled."""
        keeps = item.want_ids or self.deferred or self.interval > 1
        self.ids: array[int] | None = array("q") if keeps else None
        self.held = 0
        """Tokens that nobody has been told of."""
        self._extra: Extra | None = None
        self.note_busy()

    @property
    def stream(self) -> bool:
        """Whether the client gets the text as it comes."""
        return bool(self.kind & STREAM)

    @property
    def fresh(self) -> bool:
        """Whether it streams and the api has not heard of it."""
        return bool(self.kind & FRESH)

    @property
    def deferred(self) -> bool:
        """Whether ids are only noted, and decoded when the request ends."""
        return not self.kind & (STREAM | EAGER)

    def note_busy(self) -> bool:
        """Note in `kind` whether the next row must come here because the decoder holds something."""
        busy = not self._reader.idle
        self.kind = self.kind | BUSY if busy else self.kind & ~BUSY
        return busy

    def start(self, prompt_tokens: int | None, cached_tokens: int) -> tuple[int, int]:
        """Prompt and cached tokens, to be told with the first row: by the engine if it says so, else as tokenised."""
        self.kind &= ~FRESH
        return self._item.prompt_tokens if prompt_tokens is None else prompt_tokens, cached_tokens

    def note(self, ids: Sequence[int]) -> None:
        """Count the ids of one row, as a row set does for the sessions that are not eager."""
        if not self.kind & EAGER:
            self.tokens += len(ids)
        if self.deferred and self.ids is not None:
            self.ids.extend(ids)

    def skim(self, text: str) -> bool:
        """Take a row of one id by the text that the table has for it, if that is all there is to it."""
        if self._reader.skim(text):
            self.tokens += 1
            return True
        return False

    def speak(self, ids: Sequence[int]) -> tuple[str, int, str | None]:
        """Read a row of a direct session that does not end the request: what it says, the number of its ids that
        count, and the stop string or pattern that the last of them completed. Raises `DecodeError`.

        With a stop, the row must be handed to `stopped`; without one, nothing of it is kept.
        """
        used, stop = self._reader.read(ids, self.tokens)
        if stop is not None:
            return "", used, stop
        if self.kind & EAGER:
            self.tokens += used
        return self._reader.take(), used, None

    def accept(self, ids: Sequence[int], extra: Extra | None) -> tuple[int, str | None]:
        """Read a row that does not end the request, and keep what it says; the number of ids that count, and the
        stop string or pattern that the last of them completed. Raises `DecodeError`."""
        used, stop = self._reader.read(ids, self.tokens)
        if stop is None:
            self._take(ids, used, extra)
        return used, stop

    def add(self, extra: Extra) -> None:
        """Keep families for the next piece."""
        self.name(extra)
        self._extra = merged(self._extra, extra)

    def name(self, extra: Extra) -> None:
        """Add the bytes of the tokens that the families name, if they are wanted and not there."""
        if self._item.want_token_bytes and extra.token_bytes is None:
            name_tokens(extra, self._table.token_bytes)

    def release(self) -> Piece:
        """Everything that has not been said yet."""
        piece = Piece(self._reader.take(), self.held, self.ids, self._extra)
        self.held, self._extra = 0, None
        if self.ids is not None:
            self.ids = array("q")
        return piece

    def id_bytes(self, ids: Sequence[int] | None) -> bytes | None:
        """Ids as they travel, None if they are not wanted."""
        return array("q", ids or ()).tobytes() if self._item.want_ids else None

    def finish(self, row: Row, keep_ids: frozenset[int] = frozenset()) -> End:
        """Take the last row and end. A deferred session has noted the row's ids already. Raises `DecodeError`.

        `keep_ids`: stop tokens that stay in the text. A stop string that the last row completes is the reason of
        the end, also when the engine gives another; an abort stays one.
        """
        reason = row.reason or {}
        body = self.ids if self.deferred and self.ids is not None else row.ids
        if self._hides_last(row, keep_ids):
            body = body[:-1]
        used, stop = self._reader.read_last(body, self.tokens, reason.get("matched"))
        self._take(row.ids, len(row.ids) if stop is None else used, row.extra)
        if stop is not None and reason.get("type") != "abort":
            reason = {"type": "stop", "matched": stop}
        return self._end(row, reason)

    def stopped(self, stop: str, used: int, row: Row) -> End:
        """The end after a row of which the first `used` ids completed a stop string or pattern."""
        self._take(row.ids, used, row.extra)
        return self._end(row, {"type": "stop", "matched": stop})

    def _end(self, row: Row, reason: dict[str, Any]) -> End:
        text, tokens, ids, extra = self.release()
        return End(
            rid=self.rid,
            reason=reason,
            text=text,
            ids=self.id_bytes(ids),
            tokens=tokens if self.stream else self.tokens,
            prompt_tokens=self._item.prompt_tokens if row.prompt_tokens is None else row.prompt_tokens,
            completion_tokens=self.tokens,
            cached_tokens=row.cached_tokens,
            reasoning_tokens=row.reasoning_tokens,
            extra=extra,
            trailing=row.trailing,
        )

    def _hides_last(self, row: Row, keep_ids: frozenset[int]) -> bool:
        """Whether the last token is the stop token and does not belong to the text.

        Only the last one, even if the engine names a sequence: the tokens before it may have been shown.
        """
        matched = (row.reason or {}).get("matched")
        if isinstance(matched, list) and matched:
            matched = matched[-1]
        if self._item.no_stop_trim or not row.ids or not isinstance(matched, int):
            return False
        return row.ids[-1] == matched and matched not in keep_ids

    def _take(self, ids: Sequence[int], used: int, extra: Extra | None) -> None:
        """Count the first `used` ids of a row and keep what belongs to them."""
        if not self.deferred:
            self.held += used
            if self.ids is not None:
                self.ids.extend(ids[:used])
        if self.kind & EAGER:
            self.tokens += used
        if extra is not None:
            if used < len(ids):
                without_last(extra, len(ids) - used)
            self.add(extra)
