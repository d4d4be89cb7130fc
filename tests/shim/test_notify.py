"""The notify protocol: what is sent, to which address, and who the receiver says it was."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.errors import StartError
from forebay.notify import Notice, Notifier, NotifyInbox, parse
from forebay.rundir import open_run_dir
from tests.helpers.tied import tied


@pytest.fixture
def inbox() -> Iterator[NotifyInbox]:
    made = open_run_dir(None)
    opened = NotifyInbox(made.path / "notify.sock")
    yield opened
    opened.close()
    made.close()


def test_ready_arrives_with_the_pid_that_the_kernel_vouches_for(inbox: NotifyInbox) -> None:
    assert Notifier(str(inbox.path)).ready("serving")
    assert inbox.receive() == [Notice(os.getpid(), {"READY": "1", "STATUS": "serving"})]


def test_pid_is_the_senders_and_not_what_it_claims(inbox: NotifyInbox) -> None:
    code = "import sys; from forebay.notify import Notifier; Notifier(sys.argv[1]).send(READY='1', MAINPID='1')"
    process = subprocess.Popen(tied([sys.executable, "-c", code, inbox.path]))
    process.wait(20)
    assert [notice.pid for notice in inbox.receive()] == [process.pid]


def test_each_call_sends_its_own_field(inbox: NotifyInbox) -> None:
    notifier = Notifier(str(inbox.path))
    notifier.stopping()
    notifier.watchdog()
    notifier.status("busy")
    assert [n.fields for n in inbox.receive()] == [{"STOPPING": "1"}, {"WATCHDOG": "1"}, {"STATUS": "busy"}]


def test_line_breaks_in_a_status_cannot_forge_a_field(inbox: NotifyInbox) -> None:
    Notifier(str(inbox.path)).status("bad\nREADY=1")
    assert not inbox.receive()[0].ready


def test_abstract_address_is_reached() -> None:
    name = f"@forebay-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\0" + name[1:])
        Notifier(name).ready()
        assert server.recv(100) == b"READY=1"


def test_without_an_address_nothing_happens() -> None:
    assert Notifier.from_environ({}).ready() is False


def test_dead_receiver_is_no_error(tmp_path: Path) -> None:
    assert Notifier(str(tmp_path / "gone")).ready() is False


def test_watchdog_is_due_at_half_of_what_the_manager_allows() -> None:
    assert Notifier.from_environ({"WATCHDOG_USEC": "3000000"}).watchdog_interval == 1.5


@pytest.mark.parametrize(
    "environ",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}],
)
def test_watchdog_of_nobody_or_of_another_process_is_not_ours(environ: dict[str, str]) -> None:
    assert Notifier.from_environ(environ).watchdog_interval is None


def test_lines_without_an_equals_sign_are_left_out() -> None:
    assert parse(b"READY=1\njunk\n\xff=x\nA=b=c") == {"READY": "1", "\ufffd": "x", "A": "b=c"}


def test_socket_of_a_dead_supervisor_is_replaced(inbox: NotifyInbox) -> None:
    path = inbox.path.with_name("launcher.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    again = NotifyInbox(path)
    assert Notifier(str(path)).ready()
    again.close()


def test_socket_of_a_living_supervisor_is_not_stolen(inbox: NotifyInbox) -> None:
    with pytest.raises(StartError, match="another process listens"):
        NotifyInbox(inbox.path)
