"""What waits for a process that takes nothing is bounded in bytes, and what does not fit is answered."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.chaos import assert_idle, is_ready, memory
from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer

LIMIT = 8
"""MiB on their way from one process to another."""
PROMPT = {"text": "word " * 200_000, "sampling_params": {"max_new_tokens": 2}}
"""1 MB."""


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    folder = make_tokenizer(tmp_path / "model")
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "5", "--restart-limit", "20"]
    with running(tmp_path, *flags, "--max-link-bytes", f"{LIMIT}MiB", "--context-length", "5000000") as found:
        yield found


def served(client: httpx.Client, body: dict[str, Any]) -> bool:
    """Whether a request is served; False when there is no room for it yet."""
    answer = client.post("/generate", json=body)
    assert answer.status_code in (200, 503), answer.text
    return answer.status_code == 200


def statuses_of(client: httpx.Client, body: dict[str, Any], count: int) -> list[int]:
    """The answers that clients get who wait for 0.1 s only; those that waited in vain are left out."""
    statuses: list[int] = []
    for _ in range(count):
        with contextlib.suppress(httpx.ReadTimeout):
            answer = client.post("/generate", json=body, timeout=0.1)
            statuses.append(answer.status_code)
            assert answer.headers["retry-after"] == "1"
    return statuses


def test_clients_that_come_and_go_before_a_frozen_tokenizer_do_not_add_up(front: Front) -> None:
    frozen = front.pids()["tokenizer-0"]
    os.kill(frozen, signal.SIGSTOP)
    try:
        with front.client() as client:
            taken = 5 * LIMIT - len(statuses_of(client, PROMPT, 5 * LIMIT))
            before = memory(front)  # the allocator keeps what bodies took: only more of it would add up
            statuses = statuses_of(client, PROMPT, 5 * LIMIT)
            after = memory(front)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert taken <= LIMIT + 2, "more than the limit has been taken"
    assert (set(statuses), len(statuses)) == ({503}, 5 * LIMIT)
    assert after["api-0"] - before["api-0"] < 2 * LIMIT
    wait_for(lambda: is_ready(front), 20, "a front that is ready")
    assert_idle(front)
    with front.client() as client:
        wait_for(lambda: served(client, PROMPT), 20, "room for a prompt")


def test_prompts_before_a_frozen_engine_are_refused_and_then_served(front: Front) -> None:
    frozen = front.pids()["engine-0"]
    ids = {"input_ids": [40] * 100_000, "sampling_params": {"max_new_tokens": 2}}
    os.kill(frozen, signal.SIGSTOP)
    try:
        with front.client() as client:
            statuses = statuses_of(client, ids, 5 * LIMIT)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert set(statuses) == {503}
    wait_for(lambda: is_ready(front), 20, "a front that is ready")
    assert_idle(front)
    with front.client() as client:
        wait_for(lambda: served(client, ids), 20, "room for a prompt")


def test_long_streams_go_through_links_that_hold_little(tmp_path: Path) -> None:
    """Marks come back on every way that a frame can take, that of steady steps included."""
    folder = make_tokenizer(tmp_path / "model")
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "1", "--max-link-bytes", "65536")
    usage = {"include_usage": True}
    body = {"prompt": "x", "stream": True, "max_tokens": 4_000, "stream_options": usage, "ignore_eos": True}
    with running(tmp_path, *flags, "--context-length", "100000") as front, front.client() as client:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert '"completion_tokens":4000' in lines[-2]
        counts = client.get("/metrics").text
    (unreadable,) = re.findall(r'dropped_frames_total\{reason="unreadable"\} (\S+)', counts)
    assert float(unreadable) == 0
