"""The sockets of one process: who is there, what a full or missing peer means, and that nothing is left at the end."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from forebay import link as module
from forebay.backlog import Backlog
from forebay.errors import LinkError, StartError
from forebay.link import Link
from forebay.links import Links
from forebay.rundir import open_run_dir
from forebay.topology import MAX_SOCKET_PATH, Peer, Topology, socket_path
from forebay.wire import control
from forebay.wire.frames import Kind
from forebay.wire.messages import Mark
from tests.shim.front_rig import until

MIB = 1 << 20
A, B = Peer("api", 0), Peer("engine", 0)


class Pair:
    """Two processes of a front, `A` and `B`, in this one."""

    def __init__(self, folder: Path) -> None:
        self.topology = Topology(folder)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.open: list[Links] = []

    def start(self, me: Peer, **options: Any) -> Links:
        """One of the two, linked to the other."""
        other = B if me == A else A
        made = Links(self.context, me, self.topology.address, [other], lambda: str(me).encode(), **options)
        self.open.append(made)
        return made


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two processes that may be started; all is gone at the end."""
    folder = open_run_dir(None)
    made = Pair(folder.path)
    yield made
    for one in made.open:
        one.close(0)
    made.context.destroy(0)
    assert list(folder.path.iterdir()) == []
    folder.close()


def up(links: Links, peer: Peer) -> None:
    """Wait until a link stands."""
    until(lambda: links.changes() and links.is_up(peer), f"the link to {peer}")


def frames(links: Links, count: int) -> list[bytes]:
    """Wait for this many frames."""
    out: list[bytes] = []

    def read() -> bool:
        while (frame := links.receive()) is not None:
            out.append(frame)
        return len(out) >= count

    until(read, f"{count} frames")
    return out


