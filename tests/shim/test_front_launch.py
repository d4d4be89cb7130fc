"""`Front.launch` without its processes: what it sets, where its threads run, and what it undoes when it fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay import Front, SettingsError, StartError, affinity, shim
from forebay.rundir import open_run_dir
from forebay.settings import Settings
from forebay.topology import Peer, socket_path


class NoServices:
    """Services that are no processes."""

    def __init__(self, folder: Path, events: list[Any]) -> None:
        self.settings = Settings(port=4321)
        self.run_dir = folder
        self._events = events

    def stop(self) -> None:
        self._events.append("stop")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a launch does, in order: its services start and stop, and its thread is moved."""
    seen: list[Any] = []
    made = open_run_dir(None)

    def start(settings: Settings) -> NoServices:
        seen.append("start")
        return NoServices(made.path, seen)

    def move(cores: list[int]) -> bool:
        seen.append(tuple(cores))
        return True

    monkeypatch.setattr(shim, "start_services", start)
    monkeypatch.setattr(affinity, "allowed_cores", lambda: list(range(8)))
    monkeypatch.setattr(affinity, "thread_cores", lambda: list(range(8)))
    monkeypatch.setattr(affinity, "apply_to_thread", move)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    yield seen
    assert not socket_path(made.path, Peer("engine", 0)).exists()
    made.close()


def test_thread_is_narrowed_only_after_the_services_and_the_links_are_there(events: list[Any]) -> None:
    with Front.launch({}, Settings()):
        # To the services' cores for ZeroMQ's own threads, back, and at last to the engine's cores.
        assert events == ["start", (2, 3, 4, 5, 6, 7), tuple(range(8)), (0, 1)]


def test_cores_stay_within_the_mask_of_the_rank(events: list[Any]) -> None:
    with Front.launch({}, Settings(), cores=[2, 3, 4, 5]):
        assert events == ["start", (3, 4, 5), tuple(range(8)), (2,)]


def test_end_of_the_front_stops_the_services(events: list[Any]) -> None:
    front = Front.launch({}, Settings())
    front.close()
    front.close()
    assert events.count("stop") == 1


def test_line_in_the_log_says_where_it_serves(events: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forebay.shim")
    with Front.launch({}, Settings()):
        lines = [record.message for record in caplog.records if "serving at" in record.message]
        assert len(lines) == 1
        assert "http://127.0.0.1:4321" in lines[0]


@pytest.mark.parametrize(("before", "after"), [(None, "false"), ("true", "true")])
def test_parallelism_of_tokenizers_is_set_only_where_it_is_unset(
    events: list[Any], monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    if before is not None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
    with Front.launch({}, Settings()):
        assert os.environ["TOKENIZERS_PARALLELISM"] == after


def test_facts_of_a_wrong_type_start_nothing(events: list[Any]) -> None:
    with pytest.raises(SettingsError, match="vocab_size"):
        Front.launch({"vocab_size": "8"}, Settings())
    assert events == []


def test_services_are_stopped_when_the_links_cannot_be_made(
    events: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    monkeypatch.setattr(shim, "start_services", lambda settings: NoServices(long, events))
    with pytest.raises(StartError, match="107"):
        Front.launch({}, Settings())
    assert events[-1] == "stop"


def test_threads_of_zeromq_run_on_the_cores_that_they_are_given() -> None:
    made = open_run_dir(None)
    own = os.sched_getaffinity(0)
    before = set(os.listdir("/proc/self/task"))
    with Front.connect(made.path, {}, io_cores=[min(own)]):
        threads = set(os.listdir("/proc/self/task")) - before
        assert {frozenset(os.sched_getaffinity(int(thread))) for thread in threads} == {frozenset({min(own)})}
        assert os.sched_getaffinity(0) == own
    made.close()
