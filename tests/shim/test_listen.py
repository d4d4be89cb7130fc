"""The address for clients: free or not, and how a client writes it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.errors import StartError
from forebay.listen import client_url, settle_address
from forebay.settings import Settings


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_port_zero_becomes_a_free_port() -> None:
    assert settle_address(Settings(port=0)).port > 0


def test_taken_port_is_refused_with_who_has_it_and_what_to_do(taken: int) -> None:
    with pytest.raises(StartError, match=rf"port {taken} is in use by process {os.getpid()} .*--port"):
        settle_address(Settings(port=taken))


def test_port_taken_on_one_address_is_refused_for_all_addresses(taken: int) -> None:
    with pytest.raises(StartError, match="in use"):
        settle_address(Settings(host="0.0.0.0", port=taken))


def test_port_that_only_waits_for_old_connections_to_fade_is_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # closed here first: this side keeps TIME_WAIT
            assert client.recv(1) == b""
    assert settle_address(Settings(port=port)).port == port


def test_unknown_host_is_refused() -> None:
    with pytest.raises(StartError, match="--host"):
        settle_address(Settings(host="not a host"))


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StartError, match="cannot listen on 192\\.0\\.2\\.1"):
        settle_address(Settings(host="192.0.2.1"))


def test_regular_file_at_the_unix_socket_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    with pytest.raises(StartError, match="is no socket"):
        settle_address(Settings(uds=str(tmp_path / "s")))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("box", "http://box:80"),
    ],
)
def test_url_is_one_that_a_client_on_this_host_can_use(host: str, url: str) -> None:
    assert client_url(Settings(host=host, port=80)) == url
