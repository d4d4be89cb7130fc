"""Texts in, on extracts of published tokenizers: the ids are those that the whole tokenizer gave."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from forebay_tokenizer.caches import Segments
from forebay_tokenizer.encode import Encoder
from tests.tokenizer import extracts
from tests.tokenizer.samples import LOG

EVERY = pytest.mark.parametrize("name", extracts.names())


@cache
def loaded(name: str) -> tuple[Encoder, list[Any]]:
    tokenizer, cases = extracts.load(name)
    return Encoder(tokenizer), cases["encode"]


def test_there_are_extracts_of_seven_tokenizers() -> None:
    assert sorted(extracts.NAMES) == extracts.names()


@EVERY
def test_ids_are_those_of_the_whole_tokenizer(name: str) -> None:
    encoder, cases = loaded(name)
    for text, ids in cases:
        assert encoder.encode(text, add_special_tokens=False).tolist() == ids


@EVERY
def test_chats_in_pieces_have_the_ids_of_the_whole_tokenizer(name: str) -> None:
    encoder, cases = loaded(name)
    segments = Segments(encoder)
    assert segments.check(LOG)
    for _ in range(2):  # the second time from the cache
        found = segments.encode_many([text for text, _ in cases])
        assert [list(one) for one in found if not isinstance(one, Exception)] == [ids for _, ids in cases]


@EVERY
def test_no_text_has_fewer_tokens_than_the_bound_says(name: str) -> None:
    encoder, cases = loaded(name)
    if encoder.bound is not None:
        assert [text for text, ids in cases if encoder.bound.least_tokens(text.encode()) > len(ids)] == []
