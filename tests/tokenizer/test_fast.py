"""The fast encoder: used only when it is there and agrees, asked first, and never the reason of a refusal."""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from forebay_tokenizer.encode import Encoder
from forebay_tokenizer.fast import ALONE, FastEncoder, widened
from forebay_tokenizer.files import TokenizerFiles
from forebay_tokenizer.selfcheck import sample_texts, vocabulary_texts
from tests.tokenizer.samples import LOG, SPECIAL, WORDS, plain, with_bos

AWAY = "a text of no self-check"


class Other:
    """Stands for fastokens: the ids of `tokenizers`, unless `wrong` says otherwise."""

    def __init__(self, path: str, wrong: str | None = None, refuses: str | None = None) -> None:
        self._inner = Tokenizer.from_file(path)
        self._wrong, self._refuses = wrong, refuses
        self.asked: list[str] = []

    def no_truncation(self) -> None:
        self._inner.no_truncation()

    def no_padding(self) -> None:
        self._inner.no_padding()

    def encode(self, text: str, *, add_special_tokens: bool) -> SimpleNamespace:
        self.asked.append(text)
        if text == self._refuses:
            raise ValueError("no")
        ids = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        return SimpleNamespace(ids=[*ids, 0] if text == self._wrong else ids)

    def encode_batch_flat(self, texts: list[str], *, add_special_tokens: bool) -> tuple[bytes, bytes]:
        many = [self.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]
        ends = array("Q", accumulate(map(len, many), initial=0))
        return array("I", [one for ids in many for one in ids]).tobytes(), ends.tobytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with_bos().save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Other]]:
    def install(**options: str) -> list[Other]:
        made: list[Other] = []

        def from_file(path: str) -> Other:
            made.append(Other(path, **options))
            return made[-1]

        module = ModuleType("fastokens")
        module.Tokenizer = SimpleNamespace(from_file=from_file)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "fastokens", module)
        return made

    return install


def test_it_encodes_in_place_of_the_plain_one_when_it_agrees(file: Path, install: Any) -> None:
    made = install()
    encoder = Encoder.load(TokenizerFiles(file), fast=True, log=LOG)
    expected = with_bos().encode(AWAY, add_special_tokens=True).ids
    assert encoder.encode(AWAY, add_special_tokens=True).tolist() == expected
    assert AWAY in made[0].asked


def test_large_and_small_texts_have_the_same_ids(file: Path, install: Any) -> None:
    install()
    encoder = Encoder.load(TokenizerFiles(file), fast=True, log=LOG)
    texts = ["hello world" * (ALONE // 10), "", "x"]
    many = encoder.encode_many(texts, add_special_tokens=True)
    assert many == [encoder.encode(text, add_special_tokens=True) for text in texts]
    assert many == Encoder(with_bos()).encode_many(texts, add_special_tokens=True)


def test_one_difference_switches_it_off(file: Path, install: Any, caplog: pytest.LogCaptureFixture) -> None:
    install(wrong=vocabulary_texts(with_bos())[17])
    with caplog.at_level(logging.INFO):
        encoder = Encoder.load(TokenizerFiles(file), fast=True, log=LOG)
    assert encoder.fast is None
    assert "fast encoder off: its ids differ" in caplog.text


def test_a_tokenizer_that_it_cannot_load_is_served_without_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fastokens")
    module.Tokenizer = SimpleNamespace(from_file=lambda path: 1 / 0)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastokens", module)
    assert Encoder.load(TokenizerFiles(file), fast=True, log=LOG).fast is None


def test_without_the_package_nothing_changes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert Encoder.load(TokenizerFiles(file), fast=True, log=LOG).fast is None


def test_switched_off_it_is_not_even_loaded(file: Path, install: Any) -> None:
    made = install()
    assert Encoder.load(TokenizerFiles(file)).fast is None
    assert made == []


def test_a_text_that_it_refuses_is_encoded_by_the_plain_one(file: Path, install: Any) -> None:
    install(refuses=AWAY)
    encoder = Encoder.load(TokenizerFiles(file), fast=True, log=LOG)
    assert encoder.fast is not None
    expected = with_bos().encode(AWAY, add_special_tokens=False).ids
    assert encoder.encode(AWAY, add_special_tokens=False).tolist() == expected


@pytest.mark.parametrize("wanted", [True, False])
def test_the_first_token_is_what_the_models_files_say(file: Path, install: Any, wanted: bool) -> None:
    install()
    files = TokenizerFiles(file, special_tokens={"bos_token": "<s>"}, add_bos=wanted)
    encoder = Encoder.load(files, fast=True, log=LOG)
    begins = encoder.encode("hello", add_special_tokens=True)[0] == encoder.bos_id
    assert (encoder.fast is not None, begins) == (True, wanted)


def test_a_request_to_stop_the_process_is_not_swallowed() -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    quiet = SimpleNamespace(no_truncation=lambda: None, no_padding=lambda: None, encode=stopped)
    with pytest.raises(KeyboardInterrupt):
        FastEncoder(quiet).encode_many(["x"], add_special_tokens=False)


@pytest.mark.parametrize("ids", [[], [5], [0, 1, 2**31, 2**32 - 1]])
def test_ids_are_widened_as_they_are(ids: list[int]) -> None:
    assert widened(memoryview(array("I", ids).tobytes()).cast("I")).tolist() == ids


def test_the_self_check_meets_every_added_token_and_many_of_the_vocabulary() -> None:
    texts = vocabulary_texts(plain()) + sample_texts(SPECIAL)
    assert all(any(special in text for text in texts) for special in SPECIAL)
    seen = {one for ids in plain().encode_batch(texts, add_special_tokens=False) for one in ids.ids}
    assert {plain().token_to_id(word) for word in WORDS} <= seen


def test_the_self_check_has_the_same_texts_at_every_start() -> None:
    assert vocabulary_texts(plain()) == vocabulary_texts(plain())
