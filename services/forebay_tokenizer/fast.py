"""`fastokens`, an optional second encoder for the same tokenizer.json: same ids, 10 to 100 times faster.

It is used only after it gave the ids of the plain encoder on every text of the self-check, and for a text that it
refuses the plain encoder is asked. Not installed, or one difference: it stays off, with one log line.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from forebay.wire.messages import Ids

ALONE = 16 << 10
"""Below this size, in characters, texts are encoded one by one: 1 to 4 us for 1 KB, and 4 to 9 by the batch call, which
in turn makes no object for each id and lets other threads run."""
Plain = Callable[[Sequence[str], bool], list[list[int]]]
"""The plain encoder: texts, whether special tokens are added, to ids."""


class FastEncoder:
    """One loaded tokenizer; safe to use from several threads, which it lets run while it works."""

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, path: Path, texts: Sequence[str], plain: Plain, log: logging.Logger) -> FastEncoder | None:
        """The encoder of a tokenizer.json if it agrees with `plain` on all `texts`; else None, and the log says why."""
        # Its own threads would spin beside ours: 1 MB takes 8 ms of one core without them, 15 of two with them.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        try:
            module = importlib.import_module("fastokens")
        except ImportError:
            log.debug("fast encoder off: fastokens is not installed")
            return None
        try:
            fast = cls(module.Tokenizer.from_file(str(path)))
        except BaseException as error:
            log.info("fast encoder off: fastokens cannot load this tokenizer: %.200s", _plain_error(error))
            return None
        for special in (False, True):
            for text, ids in zip(texts, plain(texts, special), strict=True):
                found = fast.encode_many([text], add_special_tokens=special)
                if found is None or found[0].tolist() != ids:
                    log.info("fast encoder off: its ids differ from the tokenizer's, as for %.80r", text)
                    return None
        return fast

    def encode_many(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Ids] | None:
        """The ids of each text; None when it cannot encode one of them."""
        try:
            if sum(map(len, texts)) < ALONE:
                encode = self._tokenizer.encode
                return [array("q", encode(text, add_special_tokens=add_special_tokens).ids) for text in texts]
            flat, ends = self._tokenizer.encode_batch_flat(list(texts), add_special_tokens=add_special_tokens)
        except BaseException as error:
            _plain_error(error)
            return None
        words = memoryview(flat).cast("I")
        return [widened(words[start:end]) for start, end in pairwise(memoryview(ends).cast("Q"))]


def widened(words: memoryview) -> Ids:
    """4-byte ids as 8-byte ones, without an object for each (2 ns an id; through a list 30)."""
    wide = bytearray(8 * len(words))
    halves = memoryview(wide).cast("I")
    if len(words):
        halves[sys.byteorder == "big" :: 2] = words
    out = array("q")
    out.frombytes(wide)
    return out


def _plain_error(error: BaseException) -> BaseException:
    """The error itself, if the library raised it; a request to stop the process goes on its way."""
    # A panic of the library arrives as a BaseException of its own.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return error
