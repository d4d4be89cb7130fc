"""Texts to ids and back: special tokens, the first token, odd characters, one bad text among good ones."""

from __future__ import annotations

import os

import pytest
from tokenizers import Tokenizer, models

from forebay.errors import RequestError
from forebay_tokenizer.encode import Encoder
from tests.tokenizer.samples import byte_level, plain, sentence_piece, with_bos

TEXTS = ["hello world", "  two\n\nlines\t", "Grüße 漢字 🙂 e\u0301", "", "a\x00b", "<|im_start|>user\nx<|im_end|>"]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_plain_tokenizer(text: str) -> None:
    tokenizer = with_bos()
    encoder = Encoder(tokenizer)
    for special in (True, False):
        expected = tokenizer.encode(text, add_special_tokens=special).ids
        assert encoder.encode(text, add_special_tokens=special).tolist() == expected


def test_a_nul_character_goes_there_and_back() -> None:
    encoder = Encoder(plain())
    ids = encoder.encode("a\x00b", add_special_tokens=False)
    assert encoder.decode_many([ids], skip_special_tokens=True) == ["a\x00b"]


def test_special_tokens_are_shown_only_when_asked_for() -> None:
    encoder = Encoder(with_bos())
    ids = encoder.encode("hello", add_special_tokens=True)
    assert encoder.decode_many([ids], skip_special_tokens=True) == ["hello"]
    assert encoder.decode_many([ids], skip_special_tokens=False) == ["<s>hello"]


def test_truncation_and_padding_of_the_file_do_not_touch_prompts() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    assert len(Encoder(tokenizer).encode("xyzxyz", add_special_tokens=True)) == 6


@pytest.mark.parametrize("has", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_the_first_token_is_what_the_models_files_say(has: bool, wanted: bool) -> None:
    encoder = Encoder(with_bos() if has else plain(), add_bos=wanted, bos="<s>")
    begins = encoder.encode("hello", add_special_tokens=True)[0] == encoder.bos_id
    assert begins is wanted
    assert encoder.encode("hello", add_special_tokens=False)[0] != encoder.bos_id


def test_without_a_word_about_the_first_token_the_tokenizer_decides() -> None:
    assert len(Encoder(with_bos(), bos="<s>").encode("", add_special_tokens=True)) == 1


def test_the_vocabulary_counts_added_tokens() -> None:
    tokenizer = plain()
    assert Encoder(tokenizer).vocab_size == max(tokenizer.get_vocab().values()) + 1
    assert Encoder(tokenizer).vocab_size > tokenizer.get_vocab_size(with_added_tokens=False)


def test_a_text_that_the_tokenizer_refuses_does_not_touch_its_neighbours() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    first, bad, last = Encoder(tokenizer).encode_many(["a", "b", "a"], add_special_tokens=False)
    assert isinstance(bad, RequestError)
    assert bad.status == 400
    assert first == last
    assert not isinstance(first, RequestError)


def test_ids_that_the_tokenizer_cannot_take_are_a_refusal() -> None:
    with pytest.raises(RequestError, match="cannot decode these ids"):
        Encoder(plain()).decode_many([[1 << 32]], skip_special_tokens=True)


def test_byte_level_texts_can_be_joined_and_sentence_piece_texts_cannot() -> None:
    assert Encoder(plain()).joins
    assert not Encoder(sentence_piece()).joins


def test_the_length_of_a_stop_string_is_counted_without_special_tokens() -> None:
    encoder = Encoder(with_bos())
    assert encoder.stop_length("hello") == 1
    assert encoder.stop_length("x" * 1000) == 1000


def test_the_librarys_own_threads_stay_off_unless_the_operator_set_them() -> None:
    assert "TOKENIZERS_PARALLELISM" in os.environ
