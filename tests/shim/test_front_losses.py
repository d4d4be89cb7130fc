"""The engine link when somebody is away, does not read, or comes back: nothing blocks, every lost row is answered."""

from __future__ import annotations

import logging
import time
from array import array
from typing import Any

import pytest

from forebay import AbortRequest, link
from forebay.topology import Peer
from forebay.wire import control, ingress
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.frames import Kind
from forebay.wire.messages import STALE, ControlRequest, Hello
from tests.shim.front_rig import LIFE, TOKENIZER, head, rids_of_shard, rig, rows, until

API, SHARD = Peer("api", 0), Peer("detokenizer", 0)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues of two frames."""
    monkeypatch.setattr(link, "QUEUE_FRAMES", 2)


# ---------------------------------------------------------------- a detokenizer
def test_rows_for_a_detokenizer_that_never_came_are_answered() -> None:
    with rig(connected=False) as r:
        r.stop(SHARD)
        r.connect()
        r.wait_up(API)
        r.wait_up(TOKENIZER)
        r.run(head("a"))
        assert r.front.push_generation(rows("a"))
        (fault,) = r.faults()
        assert (fault.rid, fault.status, fault.type) == ("a", 503, "unavailable_error")
        assert fault.message == "detokenizer-0 is away; send the request again"
        assert r.front.drain() == [AbortRequest("a", "lost", "detokenizer-0 is away")]
        assert r.front.lost_rows == 1


def test_requests_of_a_detokenizer_that_dies_are_answered_without_a_step() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_generation(rows("a"))
        r.stop(SHARD)
        r.wait_down(SHARD)
        assert [fault.rid for fault in r.faults()] == ["a"]
        assert r.front.drain() == [AbortRequest("a", "lost", "detokenizer-0 is away")]


def test_lost_request_is_answered_once() -> None:
    with rig() as r:
        r.run(head("a"))
        r.stop(SHARD)
        r.wait_down(SHARD)
        r.front.push_generation(rows("a"))
        assert len(r.faults()) == 1
        assert r.hears_nothing(Kind.ERROR)
        assert len(r.front.drain()) == 1


def test_one_shard_away_costs_only_its_own_rows() -> None:
    with rig(detokenizers=2) as r:
        (mine,), (other,) = rids_of_shard(0, 2), rids_of_shard(1, 2)
        r.run(head(mine), head(other))
        r.stop(Peer("detokenizer", 1))
        r.wait_down(Peer("detokenizer", 1))
        r.front.push_generation(rows(mine, other))
        assert [fault.rid for fault in r.faults()] == [other]
        assert [entry.rid for entry in r.front.drain()] == [other]
        assert r.step(shard=0).rids == [mine, other]
        assert mine in r.front._ledger


def test_detokenizer_that_comes_back_is_told_every_row() -> None:
    with rig(detokenizers=2) as r:
        (mine,), (other,) = rids_of_shard(0, 2), rids_of_shard(1, 2)
        r.run(head(mine), head(other))
        r.front.push_generation(rows(mine))
        r.stop(Peer("detokenizer", 1))
        r.wait_down(Peer("detokenizer", 1))
        r.front.drain()
        r.start(Peer("detokenizer", 1))
        r.wait_up(Peer("detokenizer", 1))
        r.settle(Peer("detokenizer", 1))
        r.front.push_generation(rows(mine))
        step = r.step(shard=1)
        assert (step.rids, step.same_rows) == ([mine], False)


def test_full_queue_is_answered_and_does_not_block(narrow: None) -> None:
    with rig() as r:
        r.run(head("a"))
        r.fill(SHARD)
        refused = r.front._links.links[SHARD].refused
        began = time.monotonic()
        assert r.front.push_generation(rows("a"))
        assert time.monotonic() - began < 0.5
        assert r.faults()[0].message == "detokenizer-0 does not take what it is sent; send the request again"
        assert r.front.drain() == [
            AbortRequest("a", "lost", "detokenizer-0 does not take what it is sent"),
        ]
        assert r.front._links.links[SHARD].refused == refused + 1


def test_rows_after_a_full_queue_are_told_anew(narrow: None) -> None:
    with rig() as r:
        decoder = EgressDecoder()
        r.run(head("a"))
        r.front.push_generation(rows("a"))
        r.step(decoder)
        r.fill(SHARD)
        r.front.push_generation(rows("a"))
        r.deaf.clear()
        link = r.front._links.links[SHARD]

        def pushed() -> bool:
            before = link.refused
            r.front.push_generation(rows("a"))
            return link.refused == before

        until(lambda: r.pump() or pushed(), "room in the queue")
        assert r.step(decoder).rids == ["a"]
        assert decoder.lost


# ---------------------------------------------------------------- an api process
def test_requests_of_an_api_process_that_dies_are_aborted() -> None:
    with rig(apis=2) as r:
        r.run(head("a", api=0), head("b", api=1))
        r.stop(Peer("api", 1))
        r.wait_down(Peer("api", 1))
        assert r.front.drain() == [AbortRequest("b", "client", "api-1 is away")]
        assert "a" in r.front._ledger


def test_request_whose_api_process_is_gone_by_then_is_left_out() -> None:
    with rig(apis=2) as r:
        r.stop(Peer("api", 1))
        r.wait_down(Peer("api", 1))
        r.admit(head("a", api=0), head("b", api=1))
        assert [entry.rid for entry in r.drain(1)] == ["a"]
        assert "b" not in r.front._ledger


def test_api_process_that_comes_back_is_served_again() -> None:
    with rig() as r:
        r.stop(API)
        r.wait_down(API)
        r.start(API)
        r.wait_up(API)
        r.run(head("a", life=LIFE + 1))


def test_request_of_an_api_process_that_this_front_does_not_have_is_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with rig() as r:
        r.admit(head("a", api=7), head("b"))
        assert [entry.rid for entry in r.drain(1)] == ["b"]
        assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
            "left out a request of api-7: this front was told of 1"
        ]


def test_errors_and_answers_pass_a_full_queue() -> None:
    with rig(connected=False) as r:
        r.connect(max_link_bytes=65_536)
        r.link_up()
        r.run(head("a"))
        r.fill(API)
        r.front.push_error("a", "no")
        r.front.push_control_output(ControlRequest("c", 0, "Ask"), {"success": True})
        r.deaf.clear()
        assert [fault.rid for fault in r.faults()] == ["a"]
        assert control.decode_reply(r.next(API, Kind.REPLY)).rid == "c"


# ---------------------------------------------------------------- a tokenizer
def test_requests_survive_the_death_of_a_tokenizer() -> None:
    with rig() as r:
        r.run(head("a"))
        r.stop(TOKENIZER)
        r.wait_down(TOKENIZER)
        assert r.front.drain() == []
        assert "a" in r.front._ledger


def test_request_that_comes_again_over_another_way_is_taken_once() -> None:
    with rig() as r:
        r.run(head("a"))
        r.stop(TOKENIZER)
        r.wait_down(TOKENIZER)
        r.send(API, ingress.encode_admit([head("a", attempt=1)], ids=[array("q")]))
        assert r.settle(API) == []


def test_owner_of_a_request_that_a_detokenizer_never_heard_of_is_told() -> None:
    with rig() as r:
        r.run(head("a"))
        r.send(SHARD, control.encode_aborts([AbortRequest("a", "lost", "it was not announced in time")]))
        assert r.drain(1) == [AbortRequest("a", "lost", "it was not announced in time")]
        (fault,) = r.faults()
        assert (fault.rid, fault.status) == ("a", 503)
        assert fault.message == "it was not announced in time; send the request again"


def test_second_greeting_of_an_api_process_is_answered_with_one() -> None:
    with rig() as r:
        r.send(API, hello(LIFE))
        r.settle(API)
        while r.take(API, Kind.HELLO):
            continue
        r.send(API, hello(LIFE))
        r.settle(API)
        assert control.decode_hello(r.next(API, Kind.HELLO)).role == "engine"


# ---------------------------------------------------------------- lives of an api process
def hello(life: int) -> bytes:
    return control.encode_hello(Hello(role="api", index=0, incarnation=life, pid=1, version="v"))


def test_request_of_an_earlier_life_of_its_api_process_is_refused() -> None:
    with rig() as r:
        r.admit(head("old", life=LIFE - 1))
        assert r.settle() == []
        assert [(fault.rid, fault.status, fault.type) for fault in r.faults()] == [("old", 503, STALE)]
        assert not len(r.front._ledger)


def test_abort_before_a_request_of_an_earlier_life_changes_nothing() -> None:
    with rig() as r:
        r.abort("old", "user")
        until(lambda: r.front.drain() or r.front._ledger.early_aborts, "the abort")
        r.admit(head("old", life=LIFE - 1))
        assert r.settle() == []
        assert r.faults()[0].type == STALE
        assert not r.front._ledger.early_aborts


def test_request_of_a_new_life_may_come_before_its_greeting() -> None:
    with rig() as r:
        r.run(head("new", life=LIFE + 1))
        r.send(API, hello(LIFE + 1))
        r.settle(API)
        r.run(head("newer", life=LIFE + 1))
        assert sorted(r.front._ledger.of_api(0)) == ["new", "newer"]


def test_new_life_of_an_api_process_ends_what_the_old_one_has_in_the_engine() -> None:
    with rig() as r:
        r.run(head("old"), head("new", life=LIFE + 1))
        r.send(API, hello(LIFE + 1))
        assert r.drain(1) == [AbortRequest("old", "client", "api-0 has started anew")]
        assert [(fault.rid, fault.type) for fault in r.faults()] == [("old", STALE)]
        assert r.front._ledger.of_api(0) == ["new"]


def test_new_life_of_an_api_process_ends_what_the_old_one_has_at_the_gate() -> None:
    with rig() as r:
        r.front._gate.mode = "in_place"
        r.admit(head("old"), head("new", life=LIFE + 1))
        r.send(API, hello(LIFE + 1))
        until(lambda: r.front.drain() or list(r.front._gate.held) == ["new"], "the end of the old one")
        assert r.front._ledger.of_api(0) == ["new"]


def test_end_of_an_api_process_lets_nothing_of_it_through_the_gate_that_it_held() -> None:
    with rig(apis=2) as r:
        r.run(head("other", api=1))
        r.send(API, control.encode_control(ControlRequest("c", 0, "UpdateWeights", exclusive=True)))
        until(lambda: r.front.drain() or r.front._gate.closed, "the gate closed")
        r.admit(head("held"))
        until(lambda: r.front.drain() or "held" in r.front._gate.held, "the request at the gate")
        r.stop(API)
        out: list[Any] = []

        def gone() -> bool:
            r.front.wait_ingress(1)
            out.extend(r.front.drain())
            return not r.up(API)

        until(gone, "the end of the api process")
        assert out == []
        assert "held" not in r.front._ledger
