"""A tiny model, made once a test run: as a GGUF file, as a converted folder, and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.settings import Settings
from forebay_engine.backend import Backend
from forebay_engine.model_store import ModelFolder, prepare
from forebay_engine.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest.fixture(scope="session")
def tiny_folder(tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return prepare(str(tiny_file), tmp_path_factory.mktemp("cache"), Settings(), lambda line: None)


@pytest.fixture(scope="session")
def backend(tiny_folder: ModelFolder) -> Backend:
    """The tiny model with a cache of 128 blocks (4,096 tokens)."""
    return Backend(tiny_folder.path, threads=1, precision="f32", cache_tokens=4096)


@pytest.fixture(scope="session")
def small_backend(tiny_folder: ModelFolder) -> Backend:
    """The tiny model with a cache of 4 blocks (128 tokens)."""
    return Backend(tiny_folder.path, threads=1, precision="f32", cache_tokens=128)
