"""docs/api.md: its table is the table of routes, and its examples run."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from forebay_api.routes import all_routes
from tests.helpers.front import Front, running
from tests.helpers.models import make_tokenizer

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
VARIABLES = {"ADMIN_KEY": "secret"}
"""What the page leaves to the shell."""
EXAMPLES = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_table_is_the_table_of_routes() -> None:
    written = re.findall(r"(?m)^\| ([A-Z ]+) \| `(/[^`]*)` \| (\w+) \| (.*?) \|$", PAGE.read_text())
    routes = [(" ".join(route.methods), route.path, route.access, route.summary) for route in all_routes()]
    assert sorted(written) == sorted(routes)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 10


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    model = make_tokenizer(tmp_path_factory.mktemp("model"))
    flags = ("--engine", "echo", "--tokenizer-path", str(model))
    environ = {"FOREBAY_ADMIN_API_KEY": VARIABLES["ADMIN_KEY"]}
    with running(tmp_path_factory.mktemp("front"), *flags, environ=environ) as found:
        yield found


def by_curl(command: str) -> str:
    """What a shell prints that runs the command."""
    environ = {**os.environ, **VARIABLES}
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, timeout=20, check=True)
    return done.stdout.decode()


def by_hand(command: str) -> str:
    """The same for a machine without curl: its flags as far as the page uses them, and no other."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-N", action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    parser.add_argument("-w", default="")
    parser.add_argument("url")
    program, *words = shlex.split(re.sub(r"\$(\w+)", lambda found: VARIABLES[found[1]], command))
    assert program == "curl"
    given = parser.parse_args(words)
    headers = dict(line.split(": ", 1) for line in given.H)
    if given.d is None:
        answer = httpx.get(given.url, headers=headers, timeout=20)
    else:
        form = {"Content-Type": "application/x-www-form-urlencoded"}  # what curl says unless it is told
        answer = httpx.post(given.url, content=given.d.encode(), headers={**form, **headers}, timeout=20)
    return f"{answer.text}{given.w.replace('%{http_code}', str(answer.status_code))}"


WAYS = [by_hand] if shutil.which("curl") is None else [by_hand, by_curl]


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("way", WAYS)  # all examples one way, then all of them the other way: they follow on each other
def test_the_example_answers_what_the_page_says(front: Front, way: Callable[[str], str], example: str) -> None:
    command, _, answer = example.partition("#> ")
    assert answer.strip() in way(command.replace("http://127.0.0.1:8000", front.url))
