"""The engine link from its start to its end: greeting, launch facts, sockets, what happens after the end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from forebay import Front, LinkError, SettingsError, StartError, should_launch
from forebay.facts import read_blob
from forebay.topology import Peer, socket_path
from tests.shim.front_rig import ENGINE, TOKENIZER, head, rig, rows


@pytest.mark.parametrize(
    ("environ", "rank", "meant"),
    [
        ({"FOREBAY": "1"}, 0, True),
        ({"FOREBAY": " True "}, 0, True),
        ({"FOREBAY": "1"}, 1, False),
        ({"FOREBAY": "0"}, 0, False),
        ({}, 0, False),
    ],
)
def test_only_rank_0_launches_and_only_when_the_switch_is_on(environ: dict[str, str], rank: int, meant: bool) -> None:
    assert should_launch(environ, rank) is meant


def test_greeting_carries_the_launch_facts() -> None:
    with rig(connected=False) as r:
        r.connect(facts={"context_length": 4096, "api_key": "k"})
        hello = r.wait_up(TOKENIZER)
        assert hello.blob is not None
        facts = read_blob(hello.blob)
        assert (facts.context_length, facts.raw) == (4096, {"context_length": 4096})


def test_facts_of_a_wrong_type_stop_the_start_and_leave_nothing() -> None:
    with rig(connected=False) as r:
        with pytest.raises(SettingsError, match="context_length"):
            r.connect(facts={"context_length": "4096"})
        assert not socket_path(r.topology.run_dir, ENGINE).exists()


def test_second_engine_in_the_same_folder_is_refused() -> None:
    with rig() as r:
        with pytest.raises(StartError, match="another process listens"):
            Front.connect(r.topology.run_dir, {})
        r.run(head("a"))


def test_file_in_the_way_of_the_socket_stays() -> None:
    with rig(connected=False) as r:
        path = socket_path(r.topology.run_dir, ENGINE)
        path.write_text("mine")
        with pytest.raises(StartError, match="no socket"):
            r.connect()
        assert path.read_text() == "mine"
        path.unlink()


def test_folder_that_does_not_exist_is_named() -> None:
    with pytest.raises(StartError, match="engine-0 cannot bind"):
        Front.connect("/tmp/no-such-folder-of-forebay", {})


def test_folder_with_a_path_too_long_for_sockets_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="107"):
        Front.connect(tmp_path / ("x" * 100), {})


def test_end_removes_the_socket_file() -> None:
    with rig() as r:
        path = socket_path(r.topology.run_dir, ENGINE)
        assert path.is_socket()
        r.front.close()
        assert not path.exists()


def test_end_is_for_good() -> None:
    with rig() as r:
        r.front.close()
        r.front.close()
        assert (r.front.wait_ingress(1000), r.front.drain()) == (False, [])


def test_last_rows_before_the_end_arrive() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_generation(rows("a", finish_reasons=[{"type": "length", "length": 1}]))
        r.front.close()
        assert r.step().finish == [{"type": "length", "length": 1}]


def test_output_after_the_end_is_one_warning_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    with rig() as r:
        r.front.close()
        assert [r.front.push_generation(rows("a", "b")) for _ in range(3)] == [False] * 3
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert warnings == ["the front is closed; dropped the output of 2 requests"]


def test_error_after_the_end_is_refused() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.close()
        with pytest.raises(LinkError, match="closed"):
            r.front.push_error("a", "no")


def test_front_is_closed_at_the_end_of_its_block() -> None:
    with rig(connected=False) as r:
        with r.connect() as front:
            assert socket_path(r.topology.run_dir, ENGINE).is_socket()
        assert not front.push_generation(rows("a"))


def test_engine_that_comes_back_is_linked_again() -> None:
    with rig() as r:
        r.front.close()
        r.connect()
        r.wait_up(Peer("api", 0))
        r.wait_up(TOKENIZER)
        r.run(head("a"))
