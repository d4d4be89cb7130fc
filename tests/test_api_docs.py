"""docs/api.md: its table is the table of routes, and its examples run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_api.routes import all_routes
from tests.helpers.front import Front, running
from tests.helpers.models import make_tokenizer

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
EXAMPLES = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_table_is_the_table_of_routes() -> None:
    written = re.findall(r"(?m)^\| ([A-Z ]+) \| `(/[^`]*)` \| (\w+) \| (.*?) \|$", PAGE.read_text())
    routes = [(" ".join(route.methods), route.path, route.access, route.summary) for route in all_routes()]
    assert sorted(written) == sorted(routes)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 10


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    model = make_tokenizer(tmp_path_factory.mktemp("model"))
    flags = ("--engine", "echo", "--tokenizer-path", str(model))
    environ = {"FOREBAY_ADMIN_API_KEY": "secret"}
    with running(tmp_path_factory.mktemp("front"), *flags, environ=environ) as found:
        yield found


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_answers_what_the_page_says(front: Front, example: str) -> None:
    command, _, answer = example.partition("#> ")
    shown = subprocess.run(
        ["bash", "-c", command.replace("http://127.0.0.1:8000", front.url)],
        env={**os.environ, "ADMIN_KEY": "secret"},
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert answer.strip() in shown.stdout.decode()
