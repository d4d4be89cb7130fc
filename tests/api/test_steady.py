"""Steady steps in an api process: taken whole by their header, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.deltas import Deltas, encode_deltas
from forebay.wire.frames import Kind
from forebay.wire.messages import Hello
from forebay.wire.steady import TEXTS_SIZE, pack_texts
from tests.api.conversation import Conversation, Talk
from tests.api.samples import complete
from tests.api.test_stopping_peers import hello


def begun(talk: Talk) -> Conversation:
    """A stream of two samples that has begun."""
    c = talk(complete(stream=True, n=2))
    c.say((0, "a", [1], None), (1, "x", [2], None))
    return c


@pytest.fixture
def conversation(talk: Talk) -> Conversation:
    return begun(talk)


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


def test_steps_that_wait_together_are_one_event_a_stream(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.take([texts("b", "", seq=2), texts("c", "y", seq=3), texts("", "z", seq=4)])
    assert heard(c)[2:] == [(0, "bc"), (1, "yz")]


def test_a_damaged_step_among_others_ends_the_streams_with_an_error(conversation: Conversation) -> None:
    c = conversation
    c.mailbox.take([texts("b", "y", seq=2), texts("c", "z", seq=3)[:-1], texts("d", "w", seq=4)])
    assert (c.call.done.done(), c.mailbox.bad_frames, len(c.mailbox)) == (True, 2, 0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "bc"]), st.sampled_from(["", "x"])), max_size=8), st.data())
def test_any_split_into_wakeups_says_the_same(said: list[tuple[str, str]], data: st.DataObject) -> None:
    loop = asyncio.new_event_loop()
    try:
        c = begun(lambda plan: Conversation(plan, loop))
        frames = [texts(*pair, seq=2 + number) for number, pair in enumerate(said)]
        while frames:
            count = data.draw(st.integers(1, len(frames)))
            if count > 1 or not c.mailbox.steady(frames[0]):
                c.mailbox.take(frames[:count])
            del frames[:count]
        for index, column in enumerate(("a" + "".join(pair[0] for pair in said), "x" + "".join(p[1] for p in said))):
            assert "".join(text for at, text in heard(c) if at == index) == column
    finally:
        loop.close()


@pytest.mark.parametrize(
    "numbers",
    [
        {"source": -1}, {"source": 7}, {"source": 1 << 40}, {"seq": -16}, {"seq": 0}, {"seq": (1 << 64) - 1},
        {"epoch": -1}, {"epoch": (1 << 64) - 1}, {"step": -5}, {"step": (1 << 64) - 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_number_loses_its_own_frame_only(conversation: Conversation, numbers: dict[str, int]) -> None:
    c = conversation
    fields: dict[str, Any] = {"source": 0, "epoch": 1, "seq": 3, "step": 3, **numbers}
    c.mailbox.take([texts("b", "y"), encode_deltas(Deltas(**fields, texts=["x", "x"]))])
    assert (heard(c)[2:], c.mailbox.bad_frames) == ([(0, "b"), (1, "y")], 1)
    assert c.mailbox.steady(texts("c", "z", seq=3))
    assert (heard(c)[4:], list(c.mailbox._rows)) == ([(0, "c"), (1, "z")], [0])


@pytest.mark.parametrize("seq", [0, (1 << 64) - 1])
def test_a_damaged_number_of_a_steady_step_loses_that_frame_only(conversation: Conversation, seq: int) -> None:
    c = conversation
    c.mailbox.take([texts("x", "x", seq=seq)])
    assert c.mailbox.steady(texts("b", "y"))


def test_facts_that_cannot_be_used_lose_their_own_frame_only(conversation: Conversation) -> None:
    c = conversation
    damaged = control.encode_hello(Hello(role="engine", index=0, incarnation=1, pid=1, version="0", blob=b"[1"))
    c.mailbox.take([texts("b", "y"), damaged, texts("c", "z", seq=3)])
    assert (heard(c)[2:], c.mailbox.bad_frames) == ([(0, "bc"), (1, "yz")], 1)
