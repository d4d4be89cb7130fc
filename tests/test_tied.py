"""Nothing that tests or benchmarks start outlives them, not even when they are killed."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers.front import wait_for
from tests.helpers.models import make_tokenizer
from tests.helpers.tied import tied

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py"))
UNTIED = {"tests/processes/fake_role.py": "an orphan of a minute, made on purpose"}


def starts(source: Path) -> Iterator[ast.Call]:
    """The calls of `Popen` whose command is not `tied(...)`."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.Popen", "Popen"):
            command = node.args[0] if node.args else None
            if not (isinstance(command, ast.Call) and ast.unparse(command.func) == "tied"):
                yield node


def test_every_process_that_tests_and_benchmarks_start_is_tied_to_them() -> None:
    found = {str(source.relative_to(ROOT)) for source in SOURCES if any(starts(source))}
    assert found == set(UNTIED), "start it with tied(...)"


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word at a parent's end is Linux's")
def test_front_of_a_test_run_that_is_killed_stops(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.helpers.front import running\n"
        "with running(Path(sys.argv[1]), '--engine', 'echo', '--tokenizer-path', sys.argv[2]) as front:\n"
        "    print(front.process.pid, flush=True); time.sleep(60)"
    )
    model = make_tokenizer(tmp_path / "model")
    command: list[str | Path] = [sys.executable, "-c", code, tmp_path, model]
    with subprocess.Popen(tied(command), stdout=subprocess.PIPE, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        front = psutil.Process(int(run.stdout.readline()))
        family = [front, *front.children(recursive=True)]
        assert len(family) >= 5
        run.send_signal(signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, family)), 20, "the end of the front")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word at a parent's end is Linux's")
def test_process_whose_starter_has_ended_meanwhile_does_not_start(tmp_path: Path) -> None:
    command = tied(["touch", tmp_path / "started"])
    command[command.index("touch") - 1] = "1"  # as if we had been somebody who is gone
    assert subprocess.run(command, check=False).returncode == 1
    assert not (tmp_path / "started").exists()
