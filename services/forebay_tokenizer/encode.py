"""Texts to token ids and back, for one tokenizer.json; safe to use from several threads.

Only the batch calls of `tokenizers` are used: they let go of the interpreter lock, and `Tokenizer.encode` does not
(1 MB of text: 0.7 s of silence for every other thread). Ids leave as `array("q")`, as the wire wants them. Where the
`fast` encoder has been found equal, it does the encoding; decoding and everything else stay with `tokenizers`.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

# Before the import: the pool of the library would leave the cores that this process is pinned to.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import tokenizers

from forebay.errors import RequestError, SettingsError
from forebay.wire.messages import Ids
from forebay_tokenizer.bounds import text_bound
from forebay_tokenizer.fast import FastEncoder
from forebay_tokenizer.selfcheck import sample_texts, vocabulary_texts

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_tokenizer.files import TokenizerFiles

STOP_COUNTS = 4096
STOP_COUNT_CHARS = 256
"""Stop strings whose number of tokens is remembered: clients send the same few, short ones, with every request."""

MAX_CHECKED = 16
"""Added tokens that go through the longer texts of the self-check."""

SLICE = 1 << 14
"""Ids converted in one go: the interpreter lock is free again every 0.3 ms on a prompt of a million."""


class Encoder:
    """A loaded tokenizer. `vocab_size` is its largest id + 1."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, add_bos: bool | None = None, bos: str | None = None) -> None:
        # A tokenizer.json may carry the training's truncation and padding: a prompt must come through whole.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.bound = text_bound(tokenizer, vocab)
        self.bos_id = vocab.get(bos) if bos else None
        self._put_bos, self._drop_bos = self._bos_rule(add_bos)
        self.fast: FastEncoder | None = None
        """Encodes in place of `tokenizer` when it is set."""
        self.joins = self._joins()
        self._short_stop_length = lru_cache(STOP_COUNTS)(self._stop_length)

    @classmethod
    def load(cls, files: TokenizerFiles, *, fast: bool = False, log: logging.Logger | None = None) -> Encoder:
        """Load the tokenizer of a model; raises `SettingsError` for a file that is not a tokenizer.

        `fast`: use fastokens where it is installed and gives the same ids.
        """
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(files.tokenizer))
        except Exception as error:  # the library raises plain Exception for a file that it cannot read
            raise SettingsError(f"{files.tokenizer} cannot be loaded as a tokenizer: {error}") from error
        encoder = cls(tokenizer, add_bos=files.add_bos, bos=files.special_tokens.get("bos_token"))
        if fast:
            encoder.hasten(files.tokenizer, log or logging.getLogger(__name__))
        return encoder

    def hasten(self, path: Path, log: logging.Logger) -> bool:
        """Use the fast encoder for the same file from now on, if it gives the same ids. Returns whether it is used."""
        added = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        texts = sample_texts(added[:MAX_CHECKED]) + vocabulary_texts(self.tokenizer)
        self.fast = FastEncoder.load(path, texts, self._plain_ids, log)
        return self.fast is not None

    def encode(self, text: str, *, add_special_tokens: bool) -> Ids:
        """The ids of one text; raises `RequestError`."""
        result = self.encode_many([text], add_special_tokens=add_special_tokens)[0]
        if isinstance(result, RequestError):
            raise result
        return result

    def encode_many(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Ids | RequestError]:
        """The ids of each text, or why this one cannot be encoded. One bad text does not touch the others."""
        if self.fast is not None:
            quick = self.fast.encode_many(texts, add_special_tokens=add_special_tokens)
            if quick is not None:
                return [self._put_right(ids, add_special_tokens) for ids in quick]
        try:
            found = [self._put_right(_ids(e.ids), add_special_tokens) for e in self._batch(texts, add_special_tokens)]
        except BaseException as error:
            refused = _refusal(error, "encode this text")
            if len(texts) == 1:
                return [refused]
            return [out for text in texts for out in self.encode_many([text], add_special_tokens=add_special_tokens)]
        return list(found)

    def decode_many(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """The text of each list of ids; ids must be in range (see `checks.ids_in_range`)."""
        try:
            return list(self.tokenizer.decode_batch(list(map(list, ids)), skip_special_tokens=skip_special_tokens))
        except BaseException as error:
            raise _refusal(error, "decode these ids") from error

    def token_texts(self, ids: Sequence[int]) -> list[str | None]:
        """Each id's entry in the vocabulary; None for an id without one."""
        return [self.tokenizer.id_to_token(one) for one in ids]

    def stop_length(self, stop: str) -> int:
        """The number of tokens of a stop string; raises `RequestError`."""
        return self._short_stop_length(stop) if len(stop) <= STOP_COUNT_CHARS else self._stop_length(stop)

    def _batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[tokenizers.Encoding]:
        return list(self.tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens))

    def _plain_ids(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        return [list(encoding.ids) for encoding in self._batch(texts, add_special_tokens)]

    def _put_right(self, ids: Ids, add_special_tokens: bool) -> Ids:
        """Puts the first token right, where the model's files and tokenizer.json disagree about it."""
        if add_special_tokens and self._put_bos:
            ids.insert(0, self.bos_id or 0)
        elif add_special_tokens and self._drop_bos and len(ids) and ids[0] == self.bos_id:
            del ids[0]
        return ids

    def _bos_rule(self, add_bos: bool | None) -> tuple[bool, bool]:
        if add_bos is None or self.bos_id is None:
            return False, False
        present = self._batch(["x"], True)[0].ids[:1] == [self.bos_id]
        return add_bos and not present, present and not add_bos

    def _joins(self) -> bool:
        """Whether texts can be encoded apart and their ids joined; false when something is put before every text."""
        head, tail, both = self.encode_many(["x\n", "x", "x\nx"], add_special_tokens=False)
        if isinstance(head, RequestError) or isinstance(tail, RequestError) or isinstance(both, RequestError):
            return False
        return head + tail == both

    def _stop_length(self, stop: str) -> int:
        return len(self.encode(stop, add_special_tokens=False))


def _ids(ids: list[int]) -> Ids:
    out = array("q")
    for at in range(0, len(ids), SLICE):
        out.extend(ids[at : at + SLICE])
    return out


def _refusal(error: BaseException, action: str) -> RequestError:
    """What a client is told of a text that the library refuses; a request to stop the process goes on its way."""
    # A panic of the library arrives as a BaseException of its own, and must not end the process.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return RequestError(f"the tokenizer cannot {action}: {error}"[:300])
