"""Texts in, on published tokenizers: every shortcut gives the ids of the plain encoder (`make test-tokenizers`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from forebay.errors import RequestError
from forebay_tokenizer.caches import Segments
from forebay_tokenizer.encode import Encoder
from forebay_tokenizer.files import TokenizerFiles, read_files
from forebay_tokenizer.templates import ChatTemplates
from tests.tokenizer.real import chats, corpus, folders
from tests.tokenizer.samples import LOG, chat

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not folders(), reason="needs published tokenizers: make test-tokenizers"),
]
EVERY = pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)


@lru_cache(maxsize=1)
def loaded(folder: Path) -> tuple[TokenizerFiles, Encoder]:
    files = read_files(folder)
    return files, Encoder.load(files)


def plain_ids(encoder: Encoder, texts: Sequence[str], special: bool) -> list[list[int]]:
    """The ids of the library itself, without anything of ours."""
    return [one.ids for one in encoder.tokenizer.encode_batch(list(texts), add_special_tokens=special)]


def ours(found: Sequence[object]) -> list[object]:
    return [one if isinstance(one, RequestError) else list(one) for one in found]  # type: ignore[call-overload]


@EVERY
def test_ids_are_those_of_the_plain_tokenizer(folder: Path) -> None:
    encoder = Encoder(loaded(folder)[1].tokenizer)  # without the files' word about a first token
    texts = corpus(1, 1500)
    for special in (True, False):
        assert ours(encoder.encode_many(texts, add_special_tokens=special)) == plain_ids(encoder, texts, special)


@EVERY
def test_the_segment_cache_is_exact_on_random_chats(folder: Path) -> None:
    files, encoder = loaded(folder)
    segments = Segments(encoder, hint="\n".join(files.templates.values()), max_bytes=200_000)
    segments.check(LOG)
    added = [token.content for token in encoder.tokenizer.get_added_tokens_decoder().values()]
    texts = chats(folder.name, added, 2, 800)
    assert ours(segments.encode_many(texts)) == plain_ids(encoder, texts, False)
    assert ours(segments.encode_many(texts[::-1])) == plain_ids(encoder, texts[::-1], False)


@EVERY
def test_the_fast_encoder_is_exact_where_its_self_check_lets_it_be_used(folder: Path) -> None:
    pytest.importorskip("fastokens")
    files, plain = loaded(folder)
    encoder = Encoder(plain.tokenizer)
    if not encoder.hasten(files.tokenizer, LOG):
        pytest.skip("the self-check keeps fastokens off for this tokenizer")
    added = [token.content for token in encoder.tokenizer.get_added_tokens_decoder().values()]
    texts = corpus(3, 3000) + chats(folder.name, added, 4, 500)
    for special in (True, False):
        assert ours(encoder.encode_many(texts, add_special_tokens=special)) == plain_ids(encoder, texts, special)


@EVERY
def test_no_text_has_fewer_tokens_than_the_bound_says(folder: Path) -> None:
    encoder = loaded(folder)[1]
    if encoder.bound is None:
        pytest.skip("a token of this tokenizer can stand for any amount of text")
    texts = corpus(5, 1000)
    least = [encoder.bound.least_tokens(text.encode()) for text in texts]
    counts = [len(ids) for ids in plain_ids(encoder, texts, False)]
    assert [text for text, low, count in zip(texts, least, counts, strict=True) if low > count] == []


@EVERY
def test_the_templates_of_the_package_render(folder: Path) -> None:
    files, encoder = loaded(folder)
    if not files.templates:
        pytest.skip("the package has no chat template")
    templates = ChatTemplates.load(files, LOG)
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "first question"}]},
        {"role": "assistant", "content": "first answer"},
        {"role": "user", "content": "last question"},
    ]
    text = templates.render(chat(turns)).text
    assert text.index("first question") < text.index("first answer") < text.index("last question")
    assert len(encoder.encode(text, add_special_tokens=False)) > 8
    begun = templates.render(chat([*turns, {"role": "assistant", "content": "It is"}], continue_final_message=True))
    assert begun.continuation == "It is"
    assert "last question" in begun.text
