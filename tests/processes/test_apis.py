"""Where clients connect: several api processes on one port, a unix socket, TLS."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.errors import StartError
from forebay.health_probe import ask
from forebay.settings import Settings
from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer

APIS = 3


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = make_tokenizer(tmp_path_factory.mktemp("model"))
    return ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "5", "--restart-limit", "20"]


def stream_body(tokens: int, **more: Any) -> dict[str, Any]:
    return {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": tokens}, **more}


# ---------------------------------------------------------------- several api processes
@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, flags: list[str]) -> Iterator[Front]:
    with running(tmp_path_factory.mktemp("several"), *flags, "--apis", str(APIS), "--log-requests") as found:
        yield found


def test_an_abort_works_through_whichever_process_takes_it(several: Front) -> None:
    for number in range(6):
        rid = f"mine-{number}"
        with (
            several.client() as client,
            client.stream("POST", "/generate", json=stream_body(100_000, rid=rid)) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            for _ in range(2 * APIS):  # each on a connection of its own
                with several.client() as other:
                    assert other.post("/abort_request", json={"rid": rid}).status_code == 200
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"type":"abort"' in rest[-2]


def test_every_process_knows_the_same_engine(several: Front) -> None:
    with several.client() as client, client.stream("POST", "/generate", json=stream_body(100_000)) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert [several.state()["num_running_reqs"] for _ in range(2 * APIS)] == [1] * (2 * APIS)
    wait_for(lambda: several.state()["num_running_reqs"] == 0, 5, "an idle engine")


def test_a_refusal_finds_the_process_that_asked(several: Front) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 1}, "token_ids_logprob": [10**9]}
    for _ in range(4 * APIS):
        with several.client() as client:
            began = time.monotonic()
            assert client.post("/generate", json={**body, "return_logprob": True}).status_code == 400
            assert time.monotonic() - began < 5


def test_a_killed_process_takes_only_its_own_streams_along(several: Front) -> None:
    victim = several.pids()["api-0"]
    with contextlib.ExitStack() as stack:
        answers = []
        for _ in range(12):
            client = stack.enter_context(several.client())
            answer = stack.enter_context(client.stream("POST", "/generate", json=stream_body(400)))
            answers.append(answer.iter_lines())
        for lines in answers:
            next(lines)
        os.kill(victim, signal.SIGKILL)
        finished = [_finishes(lines) for lines in answers]
    assert any(finished)
    wait_for(lambda: several.pids().get("api-0", victim) != victim, 20, "the restarted process")
    wait_for(lambda: _served_by_all(several), 20, "all processes serving")


def _finishes(lines: Iterator[str]) -> bool:
    try:
        return [line for line in lines if line][-1] == "data: [DONE]"
    except (httpx.TransportError, IndexError):
        return False


def _served_by_all(front: Front) -> bool:
    for _ in range(8 * APIS):
        try:
            with front.client() as client:
                if client.get("/ready").status_code != 200:
                    return False
        except httpx.TransportError:
            return False
    return True


# ---------------------------------------------------------------- unix socket
def test_a_unix_socket_serves_and_comes_back_after_a_kill(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "front.sock"
    with running(tmp_path, *flags, "--uds", str(path)) as front:
        with front.client() as client:
            lines = client.post("/generate", json=stream_body(5)).text.split("\n\n")
            assert lines[-2] == "data: [DONE]"
        assert ask(Settings(run_dir=str(front.run_dir)), "/health") == ""
        victim = front.pids()["api-0"]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: front.pids().get("api-0", victim) != victim, 20, "the restarted process")
        wait_for(lambda: _accepts(path), 20, "a process that listens")
        with front.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200, 20, "a front that is ready")
    assert not path.exists()


def _accepts(path: Path) -> bool:
    """Whether somebody listens (by hand: httpx leaves a socket open when nobody does)."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


# ---------------------------------------------------------------- TLS
def make_certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, flags: list[str], certificate: tuple[Path, Path]
) -> Iterator[Front]:
    cert, key = certificate
    tls = ("--tls-certfile", str(cert), "--tls-keyfile", str(key), "--header-timeout", "1", "--max-body-bytes", "1MiB")
    with running(tmp_path_factory.mktemp("secured"), *flags, *tls) as found:
        yield found


@pytest.fixture
def trusting(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


def test_streams_go_over_tls(secured: Front, trusting: ssl.SSLContext) -> None:
    assert secured.url.startswith("https://")
    with secured.client(verify=trusting) as client:
        for _ in range(3):  # on one connection
            events = [part for part in client.post("/generate", json=stream_body(50)).text.split("\n\n") if part]
            assert events[-1] == "data: [DONE]"
            assert len(events) > 5


def test_the_probe_trusts_the_certificate_of_the_settings_and_no_other(
    secured: Front, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    assert ask(Settings(run_dir=str(secured.run_dir)), "/health") == ""
    url = httpx.URL(secured.url)
    made = make_certificate(tmp_path)
    other = Settings(host=url.host, port=url.port or 443, tls_certfile=str(made[0]), tls_keyfile=str(made[1]))
    with pytest.raises(StartError, match=r"no answer from the front: .*certificate"):
        ask(other, "/health")


def test_a_client_that_leaves_over_tls_is_aborted(secured: Front, trusting: ssl.SSLContext) -> None:
    with secured.client(verify=trusting) as client:
        with client.stream("POST", "/generate", json=stream_body(100_000)) as answer:
            next(answer.iter_lines())

        def idle() -> bool:
            return bool(client.get("/get_internal_state").json()[0]["num_running_reqs"] == 0)

        wait_for(idle, 5, "an idle engine")


def test_a_body_over_the_limit_is_refused_over_tls(secured: Front, trusting: ssl.SSLContext) -> None:
    with secured.client(verify=trusting) as client:
        assert client.post("/generate", content=b" " * (2 << 20)).status_code == 413


def test_a_handshake_that_does_not_come_is_cut_off(secured: Front) -> None:
    url = httpx.URL(secured.url)
    with socket.create_connection((url.host, url.port or 443), timeout=10) as connection:
        connection.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_a_certificate_that_is_none_stops_the_start(tmp_path: Path, flags: list[str]) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    tls = ("--tls-certfile", str(bad), "--tls-keyfile", str(bad))
    with (
        pytest.raises(AssertionError, match="tls_certfile and tls_keyfile cannot be used"),
        running(tmp_path, *flags, *tls),
    ):
        raise RuntimeError("it started")
