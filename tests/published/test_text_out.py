"""Ids to text, on published tokenizers: the tables against the library's full decode (`make test-tokenizers`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer

from forebay_detokenizer.incremental import PARTIAL
from forebay_detokenizer.tables import Table, Tables
from tests.tokenizer.real import corpus, folders

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not folders(), reason="needs published tokenizers: make test-tokenizers"),
]
EVERY = pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
SKIPS = pytest.mark.parametrize("skip", [True, False], ids=["special hidden", "special shown"])
KINDS = pytest.mark.parametrize("kind", ["texts", "cut texts", "random ids", "parts of characters", "mixtures"])
STEPS = (1, 1, 2, 3, 8, 16)


@lru_cache(maxsize=1)
def loaded(folder: Path) -> tuple[Tokenizer, Tables]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer, Tables(tokenizer)


def table_of(folder: Path, skip: bool) -> tuple[Tokenizer, Table]:
    tokenizer, tables = loaded(folder)
    if tables.fast is None:
        pytest.skip("the decoder of this tokenizer is no table")
    table = tables.of(skip, True)
    assert isinstance(table, Table)
    return tokenizer, table


def read(table: Table, ids: list[int], random: Random) -> str:
    """The ids through a decoder, in steps of random lengths."""
    decoder, out, at = table.decoder([], 0), [], 0
    while at < len(ids):
        size = random.choice(STEPS)
        out.append(decoder.one(ids[at]) if size == 1 else decoder.feed(ids[at : at + size]))
        at += size
    return "".join(out) + decoder.flush()


def sequences(kind: str, tokenizer: Tokenizer, table: Table, random: Random) -> Iterator[list[int]]:
    """Sequences of ids of one kind."""
    if kind in ("texts", "cut texts"):
        for encoding in tokenizer.encode_batch(corpus(11, 1500), add_special_tokens=False):
            whole = list(encoding.ids)
            yield whole if kind == "texts" else whole[random.randrange(len(whole) + 1) :][: random.randrange(1, 30)]
        return
    added, parts = sorted(tokenizer.get_added_tokens_decoder()), sorted(table.parts)
    for _ in range(4000):
        length = random.randrange(1, 20)
        if kind == "random ids":
            yield [random.randrange(table.size) for _ in range(length)]
        elif kind == "parts of characters":
            yield [random.choice(parts) for _ in range(length)]
        else:
            pools = [added, parts, range(table.size), range(table.size, table.size + 9)]
            yield [random.choice(random.choice(pools)) for _ in range(length)]


def held_back(table: Table, ids: list[int]) -> bool:
    """Whether the ids have a run of byte tokens that is not text as a whole.

    Full decode takes back the characters of such a run that were complete, which a stream has shown: the documented
    difference of byte-fallback decoders.
    """
    if table.rule.byte_level:
        return False
    runs, run = [], b""
    for i in ids:
        text = table.text[i] if i < table.size else ""
        if text is PARTIAL:
            run += table.parts[i]
        elif text:
            runs.append(run)
            run = b""
    try:
        return not all(part.decode() is not None for part in [*runs, run])
    except UnicodeDecodeError:
        return True


@EVERY
@SKIPS
@KINDS
def test_joined_pieces_are_the_full_decode(folder: Path, skip: bool, kind: str) -> None:
    tokenizer, table = table_of(folder, skip)
    random = Random(13)
    compared = 0
    for ids in sequences(kind, tokenizer, table, random):
        got = read(table, ids, random)
        if held_back(table, ids):
            continue
        compared += 1
        assert got == tokenizer.decode(ids, skip_special_tokens=skip), ids
    assert compared > 100


@EVERY
@SKIPS
def test_every_token_alone_is_its_full_decode(folder: Path, skip: bool) -> None:
    tokenizer, table = table_of(folder, skip)
    decoded = tokenizer.decode_batch([[i] for i in range(table.size)], skip_special_tokens=skip)
    random = Random(17)
    assert [i for i, text in enumerate(decoded) if read(table, [i], random) != text] == []


@EVERY
@SKIPS
def test_any_split_gives_one_text(folder: Path, skip: bool) -> None:
    tokenizer, table = table_of(folder, skip)
    random = Random(19)
    for ids in sequences("mixtures", tokenizer, table, random):
        whole = table.decoder([], 0)
        assert read(table, ids, random) == whole.feed(ids) + whole.flush()
