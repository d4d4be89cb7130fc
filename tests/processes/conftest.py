"""What the tests of running fronts share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.models import make_tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer of an echo engine."""
    return make_tokenizer(tmp_path_factory.mktemp("model"))
