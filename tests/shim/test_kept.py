"""What the link keeps: the frames that some request needs, no more, and never more bytes than allowed."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from forebay.batch import GenerationBatch
from forebay.kept import LINGER, WORTH, Kept
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder


class Sender:
    """An encoder and the frames that are kept of it."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.encoder = EgressEncoder(1)
        self.kept = Kept(limit)

    def begin(self, rid: str, api: int = 0) -> None:
        self.kept.begin(rid, (api, self.encoder.seq + 1, b""))

    def push(self, *rids: str) -> list[str]:
        """One step; the requests that cannot be told again any more."""
        frame = self.encoder.encode(GenerationBatch(list(rids), [array("q", [7]) for _ in rids]))
        gone: list[str] = []
        while not self.kept.add(frame, self.encoder.seq):
            gone += self.kept.shrink()
        return gone

    def rows(self, seq: int) -> list[str]:
        """The rids of all kept steps from one on, as a reader finds them that begins there."""
        decoder = EgressDecoder()
        return [rid for frame in self.kept.since(seq, 1 << 30) for rid in decoder.decode(frame).rids]


def test_all_frames_of_a_request_are_kept_until_it_has_lingered() -> None:
    s = Sender()
    s.begin("a")
    for _ in range(3):
        s.push("a")
    s.kept.look(0.0, False)
    s.kept.end("a", said=True)
    s.kept.look(0.0, False)
    s.kept.look(LINGER - 0.1, False)
    assert s.rows(s.kept.start(1) or 0) == ["a"] * 3
    s.kept.look(LINGER, False)
    assert (len(s.kept), s.kept.size, s.kept.records) == (0, 0, {})


def test_nothing_ends_while_a_detokenizer_is_behind_and_it_lingers_anew_then() -> None:
    s = Sender()
    s.begin("a")
    s.push("a")
    s.kept.end("a", said=True)
    s.kept.look(0.0, False)
    s.kept.look(LINGER * 3, True)
    s.kept.look(LINGER * 3, False)
    assert "a" in s.kept.records
    s.kept.look(LINGER * 4, False)
    assert s.kept.size == 0


def test_frames_before_the_oldest_request_are_dropped() -> None:
    s = Sender()
    s.begin("old")
    for _ in range(2 * WORTH):
        s.push("old")
    s.begin("new")
    s.push("old", "new")
    s.push("new")
    s.kept.forget(["old"])
    s.kept.look(0.0, False)
    assert len(s.kept) == 2
    assert s.rows(s.kept.first) == ["old", "new", "new"]
    assert s.kept.size == sum(len(frame) for frame in s.kept.since(s.kept.first, 9))


def test_requests_of_an_api_process_are_forgotten_together() -> None:
    s = Sender()
    s.begin("a", 0)
    s.begin("b", 1)
    s.kept.forget_api(0)
    assert list(s.kept.records) == ["b"]


def test_over_the_limit_the_oldest_go_and_say_so() -> None:
    s = Sender(limit=4000)
    s.begin("old")
    gone: list[str] = []
    while not gone:
        s.begin(f"r{s.encoder.seq}")
        gone = s.push("old", f"r{s.encoder.seq}")
    assert gone[0] == "old"
    assert "old" not in s.kept.records
    assert min(first for _, first, _ in s.kept.records.values()) >= s.kept.first


def test_one_batch_that_never_changes_can_fill_it_and_later_requests_are_kept_again() -> None:
    s = Sender(limit=4000)
    s.begin("old")
    while not s.push("old"):
        continue
    assert (s.kept.records, len(s.kept)) == ({}, 1)
    s.begin("new")
    s.push("old", "new")
    assert s.rows(s.kept.start(s.kept.records["new"][1]) or 0) == ["old", "new"]


ACTIONS = st.lists(st.tuples(st.sampled_from("bpppppe"), st.integers(0, 30)), max_size=150)


@given(actions=ACTIONS, limit=st.sampled_from((600, 2000, 1 << 20)))
def test_who_is_kept_can_be_told_again_from_the_first_row(actions: list[tuple[str, int]], limit: int) -> None:
    s, live, pushed, number = Sender(limit), list[str](), dict[str, int](), 0
    for at, (what, which) in enumerate(actions):
        if what == "b":
            live.append(f"r{number}")
            pushed[live[-1]] = 0
            s.begin(live[-1])
            number += 1
        elif what == "e" and live:
            s.kept.end(live.pop(which % len(live)), said=True)
        elif live:
            some = live[which % len(live) :]
            for rid in some:
                pushed[rid] += 1
            s.push(*some)
        s.kept.look(at / 10, False)
        assert s.kept.size <= limit
    for rid, (_, first, _) in s.kept.records.items():
        start = s.kept.start(first)
        assert (0 if start is None else s.rows(start).count(rid)) == pushed[rid]
