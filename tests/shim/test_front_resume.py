"""The engine link when a detokenizer dies and comes back: its next life is told what the one before it knew."""

from __future__ import annotations

import time
from typing import Any

import pytest
import zmq

from forebay import AbortRequest, link, resume
from forebay.kept import LINGER
from forebay.shards import ResumeLimits
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import Hello, RequestFault
from forebay.wire.replay import Claim, Replay, decode_replay, encode_claim, pick_opens
from tests.shim.front_rig import Rig, head, rids_of_shard, rig, rows, until

API, SHARD = Peer("api", 0), Peer("detokenizer", 0)


def die(r: Rig, peer: Peer = SHARD) -> None:
    r.stop(peer)
    r.wait_down(peer)


def come(r: Rig, peer: Peer = SHARD) -> None:
    """The next life starts, and the engine has its greeting."""
    r.start(peer)
    r.wait_up(peer)
    r.settle(peer)


def replayed(r: Rig, shard: int = 0) -> tuple[Replay, list[list[str]]]:
    """What a new life is told: the beginning, and the rows of the steps up to the end of the replay."""
    peer, decoder, steps = Peer("detokenizer", shard), EgressDecoder(), list[list[str]]()
    begin = decode_replay(r.next(peer, Kind.REPLAY))
    assert begin.part == "begin"
    while kind_of(frame := r.next(peer, Kind.EGRESS, Kind.STEP, Kind.REPLAY)) is not Kind.REPLAY:
        steps.append(decoder.decode(frame).rids)
    assert decode_replay(frame).part == "end"
    return begin, steps


def faults(r: Rig, api: int = 0) -> list[tuple[str, int, str]]:
    return [(fault.rid, fault.status, fault.message) for fault in r.faults(api)]


def kept(r: Rig) -> Any:
    found = r.front._resume
    assert found is not None
    return found.kept


# ---------------------------------------------------------------- told again
def test_next_life_is_told_all_rows_of_what_is_claimed() -> None:
    with rig() as r:
        r.announce(head("a"), head("b"))
        r.front.push_generation(rows("a", "b"))
        r.front.push_generation(rows("a", "b"))
        die(r)
        r.front.push_generation(rows("a", "b"))
        come(r)
        r.claim(begun=["a"], fresh=["b"], step=2)
        r.settle(API)
        begin, steps = replayed(r)
        assert [item.rid for item in pick_opens(begin.opens, begin.rids)] == ["a", "b"]
        assert (begin.said, begin.fresh) == ({0: 2}, ["b"])
        assert steps == [["a", "b"]] * 3
        r.front.push_generation(rows("a", "b"))
        assert r.step().seq == 4
        assert r.front._resume is not None
        assert r.front._resume.resumed == 2
        assert r.hears_nothing(Kind.ERROR)


def test_nothing_is_told_before_every_api_process_has_claimed() -> None:
    with rig(apis=2) as r:
        r.announce(head("a", api=0), head("b", api=1))
        r.front.push_generation(rows("a", "b"))
        die(r)
        come(r)
        r.claim(begun=["a"], step=1)
        r.settle(API)
        assert r.take(SHARD, Kind.REPLAY) is None
        r.claim(fresh=["b"], api=1)
        r.settle(Peer("api", 1))
        begin, _ = replayed(r)
        assert (sorted(begin.rids), begin.said, begin.fresh) == (["a", "b"], {0: 1, 1: 0}, ["b"])


def test_claims_may_come_before_the_greeting() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        die(r)
        r.claim(begun=["a"], step=1, life=2)
        r.settle(API)
        come(r)
        assert replayed(r)[0].rids == ["a"]


def test_claims_of_another_life_do_not_count() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        r.claim(begun=["a"], step=9, life=1)
        r.settle(API)
        die(r)
        come(r)
        assert r.take(SHARD, Kind.REPLAY) is None
        r.claim(begun=["a"], step=1)
        r.settle(API)
        assert replayed(r)[0].said == {0: 1}


def test_request_that_has_ended_in_the_engine_goes_on_too() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a", finish_reasons=[{"type": "length", "length": 1}]))
        die(r)
        come(r)
        r.claim(fresh=["a"])
        r.settle(API)
        begin, steps = replayed(r)
        assert (begin.rids, steps) == (["a"], [["a"]])


