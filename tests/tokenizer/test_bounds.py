"""The bound of bytes a token: true where there is one, None where a tokenizer can make text vanish."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from forebay_tokenizer.bounds import SLICE, UNICODE_FACTOR, Bound, byte_alphabet, text_bound
from tests.tokenizer.samples import CHARACTERS, byte_level, plain, sentence_piece


def bound(tokenizer: Tokenizer) -> Bound | None:
    return text_bound(tokenizer, tokenizer.get_vocab(with_added_tokens=True))


def without(missing: bytes, unknown: str | None = None) -> Tokenizer:
    """A byte-level tokenizer whose vocabulary lacks some bytes."""
    kept = [token for byte, token in enumerate(byte_alphabet()) if byte not in missing]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(["<unk>", *kept])}, [], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


BYTE_LEVEL, SENTENCE_PIECE, GAPS = plain(), sentence_piece(), without(b"\x00\t\xf1")


@settings(max_examples=100, deadline=None)
@given(st.text(CHARACTERS, max_size=60))
@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCE_PIECE, GAPS], ids=["byte level", "sentence piece", "gaps"])
def test_no_text_has_fewer_tokens_than_the_bound_says(tokenizer: Tokenizer, text: str) -> None:
    limit = bound(tokenizer)
    assert limit is not None
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) >= limit.least_tokens(text.encode())


def test_the_bound_is_the_longest_token_times_what_the_normal_form_may_shrink() -> None:
    longest = len("<|endoftext|>")
    assert bound(BYTE_LEVEL) == Bound(longest, shrink=UNICODE_FACTOR, words=longest - len("<||>"))


def test_bytes_that_a_vocabulary_lacks_do_not_count() -> None:
    assert bound(GAPS) == Bound(len("<unk>"), b"\x00\t\xf1", words=3)
    assert Bound(5, b"\x00").least_tokens(b"\x00" * 99 + b"123456") == 2


def test_a_text_beyond_ascii_may_have_been_shrunk_by_its_normal_form() -> None:
    limit = Bound(5, shrink=4)
    assert limit.least_tokens(b"x" * 100) == 20
    assert limit.least_tokens(b"x" * 98 + "é".encode()) == 5


def test_letters_and_digits_are_counted_apart_from_runs_of_blanks() -> None:
    assert Bound(100, words=4).least_tokens(b"ab 1" * 100) == 75


def test_a_letter_may_vanish_into_a_mark_behind_it() -> None:
    text = "e\u0301" * 100
    assert Bound(100, shrink=4, words=1).least_tokens(text.encode()) == 1
    assert Bound(100, shrink=1, words=1).least_tokens(text.encode()) == 100


def test_letters_that_the_normalizer_replaces_are_not_counted() -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace("a", "??")
    limit = bound(tokenizer)
    assert limit is not None
    assert limit.words is None


def test_counting_ends_when_there_are_enough() -> None:
    assert Bound(1).least_tokens(b" " * (3 * SLICE), enough=1000) == SLICE


def test_no_character_shrinks_by_more_than_the_factor() -> None:
    shrunk = [
        chr(code)
        for code in range(0x80, 0x30000)
        if not 0xD800 <= code < 0xE000
        and len(unicodedata.normalize("NFKC", chr(code)).encode()) * UNICODE_FACTOR < len(chr(code).encode())
    ]
    assert shrunk == []


def _blank_taking() -> Tokenizer:
    return byte_level(extra=[AddedToken("<mask>", lstrip=True)])


def _without_bytes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def _removing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def _with(normalizer: normalizers.Normalizer) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    return tokenizer


@pytest.mark.parametrize(
    "build",
    [
        _blank_taking,
        _without_bytes,
        _removing,
        lambda: without(b"a"),
        lambda: without(b"\x00", unknown="<unk>"),
        lambda: _with(normalizers.Strip()),
        lambda: _with(normalizers.Replace(Regex(" +"), " ")),
        lambda: _with(normalizers.Replace("  ", " ")),
    ],
    ids=[
        "blank taking token",
        "no bytes",
        "removing split",
        "no letter",
        "unknown token",
        "strip",
        "pattern",
        "shorter text",
    ],
)
def test_a_tokenizer_that_can_drop_text_has_no_bound(build: Callable[[], Tokenizer]) -> None:
    assert bound(build()) is None
