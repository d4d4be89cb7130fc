"""Links over TCP: who holds the keys of the front comes in, nobody else; and inboxes of ours are for our user alone."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from forebay import Front
from forebay.cli import main
from forebay.config import load
from forebay.errors import SettingsError, StartError
from forebay.gatekeeper import answer
from forebay.keys import KEY_FILE, Keys, load_keys, make_keys
from forebay.links import Links
from forebay.rundir import open_run_dir
from forebay.topology import Peer, Topology, check_endpoints
from tests.shim.front_rig import until

A, B = Peer("api", 0), Peer("engine", 0)
PAIR = Keys("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")
"""The example of the specification (RFC 32)."""
MOMENT = 0.4
"""Seconds in which a link that can come up does."""


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class Pair:
    """The two ends of a front over TCP, in this process but in ZeroMQ contexts of their own."""

    def __init__(self, folder: Path) -> None:
        self.topology = Topology(folder, endpoints={str(A): free_address(), str(B): free_address()})
        self.made: list[tuple[Links, zmq.Context[zmq.Socket[bytes]]]] = []

    def start(self, me: Peer, keys: Keys | None) -> Links:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        other = B if me == A else A
        try:
            links = Links(context, me, self.topology.address, [other], lambda: str(me).encode(), keys)
        except StartError:
            context.destroy(0)
            raise
        self.made.append((links, context))
        return links


@pytest.fixture
def pair() -> Iterator[Pair]:
    before = set(threading.enumerate())
    folder = open_run_dir(None)
    made = Pair(folder.path)
    yield made
    for links, context in made.made:
        links.close(0)
        context.destroy(0)
    folder.close()
    assert set(threading.enumerate()) == before


def hears(links: Links) -> Callable[[], bytes | None]:
    return lambda: links.receive()


def stays_silent(one: Links, other: Links) -> bool:
    """Whether neither end gets a link or a frame for a moment."""
    deadline = time.monotonic() + MOMENT
    while time.monotonic() < deadline:
        if one.changes() or other.changes() or one.receive() or other.receive():
            return False
        time.sleep(0.01)
    return True


def fresh_keys() -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(public.decode(), secret.decode())


def test_holders_of_the_same_keys_are_linked_both_ways(pair: Pair) -> None:
    a, b = pair.start(A, PAIR), pair.start(B, PAIR)
    until(lambda: (a.changes(), b.changes(), a.is_up(B) and b.is_up(A))[2], "both links")
    assert until(hears(b), "a greeting") == b"api-0"
    assert until(hears(a), "a greeting") == b"engine-0"


def test_other_keys_get_no_link_and_a_line_in_the_log(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "forebay.links"):
        a, b = pair.start(A, PAIR), pair.start(B, fresh_keys())
        assert stays_silent(a, b)
    assert "without the keys of this front tried to connect" in caplog.text
    assert "engine-0 refuses our connections" in caplog.text


@contextlib.contextmanager
def stranger(pair: Pair) -> Iterator[zmq.Socket[bytes]]:
    """A socket of somebody else, whose frame must not come to B."""
    b = pair.start(B, PAIR)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.PUSH) as push:
        push.linger = 0
        yield push
    context.term()
    assert b.receive() is None


def knock(push: zmq.Socket[bytes], pair: Pair, caplog: pytest.LogCaptureFixture, line: str) -> None:
    """Send B a frame, and wait for what B says to that."""
    push.connect(pair.topology.address(B))
    push.send(b"frame")
    with caplog.at_level(logging.WARNING, "forebay.links"):
        until(lambda: line in caplog.text, "the line in the log")


def test_plain_tcp_gets_no_link(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with stranger(pair) as push:
        knock(push, pair, caplog, "without the keys")


def test_knowing_the_public_key_is_not_enough(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with stranger(pair) as push:
        push.curve_publickey, push.curve_secretkey = zmq.curve_keypair()
        push.curve_serverkey = PAIR.public.encode()
        knock(push, pair, caplog, "127.0.0.1 tried to connect with another key")


def test_tcp_without_keys_is_refused_at_the_start(pair: Pair) -> None:
    with pytest.raises(StartError, match="forebay keys"):
        pair.start(A, None)


def test_process_of_another_user_gets_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_run_dir(None)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    topology = Topology(folder.path)
    with Links(context, A, topology.address, [B], lambda: b"a") as a:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # the inbox of B is for another user than ours
        with Links(context, B, topology.address, [], lambda: b"b") as b:
            assert stays_silent(a, b)
    monkeypatch.undo()
    context.destroy(0)
    folder.close()


def test_engine_of_another_host_joins_with_endpoints_and_keys(tmp_path: Path, pair: Pair) -> None:
    make_keys(tmp_path / "keys")
    endpoints = {name: free_address() for name in ("api-0", "tokenizer-0", "detokenizer-0", "engine-0")}
    topology = Topology(tmp_path, endpoints=endpoints)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    keys = load_keys(tmp_path / "keys")
    with (
        Links(context, A, topology.address, [B], lambda: b"", keys) as api,
        Front.connect(tmp_path, {}, endpoints=endpoints, keys_dir=tmp_path / "keys") as front,
    ):
        until(lambda: (front.wait_ingress(1), front.drain(), api.changes(), api.is_up(B))[3], "the link")
        assert until(hears(api), "the greeting of the engine")
    context.destroy(0)


# ---------------------------------------------------------------- the gatekeeper's answer
@pytest.mark.parametrize(
    ("domain", "mechanism", "key", "status"),
    [
        (b"forebay", b"CURVE", b"k" * 32, b"200"),
        (b"forebay", b"CURVE", b"x" * 32, b"400"),
        (b"forebay", b"PLAIN", b"k" * 32, b"400"),
        (b"forebay", b"NULL", None, b"400"),
        (b"other", b"CURVE", b"k" * 32, b"400"),
    ],
)
def test_only_the_key_of_the_front_is_answered_200(domain: bytes, mechanism: bytes, key: bytes, status: bytes) -> None:
    question = [b"1.0", b"7", domain, b"10.0.0.1", b"", mechanism, *([key] if key else [])]
    assert answer(question, b"k" * 32) == [b"1.0", b"7", status, answer(question, b"k" * 32)[3], b"", b""]


# ---------------------------------------------------------------- the file
def test_keys_are_made_for_our_eyes_only(tmp_path: Path) -> None:
    path = make_keys(tmp_path / "keys")
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path)] == [0o700, 0o600]
    keys = load_keys(path.parent)
    assert zmq.curve_public(keys.secret.encode()).decode() == keys.public
    assert keys.secret not in f"{keys} {keys!r}"


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    before = make_keys(tmp_path / "keys").read_bytes()
    with pytest.raises(StartError, match="there already"):
        make_keys(tmp_path / "keys")
    assert (tmp_path / "keys" / KEY_FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda path: path.unlink(), "forebay keys"),
        (lambda path: path.chmod(0o640), "open to others"),
        (lambda path: path.parent.chmod(0o750), "open to others"),
        (lambda path: path.write_text("{}"), "holds no keys"),
        (lambda path: path.write_text('{"public":"a","secret":"b"}'), "holds no keys"),
        (
            lambda path: path.write_text(path.read_text().replace(load_keys(path.parent).public, PAIR.public)),
            "do not belong together",
        ),
    ],
    ids=["missing", "file open", "folder open", "empty", "no keys", "two pairs"],
)
def test_bad_key_file_is_refused_and_never_quoted(tmp_path: Path, damage: Callable[[Path], object], word: str) -> None:
    path = make_keys(tmp_path / "keys")
    secret = load_keys(path.parent).secret
    damage(path)
    with pytest.raises(SettingsError, match=word) as caught:
        load_keys(path.parent)
    assert secret not in str(caught.value)


def test_command_makes_the_keys_and_prints_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(tmp_path / "keys")]) == 0
    shown = capsys.readouterr()
    assert load_keys(tmp_path / "keys").secret not in shown.out + shown.err
    assert str(tmp_path / "keys" / KEY_FILE) in shown.out


# ---------------------------------------------------------------- the settings
@pytest.mark.parametrize(
    "endpoints",
    [
        {"engine": "tcp://10.0.0.5:7001"},
        {"engine-00": "tcp://10.0.0.5:7001"},
        {"engine-0": "ipc:///tmp/x"},
        {"engine-0": "tcp://10.0.0.5"},
        {"engine-0": "tcp://10.0.0.5:0"},
        {"engine-0": "tcp://10.0.0.5:70000"},
        {"engine-0": "tcp://*:7001"},
        {"engine-0": "tcp://0.0.0.0:7001"},
        {"engine-0": "tcp://[::]:7001"},
        {"engine-0": 7001},
        {"engine-0": "tcp://10.0.0.5:7001", "api-0": "tcp://10.0.0.5:7001"},
    ],
    ids=str,
)
def test_wrong_endpoint_is_refused(endpoints: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"^endpoints: "):
        check_endpoints(endpoints)


def test_endpoints_need_keys(tmp_path: Path) -> None:
    config = tmp_path / "f.toml"
    config.write_text('endpoints = {"engine-0" = "tcp://10.0.0.5:7001"}\n')
    with pytest.raises(SettingsError, match="needs keys_dir"):
        load(config=config, environ={}, overrides={})
    assert load(config=config, environ={}, overrides={"keys_dir": "k"}).endpoints == {"engine-0": "tcp://10.0.0.5:7001"}


def test_process_without_an_endpoint_has_its_socket_in_the_run_folder() -> None:
    topology = Topology(Path("/r"), endpoints={"engine-0": "tcp://[fe80::1]:7001"})
    assert topology.address(B) == "tcp://[fe80::1]:7001"
    assert topology.address(A) == "ipc:///r/api-0.sock"