def test_request_whose_stop_was_found_goes_on_until_it_is_claimed_no_more() -> None:
    with rig() as r:
        r.announce(head("a"), head("b"))
        r.front.push_generation(rows("a", "b"))
        for rid in "ab":
            r.send(SHARD, control.encode_aborts([AbortRequest(rid, "stop")]))
        assert len(r.drain(2)) == 2
        die(r)
        come(r)
        r.claim(begun=["a"], step=0)
        r.settle(API)
        assert replayed(r)[0].rids == ["a"]


def test_request_that_nobody_claims_any_more_ends_in_the_engine() -> None:
    """Its stop was found and its end delivered, but the abort was lost with the detokenizer."""
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        die(r)
        come(r)
        r.claim()
        assert r.drain(1) == [AbortRequest("a", "lost", "detokenizer-0 is away")]
        assert replayed(r)[0].rids == []
        assert "a" not in r.front._ledger
        assert "a" not in kept(r).records


def test_requests_that_come_while_it_is_away_need_no_claim() -> None:
    with rig() as r:
        die(r)
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        come(r)
        begin, steps = replayed(r)
        assert (begin.rids, begin.fresh, steps) == (["a"], ["a"], [["a"]])


def test_requests_that_come_soon_after_are_announced_by_the_link_as_well() -> None:
    with rig() as r:
        die(r)
        come(r)
        assert replayed(r)[0].rids == []
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        more = decode_replay(r.next(SHARD, Kind.REPLAY))
        assert (more.part, more.rids) == ("more", ["a"])
        assert r.step().rids == ["a"]


def test_first_life_is_told_that_there_is_nothing() -> None:
    with rig() as r:
        assert replayed(r) == (Replay("begin"), [])


def test_requests_that_are_there_before_the_first_greeting_need_no_claim() -> None:
    """The engine has started anew: for the api processes the detokenizer has not."""
    with rig(connected=False) as r:
        r.stop(SHARD)
        r.connect()
        r.wait_up(API)
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        come(r)
        begin, steps = replayed(r)
        assert (begin.rids, begin.fresh, steps) == (["a"], ["a"], [["a"]])


def test_nothing_is_told_before_the_engine_has_greeted() -> None:
    """A link takes frames before its monitor says that it stands, and only then the greeting is sent."""
    with rig(connected=False) as r:
        r.connect()
        links, resume_ = r.front._links, r.front._resume
        assert resume_ is not None
        socket = links.links[SHARD]._socket
        until(lambda: r.pump() or int(socket.get(zmq.EVENTS)) & zmq.POLLOUT, "the way to the detokenizer")
        hello = Hello(role="detokenizer", index=0, incarnation=r.lives[SHARD], pid=1, version="t")
        resume_.greeted(hello, time.monotonic())
        r.turn(lambda: r.up(SHARD), "the link")
        assert kind_of(r.next(SHARD, Kind.HELLO, Kind.REPLAY)) is Kind.HELLO
        assert replayed(r) == (Replay("begin"), [])


def test_the_greeting_says_that_steps_are_told_again() -> None:
    with rig(connected=False) as r:
        r.connect()
        assert r.wait_up(SHARD).replays
    with rig(connected=False) as r:
        r.connect(resume=ResumeLimits(0, 5.0))
        assert not r.wait_up(SHARD).replays


def test_the_other_detokenizer_hears_nothing_of_it() -> None:
    with rig(detokenizers=2) as r:
        (mine,), (other,) = rids_of_shard(0, 2), rids_of_shard(1, 2)
        replayed(r, 0)
        decoder = EgressDecoder()
        r.announce(head(mine), head(other))
        for _ in range(3):
            r.front.push_generation(rows(mine, other))
        die(r, Peer("detokenizer", 1))
        r.front.push_generation(rows(mine, other))
        come(r, Peer("detokenizer", 1))
        r.claim(1, begun=[other], step=3)
        r.settle(API)
        assert replayed(r, 1)[0].rids == [other]
        assert [r.step(decoder).seq for _ in range(4)] == [1, 2, 3, 4]
        assert not decoder.lost
        assert r.take(SHARD, Kind.REPLAY) is None


