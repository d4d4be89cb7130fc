"""Clients that send their next request, or nonsense, while an answer streams; and clients that do not read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.helpers.chaos import assert_idle
from tests.helpers.front import Front, read_all, running, wait_for
from tests.helpers.load import read_events, unchunk
from tests.helpers.models import make_tokenizer


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = make_tokenizer(tmp_path_factory.mktemp("model"))
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "5", "--body-timeout", "1"]
    flags += ["--max-body-bytes", "4MiB", "--context-length", "500000"]
    with running(tmp_path_factory.mktemp("front"), *flags) as found:
        yield found


def post(tokens: int, **more: Any) -> bytes:
    body = json.dumps({"prompt": "hello", "max_tokens": tokens, "stream": True, **more}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def test_requests_sent_before_the_answer_are_answered_in_order(front: Front) -> None:
    with front.connect() as connection:
        last = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        connection.sendall(post(40) + post(3, stream=False) + last)
        raw = read_all(connection)
    first, second, third = (part for part in raw.split(b"HTTP/1.1 200 OK\r\n") if part)
    assert unchunk(first.partition(b"\r\n\r\n")[2])[1]
    assert json.loads(second.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 3
    assert b"connection: close" in third
    assert_idle(front)


@pytest.mark.parametrize("more", [b"no http\r\n\r\n", post(3) + b"no http\r\n\r\n"])
def test_nonsense_behind_a_request_never_stands_in_its_stream(front: Front, more: bytes) -> None:
    with front.connect() as connection:
        connection.sendall(post(200) + more)
        raw = read_all(connection)
    assert raw.count(b"HTTP/1.1") <= 1
    body, complete = unchunk(raw.partition(b"\r\n\r\n")[2])
    assert not complete
    assert read_events(body)[1] is None
    assert_idle(front)


def test_a_client_that_leaves_with_requests_unanswered_leaves_nothing(front: Front) -> None:
    with front.connect() as connection:
        connection.sendall(post(100_000) + post(100_000) + post(100_000))
        assert connection.recv(100)
    assert_idle(front)


def test_a_client_that_never_reads_is_closed_and_the_others_do_not_notice(front: Front) -> None:
    process = psutil.Process(front.pids()["api-0"])
    before = process.memory_info().rss
    with front.connect() as connection, front.client() as other:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(post(5, prompt="the quick " * 60_000, echo=True, n=16))
        wait_for(lambda: front.state()["num_running_reqs"] == 0, 10, "the engine's end")
        began = time.monotonic()
        answer = other.post("/generate", json={"text": "hello", "sampling_params": {"max_new_tokens": 3}})
        assert answer.status_code == 200
        assert time.monotonic() - began < 1
        own = connection.getsockname()[1]
        wait_for(lambda: all(c.raddr[1:] != (own,) for c in process.net_connections("tcp")), 8, "its end")
    assert process.memory_info().rss - before < 128 << 20
    assert_idle(front)
