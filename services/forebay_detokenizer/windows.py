"""Token ids -> text for tokenizers whose decoder is no table: decode a window of the last ids, show what is new.

`Tokenizer.decode` itself does the work, on the ids since the last text that was shown and the ones that gave that
text (they decide about spaces and prefixes). The stock `DecodeStream` does the same but keeps what it holds at the
end for ever, and raises when a text turns out different from what it announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.errors import ForebayError
from forebay_detokenizer.incremental import Decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_HELD = 32
"""Ids without a certain text after which the text is shown as it is: no character has that many tokens, and a window
that only grows makes each step slower than the last."""


class DecodeError(ForebayError):
    """The tokenizer cannot decode what the engine sent for one request."""


class WindowTable:
    """One tokenizer behind the interface of `incremental.Table`, for one way to treat special tokens."""

    __slots__ = ("_added", "_size", "_tokenizer", "hide", "spaces")

    def __init__(self, tokenizer: Tokenizer, hide: bool, spaces: bool) -> None:
        self._tokenizer = tokenizer
        self.hide = hide
        self.spaces = spaces
        """False: no space between adjacent special tokens, where the decoder puts one."""
        added = tokenizer.get_added_tokens_decoder()
        self._added = {i: token.content for i, token in added.items() if token.special}
        self._size = max([tokenizer.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added)])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids as they stand; raises `DecodeError`."""
        try:
            return str(self._tokenizer.decode(ids, skip_special_tokens=self.hide))
        except Exception as error:  # the tokenizer's own errors have no common type below Exception
            raise DecodeError(f"the tokenizer cannot decode the output: {error}") from error

    def known(self, ids: Sequence[int]) -> list[int]:
        """The ids that the vocabulary has: `decode` raises for a negative one."""
        size = self._size
        return [i for i in ids if 0 <= i < size]

    def joined_special(self, before: int | None, i: int) -> str | None:
        """The text of a special token that follows another one without a space, None where decode decides."""
        if self.spaces or self.hide or before not in self._added:
            return None
        return self._added.get(i)

    def token_bytes(self, i: int) -> bytes:
        """The bytes that an id adds to a text that goes before it: the entry with its space, without its marks."""
        if not 0 <= i < self._size:
            return b""
        special = self._added.get(i)
        if special is not None:
            return special.encode()
        alone, twice = self.decode([i]), self.decode([i, i])
        return (twice[len(alone) :] if twice.startswith(alone) else alone).encode()

    def decoder(self, prompt_tail: Sequence[int], prompt_tokens: int) -> Decoder:
        """A decoder for the output that follows a prompt with these last ids."""
        return WindowDecoder(self, prompt_tail)


class WindowDecoder:
    """One request: `_ids[:_read]` gave the text `_before`, which is shown; `_ids[_read:]` have not shown theirs."""

    __slots__ = ("_before", "_ids", "_read", "_table")

    def __init__(self, table: WindowTable, prompt_tail: Sequence[int]) -> None:
        self._table = table
        self._ids = table.known(prompt_tail)
        self._before = table.decode(self._ids) if self._ids else ""
        if self._before.endswith("\ufffd"):  # the prompt ends within a character: it is no context to build on
            self._ids, self._before = [], ""
        self._read = len(self._ids)

    @property
    def idle(self) -> bool:
        """Never: there is no table of texts to read from."""
        return False

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(map(self.one, ids))

    def one(self, i: int) -> str:
        if not self._table.known((i,)):
            return ""
        held = len(self._ids) - self._read
        special = self._table.joined_special(self._ids[-1] if self._ids else None, i)
        if special is not None:
            out = self.flush() + special
            self._ids.append(i)
            self._restart()
            return out
        self._ids.append(i)
        text = self._table.decode(self._ids)
        if (text.endswith("\ufffd") or not text.startswith(self._before)) and held < MAX_HELD:
            return ""
        new = text[len(self._before) :]
        if new or held >= MAX_HELD:
            self._restart()
        return new

    def _restart(self) -> None:
        """All ids have shown their text; the last of them stay as the context of the next ones."""
        self._ids = self._ids[self._read :]
        self._before = self._table.decode(self._ids)
        self._read = len(self._ids)

    def flush(self) -> str:
        if len(self._ids) == self._read:
            return ""
        new = self._table.decode(self._ids)[len(self._before) :]
        self._restart()
        return new
