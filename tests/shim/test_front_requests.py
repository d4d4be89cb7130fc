"""The engine link, requests on their way in: waiting, draining, requests that cannot be read.

Where each behaviour of the engine link is tested (`Lnn`: the rows of the list that the link was written from; `test_`
names without a file stand in this one):

| row | test |
|---|---|
| L1 | tests/processes/test_serve.py |
| L2 | test_front_life.py: `test_only_rank_0_launches_and_only_when_the_switch_is_on` |
| L3, L4 | test_affinity.py; test_front_launch.py |
| L5, L6 | test_front_launch.py: `test_thread_is_narrowed_only_after_the_services_and_the_links_are_there`, |
|    | `test_parallelism_of_tokenizers_is_set_only_where_it_is_unset` |
| L7 | `test_wait_ends_when_a_request_arrives`, `test_wait_lets_go_of_the_interpreter_lock`, |
|    | `test_wait_without_anything_ends_in_time`, `test_wait_has_two_names` |
| L8 | `test_drain_of_an_idle_front_is_empty`, `test_drain_gives_256_at_most_and_the_rest_in_order`, |
|    | `test_drain_limit_can_be_chosen` |
| L9 | `test_each_request_has_its_own_ids_as_int64`; tests/wire/test_admit.py |
| L10 | `test_decoder_of_the_engine_makes_its_own_type`, `test_request_of_a_foreign_type_keeps_its_owner` |
| L11, L12 | `test_bad_head_in_the_middle_is_answered_and_its_neighbours_are_not_touched`, |
|     | `test_head_without_a_rid_is_one_warning`, `test_ids_that_do_not_fit_answer_every_request_of_the_frame` |
| L13, L14 | test_front_calls.py |
| L15 | test_front_calls.py: `test_struct_is_answered_as_a_map_of_its_fields`; tests/processes/test_serve.py |
| L16 | test_front_results.py: `test_step_is_one_frame_for_every_shard` |
| L17, L18, L20 - L29 | tests/wire/test_egress.py, test_families.py; |
|     | test_front_results.py: `test_families_reach_the_detokenizer` |
| L19 | `test_rid_may_be_any_text`; test_front_aborts.py |
| L30 | test_facts.py; test_front_life.py: `test_greeting_carries_the_launch_facts` |
| L31 | tests/api/test_sampling.py |
| L32 | test_front_losses.py; test_front_life.py: `test_output_after_the_end_is_one_warning_with_its_count` |
| L33 | test_front_calls.py: `test_error_of_one_request_reaches_its_own_api_process` |
| L34 | test_front_results.py: `test_abort_outside_the_output_is_a_row_without_tokens` |
| L35 | test_front_calls.py: `test_health_ack_reaches_every_api_process` |
| L36 | test_front_launch.py: `test_line_in_the_log_says_where_it_serves` |
| L37 | test_listen.py |
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from typing import Any

import msgspec
import pytest

from forebay import AbortRequest, ControlRequest
from forebay.topology import Peer
from forebay.wire import control, ingress
from forebay.wire.frames import VERSION, Kind, pack_frame
from forebay.wire.messages import Ids, RequestFault, SamplingParams
from tests.shim.front_rig import LIFE, TOKENIZER, head, rig, until


def rids(entries: list[Any]) -> list[str]:
    return [entry.rid for entry in entries]


def bad_head(rid: str) -> list[Any]:
    """A head whose `token_ids_logprob` is `[[0]]`."""
    return [rid, 0, LIFE, 0, None, SamplingParams(), False, True, -1, 0, [[0]]]


def raw_admit(heads: list[Any], lengths: list[int] | None = None, ids: int | None = None) -> bytes:
    lengths = [1] * len(heads) if lengths is None else lengths
    column = array("q", range(sum(lengths) if ids is None else ids))
    return pack_frame(Kind.ADMIT, msgspec.msgpack.encode((lengths, heads, b"")), [column.tobytes()])


# ---------------------------------------------------------------- waiting
def test_wait_ends_when_a_request_arrives() -> None:
    with rig() as r:
        r.admit(head("a"))
        began = time.monotonic()
        assert r.front.wait_ingress(5_000)
        assert time.monotonic() - began < 2


def test_wait_without_anything_ends_in_time() -> None:
    with rig() as r:
        assert not r.front.wait_ingress(10)


def test_wait_of_a_negative_time_is_none() -> None:
    with rig() as r:
        assert not r.front.wait_ingress(-1)


def test_wait_ends_at_once_while_entries_are_left() -> None:
    with rig() as r:
        r.admit(head("a"), head("b"))
        until(lambda: r.front.wait_ingress(1) and r.front.drain(1), "the first request")
        began = time.monotonic()
        assert r.front.wait_ingress(5_000)
        assert time.monotonic() - began < 2


def test_wait_has_two_names() -> None:
    with rig() as r:
        r.admit(head("a"))
        assert r.front.wait_request(5_000)


def test_change_of_a_link_alone_is_nothing_to_drain() -> None:
    with rig() as r:
        r.stop(TOKENIZER)
        until(lambda: r.front.wait_ingress(1) or not r.up(TOKENIZER), "the end of the link")
        assert not r.front.wait_ingress(0)


def test_wait_lets_go_of_the_interpreter_lock() -> None:
    with rig() as r:
        count, stop = [0], threading.Event()

        def work() -> None:
            while not stop.is_set():
                count[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            before = count[0]
            r.front.wait_ingress(50)
            assert count[0] - before > 1000
        finally:
            stop.set()
            thread.join()


# ---------------------------------------------------------------- draining
def test_drain_of_an_idle_front_is_empty() -> None:
    with rig() as r:
        assert r.front.drain() == []


def test_drain_gives_256_at_most_and_the_rest_in_order() -> None:
    with rig() as r:
        names = [f"r{i}" for i in range(300)]
        r.admit(*map(head, names))
        first = until(lambda: r.front.wait_ingress(1) and r.front.drain(), "the first requests")
        assert isinstance(first, list)
        assert (len(first), rids(first) + rids(r.front.drain())) == (256, names)


def test_drain_limit_can_be_chosen() -> None:
    with rig() as r:
        r.admit(head("a"), head("b"), head("c"))
        found = until(lambda: r.front.wait_ingress(1) and r.front.drain(2), "the first requests")
        assert isinstance(found, list)
        assert (rids(found), rids(r.front.drain(2)), r.front.drain(2)) == (["a", "b"], ["c"], [])


def test_frames_without_entries_do_not_keep_a_drain_going() -> None:
    with rig() as r:
        for _ in range(600):
            r.send(TOKENIZER, b"garbage")
        r.admit(head("a"))
        until(lambda: r.front.wait_ingress(1) and r.front.drain(1) is not None and r.front.bad_frames, "the garbage")
        before = r.front.bad_frames
        r.front.drain(1)
        assert r.front.bad_frames - before <= 257
        assert rids(r.drain(1)) == ["a"]


def test_each_request_has_its_own_ids_as_int64() -> None:
    with rig() as r:
        r.admit(head("a"), head("b"), ids=[array("q", [1, 2]), array("q", [1 << 40])])
        found = [entry.input_ids for entry in r.drain(2)]
        assert found == [array("q", [1, 2]), array("q", [1 << 40])]
        assert {ids.typecode for ids in found} == {"q"}


def test_entries_of_all_kinds_come_in_order() -> None:
    with rig() as r:
        r.run(head("a"))
        api = Peer("api", 0)
        r.send(api, control.encode_aborts([AbortRequest("a")]))
        r.send(api, ingress.encode_admit([head("b")], [array("q")]))
        assert [(type(entry).__name__, entry.rid) for entry in r.drain(2)] == [
            ("AbortRequest", "a"),
            ("GenerateRequest", "b"),
        ]


def test_rid_may_be_any_text() -> None:
    with rig() as r:
        names = ["\x00", "a b\n", "\U0001f600", "$[0]", "x" * 4096]
        r.admit(*map(head, names))
        assert rids(r.drain(len(names))) == names


def test_request_that_is_sent_again_is_taken_once() -> None:
    with rig() as r:
        r.run(head("a"))
        r.admit(head("a", attempt=1), head("b", attempt=1))
        assert rids(r.drain(1)) == ["b"]


def test_request_that_is_sent_again_after_its_end_is_left_out() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_error("a", "no")
        r.admit(head("a", attempt=1))
        assert r.settle() == []


def test_idle_polling_leaves_nothing_behind() -> None:
    import sys

    with rig() as r:
        counts = []
        for _ in range(3):
            for _ in range(2_000):
                r.front.wait_ingress(0)
                r.front.drain()
            counts.append(sys.getallocatedblocks())
        assert counts[2] - counts[1] < 100


# ---------------------------------------------------------------- requests that cannot be read
def test_bad_head_in_the_middle_is_answered_and_its_neighbours_are_not_touched() -> None:
    with rig() as r:
        r.send(TOKENIZER, raw_admit([head("a"), bad_head("bad"), head("c")], [1, 2, 1]))
        found = r.drain(2)
        assert [(entry.rid, entry.input_ids.tolist()) for entry in found] == [("a", [0]), ("c", [3])]
        (fault,) = r.faults()
        assert (fault.rid, fault.status) == ("bad", 400)
        assert fault.message == "invalid request: Expected `int`, got `array` - at `token_ids_logprob[0]`"


def test_reason_names_a_sampling_parameter() -> None:
    with rig() as r:
        r.send(TOKENIZER, raw_admit([["bad", 0, LIFE, 0, None, [5, 0, "hot"]]]))
        assert r.settle() == []
        assert r.faults()[0].message == "invalid request: Expected `float`, got `str` - at `sampling.temperature`"


def test_head_without_a_rid_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with rig() as r:
        r.send(TOKENIZER, raw_admit([[5], head("b")]))
        assert rids(r.drain(1)) == ["b"]
        assert [record.levelno for record in caplog.records if "cannot be decoded" in record.message] == [
            logging.WARNING
        ]
        assert r.hears_nothing(Kind.ERROR)


def test_refusal_reaches_every_api_process_since_the_owner_cannot_be_read() -> None:
    with rig(apis=2) as r:
        r.send(TOKENIZER, raw_admit([bad_head("bad")]))
        assert r.settle() == []
        assert [r.faults(api)[0].rid for api in (0, 1)] == ["bad", "bad"]


def test_ids_that_do_not_fit_answer_every_request_of_the_frame() -> None:
    with rig() as r:
        r.send(TOKENIZER, raw_admit([head("a"), head("b")], [1, 2], ids=2))
        assert r.settle() == []
        assert [(fault.rid, fault.status) for _ in "ab" for fault in r.faults()] == [("a", 500), ("b", 500)]
        assert r.front.bad_frames == 1


class OwnRequest(msgspec.Struct):
    """What some engine calls a request."""

    rid: str
    ids: Ids


def own_decoder(header: memoryview, ids: Ids) -> OwnRequest:
    fields = msgspec.msgpack.decode(header)
    if fields[0] == "broken":
        raise KeyError("mm_inputs")
    return OwnRequest(fields[0], ids)


def test_decoder_of_the_engine_makes_its_own_type() -> None:
    with rig(connected=False) as r:
        r.connect(decoder=own_decoder)
        r.link_up()
        r.admit(head("a"), ids=[array("q", [4, 5])])
        assert r.drain(1) == [OwnRequest("a", array("q", [4, 5]))]


def test_decoder_that_fails_costs_one_request() -> None:
    with rig(connected=False) as r:
        r.connect(decoder=own_decoder)
        r.link_up()
        r.admit(head("a"), head("broken"), head("c"))
        assert rids(r.drain(2)) == ["a", "c"]
        assert r.faults() == [RequestFault("broken", 400, "invalid request: KeyError: 'mm_inputs'")]


def test_request_of_a_foreign_type_keeps_its_owner() -> None:
    with rig(apis=2, connected=False) as r:
        r.connect(decoder=own_decoder)
        r.link_up()
        r.admit(head("a", api=1))
        r.drain(1)
        r.front.push_error("a", "no")
        assert r.faults(api=1)[0].rid == "a"


def test_foreign_type_that_is_sent_again_is_taken_once() -> None:
    with rig(connected=False) as r:
        r.connect(decoder=own_decoder)
        r.link_up()
        r.run(head("a"))
        r.admit(head("a", attempt=1))
        assert r.settle() == []


# ---------------------------------------------------------------- strangers
@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x80\x04N.",
        bytes([Kind.ADMIT, VERSION + 1]) + raw_admit([head("a")])[2:],
        pack_frame(Kind.ADMIT, b"\xc1"),
        pack_frame(Kind.DELTAS, b""),
        control.encode_control(ControlRequest("", 0, "FlushCache")),
    ],
    ids=["empty", "pickle", "other version", "no msgpack", "wrong kind", "call without a rid"],
)
def test_frame_that_has_no_business_here_is_counted_and_dropped(frame: bytes) -> None:
    with rig() as r:
        r.send(TOKENIZER, frame)
        assert r.settle() == []
        assert r.front.bad_frames == 1
