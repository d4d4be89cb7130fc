"""The life of a request: announced early or late, refused, aborted, given up, ended; and nothing of it remains."""

from __future__ import annotations

import zlib
from array import array
from typing import Any

import pytest

from forebay.wire.messages import STALE, OpenItem
from forebay_detokenizer.sessions import Row
from forebay_detokenizer.waiting import Closed, ClosedRids, WaitingRows
from tests.detokenizer.rig import LENGTH, Rig
from tests.detokenizer.samples import EMOJI, byte_ids


def test_nothing_remains_of_a_request_that_has_ended() -> None:
    rig = Rig()
    rig.open()
    rig.run(byte_ids(b"ab"))
    assert (len(rig.core), rig.core.waiting) == (0, 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_used_request_id_gives_a_clean_second_answer(stream: bool) -> None:
    rig = Rig()
    rig.open(stream=stream)
    rig.run(byte_ids(b"ab" + EMOJI.encode()[:2]))
    first = rig.heard.pop("r")
    rig.open(stream=stream)
    second = rig.run(byte_ids(b"ab" + EMOJI.encode()[:2]))
    assert (second.text, second.tokens) == (first.text, first.tokens) == ("ab\ufffd", 4)


def test_a_used_request_id_is_free_again_after_a_stop_string() -> None:
    rig = Rig()
    for _ in range(2):
        rig.heard.clear()
        rig.open(stop=["b"])
        for byte in (b"a", b"b", b"c"):
            rig.step({"r": byte_ids(byte)})
        assert rig.said("r").text == "a"


@pytest.mark.parametrize("stream", [True, False])
def test_rows_before_the_announcement_wait_for_it(stream: bool) -> None:
    rig = Rig()
    rig.step({"r": byte_ids(b"a")})
    rig.step({"r": byte_ids(b"bc")})
    rig.open(stream=stream, want_ids=True)
    rig.step({"r": byte_ids(b"d")}, {"r": LENGTH})
    heard = rig.said("r")
    assert (heard.text, heard.tokens, heard.ids) == ("abcd", 4, byte_ids(b"abcd"))


def test_what_has_waited_is_said_at_once() -> None:
    rig = Rig()
    rig.step({"r": byte_ids(b"a")}, prompt_tokens=[5], cached_tokens=[2])
    rig.open()
    assert (rig.said("r").text, rig.said("r").start) == ("a", (5, 2))


def test_a_request_may_have_ended_before_its_announcement() -> None:
    rig = Rig()
    rig.step({"r": byte_ids(b"ab")}, {"r": LENGTH})
    rig.open()
    assert (rig.said("r").text, rig.said("r").reason, len(rig.core)) == ("ab", LENGTH, 0)


def test_a_stop_string_is_found_in_rows_that_have_waited() -> None:
    rig = Rig()
    for byte in (b"a", b"b", b"c"):
        rig.step({"r": byte_ids(byte)})
    rig.open(stop=["b"])
    assert (rig.said("r").text, [abort.reason for abort in rig.aborts]) == ("a", ["stop"])


def test_other_requests_do_not_wait_with_a_row_that_waits() -> None:
    rig = Rig()
    rig.open("known")
    rig.step({"new": byte_ids(b"a"), "known": byte_ids(b"b")})
    assert rig.said("known").text == "b"


def test_a_request_that_is_not_announced_in_time_is_stopped_in_the_engine() -> None:
    rig = Rig(open_wait=5.0)
    rig.step({"r": byte_ids(b"a")})
    rig.tick(4.9)
    assert rig.aborts == []
    rig.tick(5.0)
    assert ([(a.rid, a.reason) for a in rig.aborts], rig.core.waiting) == ([("r", "lost")], 0)


def test_rows_of_a_request_that_was_given_up_are_dropped() -> None:
    rig = Rig()
    rig.step({"r": byte_ids(b"a")})
    rig.tick(5.0)
    rig.step({"r": byte_ids(b"b")})
    assert (rig.core.waiting, len(rig.aborts)) == (0, 1)


def test_an_announcement_that_comes_too_late_is_answered() -> None:
    rig = Rig()
    rig.step({"r": byte_ids(b"a")})
    rig.tick(5.0)
    rig.open(api=3)
    assert [(api, fault.rid, fault.status) for api, fault in rig.faults] == [(3, "r", 503)]


def test_a_second_announcement_changes_nothing() -> None:
    rig = Rig()
    rig.open()
    rig.step({"r": byte_ids(EMOJI.encode()[:2])})
    rig.open()
    rig.step({"r": byte_ids(EMOJI.encode()[2:])})
    assert rig.said("r").text == EMOJI


def test_a_full_table_refuses_the_new_request_and_keeps_the_old_ones() -> None:
    rig = Rig(max_states=1)
    rig.open("old")
    rig.open("new", api=2)
    rig.step({"old": byte_ids(b"a"), "new": byte_ids(b"b")}, {"old": LENGTH})
    assert ([(api, f.rid, f.status) for api, f in rig.faults], rig.said("old").text) == ([(2, "new", 503)], "a")


def test_the_engine_hears_again_of_a_refused_request_that_it_runs() -> None:
    rig = Rig(max_states=0)
    rig.open()
    for _ in range(3):
        rig.step({"r": byte_ids(b"a")})
    assert [(abort.rid, abort.reason) for abort in rig.aborts] == [("r", "lost")] * 2


def test_there_is_room_again_after_a_request_has_ended() -> None:
    rig = Rig(max_states=1)
    rig.open("one")
    rig.step({"one": byte_ids(b"a")}, {"one": LENGTH})
    rig.open("two")
    assert rig.faults == []


def test_a_pattern_that_cannot_be_served_is_a_bad_request() -> None:
    rig = Rig()
    rig.open(stop_regex=["(?=a)"])
    assert [(fault.status, fault.param) for _, fault in rig.faults] == [(400, "stop_regex")]


def test_an_aborted_request_says_nothing_more() -> None:
    rig = Rig()
    rig.open()
    rig.step({"r": byte_ids(b"a")})
    rig.core.abort(["r"])
    rig.step({"r": byte_ids(b"b")})
    rig.step({"r": byte_ids(b"c")}, {"r": LENGTH})
    assert (rig.said("r").text, rig.said("r").end, rig.core.waiting) == ("a", None, 0)


def test_an_announcement_after_its_abort_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.core.abort(["r"])
    rig.open()
    assert (len(rig.core), rig.faults) == (0, [])


def test_an_abort_leaves_the_neighbours_alone() -> None:
    rig = Rig()
    rig.open("gone")
    rig.open("stays", stream=False)
    rig.step({"gone": byte_ids(b"a"), "stays": byte_ids(b"x")})
    rig.core.abort(["gone"])
    rig.step({"gone": byte_ids(b"b"), "stays": byte_ids(b"y")}, {"stays": LENGTH})
    assert rig.said("stays").text == "xy"


def test_failed_requests_get_an_error_and_stop_in_the_engine() -> None:
    rig = Rig()
    rig.open("a")
    rig.open("b")
    rig.core.fail_all("frames were lost")
    rig.listen()
    assert sorted(fault.rid for _, fault in rig.faults) == sorted(abort.rid for abort in rig.aborts) == ["a", "b"]


def test_the_requests_of_a_dead_api_process_stop_in_the_engine() -> None:
    rig = Rig()
    rig.open("dead", api=1)
    rig.open("alive", api=0)
    rig.core.forget_api(1)
    rig.step({"dead": byte_ids(b"a"), "alive": byte_ids(b"b")})
    assert ([abort.rid for abort in rig.aborts], rig.said("alive").text, rig.faults) == (["dead"], "b", [])


def test_a_new_api_process_is_told_its_rows_in_full() -> None:
    rig = Rig()
    rig.open()
    rig.step({"r": byte_ids(b"a")})
    rig.core.forget_rows(0)
    rig.step({"r": byte_ids(b"b")})
    assert rig.frames[-1][1].rids == ["r"]


def test_a_dead_engine_takes_its_requests_along() -> None:
    rig = Rig()
    rig.open()
    rig.step({"new": byte_ids(b"a")})
    rig.core.forget_all()
    rig.listen()
    assert (len(rig.core), rig.core.waiting, rig.aborts) == (0, 0, [])
    assert [(api, fault.status, fault.message) for api, fault in rig.faults] == [(0, 503, "engine connection lost")]


def test_requests_with_a_gap_in_their_text_end_with_an_error() -> None:
    rig = Rig()
    rig.open("runs")
    rig.open("ended")
    rig.step({"runs": byte_ids(b"a"), "ended": byte_ids(b"b")}, {"ended": LENGTH})
    rig.core.undelivered(*rig.frames[-1])
    rig.listen()
    assert (sorted(fault.rid for _, fault in rig.faults), [a.rid for a in rig.aborts]) == (["ended", "runs"], ["runs"])


def test_a_text_that_cannot_be_decoded_fails_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay_detokenizer import windows

    def decode(table: windows.WindowTable, ids: list[int]) -> str:
        if 2 in ids:
            raise windows.DecodeError("the tokenizer cannot decode the output")
        return "x" * len(ids)

    monkeypatch.setattr(windows.WindowTable, "decode", decode)
    rig = Rig("word_piece")
    for rid in ("good", "bad", "late"):
        rig.open(rid, stream=rid != "late")
    rig.step({"good": [1], "bad": [2], "late": [2]})
    rig.step({"good": [1], "bad": [1], "late": [1]}, {"good": LENGTH, "late": LENGTH})
    failed = sorted((fault.rid, fault.status) for _, fault in rig.faults)
    assert (failed, rig.said("good").text) == ([("bad", 500), ("late", 500)], "xx")


@pytest.mark.parametrize("shards", [2, 3])
def test_each_row_belongs_to_one_shard(shards: int) -> None:
    rids = [f"request-{n}" for n in range(20)]
    rigs = [Rig(index=index, shards=shards) for index in range(shards)]
    for rid in rids:
        rigs[zlib.crc32(rid.encode()) % shards].open(rid)
    for rig in rigs:
        rig.step({rid: byte_ids(b"a") for rid in rids})
        rig.step({rid: byte_ids(b"b") for rid in rids}, dict.fromkeys(rids, LENGTH))
    assert [sum(rid in rig.heard for rig in rigs) for rid in rids] == [1] * len(rids)


def test_rows_of_other_shards_do_not_wait() -> None:
    rids = [f"request-{n}" for n in range(20)]
    rig = Rig(index=0, shards=2)
    rig.step({rid: byte_ids(b"a") for rid in rids})
    assert rig.core.waiting == sum(zlib.crc32(rid.encode()) % 2 == 0 for rid in rids)


@pytest.mark.parametrize("fields", [{}, {"stop": ["b"]}, {"stream": False}])
def test_a_request_in_two_rows_of_a_frame_ends_once(fields: dict[str, Any]) -> None:
    rig = Rig()
    rig.open(**fields)
    rig.open("other")
    ends = [LENGTH, LENGTH, None]
    rig.step_raw(["r", "r", "other"], array("q", byte_ids(b"bbx")), [1, 1, 1], ends)
    assert (rig.said("other").text, len(rig.core)) == ("x", 1)


def test_the_memory_of_closed_requests_is_bounded() -> None:
    closed = ClosedRids(limit=2)
    for rid in ("a", "b", "a", "c"):
        closed.add(rid, Closed.STOPPED)
    assert [closed.get(rid) for rid in ("a", "b", "c")] == [Closed.STOPPED, None, Closed.STOPPED]


def test_the_memory_of_waiting_rows_is_bounded() -> None:
    waiting = WaitingRows(5.0, limit=2)
    given_up = [waiting.put(rid, Row([1]), 0.0) for rid in ("a", "b", "b")]
    assert (given_up, len(waiting.take("b"))) == ([[], [], ["a"]], 2)


def test_an_announcement_needs_only_its_request_id() -> None:
    rig = Rig()
    rig.core.open([OpenItem(rid="r")], 0.0)
    assert rig.run(byte_ids(b"a")).text == "a"


@pytest.mark.parametrize("other", [2, 3], ids=["all rows as many", "one row more"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
def test_tokens_of_steps_with_several_each_are_counted(other: int, stream: bool) -> None:
    rig = Rig()
    for rid in ("a", "b"):
        rig.open(rid, stream=stream)
    ids = byte_ids(b"hello world")
    rig.step({"a": ids[:2], "b": ids[:other]})
    rig.step({"a": ids[2:4], "b": ids[other : 2 * other]})
    rig.step({"a": ids[4:5], "b": ids[2 * other : 2 * other + 1]}, {"a": LENGTH, "b": LENGTH})
    assert [rig.said(rid).text for rid in ("a", "b")] == ["hello", "hello world"[: 2 * other + 1]]
    ends = [rig.said(rid).end for rid in ("a", "b")]
    assert [end.completion_tokens for end in ends if end is not None] == [5, 2 * other + 1]


# ---------------------------------------------------------------- requests of nobody
def test_an_announcement_of_an_earlier_life_of_its_api_process_is_refused() -> None:
    rig = Rig()
    rig.core.lives.greeted(0, 5)
    rig.open("old", life=4)
    assert [(fault.rid, fault.status, fault.type) for _, fault in rig.faults] == [("old", 503, STALE)]
    assert [(abort.rid, abort.reason) for abort in rig.aborts] == [("old", "lost")]
    assert len(rig.core) == 0


def test_an_announcement_of_a_new_life_may_come_before_its_greeting() -> None:
    rig = Rig()
    rig.core.lives.greeted(0, 5)
    rig.open("new", life=6)
    assert (len(rig.core), rig.faults) == (1, [])


def test_requests_of_a_new_life_survive_the_end_of_the_old_one() -> None:
    rig = Rig()
    rig.open("old", life=4)
    rig.open("new", life=5)
    rig.open("other", api=1, life=4)
    rig.core.forget_api(0, but=5)
    rig.listen()
    assert [abort.rid for abort in rig.aborts] == ["old"]
    assert len(rig.core) == 2


def test_requests_without_a_row_are_asked_about_from_the_second_look_on() -> None:
    rig = Rig()
    rig.open("a")
    rig.open("b", api=1, stream=False)
    assert rig.core.unheard() == {}
    rig.open("c")
    assert rig.core.unheard() == {0: ["a"], 1: ["b"]}
    assert rig.core.unheard() == {0: ["a", "c"], 1: ["b"]}


@pytest.mark.parametrize("stream", [True, False])
def test_requests_with_a_row_are_not_asked_about(stream: bool) -> None:
    rig = Rig()
    rig.open("a", stream=stream)
    rig.open("b", stream=stream)
    rig.core.unheard()
    rig.step({"a": byte_ids(b"a")})
    assert rig.core.unheard() == {0: ["b"]}
    rig.step({"b": byte_ids(b"b")})
    assert rig.core.unheard() == {}


def test_requests_that_wait_in_a_long_queue_stay() -> None:
    rig = Rig()
    rig.open()
    for at in range(100):
        rig.core.unheard()
        rig.tick(10.0 * at)
    assert rig.run(byte_ids(b"ab")).text == "ab"


def test_rows_that_wait_for_their_announcement_do_not_survive_a_gap() -> None:
    rig = Rig()
    rig.step({"r": byte_ids(b"a")})
    rig.core.fail_all("a part of the output was lost")
    rig.open("r")
    rig.listen()
    assert [fault.status for _, fault in rig.faults] == [503]
    assert ([abort.rid for abort in rig.aborts], rig.core.waiting, rig.said("r").end) == (["r"], 0, None)
