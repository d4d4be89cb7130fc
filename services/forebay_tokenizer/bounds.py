"""How many bytes of text one token can stand for at most: the bound that refuses a hopeless text before encoding it.

Holds only for tokenizers that keep every byte of the text; for those that may drop text or put any amount of it into
one unknown token, there is no such bound. Pure: looks at a tokenizer's parts and returns a number.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import tokenizers

UNICODE_FACTOR = 4
"""Unicode normal forms shrink a text to a quarter at most (a mathematical letter with two marks: 8 bytes to 2)."""
_KEEPING_PRE_TOKENIZERS = {"ByteLevel", "Digits", "Metaspace", "Split", "Punctuation", "UnicodeScripts"}
_DROPPABLE = bytes([*range(0x20), 0x7F, 0xF1, 0xF2, 0xF3, 0xF4])
"""Bytes that real vocabularies lack, so that they are dropped. No normal form makes or changes their characters."""
_NORMAL_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
# Bytes that occur in UTF-8; the others may be missing from a vocabulary without harm.
_TEXT_BYTES = [byte for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5]


_NOT_WORDS = bytes(byte for byte in range(256) if not (byte < 0x80 and chr(byte).isalnum()))
_ASCII = bytes(range(0x80))
SLICE = 1 << 20
"""Bytes looked at in one go (2 ms); a text of 64 MB is refused after the first few."""


class Bound(NamedTuple):
    """One token stands for `per_token` UTF-8 bytes of normalized text at most, not counting the bytes in `dropped`."""

    per_token: int
    dropped: bytes = b""
    shrink: int = 1
    """To which part at most the normalizer can shrink a text that is not ASCII; ASCII it leaves as long as it is."""
    words: int | None = None
    """ASCII letters and digits that one token has at most; None: the normalizer may take them away. The longest
    tokens are runs of blanks (qwen3: 256), so this is what bounds an ordinary text."""

    def least_tokens(self, text: bytes, enough: int | None = None) -> int:
        """How many tokens a text has at the least. Stops counting once it is `enough`."""
        length = letters = wide = least = 0
        view = memoryview(text)
        for at in range(0, len(text), SLICE):
            part = bytes(view[at : at + SLICE])
            length += len(part.translate(None, self.dropped)) if self.dropped else len(part)
            letters += len(part.translate(None, _NOT_WORDS)) if self.words else 0
            wide += 0 if part.isascii() else len(part.translate(None, _ASCII))
            least = self._least(length, letters, wide)
            if enough is not None and least >= enough:
                break
        return least

    def _least(self, length: int, letters: int, wide: int) -> int:
        least = -(-length // (self.per_token * (self.shrink if wide else 1)))
        if self.words:
            # A letter goes only into one character with a mark that follows it, which has two bytes or more.
            gone = wide // 2 if self.shrink > 1 else 0
            least = max(least, -(-(letters - gone) // self.words))
        return least


def text_bound(tokenizer: tokenizers.Tokenizer, vocab: dict[str, int]) -> Bound | None:
    """The bound of a tokenizer, or None when nothing bounds what a token can stand for.

    A token's own UTF-8 length is that bound: byte-level alphabets and the space mark only make tokens longer.
    """
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return None  # such a token takes all the blanks beside it
    normal = _parts(tokenizer.normalizer, "normalizers")
    shrink = _shrink(normal)
    steps = _parts(tokenizer.pre_tokenizer, "pretokenizers")
    missing = _missing_bytes(tokenizer, steps, vocab)
    if shrink is None or missing is None or not all(_keeps(step) for step in steps):
        return None
    tokens = [token.encode() for token in vocab] or [b"x"]
    words = max(len(token.translate(None, _NOT_WORDS)) for token in tokens)
    return Bound(max(map(len, tokens)), missing, shrink, words if _keeps_words(normal) else None)


def _keeps_words(steps: list[dict[str, Any]]) -> bool:
    """Whether the normalizer leaves ASCII letters and digits alone (a normal form may put marks on them)."""
    replaced = [step["pattern"]["String"] for step in steps if step.get("type") == "Replace"]
    return not any(char.isascii() and char.isalnum() for old in replaced for char in old)


def _parts(part: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences laid flat."""
    return [] if part is None else _flat(json.loads(part.__getstate__()), inner)


def _flat(state: dict[str, Any], inner: str) -> list[dict[str, Any]]:
    if state.get("type") != "Sequence":
        return [state]
    return [step for item in state.get(inner, []) for step in _flat(item, inner)]


def _shrink(steps: list[dict[str, Any]]) -> int | None:
    """By how much the normalizer can shorten a text; None when it can drop any amount."""
    factor = 1
    for step in steps:
        kind = step.get("type")
        if kind in _NORMAL_FORMS:
            factor *= UNICODE_FACTOR
        elif kind == "Replace":
            old = step.get("pattern", {}).get("String")
            if old is None or len(step["content"].encode()) < len(old.encode()):
                return None
        elif kind not in ("Prepend", "ByteLevel"):
            return None
    return factor


def _keeps(step: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer keeps all of the text."""
    return step.get("type") in _KEEPING_PRE_TOKENIZERS and step.get("behavior") != "Removed"


def _missing_bytes(tokenizer: tokenizers.Tokenizer, steps: list[dict[str, Any]], vocab: dict[str, int]) -> bytes | None:
    """The bytes that have no token and are dropped; None when there may be unknown tokens, which swallow any length."""
    if not isinstance(tokenizer.model, tokenizers.models.BPE):
        return None
    if any(step.get("type") == "ByteLevel" for step in [*steps, *_parts(tokenizer.normalizer, "normalizers")]):
        alphabet = byte_alphabet()
        missing = bytes(byte for byte in _TEXT_BYTES if alphabet[byte] not in vocab)
        swallows = bool(missing) and tokenizer.model.unk_token is not None
        return None if swallows or not set(missing) <= set(_DROPPABLE) else missing
    complete = tokenizer.model.byte_fallback and all(f"<0x{byte:02X}>" in vocab for byte in _TEXT_BYTES)
    return b"" if complete else None


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown} | {byte: chr(0x100 + at) for at, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]
