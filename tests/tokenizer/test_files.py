"""Where a model's tokenizer files are, and which of several chat templates wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingsError
from forebay_tokenizer.encode import Encoder
from forebay_tokenizer.files import read_files
from tests.tokenizer.samples import plain


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def configure(folder: Path, **config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_folder_and_its_tokenizer_file_are_the_same(folder: Path) -> None:
    configure(folder, chat_template="x")
    assert read_files(folder) == read_files(folder / "tokenizer.json")


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=str(tmp_path)):
        read_files(tmp_path)


def test_special_tokens_may_be_texts_or_objects(folder: Path) -> None:
    configure(folder, bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None, add_bos_token=True)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "old", "unk_token": "<unk>"}))
    files = read_files(folder)
    assert files.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert files.add_bos is True


@pytest.mark.parametrize(("written", "length"), [(4096, 4096), (10**30, None), (1e30, None), (None, None), (0, None)])
def test_a_length_that_means_no_limit_is_none(folder: Path, written: float | None, length: int | None) -> None:
    configure(folder, model_max_length=written)
    assert read_files(folder).model_max_length == length


def test_templates_are_found_in_their_order(folder: Path) -> None:
    assert read_files(folder).templates == {}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "old"}))
    assert read_files(folder).templates == {"default": "old"}
    configure(folder, chat_template="config")
    assert read_files(folder).templates == {"default": "config"}
    (folder / "chat_template.jinja").write_text("file")
    assert read_files(folder).templates == {"default": "file"}
    (folder / "mine.jinja").write_text("mine")
    assert read_files(folder, folder / "mine.jinja").templates == {"default": "mine"}


def test_named_templates_keep_their_names(folder: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    configure(folder, chat_template=named)
    assert read_files(folder).templates == {"default": "a", "tool_use": "b"}


def test_named_template_files_stand_beside_the_usual_one(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("b")
    (folder / "chat_template.jinja").write_text("a")
    assert read_files(folder).templates == {"default": "a", "tool_use": "b"}


@pytest.mark.parametrize("name", ["absent.jinja", "absent.json"])
def test_a_chosen_template_that_is_not_there_stops_the_start(folder: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="absent"):
        read_files(folder, folder / name)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_configuration_is_refused_by_name(folder: Path, text: str) -> None:
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.raises(SettingsError, match=r"tokenizer_config\.json"):
        read_files(folder)


def test_a_file_that_is_no_tokenizer_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"tokenizer\.json cannot be loaded"):
        Encoder.load(read_files(folder))


def test_a_tokenizer_is_loaded_with_the_first_token_that_the_configuration_wants(folder: Path) -> None:
    plain().save(str(folder / "tokenizer.json"))
    configure(folder, bos_token="<s>", add_bos_token=True)
    encoder = Encoder.load(read_files(folder))
    assert encoder.encode("hello", add_special_tokens=True)[0] == encoder.bos_id
