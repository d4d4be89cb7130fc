"""Work of an api process that has died since: whoever brings it late brings it in vain."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.helpers.chaos import assert_idle, depths, is_ready
from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer
from tests.processes.test_deaths import Reader

REQUESTS = 8


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    folder = make_tokenizer(tmp_path / "model")
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "5", "--restart-limit", "20")
    with running(tmp_path, *flags) as found:
        yield found


def test_a_tokenizer_that_was_frozen_while_its_api_process_was_replaced_brings_nothing(front: Front) -> None:
    before = front.pids()
    os.kill(before["tokenizer-0"], signal.SIGSTOP)
    try:
        readers = [Reader(front) for _ in range(REQUESTS)]
        wait_for(lambda: depths(front)["api"] == REQUESTS, 10, "requests that wait for the tokenizer")
        os.kill(before["api-0"], signal.SIGKILL)
        for reader in readers:
            reader.join(10)
            assert reader.broken
        wait_for(lambda: front.pids().get("api-0", before["api-0"]) != before["api-0"], 20, "a new api process")
        wait_for(lambda: knows_engine(front), 20, "a new api process that is linked with the engine")
    finally:
        os.kill(before["tokenizer-0"], signal.SIGCONT)
    left_out = "left out a request of an earlier life of api-0"
    wait_for(lambda: front.text().count(left_out) == REQUESTS, 20, "the work that the tokenizer had")
    wait_for(lambda: is_ready(front), 20, "a front that is ready")
    assert_idle(front)
    with front.client() as client:
        assert client.post("/generate", json={"text": "hello"}).status_code == 200


def knows_engine(front: Front) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return "num_running_reqs" in front.state()
    return False