def test_more_steps_than_fit_into_the_queue_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "QUEUE_FRAMES", 2)
    monkeypatch.setattr(resume, "AT_ONCE", 7)
    with rig() as r:
        r.announce(head("a"))
        die(r)
        for _ in range(300):
            r.front.push_generation(rows("a"))
        come(r)
        r.claim(fresh=["a"])
        frames: list[bytes] = []

        def all_there() -> bool:
            frames.extend(iter(lambda: r.take(SHARD, Kind.EGRESS, Kind.STEP, Kind.REPLAY), None))
            return len(frames) == 302

        r.turn(all_there, "the whole replay")
        decoder = EgressDecoder()
        assert [decoder.decode(frame).seq for frame in frames[1:-1]] == list(range(1, 301))


def test_dying_twice_begins_again() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        die(r)
        come(r)
        die(r)
        r.front.push_generation(rows("a"))
        come(r)
        r.claim(begun=["a"], step=1)
        r.settle(API)
        assert replayed(r)[1] == [["a"], ["a"]]


def test_request_that_may_be_what_kills_it_is_not_taken_up_for_ever() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        for _ in range(resume.MOST):
            die(r)
            come(r)
            r.claim(begun=["a"], step=1)
            r.settle(API)
            assert replayed(r)[0].rids == ["a"]
        r.announce(head("b"))
        r.front.push_generation(rows("a", "b"))
        die(r)
        come(r)
        r.claim(begun=["a", "b"], step=1)
        assert r.drain(1) == [AbortRequest("a", "lost", "detokenizer-0 died again and again")]
        assert ("a", 503, "detokenizer-0 died again and again; send the request again") in faults(r)
        assert replayed(r)[0].rids == ["b"]


def test_full_queue_delays_rows_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "QUEUE_FRAMES", 2)
    with rig() as r:
        replayed(r)
        decoder = EgressDecoder()
        r.announce(head("a"))
        r.fill(SHARD)
        for _ in range(5):
            r.front.push_generation(rows("a"))
        r.deaf.clear()
        seen: list[int] = []

        def all_there() -> bool:
            while (frame := r.take(SHARD, Kind.EGRESS, Kind.STEP)) is not None:
                seen.append(decoder.decode(frame).seq)
            return len(seen) == 5

        r.turn(all_there, "all rows")
        assert seen == [1, 2, 3, 4, 5]
        assert not decoder.lost


def test_request_that_ends_while_rows_wait_makes_no_gap_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "QUEUE_FRAMES", 2)
    with rig() as r:
        replayed(r)
        decoder = EgressDecoder()
        r.announce(head("a"))
        r.fill(SHARD)
        for _ in range(3):
            r.front.push_generation(rows("a"))
        r.abort("a")
        r.drain(1)
        r.announce(head("b"))
        r.front.push_generation(rows("b"))
        r.deaf.clear()
        seen: list[int] = []

        def all_there() -> bool:
            while (frame := r.take(SHARD, Kind.EGRESS, Kind.STEP)) is not None:
                seen.append(decoder.decode(frame).seq)
            return seen[-1:] == [4]

        r.turn(all_there, "the row of the next request")
        assert seen == [1, 2, 3, 4]
        assert not decoder.lost


# ---------------------------------------------------------------- what cannot go on
def test_process_that_was_only_frozen_gets_no_replay_and_its_requests_end() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        die(r)
        r.lives[SHARD] -= 1
        r.start(SHARD)
        r.wait_up(SHARD)
        assert r.drain(1) == [AbortRequest("a", "lost", "detokenizer-0 was away")]
        assert faults(r) == [("a", 503, "detokenizer-0 was away; send the request again")]
        r.announce(head("b"))
        r.front.push_generation(rows("b"))
        assert r.step().rids == ["b"]


def test_api_process_that_does_not_claim_in_time_loses_its_requests() -> None:
    with rig(connected=False, apis=2) as r:
        r.connect(resume=ResumeLimits(1 << 20, 0.2))
        r.link_up()
        r.announce(head("a", api=0), head("b", api=1))
        r.front.push_generation(rows("a", "b"))
        die(r)
        r.start(SHARD)
        r.wait_up(SHARD)
        r.claim(begun=["a"], step=1)
        assert r.drain(1) == [AbortRequest("b", "lost", "detokenizer-0 is away")]
        assert faults(r, 1) == [("b", 503, "detokenizer-0 is away; send the request again")]
        assert replayed(r)[0].rids == ["a"]


