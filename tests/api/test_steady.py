"""Steady steps in an api process: taken whole by their header, or not at all."""

from __future__ import annotations

import msgspec
import pytest

from forebay.topology import Peer
from forebay.wire.frames import Kind
from forebay.wire.steady import TEXTS_SIZE, pack_texts
from tests.api.conversation import Conversation, Talk
from tests.api.samples import complete
from tests.api.test_stopping_peers import hello


@pytest.fixture
def conversation(talk: Talk) -> Conversation:
    """A stream of two samples that has begun."""
    c = talk(complete(stream=True, n=2))
    c.say((0, "a", [1], None), (1, "x", [2], None))
    return c


def texts(*said: str, seq: int = 2, source: int = 0, epoch: int = 1) -> bytes:
    return pack_texts(source, epoch, seq, list(said))


def heard(c: Conversation) -> list[tuple[int, str]]:
    """Index and text of each event so far."""
    events = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in c.wire.events.split(b"\n\n") if event]
    return [(choice["index"], choice["text"]) for event in events for choice in event["choices"]]


def test_steady_steps_are_taken_one_after_the_other(conversation: Conversation) -> None:
    c = conversation
    assert [c.mailbox.steady(texts("b", "y", seq=seq)) for seq in (2, 3)] == [True, True]
    assert heard(c) == [(0, "a"), (1, "x"), (0, "b"), (1, "y"), (0, "b"), (1, "y")]


def test_what_is_no_steady_step_is_left_alone(conversation: Conversation) -> None:
    c = conversation
    assert not c.mailbox.steady(c.step((0, "b", [1], None), (1, "y", [2], None)))
    assert heard(c) == [(0, "a"), (1, "x")]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes([Kind.TEXTS]),
        texts("b", "y")[: TEXTS_SIZE - 1],
        texts("b", "y")[:-1],
        texts("b", "y") + b"\x00",
        texts("b"),
        texts("b", "y", "z"),
        texts("b", "y", seq=3),
        texts("b", "y", seq=1),
        texts("b", "y", epoch=2),
        texts("b", "y", source=1),
    ],
)
def test_a_frame_that_does_not_follow_is_not_taken(conversation: Conversation, frame: bytes) -> None:
    assert not conversation.mailbox.steady(frame)
    assert heard(conversation) == [(0, "a"), (1, "x")]


def test_a_step_that_comes_twice_is_taken_once(conversation: Conversation) -> None:
    c = conversation
    assert [c.mailbox.steady(texts("b", "y")), c.mailbox.steady(texts("b", "y"))] == [True, False]


def test_steps_of_a_life_that_is_over_are_not_taken(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.take([hello(Peer("detokenizer", 0), life=2)])
    assert not c.mailbox.steady(texts("b", "y"))


def test_steps_go_on_after_others_have_come_between(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.take([texts("b", "y"), texts("c", "z", seq=3)])
    assert c.mailbox.steady(texts("d", "w", seq=4))
    assert heard(c)[2:] == [(0, "bc"), (1, "yz"), (0, "d"), (1, "w")]


def test_a_sample_that_has_ended_hears_nothing_more(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.abandon(c.call)
    assert c.mailbox.steady(texts("b", "y"))
    assert heard(c) == [(0, "a"), (1, "x")]
