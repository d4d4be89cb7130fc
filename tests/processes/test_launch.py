"""The services beside an engine: they start without waiting, they say how it went, and they end with the engine."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import psutil
import pytest

from forebay.errors import StartError
from forebay.launch import Services, start_services
from forebay.settings import Settings
from tests.processes.fake_services import told_pids, write_services

SETTINGS = Settings(port=0, drain_timeout=1.0)


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use(write_services(tmp_path / "fakes"), monkeypatch)


def use(events: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", f"{events.parent}:{os.environ.get('PYTHONPATH', '')}")
    return events


def until_state(services: Services, wanted: str) -> None:
    deadline = time.monotonic() + 10
    while (state := services.state()) != wanted:
        assert time.monotonic() < deadline, f"it is {state}, not {wanted}"
        time.sleep(0.01)


def test_services_get_ready_while_the_engine_goes_on(events: Path) -> None:
    services = start_services(SETTINGS)
    assert services.state() in ("started", "ready")
    until_state(services, "ready")
    services.stop()
    assert len(told_pids(events)) == 3


def test_stop_leaves_no_process_and_no_folder(events: Path) -> None:
    services = start_services(SETTINGS)
    until_state(services, "ready")
    services.stop()
    services.stop()
    assert [pid for pid in told_pids(events) if psutil.pid_exists(pid)] == []
    assert not services.run_dir.exists()
    assert services.state() == "ended"


def test_service_that_fails_is_reported_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(write_services(tmp_path / "fakes", tokenizer="fail"), monkeypatch)
    services = start_services(SETTINGS)
    until_state(services, "failed")
    services.stop()
    assert services.error.startswith("tokenizer-0 ended with exit code 3 while starting")
    assert services.error.endswith("no tokenizer.json in /nowhere")


def test_port_zero_is_settled_before_the_services_start(events: Path) -> None:
    services = start_services(SETTINGS)
    services.stop()
    assert services.settings.port > 0


def test_taken_port_is_refused_before_anything_starts(events: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(StartError, match="in use"):
            start_services(Settings(port=server.getsockname()[1]))
    assert told_pids(events) == []


def test_supervisor_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forebay").mkdir()
    (tmp_path / "forebay" / "__init__.py").write_text("raise SystemExit(5)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StartError, match="exit code 5"):
        start_services(SETTINGS)
