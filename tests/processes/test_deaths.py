"""Any process may die or leave while streams run: each client gets its answer or a clear error, and nothing is kept."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer

LONG = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = make_tokenizer(tmp_path_factory.mktemp("model"))
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "5", "--restart-limit", "20")
    with running(tmp_path_factory.mktemp("front"), *flags) as found:
        yield found


@pytest.fixture(autouse=True)
def whole(front: Front) -> None:
    """Every test begins with all processes up and no request running."""
    wait_until_whole(front)
    wait_for(lambda: front.state()["num_running_reqs"] == 0, 10, "an idle engine")


def wait_until_whole(front: Front) -> None:
    with front.client() as client:
        wait_for(lambda: client.get("/ready").status_code == 200, 20, "a front that is ready")


class Reader(threading.Thread):
    """Reads one long stream until it ends, in a thread of its own."""

    def __init__(self, front: Front, body: dict[str, Any] | None = None) -> None:
        super().__init__(daemon=True)
        self._front = front
        self._body = body or LONG
        self.first = threading.Event()
        self.events: list[Any] = []
        self.broken = False
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            with self._front.client() as client, client.stream("POST", "/generate", json=self._body) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
                        self.first.set()
        except httpx.HTTPError:
            self.broken = True
        self.ended_at = time.monotonic()
        self.first.set()

    def error(self) -> Any:
        """The body of the error event."""
        assert self.events[-1] == "[DONE]"
        return json.loads(self.events[-2])["error"]


def started(front: Front, count: int = 4) -> list[Reader]:
    """Streams that have had their first event."""
    readers = [Reader(front) for _ in range(count)]
    for reader in readers:
        assert reader.first.wait(20)
    return readers


def kill(front: Front, name: str, number: int = signal.SIGKILL) -> float:
    os.kill(front.pids()[name], number)
    return time.monotonic()


def test_a_client_that_leaves_is_aborted_in_the_engine(front: Front) -> None:
    with front.client() as client, client.stream("POST", "/generate", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert front.state()["num_running_reqs"] == 1
    left = time.monotonic()
    wait_for(lambda: front.state()["num_running_reqs"] == 0, 5, "the abort in the engine")
    assert time.monotonic() - left < 3


def test_a_unary_client_that_leaves_is_aborted_in_the_engine(front: Front) -> None:
    body = {**LONG, "stream": False}
    with front.client() as client, contextlib.suppress(httpx.ReadTimeout):
        client.post("/generate", json=body, timeout=0.5)
    wait_for(lambda: front.state()["num_running_reqs"] == 0, 5, "the abort in the engine")


def test_abort_request_ends_a_stream_with_its_text_so_far(front: Front) -> None:
    reader = Reader(front, {**LONG, "rid": "mine"})
    other = Reader(front, {**LONG, "rid": "mine-too"})
    assert reader.first.wait(20)
    assert other.first.wait(20)
    with front.client() as client:
        client.post("/abort_request", json={"rid": "mine"})
        reader.join(5)
        assert other.is_alive()
        client.post("/abort_request", json={"abort_all": True})
        other.join(5)
    for ended in (reader, other):
        meta = json.loads(ended.events[-2])["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert meta["completion_tokens"] > 0


def test_a_request_id_that_is_in_use_is_refused(front: Front) -> None:
    reader = Reader(front, {**LONG, "rid": "twice"})
    assert reader.first.wait(20)
    with front.client() as client:
        again = client.post("/generate", json={**LONG, "rid": "twice"})
        assert again.status_code == 400
        assert "Duplicate request ID detected: twice" in again.json()["error"]["message"]
        client.post("/abort_request", json={"rid": "twice"})
        reader.join(5)
        short = {"text": "x", "rid": "twice", "sampling_params": {"max_new_tokens": 3}}
        first = client.post("/generate", json=short).json()
        assert first["meta_info"]["completion_tokens"] == 3
        assert client.post("/generate", json=short).json()["text"] == first["text"]


def test_a_dead_detokenizer_is_not_noticed_by_its_clients(front: Front) -> None:
    body = {**LONG, "sampling_params": {"max_new_tokens": 400}}
    readers = [Reader(front, body) for _ in range(4)]
    for reader in readers:
        assert reader.first.wait(20)
    kill(front, "detokenizer-0")
    for reader in readers:
        reader.join(20)
        assert reader.events[-1] == "[DONE]"
        meta = json.loads(reader.events[-2])["meta_info"]
        assert (meta["finish_reason"]["type"], meta["completion_tokens"]) == ("length", 400)
    assert len({json.loads(reader.events[-2])["text"] for reader in readers}) == 1


def test_a_dead_tokenizer_is_not_noticed_by_its_clients(front: Front) -> None:
    readers = started(front, 2)
    os.kill(front.pids()["tokenizer-0"], signal.SIGSTOP)
    waiting = [Reader(front, {"text": "late", "sampling_params": {"max_new_tokens": 3}}) for _ in range(4)]
    wait_for(lambda: "x" if len(readers[0].events) > 5 else "", 5, "streams that go on")
    kill(front, "tokenizer-0")
    for reader in waiting:
        reader.join(20)
        assert json.loads("".join(reader.events))["meta_info"]["completion_tokens"] == 3
    assert all(reader.is_alive() for reader in readers)
    with front.client() as client:
        client.post("/abort_request", json={"abort_all": True})


def test_a_dead_engine_ends_all_streams_and_is_taken_back(front: Front) -> None:
    readers = started(front)
    killed = kill(front, "engine-0")
    for reader in readers:
        reader.join(5)
        assert reader.error()["code"] == 503
        assert reader.error()["message"] == "engine connection lost"
        assert reader.ended_at - killed < 3
    wait_until_whole(front)
    with front.client() as client:
        assert (answer := client.post("/generate", json={"text": "hello"})).status_code == 200, answer.text


def test_a_dead_api_process_frees_its_requests_in_the_engine(front: Front) -> None:
    readers = started(front)
    kill(front, "api-0")
    for reader in readers:
        reader.join(5)
        assert reader.broken

    def idle() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return bool(front.state()["num_running_reqs"] == 0)
        return False

    wait_for(idle, 20, "an idle engine behind a new api process")


def test_the_front_stops_in_time_while_an_endless_stream_runs(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "model")
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "5", "--drain-timeout", "1")
    with running(tmp_path, *flags) as front:
        (reader,) = started(front, 1)
        begun = time.monotonic()
        assert front.stop() == 0
        assert time.monotonic() - begun < 10
        reader.join(5)
        assert reader.error()["message"] == "server is shutting down"


def test_a_running_request_may_finish_before_the_front_stops(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "model")
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "10")
    with running(tmp_path, *flags) as front:
        reader = Reader(front, {**LONG, "sampling_params": {"max_new_tokens": 100}})
        assert reader.first.wait(20)
        assert front.stop() == 0
        reader.join(5)
        assert json.loads(reader.events[-2])["meta_info"]["completion_tokens"] == 100