def test_link_waits_for_claims_half_as_long_as_the_api_processes_wait_for_it() -> None:
    """Those that have claimed must hear of it before they give up."""
    with rig(connected=False, apis=2) as r:
        r.connect(resume=ResumeLimits(1 << 20, 600.0))
        r.link_up()
        r.announce(head("a", api=0), head("b", api=1))
        r.front.push_generation(rows("a", "b"))
        die(r)
        come(r)
        r.claim(begun=["a"], step=1)
        assert r.settle(API) == []
        for later in (250, 251, 350):
            r.front._look(time.monotonic() + later)
            assert "b" in r.front._ledger, "a claim that has come during a long step is still to be read"
        r.front._look(time.monotonic() + 351)
        assert r.front.drain() == [AbortRequest("b", "lost", "detokenizer-0 is away")]
        assert replayed(r)[0].rids == ["a"]


def test_requests_of_an_api_process_that_is_gone_are_not_waited_for() -> None:
    with rig(apis=2) as r:
        r.announce(head("a", api=0), head("b", api=1))
        r.front.push_generation(rows("a", "b"))
        die(r)
        die(r, Peer("api", 1))
        assert [entry.rid for entry in r.front.drain()] == ["b"]
        come(r)
        r.claim(begun=["a"], step=1)
        r.settle(API)
        assert replayed(r)[0].rids == ["a"]


def test_what_began_before_the_oldest_kept_step_ends_when_its_detokenizer_dies() -> None:
    with rig(connected=False) as r:
        r.connect(resume=ResumeLimits(2000, 5.0))
        r.link_up()
        r.announce(head("old"))
        while "old" in kept(r).records:
            r.front.push_generation(rows("old"))
        r.announce(head("new"))
        r.front.push_generation(rows("old", "new"))
        assert r.front.drain() == []
        r.stop(SHARD)
        r.wait_down(SHARD)
        assert r.front.drain() == [AbortRequest("old", "lost", "detokenizer-0 is away")]
        assert faults(r) == [("old", 503, "detokenizer-0 is away; send the request again")]
        come(r)
        r.claim(begun=["new"], step=0)
        r.settle(API)
        assert replayed(r)[0].rids == ["new"]


def test_too_many_steps_while_it_is_away_end_the_oldest() -> None:
    with rig(connected=False) as r:
        r.connect(resume=ResumeLimits(2000, 5.0))
        r.link_up()
        r.announce(head("a"))
        die(r)
        while "a" in kept(r).records:
            assert r.front.push_generation(rows("a"))
        assert r.front.drain() == [AbortRequest("a", "lost", "detokenizer-0 is away for too many steps")]
        assert faults(r) == [("a", 503, "detokenizer-0 is away for too many steps; send the request again")]


def test_claim_of_what_is_not_kept_is_answered() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a", finish_reasons=[{"type": "length", "length": 1}]))
        kept(r).forget(["a"])
        die(r)
        come(r)
        r.claim(fresh=["a", "on its way"])
        r.settle(API)
        assert faults(r) == [("a", 503, "detokenizer-0 was away; send the request again")]
        assert r.hears_nothing(Kind.ERROR)


def test_claim_that_comes_too_late_is_answered() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_generation(rows("a", finish_reasons=[{"type": "length", "length": 1}]))
        kept(r).forget(["a"])
        die(r)
        come(r)
        replayed(r)
        r.claim(fresh=["a"])
        r.settle(API)
        assert [rid for rid, _, _ in faults(r)] == ["a"]


def test_claim_that_comes_after_the_beginning_is_passed_on() -> None:
    """Who claims waits for a word of the new life, also when the link had no reason to wait for the claim."""
    with rig() as r:
        die(r)
        come(r)
        replayed(r)
        r.claim(fresh=["in the tokenizer"])
        r.settle(API)
        more = decode_replay(r.next(SHARD, Kind.REPLAY))
        assert (more.part, more.rids, more.said) == ("more", [], {0: 0})
        r.claim()
        r.settle(API)
        assert r.take(SHARD, Kind.REPLAY) is None


