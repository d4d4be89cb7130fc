"""The segment cache: equal to the plain encoder on any text, bounded, and off where cutting would change ids."""

from __future__ import annotations

import logging
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from forebay.errors import RequestError
from forebay_tokenizer.caches import ENTRY_BYTES, PieceCache, Segments, cut_tokens
from forebay_tokenizer.encode import Encoder
from tests.tokenizer.samples import CHARACTERS, LOG, SPECIAL, byte_level, plain, sentence_piece

BYTE_LEVEL = Segments(Encoder(byte_level(extra=[AddedToken("<tool>"), AddedToken("<pad >", lstrip=True)])))
SENTENCE_PIECE = Segments(Encoder(sentence_piece()))
BITS = st.one_of(
    st.sampled_from([*SPECIAL, "<tool>", "<pad >", " ", "\n", "<|im_", "end|>", "hello", " the", "user\n", "e\u0301"]),
    st.text(CHARACTERS, max_size=5),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(BITS, max_size=12).map("".join), min_size=1, max_size=3))
@pytest.mark.parametrize("segments", [BYTE_LEVEL, SENTENCE_PIECE], ids=["byte level", "sentence piece"])
def test_pieces_give_the_ids_of_the_whole(segments: Segments, texts: list[str]) -> None:
    assert segments.active
    plain = segments.encoder.encode_many(texts, add_special_tokens=False)
    assert segments.encode_many(texts) == plain  # with whatever earlier examples left in the cache
    assert segments.encode_many(texts) == plain


def test_a_known_piece_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Segments(Encoder(plain()))
    first = "<|im_start|>user\nhello<|im_end|>"
    segments.encode_many([first])
    asked: list[str] = []
    encode = segments.encoder.encode_many

    def noted(texts: list[str], **options: bool) -> Any:
        asked.extend(texts)
        return encode(texts, **options)

    monkeypatch.setattr(segments.encoder, "encode_many", noted)
    segments.encode_many([first + "<|im_start|>new<|im_end|>"])
    assert asked == ["new"]


def test_the_ids_of_a_result_may_be_changed_without_harm() -> None:
    segments = Segments(Encoder(plain()))
    first = segments.encode_many(["hello<|im_end|>"])[0]
    assert not isinstance(first, RequestError)
    expected = first.tolist()
    first.append(1)
    assert segments.encode_many(["hello<|im_end|>"]) == [array("q", expected)]


def test_a_piece_that_cannot_be_encoded_refuses_its_own_text_only() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["<x>"])
    good, bad = Segments(Encoder(tokenizer)).encode_many(["<x>a", "<x>b"])
    assert isinstance(bad, RequestError)
    assert good == array("q", [1, 0])


@pytest.mark.parametrize(
    ("extra", "lost"),
    [
        (AddedToken("<|im_end|>x"), "<|im_end|>"),
        (AddedToken("im_start"), "<|im_start|>"),
        (AddedToken("x<|"), "<|im_start|>"),
        (AddedToken("|>y"), "<|im_end|>"),
    ],
)
def test_a_token_that_another_contains_or_overlaps_is_no_place_to_cut(extra: AddedToken, lost: str) -> None:
    cuts = cut_tokens(byte_level(extra=[extra]))
    assert lost not in cuts
    assert "</s>" in cuts


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "normalized"])
def test_a_token_that_is_not_found_as_it_stands_is_no_place_to_cut(flag: str) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<odd>", **{"normalized": False, flag: True})])
    assert "<odd>" not in cut_tokens(tokenizer)


def test_a_token_that_counts_as_a_whole_word_only_forbids_all_cuts() -> None:
    assert cut_tokens(byte_level(extra=[AddedToken("word", single_word=True)])) == {}


def test_of_many_special_tokens_those_of_the_template_are_taken() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([f"<reserved {n}>" for n in range(200)])
    assert set(cut_tokens(tokenizer, hint="{{ '<|im_start|>' + x + '<|im_end|>' }}")) == {"<|im_start|>", "<|im_end|>"}


def test_the_check_at_start_passes_where_pieces_are_exact() -> None:
    assert Segments(Encoder(plain())).check(LOG)
    assert Segments(Encoder(sentence_piece())).check(LOG)


def test_the_check_switches_the_cache_off_where_only_the_first_piece_gets_a_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    segments = Segments(Encoder(sentence_piece(metaspace="first")))
    with caplog.at_level(logging.INFO):
        assert not segments.check(LOG)
    assert len(caplog.records) == 1
    text = "<s>hello</s>"
    assert segments.encode_many([text]) == segments.encoder.encode_many([text], add_special_tokens=False)


def test_a_tokenizer_without_special_tokens_is_served_without_the_cache() -> None:
    segments = Segments(Encoder(Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))))
    assert not segments.check(LOG)
    assert segments.encode_many(["a"]) == [array("q", [0])]


def test_the_least_recently_used_piece_goes_first() -> None:
    cache = PieceCache(max_bytes=10 * (ENTRY_BYTES + 9))
    for piece in "abcdefghij":
        cache.put(piece, array("q", [1]))
    cache.get_many(["a"])
    cache.put("k", array("q", [1]))
    assert set(cache.get_many("abk")) == {"a", "k"}
    assert cache.bytes == 10 * (ENTRY_BYTES + 9)


def test_a_piece_that_would_fill_the_cache_is_not_kept() -> None:
    cache = PieceCache(max_bytes=10_000)
    cache.put("x" * 5_000, array("q", [1]))
    assert len(cache) == 0


def test_wide_characters_count_for_what_they_take() -> None:
    cache = PieceCache(max_bytes=100_000)
    cache.put("漢" * 100, array("q"))
    assert cache.bytes == 400 + ENTRY_BYTES
