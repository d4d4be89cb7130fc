"""The engine link, aborts: which request they stand for, and those that come early, late, twice or for nobody."""

from __future__ import annotations

from typing import Any

from forebay import AbortRequest
from forebay.topology import Peer
from tests.shim.front_rig import head, rig


def rids(entries: list[Any]) -> list[str]:
    return [entry.rid for entry in entries]


def test_abort_reaches_the_engine_with_its_reason() -> None:
    with rig() as r:
        r.run(head("a"))
        r.abort("a", "user", message="enough")
        assert r.drain(1) == [AbortRequest("a", "user", "enough")]


def test_abort_by_a_clients_own_id_is_for_all_of_its_requests() -> None:
    with rig() as r:
        r.run(head("w1", public_rid="mine"), head("w2", public_rid="mine"), head("w3", public_rid="other"))
        r.abort("mine")
        assert rids(r.drain(2)) == ["w1", "w2"]


def test_abort_of_one_name_leaves_a_longer_one_alone() -> None:
    with rig() as r:
        r.run(head("w1", public_rid="req-1"), head("w10", public_rid="req-10"), head("req-1x"))
        r.abort("req-1")
        assert rids(r.drain(1)) == ["w1"]
        assert r.settle(Peer("api", 0)) == []


def test_second_abort_of_a_client_that_left_is_dropped() -> None:
    with rig() as r:
        r.run(head("a"))
        r.abort("a")
        r.drain(1)
        r.abort("a")
        assert r.settle(Peer("api", 0)) == []


def test_abort_after_the_end_is_dropped() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_abort("a", "done")
        r.abort("a", "user")
        assert r.settle(Peer("api", 0)) == []


def test_abort_of_a_request_that_nobody_knows_is_harmless() -> None:
    with rig() as r:
        r.abort("nobody")
        r.abort("nobody", "user")
        assert r.settle(Peer("api", 0)) == []


def test_abort_of_everything_is_passed_on() -> None:
    with rig() as r:
        r.abort("", "user", abort_all=True)
        assert r.drain(1) == [AbortRequest("", "user", abort_all=True)]


def test_abort_that_overtakes_its_request_stops_it_before_the_engine() -> None:
    with rig() as r:
        r.abort("a", "client")
        assert r.settle(Peer("api", 0)) == []
        r.admit(head("a"), head("b"))
        assert rids(r.drain(1)) == ["b"]


def test_abort_by_a_user_that_overtakes_its_request_is_answered_with_a_last_row() -> None:
    with rig() as r:
        r.abort("a", "user")
        assert r.settle(Peer("api", 0)) == []
        r.admit(head("a"))
        assert r.settle() == []
        step = r.step()
        assert step.rids == ["a"]
        assert step.finish == [
            {"type": "abort", "message": "Abort in waiting queue", "status_code": None, "err_type": None}
        ]


def test_stop_that_comes_before_its_request_is_no_abort_of_it() -> None:
    with rig() as r:
        r.abort("a", "stop")
        assert r.settle(Peer("api", 0)) == []
        r.admit(head("a"))
        assert rids(r.drain(1)) == ["a"]