def test_link_that_comes_up_is_greeted(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    assert frames(b, 1) == [b"api-0"]


def test_each_time_a_link_comes_up_it_is_told_and_greeted(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    b.close(0)
    assert until(a.changes, "the end of the link") == [(B, False)]
    assert not a.is_up(B)
    b = pair.start(B)
    assert until(a.changes, "the new link") == [(B, True)]
    assert frames(b, 1) == [b"api-0"]


def test_frame_for_a_peer_that_is_away_is_refused_and_counted(pair: Pair) -> None:
    a = pair.start(A)
    assert not a.send(B, b"x")
    assert (a.links[B].refused, a.links[B].sent) == (1, 0)


def test_frame_refused_is_not_kept_for_a_peer_that_comes(pair: Pair) -> None:
    a = pair.start(A)
    a.send(B, b"old")
    b = pair.start(B)
    up(a, B)
    a.send(B, b"new")
    assert frames(b, 2) == [b"api-0", b"new"]


def test_frame_for_a_peer_without_a_link_is_refused(pair: Pair) -> None:
    a = pair.start(A)
    assert not a.send(Peer("engine", 7), b"x")
    assert not a.is_up(Peer("engine", 7))


def test_full_queue_refuses_and_takes_again_when_there_is_room(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_FRAMES", 2)
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    until(lambda: not a.send(B, b"x" * 100_000), "a full queue")
    sent = a.links[B].sent
    assert len(frames(b, sent)) == sent
    until(lambda: a.send(B, b"y"), "room in the queue")


def test_link_takes_no_more_bytes_than_its_limit_and_one_frame(pair: Pair) -> None:
    a, b = pair.start(A, limit=8 * MIB), pair.start(B)
    up(a, B)
    up(b, A)
    until(lambda: not a.send(B, bytes(MIB)), "a full queue")
    link = a.links[B]
    assert 8 * MIB <= link.sent_bytes <= 9 * MIB
    assert link.refused == 1
    assert not a.send(B, b"small")

    def room() -> bool:
        b.receive()
        a.receive()
        return a.send(B, b"small")

    until(room, "room in the queue")


@pytest.mark.parametrize("views", [False, True])
def test_peer_that_keeps_up_is_never_refused_for_bytes(pair: Pair, views: bool) -> None:
    a, b = pair.start(A, limit=MIB), pair.start(B)
    up(a, B)
    up(b, A)
    got: list[int] = []

    def read(most: int) -> bool:
        """Both take what they have been sent; A has nothing but marks for its own links."""
        got.extend(len(view) for view in (b.views(most) if views else iter(b.receive, None)))
        return a.receive() is None

    frames(a, 1)
    for _ in range(100):
        until(lambda: read(2) and a.send(B, bytes(200_000)), "room in the queue")
    until(lambda: read(99) and len(got) >= 101, "the rest")
    assert sorted(got) == [5, *[200_000] * 100], "marks are not for the reader, and everything else is"


def test_two_full_links_do_not_wait_for_each_other_for_ever(pair: Pair) -> None:
    a, b = pair.start(A, limit=MIB), pair.start(B, limit=MIB)
    up(a, B)
    up(b, A)
    until(lambda: not a.send(B, bytes(200_000)), "a full queue")
    until(lambda: not b.send(A, bytes(200_000)), "a full queue back")

    def room() -> bool:
        for one in (a, b):
            while one.receive() is not None:
                continue
        return a.send(B, b"x") and b.send(A, b"x")

    until(room, "room in both queues")


def test_connection_that_breaks_empties_the_account(pair: Pair) -> None:
    a, b = pair.start(A, limit=MIB), pair.start(B)
    up(a, B)
    until(lambda: not a.send(B, bytes(200_000)), "a full queue")
    b.close(0)
    until(lambda: a.changes() and not a.is_up(B), "the end of the link")
    pair.start(B)
    up(a, B)
    assert a.send(B, b"new")


def test_mark_of_a_stranger_is_handed_on_or_answered_to_who_it_names(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    frames(b, 1)
    broken = bytes([Kind.MARK]) + bytes(9)
    a.send(B, broken)
    a.send(B, control.encode_mark(Mark("tokenizer", 5, 1, 1)))
    a.send(B, control.encode_taken(Mark("api", 0, 1, 1 << 40)))
    a.send(B, b"last")
    assert frames(b, 2) == [broken, b"last"]


class StubbornSocket:
    """A ZeroMQ socket that has not heard of its new connection: it refuses once, until it is asked for its state."""

    def __init__(self) -> None:
        self.asked = False

    def send(self, frame: bytes, flags: int) -> None:
        if not self.asked:
            raise zmq.Again

    def get(self, option: int) -> int:
        self.asked = True
        return int(zmq.POLLOUT)


def test_link_that_has_just_come_up_takes_a_frame_at_once() -> None:
    link = Link.__new__(Link)
    socket: Any = StubbornSocket()
    link._socket, link._send = socket, socket.send
    link.backlog = Backlog(1)
    link.sent = link.sent_bytes = link.refused = 0
    assert link.send(b"hello")
    assert (link.sent, link.sent_bytes, link.refused) == (1, 5, 0)


def test_frames_are_counted_on_both_sides(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    a.send(B, b"12345")
    frames(b, 2)
    assert (a.links[B].sent_bytes, b.received_bytes, b.received) == (10, 10, 2)


def test_frame_without_a_copy_is_the_same_frame(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    (view,) = until(lambda: list(b.views(9)), "the greeting")
    assert isinstance(view, memoryview)
    assert (bytes(view), list(b.views(9)), b.received, b.received_bytes) == (b"api-0", [], 1, 5)


def test_no_more_frames_are_taken_than_asked_for(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    frames(b, 1)
    for number in range(5):
        a.send(B, bytes([number]))
    got: list[int] = []

    def take() -> bool:
        got.extend(view[0] for view in b.views(2))
        return len(got) >= 5

    until(take, "all five")
    assert got == [0, 1, 2, 3, 4]
    assert (b.received, b.received_bytes) == (6, 10)


def test_a_reader_that_stops_in_the_middle_leaves_the_rest(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    frames(b, 1)
    a.send(B, b"1")
    a.send(B, b"2")
    until(b.readable, "frames")
    for view in b.views(9):
        assert bytes(view) == b"1"
        break
    assert until(b.receive, "the other one") == b"2"
    assert b.received == 3


def test_wait_ends_at_a_frame(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    assert until(lambda: b.wait(5_000) and b.readable(), "the greeting")


def test_wait_ends_at_a_change_of_a_link(pair: Pair) -> None:
    a = pair.start(A)
    pair.start(B)
    assert a.wait(5_000)
    assert until(a.changes, "the link") == [(B, True)]


def test_wait_ends_at_a_watched_descriptor(pair: Pair) -> None:
    a = pair.start(A)
    read, write = os.pipe()
    a.watch(read)
    os.write(write, b"!")
    assert a.wait(5_000)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("timeout", [0, 5, -1])
def test_wait_for_nothing_ends(pair: Pair, timeout: int) -> None:
    assert not pair.start(A).wait(timeout)


def test_descriptors_are_readable_when_there_is_news(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    assert select.select(a.monitor_fds(), [], [], 5)[0]
    up(a, B)
    assert select.select([b.inbox_fd()], [], [], 5)[0]


def test_peers_of_a_role_come_in_order_of_their_number(pair: Pair) -> None:
    peers = [Peer("detokenizer", 1), Peer("tokenizer", 0), Peer("detokenizer", 0)]
    made = Links(pair.context, B, pair.topology.address, sorted(peers), bytes)
    pair.open.append(made)
    assert made.of_role("detokenizer") == [Peer("detokenizer", 0), Peer("detokenizer", 1)]


def test_end_removes_the_socket_file(pair: Pair) -> None:
    a = pair.start(A)
    path = socket_path(pair.topology.run_dir, A)
    assert path.is_socket()
    a.close()
    assert not path.exists()


def test_end_after_the_socket_file_has_gone_is_quiet(pair: Pair) -> None:
    a = pair.start(A)
    socket_path(pair.topology.run_dir, A).unlink()
    a.close()
    a.close()


def test_closed_links_refuse_with_an_error(pair: Pair) -> None:
    a = pair.start(A)
    a.close()
    with pytest.raises(LinkError, match="api-0 are closed"):
        a.send(B, b"x")


def test_end_waits_for_last_frames_a_limited_time(pair: Pair) -> None:
    a, b = pair.start(A), pair.start(B)
    up(a, B)
    a.send(B, b"last")
    a.close()
    assert frames(b, 2) == [b"api-0", b"last"]


def test_inbox_that_cannot_be_bound_is_an_error_that_names_it(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    topology = Topology(Path("/nonexistent-folder"))
    with pytest.raises(StartError, match="api-0 cannot bind its inbox at ipc:///nonexistent-folder"):
        Links(context, A, topology.address, [], bytes)
    context.destroy(0)


@pytest.mark.parametrize("length", [MAX_SOCKET_PATH, MAX_SOCKET_PATH + 1])
def test_path_that_just_fits_works_and_one_more_byte_is_refused_with_the_limit(length: int) -> None:
    made = open_run_dir(None)
    name = length - len(str(made.path)) - len("/api-0.sock") - 1
    folder = made.path / ("x" * name)
    folder.mkdir()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        if length > MAX_SOCKET_PATH:
            with pytest.raises(StartError, match="107"):
                Links(context, A, Topology(folder).address, [], bytes)
        else:
            Links(context, A, Topology(folder).address, [], bytes).close()
    finally:
        context.destroy(0)
        folder.rmdir()
        made.close()


def test_folder_of_the_sockets_is_closed_to_others(pair: Pair) -> None:
    pair.start(A)
    assert stat.S_IMODE(pair.topology.run_dir.stat().st_mode) == 0o700
