"""Limits, keys and slow clients with real processes: who is refused, how soon, and that nobody else notices."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
import zstandard

from tests.helpers.front import Front, read_all, running, wait_for
from tests.helpers.models import make_tokenizer

ADMIN = {"authorization": "Bearer boss"}
LIMIT = 1 << 20
CONNECTIONS = 24
LONG = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = make_tokenizer(tmp_path_factory.mktemp("model"))
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "1000", "--health-timeout", "30"]
    flags += ["--max-header-bytes", "4096", "--header-timeout", "1", "--body-timeout", "1", "--max-body-bytes", "1MiB"]
    flags += ["--max-connections", str(CONNECTIONS), "--max-inflight", "6", "--sse-ping-interval", "0.2"]
    flags += ["--cors-origins", "http://a.example", "--metrics-need-key", "--keep-alive-timeout", "2"]
    keys = {"FOREBAY_API_KEY": "kéy", "FOREBAY_ADMIN_API_KEY": "boss"}
    with running(tmp_path_factory.mktemp("front"), *flags, environ=keys) as found:
        yield found


@pytest.fixture
def client(front: Front) -> Iterator[httpx.Client]:
    with front.client(headers=[(b"authorization", "Bearer kéy".encode())]) as found:
        yield found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def ask(front: Front, data: bytes) -> bytes:
    """Send bytes; everything that comes back until the connection closes."""
    with front.connect() as connection:
        connection.sendall(data)
        return read_all(connection)


# ---------------------------------------------------------------- keys
@pytest.mark.parametrize("key", [None, b"Bearer wrong", "Bearer kéy".encode("latin-1")])
@pytest.mark.parametrize(
    "path",
    [
        *("/v1/models", "//v1/models", "/V1/models", "/v1/models/", "/v1/%6dodels", "/./v1/models", "/nothing"),
        *("/docs", "/openapi.json", "/metrics", "/metrics/", "/healthy", "/health/", "/health/../v1/models"),
        "/server_info",
    ],
)
def test_no_odd_path_is_open_without_the_key(front: Front, path: str, key: bytes | None) -> None:
    line = b"" if key is None else b"authorization: " + key + b"\r\n"
    answer = ask(front, b"GET " + path.encode() + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + line + b"\r\n")
    assert status_of(answer) == 401
    assert b"www-authenticate: Bearer" in answer


@pytest.mark.parametrize("path", ["/", "/live", "/ready", "/ping"])
def test_liveness_needs_no_key(front: Front, path: str) -> None:
    with front.client() as client:
        assert client.get(path).status_code == 200


def test_every_documented_route_needs_a_key_or_is_on_the_short_list(front: Front, client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    opened = set()
    with front.client() as stranger:
        for path, methods in document["paths"].items():
            for method in methods:
                answer = stranger.request(method, path.replace("{", "").replace("}", ""), json={})
                if answer.status_code != 401:
                    opened.add(path)
    assert opened == {"/", "/live", "/ready", "/ping", "/health", "/health_generate"}


def test_control_wants_the_admin_key(front: Front, client: httpx.Client) -> None:
    assert client.get("/get_internal_state").status_code == 401
    assert client.get("/get_internal_state", headers=ADMIN).status_code == 200
    assert client.get("/v1/models", headers=ADMIN).status_code == 200


def test_no_key_is_ever_shown(client: httpx.Client) -> None:
    for path in ("/server_info", "/model_info", "/metrics"):
        text = client.get(path).text
        assert "kéy" not in text
        assert "boss" not in text


def test_browsers_may_call_from_the_origins_of_the_setting(front: Front) -> None:
    with front.client() as client:
        asked = {"origin": "http://a.example", "access-control-request-headers": "authorization"}
        answer = client.options("/generate", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://a.example"
        assert answer.headers["access-control-allow-headers"] == "authorization"
        other = client.options("/generate", headers={**asked, "origin": "http://b.example"})
        assert "access-control-allow-origin" not in other.headers


# ---------------------------------------------------------------- request ids
@pytest.mark.parametrize("given", [b"mine-1", b"x" * 128])
def test_a_good_request_id_comes_back(front: Front, given: bytes) -> None:
    with front.client() as client:
        assert client.get("/live", headers=[(b"x-request-id", given)]).headers["x-request-id"] == given.decode()


@pytest.mark.parametrize("given", [b"x" * 129, b"with space", b"\xc3\xa4", b""])
def test_a_bad_request_id_is_replaced(front: Front, given: bytes) -> None:
    with front.client() as client:
        found = client.get("/live", headers=[(b"x-request-id", given)]).headers["x-request-id"]
    assert len(found) == 32
    assert int(found, 16) >= 0


# ---------------------------------------------------------------- bodies
def post_head(*lines: bytes) -> bytes:
    return b"\r\n".join(
        (b"POST /generate HTTP/1.1", b"host: x", "authorization: Bearer kéy".encode(), *lines, b"", b"")
    )


def test_a_declared_body_over_the_limit_is_refused_unread(front: Front) -> None:
    with front.connect() as connection:
        connection.sendall(post_head(b"content-length: %d" % (LIMIT + 1), b"expect: 100-continue"))
        answer = read_all(connection)
    assert status_of(answer) == 413
    assert b"connection: close" in answer
    assert b"x-request-id: " in answer


def test_a_chunked_body_over_the_limit_is_refused_while_it_is_sent(front: Front) -> None:
    chunk = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
    with front.connect() as connection:
        connection.sendall(post_head(b"transfer-encoding: chunked"))
        for _ in range(2 * LIMIT // 65536):  # without the last chunk: the body never ends
            connection.sendall(chunk)
        answer = read_all(connection)
    assert status_of(answer) == 413


def test_a_body_within_the_limit_is_read(client: httpx.Client) -> None:
    body = json.dumps({"text": "x" * (LIMIT // 2), "sampling_params": {"max_new_tokens": 1}})
    answer = client.post("/generate", content=body)
    assert answer.status_code == 200


def test_a_zstd_body_is_read(client: httpx.Client) -> None:
    body = zstandard.compress(json.dumps({"prompt": "hi"}).encode())
    headers = {"x-body-compressed": "zstd", "content-type": "application/json"}
    assert client.post("/tokenize", content=body, headers=headers).json()["count"] >= 1


@pytest.mark.parametrize(
    ("content", "form", "status"),
    [
        (zstandard.compress(b" " * (LIMIT + 1)), "zstd", 413),
        (b"garbage", "zstd", 400),
        (b"{}", "gzip", 400),
    ],
)
def test_a_bad_compressed_body_is_refused(client: httpx.Client, content: bytes, form: str, status: int) -> None:
    headers = {"x-body-compressed": form, "content-type": "application/json"}
    assert client.post("/tokenize", content=content, headers=headers).status_code == status


# ---------------------------------------------------------------- heads and time
@pytest.mark.parametrize(
    "head",
    [
        b"GET /live HTTP/1.1\r\nx: " + b"a" * 5000,
        b"GET /" + b"a" * 5000,
        b"GET /live HTTP/1.1\r\n" + b"a: b\r\n" * 1000,
    ],
)
def test_a_head_over_the_limit_is_refused_before_it_ends(front: Front, head: bytes) -> None:
    answer = ask(front, head)
    assert status_of(answer) == 431


def test_a_whole_head_over_the_limit_is_refused(front: Front) -> None:
    answer = ask(front, b"GET /live HTTP/1.1\r\nx: " + b"a" * 4200 + b"\r\n\r\n")
    assert status_of(answer) == 431


def test_bytes_that_are_no_http_are_a_json_400(front: Front) -> None:
    answer = ask(front, b"\x16\x03\x01\x02\x00\x01\x00")
    assert status_of(answer) == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 400


def seconds_until_closed(front: Front, data: bytes, drip: bytes = b"") -> tuple[float, bytes]:
    """How long a connection lasts that sends `data` and then `drip` every 0.2 s; and what came back."""
    began = time.monotonic()
    answer = b""
    with front.connect() as connection:
        connection.sendall(data)
        connection.settimeout(0.2)
        while time.monotonic() - began < 10:
            try:
                got = connection.recv(65536)
            except TimeoutError:
                with contextlib.suppress(OSError):
                    connection.sendall(drip)
                continue
            except ConnectionResetError:
                break
            if not got:
                break
            answer += got
    return time.monotonic() - began, answer


@pytest.mark.parametrize(
    ("data", "drip", "status"),
    [
        (b"", b"", 0),
        (b"", b"\r\n", 0),
        (b"GET /live HTTP/1.1\r\nx-a: ", b"", 408),
        (b"GET /live HTTP/1.1\r\nx-a: ", b"x", 408),
        (post_head(b"content-length: 1000"), b"", 408),
        (post_head(b"content-length: 1000"), b"x", 408),
        (post_head(b"transfer-encoding: chunked") + b"ffff\r\n", b"", 408),
        (post_head(b"transfer-encoding: chunked") + b"ffff\r\n", b"x", 408),
    ],
)
def test_a_slow_client_is_closed_in_time(front: Front, data: bytes, drip: bytes, status: int) -> None:
    seconds, answer = seconds_until_closed(front, data, drip)
    assert seconds < 5
    assert status_of(answer) == status


def test_an_idle_connection_is_kept_for_its_time_and_then_closed(front: Front) -> None:
    seconds, answer = seconds_until_closed(front, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
    assert status_of(answer) == 200
    assert 1.5 < seconds < 5


# ---------------------------------------------------------------- overload
def test_one_connection_too_many_is_answered_503_and_the_next_is_served(front: Front) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(front.connect()).sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = ask(front, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert status_of(answer) == 503
        assert b"retry-after: 1" in answer
    with front.client() as client:
        wait_for(lambda: _status(client) == 200, 5, "an answer")


def _status(client: httpx.Client) -> int:
    try:
        return client.get("/live").status_code
    except httpx.TransportError:
        return 0


def test_running_out_of_descriptors_costs_no_time_and_passes(front: Front) -> None:
    process = psutil.Process(front.pids()["api-0"])
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds() + 4, before[1]))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(CONNECTIONS - 4):
                stack.enter_context(front.connect())
            began = process.cpu_times()
            time.sleep(0.7)
            ended = process.cpu_times()
            assert (ended.user + ended.system) - (began.user + began.system) < 0.25
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
    with front.client() as client:
        wait_for(lambda: _status(client) == 200, 5, "an answer")


def test_the_soft_limit_of_descriptors_is_raised(front: Front) -> None:
    soft, hard = resource.prlimit(front.pids()["api-0"], resource.RLIMIT_NOFILE)
    assert soft == min(hard, 1 << 20)


@contextlib.contextmanager
def streams(front: Front, count: int) -> Iterator[list[socket.socket]]:
    """Streams that run; aborted at the end by leaving."""
    body = json.dumps(LONG).encode()
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(front.connect()) for _ in range(count)]
        for connection in made:
            connection.sendall(post_head(b"content-length: %d" % len(body)) + body)
        for connection in made:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        yield made
    wait_for(lambda: _running(front) == 0, 10, "an idle engine")


def _running(front: Front) -> Any:
    with front.client(headers=ADMIN) as client:
        return client.get("/get_internal_state").json()[0]["num_running_reqs"]


def test_one_request_too_many_is_answered_429(front: Front, client: httpx.Client) -> None:
    with streams(front, 6):
        answer = client.post("/generate", json=LONG)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert client.get("/v1/models").status_code == 200
    with streams(front, 1):
        pass


def test_descriptors_do_not_grow_with_requests(front: Front) -> None:
    process = psutil.Process(front.pids()["tokenizer-0"])
    before = process.num_fds()
    with streams(front, 6):
        assert process.num_fds() == before


# ---------------------------------------------------------------- time limits and pings
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_over_its_own_time_ends_with_504(front: Front, client: httpx.Client, stream: bool) -> None:
    body = {**LONG, "stream": stream}
    if stream:
        # No event comes within the time: the head is not sent, but for a ping.
        with client.stream("POST", "/generate", json=body, headers={"x-request-timeout-s": "0.15"}) as answer:
            assert answer.status_code == 504
    else:
        began = time.monotonic()
        answer = client.post("/generate", json=body, headers={"x-request-timeout-s": "0.5"})
        assert answer.status_code == 504
        assert answer.json()["error"]["type"] == "timeout_error"
        assert time.monotonic() - began < 2
    wait_for(lambda: _running(front) == 0, 5, "the abort in the engine")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_time_that_is_none_is_refused(client: httpx.Client, text: str) -> None:
    answer = client.post("/generate", json={**LONG, "stream": False}, headers={"x-request-timeout-s": text})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-request-timeout-s"


def test_a_silent_stream_gets_comments_that_parsers_skip(front: Front, client: httpx.Client) -> None:
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 2}}
    text = client.post("/generate", json=body).text
    lines = [line for line in text.split("\n\n") if line]
    assert 3 <= lines.count(": ping") <= 12
    assert lines[-1] == "data: [DONE]"
    assert [line for line in lines if not line.startswith(("data: ", ": ping"))] == []


def test_no_descriptor_is_left_behind(front: Front) -> None:
    process = psutil.Process(front.pids()["api-0"])
    wait_for(lambda: len(process.net_connections("tcp")) <= 2, 5, "closed connections")
    assert len(os.listdir(f"/proc/{process.pid}/fd")) < 60
