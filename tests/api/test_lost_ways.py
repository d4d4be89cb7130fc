"""Requests whose tokenizer or detokenizer goes away: they wait, go another way, and leave nothing behind."""

from __future__ import annotations

import pytest

from forebay.topology import Peer
from forebay.wire import control, ingress
from forebay.wire.deltas import Deltas, encode_deltas
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import STALE, AbortRequest, RequestFault, Unheard
from forebay_api.calls import as_error
from tests.api.conversation import Conversation, Talk
from tests.api.samples import generate
from tests.api.test_stopping_peers import hello

TOKENIZER, DETOKENIZER, ENGINE = Peer("tokenizer", 0), Peer("detokenizer", 0), Peer("engine", 0)


@pytest.fixture
def conversation(talk: Talk) -> Conversation:
    """One stream whose work has been sent."""
    return talk(generate(stream=True))


def sent(c: Conversation, kind: Kind, peer: Peer) -> int:
    return sum(kind_of(frame) is kind and to == peer for to, frame in c.sent)


def back(c: Conversation, peer: Peer, life: int = 2) -> None:
    c.mailbox.link_changed(peer, True)
    c.mailbox.take([hello(peer, life=life)])


def test_a_request_that_finds_no_detokenizer_waits_for_it(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.link_changed(TOKENIZER, False)
    c.mailbox._up.discard(DETOKENIZER)  # its going would end the request
    back(c, TOKENIZER)
    assert sent(c, Kind.WORK, TOKENIZER) == 1
    back(c, DETOKENIZER, life=1)
    assert sent(c, Kind.WORK, TOKENIZER) == 2


def test_a_waiting_request_whose_client_leaves_is_not_kept(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.link_changed(TOKENIZER, False)
    assert len(c.mailbox._unsent) == 1
    c.mailbox.abandon(c.call)
    assert len(c.mailbox._unsent) == 0


def test_a_refusal_after_a_second_sending_ends_the_request_in_the_engine_too(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.link_changed(TOKENIZER, False)
    back(c, TOKENIZER)
    c.mailbox.take([control.encode_faults([RequestFault(c.rids[0], 503, "no")])])
    assert sent(c, Kind.ABORT, ENGINE) == 1


def test_a_refusal_of_the_first_sending_does_not_bother_the_engine(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.take([control.encode_faults([RequestFault(c.rids[0], 503, "no")])])
    assert sent(c, Kind.ABORT, ENGINE) == 0


def test_a_gap_in_the_output_ends_its_requests_in_the_engine_too(conversation: Conversation) -> None:
    c = conversation
    c.say((0, "a", [1], None))
    c._seq += 1
    c.mailbox.take([c.step((0, "c", [3], None))])
    assert len(c.mailbox) == 0
    assert sent(c, Kind.ABORT, ENGINE) == 1


def test_text_of_another_life_of_the_detokenizer_is_not_shown(conversation: Conversation) -> None:
    c = conversation
    frame = encode_deltas(Deltas(source=0, epoch=9, seq=1, rids=c.rids, texts=["x"]))
    c.mailbox.take([frame])
    assert c.mailbox.bad_frames == 1
    c.say((0, "a", [1], None))
    assert b'"text":"a"' in bytes(c.wire.events)


@pytest.mark.parametrize("frame", [b"", b"\x01"])
def test_a_frame_without_a_head_is_dropped(conversation: Conversation, frame: bytes) -> None:
    c = conversation
    c.mailbox.take([frame])
    assert c.mailbox.bad_frames == 1


def test_an_end_that_a_restarting_detokenizer_did_not_hear_of_is_told_later(conversation: Conversation) -> None:
    c = conversation
    c.unreachable = {DETOKENIZER}
    c.mailbox.link_changed(DETOKENIZER, False)
    c.unreachable = set()
    c.sent.clear()
    back(c, DETOKENIZER)
    assert sent(c, Kind.ABORT, DETOKENIZER) == 1


# ---------------------------------------------------------------- requests of nobody
def test_requests_that_are_not_ours_are_ended_where_they_are_asked_about(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.take([control.encode_unheard(Unheard(0, [c.rids[0], "nobody"]))])
    told = [(peer, control.decode_aborts(frame)) for peer, frame in c.sent if kind_of(frame) is Kind.ABORT]
    assert told == [(peer, [AbortRequest("nobody", "client")]) for peer in (DETOKENIZER, ENGINE)]
    assert not c.call.done.done()


def test_requests_that_are_ours_are_not_touched(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.take([control.encode_unheard(Unheard(0, c.rids))])
    assert sent(c, Kind.ABORT, DETOKENIZER) == 0


def test_who_takes_us_for_an_earlier_life_is_greeted_again(conversation: Conversation) -> None:
    c = conversation
    greeted: list[str] = []
    c.mailbox.greet = lambda: greeted.append("again")
    stale = RequestFault("nobody", 503, "the request is of an earlier life of api-3", STALE)
    c.mailbox.take([control.encode_faults([stale])])
    assert greeted == []
    stale.rid = c.rids[0]
    c.mailbox.take([control.encode_faults([stale])])
    assert greeted == ["again"]
    assert c.call.fault is not None
    assert as_error(c.call.fault).status == 503


def test_work_names_the_life_of_its_owner(talk: Talk) -> None:
    c = talk(generate())
    c.mailbox._life = 77
    c.mailbox.link_changed(TOKENIZER, False)
    back(c, TOKENIZER)
    frame = [frame for peer, frame in c.sent if peer == TOKENIZER and kind_of(frame) is Kind.WORK][-1]
    ((item, _),) = ingress.decode_work(frame)
    assert (item.head.life, item.open.life) == (77, 77)


def test_a_request_that_nobody_takes_in_time_ends_with_503(talk: Talk) -> None:
    c = talk(generate(stream=True))
    c.mailbox._dispatch_wait = 0.0
    c.mailbox.link_changed(TOKENIZER, False)
    (timer,) = c.mailbox._overdue.values()
    assert not c.call.done.done()
    timer._run()
    assert (c.call.faults[0].status, "tokenizer" in c.call.faults[0].message) == (503, True)
    assert (len(c.mailbox), c.mailbox._unsent, c.mailbox._overdue) == (0, {}, {})
    assert sent(c, Kind.ABORT, ENGINE) == 1, "the tokenizer that died may have brought it there"


def test_a_request_that_is_taken_is_given_up_no_more(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.link_changed(TOKENIZER, False)
    back(c, TOKENIZER)
    c.say((0, "a", [1], None))
    assert (c.mailbox._unsent, c.mailbox._overdue) == ({}, {})
