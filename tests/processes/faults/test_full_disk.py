"""A disk without room: the start says so, and a log that takes nothing costs a running front nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from forebay.counters import SIZE
from tests.helpers.chaos import assert_idle
from tests.helpers.front import running
from tests.helpers.models import make_tokenizer


def test_a_run_folder_without_room_is_a_start_error(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "model")
    command = [sys.executable, "-m", "forebay.cli", "serve", "--engine", "echo", "--port", "0"]
    done = subprocess.run(
        [*command, "--tokenizer-path", str(folder), "--run-dir", str(tmp_path / "run")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, SIZE // 2)),
    )
    assert done.returncode == 1
    assert "needs 1 MiB: File too large; use another --run-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_that_takes_nothing_stops_nobody(tmp_path: Path, form: str) -> None:
    folder = make_tokenizer(tmp_path / "model")
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--log-requests", "--log-format", form)
    with running(tmp_path, *flags) as front:
        written = front.log.stat().st_size
        supervisor = psutil.Process(front.process.pid)
        resource.prlimit(supervisor.pid, resource.RLIMIT_FSIZE, (written, written))
        for _ in range(50):
            with front.client() as client:
                assert client.post("/generate", json={"text": "x"}).status_code == 200
        assert_idle(front)
        assert front.log.stat().st_size == written
