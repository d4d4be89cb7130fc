"""Fronts for the clients: one with the echo engine, where every text and number is known, one with the packaged model.

Run by `make test-clients` only: the clients are heavy, and have an environment of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.front import Front, running
from tests.helpers.models import make_tokenizer

ECHO = "the quick brown fox jumps over the lazy dog. "

# Before the clients are imported: what they ask the network for is not needed.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", LITELLM_LOCAL_MODEL_COST_MAP="True")
os.environ.setdefault("OPENAI_API_KEY", "none")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer of the echo engine, which `transformers` can load too."""
    made = make_tokenizer(tmp_path_factory.mktemp("model"))
    path = made / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}))
    return made


@pytest.fixture(scope="session")
def echo_flags(folder: Path) -> tuple[str, ...]:
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-text", ECHO, "--echo-step-ms", "1")
    return (*flags, "--context-length", "4096")


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory, echo_flags: tuple[str, ...]) -> Iterator[Front]:
    with running(tmp_path_factory.mktemp("echo"), *echo_flags) as found:
        yield found


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """The packaged model, in the precision in which a prompt and its generation are scored alike."""
    with running(tmp_path_factory.mktemp("packaged"), "--engine-precision", "f32", seconds=240) as found:
        yield found


@pytest.fixture(scope="session")
def model_info(model: Front) -> dict[str, Any]:
    with model.client() as client:
        info: dict[str, Any] = client.get("/model_info").json()
        return info
