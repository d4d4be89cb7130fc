"""A detokenizer dies: its requests wait, say to the engine what has come of them, and go on or end in time."""

from __future__ import annotations

import pytest

from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.deltas import Deltas, encode_deltas
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import End, Hello
from forebay.wire.replay import Claim, decode_claim
from forebay.wire.steady import pack_texts
from tests.api.conversation import Conversation, Talk
from tests.api.samples import generate
from tests.api.test_stopping_peers import hello

TOKENIZER, DETOKENIZER, ENGINE = Peer("tokenizer", 0), Peer("detokenizer", 0), Peer("engine", 0)


@pytest.fixture
def c(talk: Talk) -> Conversation:
    """One stream whose work has been sent, in a process that waits for detokenizers."""
    found = talk(generate(stream=True))
    found.mailbox._resume._seconds = 60.0
    return found


def claims(c: Conversation) -> list[Claim]:
    return [decode_claim(frame) for to, frame in c.sent if to == ENGINE and kind_of(frame) is Kind.CLAIM]


def aborts(c: Conversation, peer: Peer) -> list[str]:
    found = [frame for to, frame in c.sent if to == peer and kind_of(frame) is Kind.ABORT]
    return [abort.rid for frame in found for abort in control.decode_aborts(frame)]


def waits(c: Conversation) -> bool:
    return bool(c.mailbox._resume._timers)


def die(c: Conversation) -> None:
    c.mailbox.link_changed(DETOKENIZER, False)


def come(c: Conversation, life: int = 2) -> None:
    c.mailbox.link_changed(DETOKENIZER, True)
    c.mailbox.take([hello(DETOKENIZER, life=life)])


def deltas(c: Conversation, seq: int, text: str, step: int, epoch: int = 1, **more: object) -> bytes:
    fields = {"rids": c.rids, "texts": [text], "starts": [], **more}
    return encode_deltas(Deltas(source=0, epoch=epoch, seq=seq, step=step, **fields))  # type: ignore[arg-type]


def test_every_life_is_claimed_also_the_first(c: Conversation) -> None:
    assert [(claim.life, claim.begun, claim.fresh) for claim in claims(c)] == [(1, [], [])]


def test_request_that_has_not_begun_waits_and_is_claimed_as_fresh(c: Conversation) -> None:
    die(c)
    assert (len(c.mailbox), waits(c)) == (1, True)
    come(c)
    assert claims(c)[-1] == Claim(3, 0, 2, 0, [], c.rids)


def test_the_claim_says_how_far_everything_has_come(c: Conversation) -> None:
    c.mailbox.take([deltas(c, 1, "a", 7, starts=[(0, 5, 0)])])
    c.mailbox.take([pack_texts(0, 1, 2, ["b"])])
    assert c.mailbox.steady(pack_texts(0, 1, 3, ["c"]))
    c.mailbox.take([pack_texts(0, 1, 4, ["d"]), pack_texts(0, 1, 5, ["e"])])
    die(c)
    come(c)
    assert claims(c)[-1] == Claim(3, 0, 2, 11, c.rids, [])


def test_text_of_the_next_life_follows_and_nobody_waits_any_more(c: Conversation) -> None:
    c.mailbox.take([deltas(c, 1, "a", 1, starts=[(0, 5, 0)])])
    die(c)
    come(c)
    assert waits(c)
    c.mailbox.take([deltas(c, 1, "b", 2, epoch=2)])
    assert not waits(c)
    end = End(rid=c.rids[0], reason={"type": "length", "length": 2}, completion_tokens=2)
    c.mailbox.take([encode_deltas(Deltas(0, 2, 2, ends=[end], step=3))])
    assert [chunk["text"] for chunk in c.chunks] == ["a", "ab", "ab"]
    assert aborts(c, ENGINE) == []


def test_what_the_life_before_has_said_is_read_before_the_claim(c: Conversation) -> None:
    c.mailbox.take([deltas(c, 1, "a", 1, starts=[(0, 5, 0)])])
    die(c)
    c.mailbox.link_changed(DETOKENIZER, True)
    c.mailbox.take([hello(DETOKENIZER, life=2), pack_texts(0, 1, 2, ["b"])], True)
    assert len(claims(c)) == 1
    c.mailbox.take([pack_texts(0, 1, 3, ["c"])])
    assert claims(c)[-1].step == 3
    assert b"abc" in bytes(c.wire.events)
    c.mailbox.take([pack_texts(0, 1, 4, ["d"])])
    assert c.mailbox.bad_frames == 1


def test_greeting_that_is_read_before_the_end_is_noticed_counts_once(c: Conversation) -> None:
    c.mailbox.take([hello(DETOKENIZER, life=2)])
    c.mailbox.take([deltas(c, 1, "a", 1, epoch=2, starts=[(0, 5, 0)])])
    c.mailbox.link_changed(DETOKENIZER, False)
    c.mailbox.link_changed(DETOKENIZER, True)
    assert (len(claims(c)), len(c.mailbox), waits(c)) == (2, 1, False)


def test_who_waits_too_long_ends_with_an_error_and_in_the_engine(c: Conversation) -> None:
    die(c)
    c.mailbox._resume._give_up(0)
    assert c.call.fault is not None
    assert (c.call.fault.status, c.call.fault.message) == (503, "detokenizer-0 went away; send the request again")
    assert aborts(c, ENGINE) == c.rids
    assert not waits(c)


