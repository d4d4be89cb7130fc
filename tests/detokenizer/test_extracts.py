"""Ids to text, on extracts of published tokenizers: the text is what the whole tokenizer's full decode gave."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from forebay_detokenizer.tables import Tables
from tests.tokenizer import extracts

EVERY = pytest.mark.parametrize("name", extracts.names())


@cache
def loaded(name: str) -> tuple[Tables, dict[str, Any]]:
    tokenizer, cases = extracts.load(name)
    return Tables(tokenizer), cases


@EVERY
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_joined_pieces_are_the_full_decode(name: str, step: int) -> None:
    tables, cases = loaded(name)
    assert tables.fast is not None
    for ids, skip, text in cases["decode"]:
        decoder = tables.of(skip, True).decoder([], 0)
        pieces = [decoder.feed(ids[at : at + step]) for at in range(0, len(ids), step)]
        assert "".join(pieces) + decoder.flush() == text
