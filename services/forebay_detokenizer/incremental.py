"""Token ids -> text for one request, piece by piece: whole characters only. Knows no stop strings.

What a decoder gives, joined, is `Tokenizer.decode` of all its ids, for any split into calls, with one deliberate
exception: characters that were complete stay when their run of byte-fallback tokens is cut or turns out invalid
(decode replaces the whole run, also what a stream has shown already). `tables` has the texts that decoders read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from forebay_detokenizer.tables import Table

PARTIAL = "\udc80"
"""Stands in a table for an id that is a part of a character. A lone surrogate: no token has it as its text, and
counting it in a batch is a comparison of strings (7 ns a row; of None, 11)."""


class Decoder(Protocol):
    """The text of one request, piece by piece."""

    @property
    def idle(self) -> bool:
        """Whether nothing is held, so that the table's own text of the next id is the answer."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now; ids outside the vocabulary give none. Raises `DecodeError`."""

    def one(self, i: int) -> str:
        """`feed` of one id."""

    def flush(self) -> str:
        """What is still held: an unfinished character shows as U+FFFD. The request ends. Raises `DecodeError`."""


def unfinished(data: bytes) -> int:
    """Bytes at the end of `data` that are the valid start of an unfinished character (0 to 3).

    Unicode's maximal subpart: the limits of the second byte after E0, ED, F0 and F4 count, too.
    """
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if lead < 0x80:
            return 0
        if lead >= 0xC0:
            need = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            if back >= need or not 0xC2 <= lead <= 0xF4:
                return 0
            return back if back == 1 or _second_fits(lead, data[1 - back]) else 0
    return 0


def _second_fits(lead: int, second: int) -> bool:
    low = {0xE0: 0xA0, 0xF0: 0x90}.get(lead, 0x80)
    high = {0xED: 0x9F, 0xF4: 0x8F}.get(lead, 0xBF)
    return low <= second <= high


def runs(ids: Sequence[int], texts: list[str]) -> Iterator[tuple[str, Sequence[int]]]:
    """Cuts ids behind each run of those that are a part of a character: the text before a run, and the run's ids."""
    at, size, left = 0, len(texts), texts.count(PARTIAL)
    while left:
        start = end = texts.index(PARTIAL, at)
        while end < size and texts[end] is PARTIAL:
            end += 1
        yield "".join(texts[at:start]), ids[start:end]
        left -= end - start
        at = end
    if at < size:
        yield "".join(texts[at:]), ()


class ByteLevelDecoder:
    """Bytes become text as soon as their character is whole; an invalid byte becomes U+FFFD."""

    __slots__ = ("_held", "_table")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._held = b""

    @property
    def idle(self) -> bool:
        return not self._held

    def feed(self, ids: Sequence[int]) -> str:
        table = self._table
        texts = table.texts(ids, min(ids, default=0) < 0)
        if not self._held:
            text = "".join(texts)
            if PARTIAL not in text:
                return text
        out: list[str] = []
        data = self._held
        for text, run in runs(ids, texts):
            if text:  # it begins a character, so that what is held before it stays unfinished
                out.append(data.decode("utf-8", "replace"))
                out.append(text)
                data = b""
            data += b"".join(map(table.parts.__getitem__, run))
        self._held = b""
        return "".join(out) + self._whole(data)

    def one(self, i: int) -> str:
        table = self._table
        if not 0 <= i < table.size:
            return ""
        text = table.text[i]
        if text is PARTIAL:
            return self._whole(table.parts[i])
        return self._whole(text.encode()) if self._held and text else text

    def _whole(self, data: bytes) -> str:
        data = self._held + data
        keep = unfinished(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep].decode("utf-8", "replace")

    def flush(self) -> str:
        data, self._held = self._held, b""
        return data.decode("utf-8", "replace")


class FallbackDecoder:
    """Runs of byte tokens become text a character at a time; a run that is invalid gives U+FFFD for each byte.

    Once invalid, a run stays so until another token ends it. A hidden special token does not end it.
    """

    __slots__ = ("_bad", "_run", "_strip", "_table")

    def __init__(self, table: Table, strip: int) -> None:
        self._table = table
        self._run = b""
        self._bad = False
        self._strip = strip

    @property
    def idle(self) -> bool:
        return not (self._run or self._bad or self._strip)

    def feed(self, ids: Sequence[int]) -> str:
        texts = self._table.texts(ids, min(ids, default=0) < 0)
        if self.idle:
            text = "".join(texts)
            if PARTIAL not in text:
                return text
        out: list[str] = []
        for text, run in runs(ids, texts):
            if text:
                out.append(self._end_run())
                out.append(text)
            if run:
                out.append(self._bytes(run))
        return self._stripped("".join(out))

    def _bytes(self, ids: Sequence[int]) -> str:
        """What a run of byte tokens gives, most often whole characters."""
        if not self._bad:
            try:
                text = (self._run + b"".join(map(self._table.parts.__getitem__, ids))).decode()
            except UnicodeDecodeError:  # unfinished or invalid: which of them, and from where on, a byte at a time
                pass
            else:
                self._run = b""
                return text
        return "".join(self._next(i, PARTIAL) for i in ids)

    def one(self, i: int) -> str:
        table = self._table
        return self._stripped(self._next(i, table.text[i])) if 0 <= i < table.size else ""

    def flush(self) -> str:
        return self._stripped(self._end_run())

    def _next(self, i: int, text: str) -> str:
        if text is not PARTIAL:
            return self._end_run() + text if text else ""
        if self._bad:
            return "\ufffd"
        self._run += self._table.parts[i]
        if unfinished(self._run):
            return ""
        try:
            whole = self._run.decode()
        except UnicodeDecodeError:
            self._bad = True
            whole = "\ufffd" * len(self._run)
        self._run = b""
        return whole

    def _end_run(self) -> str:
        run, self._run, self._bad = self._run, b"", False
        return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        char = self._table.rule.strip[0]
        while self._strip and text:
            if not text.startswith(char):
                self._strip = 0
                break
            text = text[len(char) :]
            self._strip -= 1
        return text