def test_process_that_was_only_frozen_ends_its_requests(c: Conversation) -> None:
    die(c)
    come(c, life=1)
    assert c.call.fault is not None
    assert c.call.fault.status == 503
    assert aborts(c, ENGINE) == c.rids


def test_requests_end_when_the_engine_does_not_take_the_claim(c: Conversation) -> None:
    die(c)
    c.unreachable.add(ENGINE)
    come(c)
    assert len(c.mailbox) == 0
    assert not waits(c)


def test_a_second_death_waits_anew_and_claims_anew(c: Conversation) -> None:
    die(c)
    come(c)
    die(c)
    assert waits(c)
    come(c, life=3)
    assert claims(c)[-1].life == 3


def test_client_that_leaves_while_it_waits_is_not_claimed(c: Conversation) -> None:
    die(c)
    c.mailbox.abandon(c.call)
    come(c)
    assert (claims(c)[-1].begun, claims(c)[-1].fresh) == ([], [])
    assert aborts(c, ENGINE) == c.rids


def test_with_nothing_to_wait_for_nobody_waits(c: Conversation) -> None:
    c.mailbox.abandon(c.call)
    die(c)
    assert not waits(c)


def test_another_engine_begins_to_count_anew(c: Conversation) -> None:
    c.mailbox.take([deltas(c, 1, "a", 70, starts=[(0, 5, 0)])])
    c.mailbox.take([control.encode_hello(Hello(role="engine", index=0, incarnation=2, pid=1, version="0"))])
    die(c)
    come(c)
    assert claims(c)[-1].step == 0


def test_request_that_was_sent_and_has_lost_its_tokenizer_too_is_claimed(c: Conversation) -> None:
    """The tokenizer may have brought it to the engine before it died."""
    die(c)
    c.mailbox.link_changed(TOKENIZER, False)
    assert list(c.mailbox._unsent) == [c.call]
    come(c)
    assert claims(c)[-1].fresh == c.rids


def test_sample_that_has_begun_is_claimed_while_another_one_is_put_aside(talk: Talk) -> None:
    c = talk(generate(stream=True, sampling_params={"n": 2}))
    c.mailbox._resume._seconds = 60.0
    c.say((0, "a", [1], None))
    die(c)
    c.mailbox.link_changed(TOKENIZER, False)
    come(c)
    assert (claims(c)[-1].begun, claims(c)[-1].fresh) == (c.rids[:1], c.rids[1:])


def test_second_greeting_of_the_new_life_changes_nothing(c: Conversation) -> None:
    die(c)
    come(c)
    c.mailbox.take([hello(DETOKENIZER, life=2)])
    assert (len(c.mailbox), waits(c), len(claims(c))) == (1, True, 2)


def test_new_life_that_is_away_meanwhile_ends_its_requests(c: Conversation) -> None:
    die(c)
    come(c)
    die(c)
    come(c)
    assert (len(c.mailbox), waits(c)) == (0, False)


def test_nobody_waits_for_what_has_ended_with_the_engine(c: Conversation) -> None:
    die(c)
    c.mailbox.link_changed(ENGINE, False)
    assert not waits(c)
    come(c)
    assert not waits(c)


def test_nobody_waits_when_all_have_left_by_the_greeting(c: Conversation) -> None:
    die(c)
    c.mailbox.abandon(c.call)
    come(c)
    assert not waits(c)


def test_switched_off_requests_end_at_once(talk: Talk) -> None:
    c = talk(generate(stream=True))
    die(c)
    assert len(c.mailbox) == 0
    assert aborts(c, ENGINE) == c.rids


def test_what_a_new_life_says_right_behind_its_greeting_is_heard(c: Conversation) -> None:
    die(c)
    c.mailbox.link_changed(DETOKENIZER, True)
    ends = [End(rid=c.rids[0], reason={"type": "length", "length": 4}, text="d", tokens=1, completion_tokens=4)]
    c.mailbox.take(
        [
            hello(DETOKENIZER, life=2),
            deltas(c, 1, "a", 1, epoch=2, starts=[(0, 5, 0)]),
            pack_texts(0, 2, 2, ["b"]),
            pack_texts(0, 2, 3, ["c"]),
        ]
    )
    c.mailbox.take([encode_deltas(Deltas(source=0, epoch=2, seq=4, step=4, ends=ends))])
    assert c.chunks[-1]["text"] == "abcd"
    assert (len(claims(c)), waits(c)) == (2, False)


def test_a_new_life_whose_first_frames_are_missing_ends_its_requests(c: Conversation) -> None:
    c.mailbox.take([deltas(c, 1, "a", 1, starts=[(0, 5, 0)])])
    die(c)
    come(c)
    c.mailbox.take([deltas(c, 3, "c", 3, epoch=2)])
    assert (c.call.faults[0].status, len(c.mailbox)) == (503, 0)


def test_aborts_that_found_nobody_are_sent_when_the_link_is_there(c: Conversation) -> None:
    c.mailbox.link_changed(DETOKENIZER, False)
    c.unreachable = {DETOKENIZER}
    c.mailbox.take([hello(DETOKENIZER, life=2)])
    c.mailbox.abandon(c.call)
    assert aborts(c, DETOKENIZER) == []
    c.unreachable = set()
    c.mailbox.link_changed(DETOKENIZER, True)
    assert aborts(c, DETOKENIZER) == c.rids
