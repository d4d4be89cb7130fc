"""`forebay serve` as a user types it, over fake services: the ready line, the errors, and an empty house at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers.tied import tied
from tests.processes.fake_services import told_pids, write_services

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `forebay serve` with its files below one temporary folder; at the end nothing may be left there."""
    started: list[subprocess.Popen[str]] = []
    temporary = tmp_path / "t"
    temporary.mkdir()

    def run(*flags: str, **services: str) -> subprocess.Popen[str]:
        fakes = tmp_path / "fakes"
        write_services(fakes, **services)  # type: ignore[arg-type]
        environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": f"{fakes}:{os.environ.get('PYTHONPATH', '')}"}
        environ.pop("XDG_RUNTIME_DIR", None)
        command = [sys.executable, "-m", "forebay.cli", "serve", "--port", "0", *flags]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(tied(command), stdout=pipe, stderr=pipe, text=True, env=environ))
        return started[0]

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=15)
    assert [pid for pid in told_pids(tmp_path / "fakes" / "events") if psutil.pid_exists(pid)] == []
    assert list(temporary.iterdir()) == []


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_ready_line_has_the_address_and_the_name_of_the_prepared_model(start: Start) -> None:
    process = start()
    assert line(process).startswith("forebay is ready at http://127.0.0.1:")


def test_ready_line_is_followed_by_a_command_to_copy(start: Start) -> None:
    process = start("--served-model-name", "mine")
    assert line(process).endswith("(model mine)\n")
    assert line(process).lstrip().startswith("curl -s http://127.0.0.1:")


def test_ctrl_c_stops_with_exit_code_zero_and_without_a_traceback(start: Start) -> None:
    process = start()
    line(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=5)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_service_that_fails_ends_the_command_with_one_error_and_exit_code_one(start: Start) -> None:
    process = start(detokenizer="fail")
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 1
    assert "forebay: error: detokenizer-0 ended with exit code 3 while starting" in errors
    assert "Traceback" not in errors


def test_model_that_cannot_be_prepared_starts_no_process(start: Start, tmp_path: Path) -> None:
    process = start(answer="", code="1")
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 1
    assert errors.startswith("fetching\nforebay: error: the model could not be prepared")
    assert told_pids(tmp_path / "fakes" / "events") == []


def test_progress_of_the_model_is_shown(start: Start) -> None:
    process = start()
    line(process)
    process.terminate()
    assert process.communicate(timeout=15)[1].startswith("fetching\n")


def test_taken_port_is_said_before_the_model_is_prepared(start: Start) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        process = start("--port", str(server.getsockname()[1]))
        _, errors = process.communicate(timeout=15)
    assert process.returncode == 1
    assert errors.startswith("forebay: error: port ")


def test_missing_template_is_a_settings_error(start: Start) -> None:
    process = start("--chat-template", "/no/such/file")
    _, errors = process.communicate(timeout=15)
    assert (process.returncode, errors) == (2, "forebay: error: chat_template: there is no file /no/such/file\n")


def test_echo_engine_with_a_tokenizer_of_its_own_prepares_nothing(start: Start, tmp_path: Path) -> None:
    process = start("--engine", "echo", "--tokenizer-path", str(tmp_path), code="1")
    assert line(process).startswith("forebay is ready")
