"""What an abort tells the engine: exact wire ids, each once."""

from __future__ import annotations

from typing import Any

from forebay.wire import control
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import AbortRequest
from forebay_api.plan import Plan
from tests.api.conversation import Conversation, Talk
from tests.api.samples import generate

LENGTH = {"type": "length", "length": 1}


def aborts(c: Conversation) -> list[AbortRequest]:
    """The aborts that the engine was sent since the last call."""
    found = [frame for peer, frame in c.sent if peer.role == "engine" and kind_of(frame) is Kind.ABORT]
    c.sent.clear()
    return [abort for frame in found for abort in control.decode_aborts(frame)]


def of(talk: Talk, **body: Any) -> Conversation:
    plan: Plan = generate(**body)
    c = talk(plan)
    c.sent.clear()
    return c


def test_a_name_stands_for_its_wire_id(talk: Talk) -> None:
    c = of(talk, rid="req-1")
    c.mailbox.abort("req-1")
    assert [(abort.rid, abort.reason) for abort in aborts(c)] == [(c.rids[0], "user")]


def test_a_beginning_of_a_name_stands_for_nothing(talk: Talk) -> None:
    c = of(talk, rid="req-10")
    assert c.mailbox.abort("req-1") == 0
    assert aborts(c) == []


def test_a_name_stands_for_all_of_its_samples(talk: Talk) -> None:
    c = of(talk, rid="r", sampling_params={"n": 3})
    c.mailbox.abort("r")
    assert [abort.rid for abort in aborts(c)] == c.rids


def test_the_name_of_a_batch_stands_for_all_of_its_items(talk: Talk) -> None:
    c = of(talk, text=["x", "y"], rid="r", sampling_params={"n": 2})
    c.mailbox.abort("r")
    assert [abort.rid for abort in aborts(c)] == c.rids


def test_the_name_of_an_item_stands_for_that_item(talk: Talk) -> None:
    c = of(talk, text=["x", "y"], rid="r", sampling_params={"n": 2})
    c.mailbox.abort("r_1")
    assert [abort.rid for abort in aborts(c)] == c.rids[2:]


def test_aborting_twice_sends_once(talk: Talk) -> None:
    c = of(talk, rid="r")
    c.mailbox.abort("r")
    aborts(c)
    assert c.mailbox.abort("r") == 0
    assert aborts(c) == []


def test_an_ended_request_is_not_aborted(talk: Talk) -> None:
    c = of(talk, rid="r")
    c.end(0, LENGTH)
    c.mailbox.abort("r")
    assert aborts(c) == []


def test_an_unknown_name_goes_to_the_link_only_if_another_process_may_own_it(talk: Talk) -> None:
    c = of(talk, rid="r")
    c.mailbox.abort("other")
    assert aborts(c) == []
    c.mailbox._apis = 2
    c.mailbox.abort("other")
    assert [abort.rid for abort in aborts(c)] == ["other"]


def test_an_abort_from_the_link_is_not_sent_back(talk: Talk) -> None:
    c = of(talk, rid="r")
    c.mailbox._apis = 2
    c.mailbox.take([control.encode_aborts([AbortRequest("other", "user")])])
    assert aborts(c) == []
    c.mailbox.take([control.encode_aborts([AbortRequest("r", "user")])])
    assert [abort.rid for abort in aborts(c)] == c.rids


def test_all_names_those_that_may_not_have_reached_the_engine(talk: Talk) -> None:
    c = of(talk, text=["x", "y"], stream=True)
    c.say((0, "a", [1], None))
    c.sent.clear()
    c.mailbox.abort("", everything=True)
    assert [(abort.rid, abort.abort_all) for abort in aborts(c)] == [("", True), (c.rids[1], False)]


def test_an_aborted_batch_leaves_nothing_in_the_table(talk: Talk) -> None:
    c = of(talk, text=["x", "y"], rid="r", sampling_params={"n": 2})
    c.mailbox.abort("r")
    for index in range(4):
        c.end(index, {"type": "abort", "message": "Aborted", "status_code": None})
    assert len(c.mailbox) == 0
    assert not c.mailbox.owns("r")
    assert [one["meta_info"]["finish_reason"]["type"] for one in c.answer] == ["abort"] * 4
