"""More than fits: the right status, bounded memory and time, and small requests that still move."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.helpers.chaos import assert_idle, memory
from tests.helpers.front import Front, running, wait_for
from tests.helpers.load import Load

FIT = 32


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "10", "--max-inflight", str(FIT)]
    flags += ["--max-bodies-bytes", "80MiB"]
    with running(tmp_path_factory.mktemp("front"), *flags, "--context-length", "4096") as found:
        yield found


def test_ten_times_more_than_fits_is_answered_at_once_and_the_rest_is_exact(front: Front, folder: Path) -> None:
    with Load(front.url, folder, clients=10 * FIT, seed=21) as load:
        time.sleep(3)
    refused = [outcome for outcome in load.outcomes if outcome.kind == "error"]
    assert set(load.counts()) == {"whole", "error"}
    assert {outcome.status for outcome in refused} == {429}
    assert sorted(outcome.ended - outcome.began for outcome in refused)[len(refused) // 2] < 0.5
    assert load.counts()["whole"] >= FIT
    assert_idle(front)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text": "word " * 10_000_000}, 400),
        ({"input_ids": [5] * 5_000_000}, 400),
        ({"text": "x", "sampling_params": {"stop": ["stop"] * 500_000}}, 400),
        ({"text": "x", "sampling_params": {"n": 5_000_000}}, 400),
        ({"text": "x", "rid": "r" * 1_000_000}, 400),
        ({"text": ["x"] * 500_000}, 400),
    ],
    ids=["a prompt of 50 MB", "5 million ids", "500k stops", "n of 5 million", "an id of 1 MB", "500k prompts"],
)
def test_a_huge_request_is_refused_in_bounded_time_and_memory(front: Front, body: dict[str, Any], status: int) -> None:
    content = json.dumps(body)
    before = memory(front)
    with front.client() as client, ThreadPoolExecutor(1) as beside:
        huge = beside.submit(client.post, "/generate", content=content, headers={"content-type": "application/json"})
        slowest = 0.0
        while not huge.done():
            with front.client() as small:
                began = time.monotonic()
                tiny = small.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 1}})
                slowest = max(slowest, time.monotonic() - began)
                assert tiny.status_code == 200
        assert huge.result().status_code == status
    assert slowest < 3
    after = memory(front)
    assert all(after[name] - before[name] < 300 for name in after if name in before)
    assert_idle(front)


def test_deep_json_is_refused(front: Front) -> None:
    for text in ("[" * 100_000, '{"text": ' * 100_000, '{"text": "x", "custom": ' + "[" * 50_000 + "]" * 50_000 + "}"):
        with front.client() as client:
            assert client.post("/generate", content=text).status_code == 400
    assert_idle(front)


def test_bodies_that_never_end_do_not_add_up(front: Front) -> None:
    """Many half-sent bodies: what they hold is bounded, and others are served."""
    url = httpx.URL(front.url)
    process = psutil.Process(front.pids()["api-0"])
    before = process.memory_info().rss
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            made = stack.enter_context(socket.create_connection((url.host, url.port or 80), timeout=10))
            made.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000\r\n\r\n" + b" " * 1_000_000)
        with front.client() as client:
            answers = Counter(client.post("/generate", json={"text": "x"}).status_code for _ in range(5))
        assert answers == {200: 5}
        assert process.memory_info().rss - before < 150 << 20
    assert_idle(front)


def test_bodies_have_a_limit_together(front: Front) -> None:
    url = httpx.URL(front.url)
    address = (url.host, url.port or 80)
    part = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000\r\n\r\n" + b" " * 50_000_000
    with socket.create_connection(address, timeout=20) as first:
        first.sendall(part)
        with socket.create_connection(address, timeout=20) as second:
            with contextlib.suppress(ConnectionError):
                second.sendall(part)
            assert second.recv(100).startswith(b"HTTP/1.1 503")
    with front.client() as client:
        small = json.dumps({"text": "x"}) + " " * 50_000_000
        wait_for(lambda: client.post("/generate", content=small).status_code == 200, 10, "room for a body")
    assert_idle(front)


def test_small_requests_move_beside_big_ones(front: Front) -> None:
    big = {"text": "the quick brown fox " * 400, "sampling_params": {"max_new_tokens": 500}}
    small = {"text": "x", "sampling_params": {"max_new_tokens": 2}}

    def ask(body: dict[str, Any]) -> float:
        began = time.monotonic()
        with front.client() as client:
            assert client.post("/generate", json=body).status_code == 200
        return time.monotonic() - began

    with ThreadPoolExecutor(12) as pool:
        bigs = [pool.submit(ask, big) for _ in range(8)]
        smalls = [ask(small) for _ in range(20)]
        for future in bigs:
            future.result()
    assert sorted(smalls)[10] < 0.5
    assert_idle(front)