@pytest.mark.parametrize("reason", ["client", "lost"])
def test_request_that_nobody_waits_for_is_not_told_again(reason: str) -> None:
    """It came while the detokenizer was away; no row will say that it has ended."""
    with rig() as r:
        die(r)
        r.announce(head("left"), head("ended"), head("stays"))
        r.front.push_generation(rows("left", "ended", "stays", finish_reasons=[None, {"type": "length"}, None]))
        r.abort("left", reason)
        r.drain(1)
        come(r)
        assert replayed(r)[0].rids == ["ended", "stays"]


def test_request_whose_client_leaves_after_the_claim_is_not_told_again() -> None:
    with rig(apis=2) as r:
        r.announce(head("a"), head("b", api=1))
        r.front.push_generation(rows("a", "b"))
        die(r)
        come(r)
        r.claim(begun=["a"], step=1)
        r.abort("a")
        r.drain(1)
        r.claim(begun=["b"], step=1, api=1)
        r.settle(Peer("api", 1))
        assert replayed(r)[0].rids == ["b"]


def test_detokenizer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "QUEUE_FRAMES", 2)
    with rig(connected=False) as r:
        r.connect(resume=ResumeLimits(1 << 20, 0.2))
        r.link_up()
        r.announce(head("a"))
        r.fill(SHARD)
        r.front.push_generation(rows("a"))
        assert r.drain(1) == [AbortRequest("a", "lost", "detokenizer-0 does not take what it is sent")]
        assert r.faults()[0].status == 503


def test_detokenizer_that_never_comes_back_costs_no_memory_for_ever() -> None:
    with rig(connected=False) as r:
        r.connect(resume=ResumeLimits(1 << 20, 0.1))
        r.link_up()
        r.announce(head("a"))
        die(r)
        r.front.push_generation(rows("a"))
        assert r.drain(1) == [AbortRequest("a", "lost", "detokenizer-0 is away")]
        assert kept(r).records == {}
        for rid in ("b", "c"):
            r.run(head(rid))
            r.front.push_generation(rows(rid))
            r.drain(1)
        r.front._look(time.monotonic() + 60)
        r.front._look(time.monotonic() + 120)
        assert (kept(r)._over, list(kept(r)._lingering), kept(r).size) == ([], [], 0)
        assert not r.front._catching_up


def test_switched_off_requests_end_at_once() -> None:
    with rig(connected=False) as r:
        r.connect(resume=ResumeLimits(0, 5.0))
        r.link_up()
        r.announce(head("a"))
        r.front.push_generation(rows("a"))
        r.stop(SHARD)
        r.wait_down(SHARD)
        assert r.front.drain() == [AbortRequest("a", "lost", "detokenizer-0 is away")]
        assert [fault.rid for fault in r.faults()] == ["a"]
        assert r.front._resume is None


def test_claim_of_or_for_nobody_is_a_bad_frame() -> None:
    with rig() as r:
        r.claim(7, life=1)
        r.send(API, encode_claim(Claim(9, 0, 1, 0, [], [])))
        r.settle(API)
        assert r.front.bad_frames == 2


# ---------------------------------------------------------------- nothing stays
def test_nothing_is_kept_once_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig() as r:
        r.announce(head("a"), head("b"))
        r.front.push_generation(rows("a", "b"))
        assert kept(r).size > 0
        r.front.push_generation(rows("a", "b", finish_reasons=[{"type": "length", "length": 1}, None]))
        r.abort("b")
        r.drain(1)
        r.front._look(time.monotonic())
        assert list(kept(r).records) == ["a"]
        r.front._look(time.monotonic() + LINGER)
        assert (kept(r).records, kept(r).size, len(kept(r))) == ({}, 0, 0)


def test_requests_that_were_never_announced_keep_nothing() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_generation(rows("a"))
        assert (len(kept(r)), kept(r).size) == (0, 0)


def test_error_of_the_engine_is_not_told_again() -> None:
    with rig() as r:
        r.announce(head("a"))
        r.front.push_error("a", "no")
        assert r.faults() == [RequestFault("a", 400, "no")]
        die(r)
        come(r)
        r.claim()
        r.settle(API)
        assert replayed(r)[0].rids == []
