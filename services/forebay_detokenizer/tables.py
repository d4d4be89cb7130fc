"""id -> text of a tokenizer: tables for the usual decoders, so that a whole batch is one C-level map (0.03 us a token).

A `ByteLevel` decoder, and `Replace + ByteFallback [+ Fuse [+ Strip]]`, are tables: an id has a text of its own, or
bytes that are a part of a character. Other decoders (`WordPiece`, `Metaspace`, ...) are served by `windows`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay_detokenizer.incremental import PARTIAL, ByteLevelDecoder, Decoder, FallbackDecoder
from forebay_detokenizer.windows import WindowTable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")


def _byte_alphabet() -> dict[str, int]:
    """The 256 characters that stand for bytes in a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(hidden)}


_BYTES = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class Rule:
    """What a table needs to know of a tokenizer's decoder."""

    byte_level: bool
    replace: tuple[str, str] = ("", "")
    byte_fallback: bool = False
    strip: tuple[str, int] = (" ", 0)
    """A character, and how many of it go at the start of the whole text."""

    def entry(self, token: str) -> str | bytes:
        """The text of a vocabulary entry, or its bytes when they are a part of a character."""
        if self.byte_level:
            try:
                raw = bytes(map(_BYTES.__getitem__, token))
            except KeyError:  # an added token with characters outside the byte alphabet is its own text
                return token
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return raw
        text = token.replace(*self.replace) if self.replace[0] else token
        byte = _BYTE_TOKEN.fullmatch(text) if self.byte_fallback else None
        return bytes((int(byte[1], 16),)) if byte else text


def rule_of(tokenizer: Tokenizer) -> Rule | None:
    """The rule of a tokenizer's decoder, None if it is not one that a table can serve."""
    if tokenizer.decoder is None:
        return None
    spec = json.loads(tokenizer.decoder.__getstate__())
    steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    kinds = tuple(step["type"] for step in steps)
    if kinds == ("ByteLevel",):
        return Rule(byte_level=True)
    if kinds not in (
        ("Replace", "ByteFallback"),
        ("Replace", "ByteFallback", "Fuse"),
        ("Replace", "ByteFallback", "Fuse", "Strip"),
    ):
        return None
    pattern, strip = steps[0]["pattern"].get("String"), steps[-1]
    if not pattern or (kinds[-1] == "Strip" and strip["stop"] != 0):
        return None
    cut = (strip["content"], strip["start"]) if kinds[-1] == "Strip" else (" ", 0)
    return Rule(False, (pattern, steps[0]["content"]), True, cut)


class Table:
    """id -> text of one tokenizer, with special tokens shown or not. The two variants share what they can."""

    __slots__ = ("parts", "rule", "shown", "size", "text")

    def __init__(self, rule: Rule, text: list[str], parts: dict[int, bytes], shown: list[str]) -> None:
        self.rule = rule
        self.text = text
        """The text of each id; `PARTIAL` for a part of a character, "" for a hidden special token and a gap."""
        self.parts = parts
        """The bytes of the ids that are a part of a character."""
        self.shown = shown
        """The text of each id with special tokens shown."""
        self.size = len(text)

    @classmethod
    def build(cls, tokenizer: Tokenizer, rule: Rule) -> tuple[Table, Table]:
        """The tables that hide and that show special tokens. 24 ms for 32k ids, 290 ms for 262k."""
        added = tokenizer.get_added_tokens_decoder()
        size = max([tokenizer.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added)])
        shown: list[str] = []
        parts: dict[int, bytes] = {}
        for i in range(size):
            token = tokenizer.id_to_token(i)
            entry = "" if token is None else rule.entry(token)
            if isinstance(entry, bytes):
                parts[i] = entry
                entry = PARTIAL
            shown.append(entry)
        hidden = shown.copy()
        for i, special in added.items():
            if special.special:
                hidden[i] = ""
        return cls(rule, hidden, parts, shown), cls(rule, shown, parts, shown)

    def texts(self, ids: Sequence[int], negative: bool) -> list[str]:
        """The text of each id, `PARTIAL` for a part of a character, "" for an id outside the vocabulary.

        `negative`: whether an id below 0 may be among them (a list would count it from its end).
        """
        if not negative:
            try:
                return list(map(self.text.__getitem__, ids))
            except IndexError:
                pass
        text, size = self.text, self.size
        return [text[i] if 0 <= i < size else "" for i in ids]

    def token_bytes(self, i: int) -> bytes:
        """The true bytes of a vocabulary entry; a special token has its text, an unknown id nothing."""
        if not 0 <= i < self.size:
            return b""
        part = self.parts.get(i)
        return self.shown[i].encode() if part is None else part

    def decoder(self, prompt_tail: Sequence[int], prompt_tokens: int) -> Decoder:
        """A decoder for the output that follows a prompt; `prompt_tail` are the prompt's last ids.

        The output continues the prompt, so a first space is stripped only where nothing of the prompt has a text.
        """
        if self.rule.byte_level:
            return ByteLevelDecoder(self)
        whole = prompt_tokens <= len(prompt_tail)
        bare = whole and not any(0 <= i < self.size and self.text[i] for i in prompt_tail)
        return FallbackDecoder(self, self.rule.strip[1] if bare else 0)


class Tables:
    """The tables of one tokenizer. `fast`: the one that hides special tokens, None where only windows serve."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        rule = rule_of(tokenizer)
        self.fast: Table | None = None
        self._shown: Table | None = None
        if rule is not None:
            self.fast, self._shown = Table.build(tokenizer, rule)
            return
        self._hiding = WindowTable(tokenizer, hide=True, spaces=True)
        self._showing = {spaces: WindowTable(tokenizer, hide=False, spaces=spaces) for spaces in (False, True)}

    def of(self, skip_special: bool, spaces: bool) -> Table | WindowTable:
        """The table for a request. `spaces` says whether spaces that the decoder puts between adjacent special
        tokens stay; the decoders that are tables put none."""
        if self.fast is not None and self._shown is not None:
            return self.fast if skip_special else self._shown
        return self._hiding if skip_special else self._showing[spaces]
