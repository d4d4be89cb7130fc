"""Small tokenizers made on the spot: a byte-level one, one with byte fallback, and one whose decoder is no table."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = (
    "The quick brown fox jumps over the lazy dog. Größe, naïve café, 世界 こんにちは, emoji \U0001f600 \U0001f680. "
    "def f(x):\n    return x + 1\n"
)
SPECIAL = ("<|end|>", "<|turn|>")
EMOJI = "\U0001f600"
WORDS = ("hello", "world", "again", "the", "##ing", "##s", "don", "'", "t", ".", ",", "go")


def _special(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


@cache
def byte_level() -> Tokenizer:
    """A `ByteLevel` tokenizer; some of its tokens are whole words, many a part of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[_special(text) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.add_tokens([AddedToken("ünïcode 世", normalized=False)])
    return tokenizer


@cache
def byte_fallback() -> Tokenizer:
    """A SentencePiece-like tokenizer: a mark in place of spaces, byte tokens, the first space stripped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁Hello", "▁world", "▁again", "!", ".", "é", "\ufffd", *"abcdefghijklmnopqrstuvwxyz"]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([_special(text) for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


@cache
def word_piece() -> Tokenizer:
    """A tokenizer whose text needs the neighbours of a token: spaces between words, `##` for continuations."""
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="the"))
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_special_tokens([_special("[A]"), _special("[B]")])
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a vocabulary entry."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, without special tokens around it."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def byte_ids(data: bytes) -> list[int]:
    """Each byte as a token of its own, in `byte_level`."""
    alphabet = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in alphabet]
    return [id_of(byte_level(), chr(b) if b in alphabet else chr(256 + hidden.index(b))) for b in data]


def fallback_ids(data: bytes) -> list[int]:
    """Each byte as a token of its own, in `byte_fallback`."""
    return [id_of(byte_fallback(), f"<0x{byte:02X}>") for byte in data]
