"""Every frame both ways, then every prefix of it, a tail, another version, another kind: the right error each time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from forebay.batch import FlatFamily, GenerationBatch, HiddenFamily, RaggedFamily
from forebay.errors import PeerError, WireError
from forebay.wire import control, ingress
from forebay.wire.deltas import Deltas, decode_deltas, encode_deltas
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder, EgressFrame
from forebay.wire.frames import VERSION, Kind, kind_of, open_frame, pack_frame
from forebay.wire.messages import (
    AbortRequest,
    Admitted,
    ChatPrompt,
    ControlReply,
    ControlRequest,
    End,
    Extra,
    Hello,
    Mark,
    OpenItem,
    Pairs,
    RequestFault,
    RequestHead,
    SamplingParams,
    Unheard,
    WorkItem,
)

HEAD = RequestHead(rid="r", sampling=SamplingParams(stop=["x"], logit_bias={5: 1.5}), extra={"a": [1, None]})
WORK = WorkItem(head=HEAD, rids=["r", "s"], open=OpenItem(rid="r"), chat=ChatPrompt(messages=b'[{"role":"user"}]'))
DELTAS = Deltas(
    source=1,
    epoch=9,
    seq=4,
    rids=["a", "b"],
    texts=["x", "\U0001f600"],
    lens=[1, 2],
    has_ids=True,
    extras=[(1, Extra(output_logprobs=Pairs([-0.5, None], [7, 8]), token_bytes={7: b"\xff"}))],
    ends=[End(rid="c", reason={"type": "stop", "matched": 2}, text="end", ids=array("q", [2]).tobytes())],
    ids=array("q", [1, 2, 3]).tobytes(),
    starts=[(0, 5, 0)],
)


def batch() -> GenerationBatch:
    return GenerationBatch(
        rids=["a", "b"],
        output_ids=[array("q", [1]), array("q", [2, 3])],
        finish_reasons=[None, {"type": "length", "length": 2}],
        prompt_tokens=[4, 5],
        cached_tokens=[0, 1],
        reasoning_tokens=[0, 0],
        output_token_logprobs=FlatFamily([[-0.5, None]], [[2, 3]], rows=[1]),
        output_top_logprobs=RaggedFamily(array("f", [1.0, 2.0]), array("i", [1, 2]), rows=[0], pos_lens=[2]),
        output_hidden_states=HiddenFamily([[[0.5, 1.5]], [[2.5, 3.5]]]),
        trailing={"weight_versions": ["v1", "v1"]},
    )


def read_egress(frame: bytes) -> EgressFrame:
    return EgressDecoder().decode(frame)


def read_egress_whole(frame: bytes) -> Any:
    out = read_egress(frame)
    for family in out.families:
        if family is not None:
            list(family.items())
    return out


FRAMES: list[tuple[str, bytes, Callable[[bytes], Any], Any]] = [
    ("work", ingress.encode_work([WORK], [array("q")]), ingress.decode_work, [(WORK, array("q"))]),
    (
        "opens",
        control.encode_opens([OpenItem(rid="r", stop=["a"])]),
        control.decode_opens,
        [OpenItem(rid="r", stop=["a"])],
    ),
    ("aborts", control.encode_aborts([AbortRequest("r", "stop")]), control.decode_aborts, [AbortRequest("r", "stop")]),
    (
        "faults",
        control.encode_faults([RequestFault("r", 400, "no", "t", "p")]),
        control.decode_faults,
        [RequestFault("r", 400, "no", "t", "p")],
    ),
    (
        "control",
        control.encode_control(ControlRequest("r", 0, "FlushCache", {"a": 1})),
        control.decode_control,
        ControlRequest("r", 0, "FlushCache", {"a": 1}),
    ),
    ("reply", control.encode_reply("r", {"ok": True}), control.decode_reply, ControlReply("r", {"ok": True})),
    (
        "hello",
        control.encode_hello(Hello(role="api", index=0, incarnation=1, pid=2, version="v")),
        control.decode_hello,
        Hello(role="api", index=0, incarnation=1, pid=2, version="v"),
    ),
    (
        "admitted",
        control.encode_admitted([Admitted(rid="r", prompt_ids=b"\0" * 8)]),
        control.decode_admitted,
        [Admitted(rid="r", prompt_ids=b"\0" * 8)],
    ),
    ("unheard", control.encode_unheard(Unheard(1, ["r"])), control.decode_unheard, Unheard(1, ["r"])),
    ("mark", control.encode_mark(Mark("api", 1, 7, 9)), control.decode_mark, Mark("api", 1, 7, 9)),
    ("taken", control.encode_taken(Mark("api", 1, 7, 9)), control.decode_taken, Mark("api", 1, 7, 9)),
    ("deltas", encode_deltas(DELTAS), decode_deltas, DELTAS),
]
READERS = [(name, frame, read) for name, frame, read, _ in FRAMES] + [
    ("admit", ingress.encode_admit([HEAD], [array("q", [1, 2])]), ingress.decode_admit),
    ("egress", EgressEncoder(1).encode(batch()), read_egress_whole),
]


@pytest.mark.parametrize(("name", "frame", "read", "meant"), FRAMES, ids=[case[0] for case in FRAMES])
def test_frame_says_the_same_on_both_sides(name: str, frame: bytes, read: Callable[[bytes], Any], meant: Any) -> None:
    assert read(frame) == meant


@pytest.mark.parametrize(("name", "frame", "read"), READERS, ids=[case[0] for case in READERS])
def test_every_prefix_of_a_frame_is_refused(name: str, frame: bytes, read: Callable[[bytes], Any]) -> None:
    for end in range(len(frame)):
        with pytest.raises(PeerError):
            read(frame[:end])


@pytest.mark.parametrize(("name", "frame", "read"), READERS, ids=[case[0] for case in READERS])
def test_bytes_behind_a_frame_are_refused(name: str, frame: bytes, read: Callable[[bytes], Any]) -> None:
    with pytest.raises(PeerError):
        read(frame + b"\0")


@pytest.mark.parametrize(("name", "frame", "read"), READERS, ids=[case[0] for case in READERS])
def test_another_version_of_the_wire_is_refused_by_name(name: str, frame: bytes, read: Callable[[bytes], Any]) -> None:
    other = bytes([frame[0], VERSION + 1]) + frame[2:]
    with pytest.raises(PeerError, match=f"version {VERSION + 1}"):
        read(other)


@pytest.mark.parametrize(("name", "frame", "read"), READERS, ids=[case[0] for case in READERS])
def test_a_frame_of_another_kind_is_refused(name: str, frame: bytes, read: Callable[[bytes], Any]) -> None:
    kind = Kind.OPEN if frame[0] != Kind.OPEN else Kind.ABORT
    with pytest.raises(PeerError, match="where"):
        read(bytes([kind]) + frame[1:])


@pytest.mark.parametrize("frame", [b"", b"\x01", b"\0" * 8, b"\xff\x01" + b"\0" * 6, b"(dp0\nS'x'\np1\n."])
def test_garbage_is_no_frame(frame: bytes) -> None:
    with pytest.raises(PeerError):
        kind_of(frame)


def test_header_and_columns_come_back_without_a_copy() -> None:
    frame = pack_frame(Kind.WORK, b"head", [b"ab", array("q", [1]).tobytes()])
    header, columns = open_frame(frame, Kind.WORK)
    assert (bytes(header), bytes(columns)) == (b"head", b"ab" + array("q", [1]).tobytes())


# ---------------------------------------------------------------- replies
def test_foreign_values_in_a_reply_become_text() -> None:
    reply = control.decode_reply(control.encode_reply("r", {"path": Path("/x"), "big": 1 << 70, 5: {1}}))
    assert reply.payload == {"path": "/x", "big": str(1 << 70), "5": [1]}


def test_numbers_in_a_reply_stay_numbers() -> None:
    reply = control.decode_reply(control.encode_reply("r", {"a": np.float64(0.5), "b": True, "c": -(1 << 63)}))
    assert reply.payload == {"a": 0.5, "b": True, "c": -(1 << 63)}


def test_lone_surrogate_in_a_reply_becomes_a_question_mark() -> None:
    assert control.decode_reply(control.encode_reply("r", {"\ud800": "a\udcff"})).payload == {"?": "a?"}


def test_reply_that_contains_itself_is_refused() -> None:
    payload: dict[str, Any] = {}
    payload["again"] = payload
    with pytest.raises(WireError, match="contains itself"):
        control.encode_reply("r", payload)


def test_text_that_utf_8_has_no_place_for_is_refused_by_name_of_the_frame() -> None:
    with pytest.raises(WireError, match="ERROR"):
        control.encode_faults([RequestFault("r", 400, "\ud800")])


def test_a_struct_in_a_reply_becomes_a_map_of_its_fields() -> None:
    reply = control.decode_reply(control.encode_reply("r", AbortRequest("x")))
    assert reply.payload == {"rid": "x", "reason": "client", "message": "Aborted", "abort_all": False}


@pytest.mark.parametrize(
    "change",
    [{"texts": ["x"]}, {"lens": [1]}, {"lens": [1, -1]}, {"ids": b"\0" * 8}, {"extras": [(2, Extra())]}],
)
def test_deltas_whose_columns_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        decode_deltas(encode_deltas(msgspec.structs.replace(DELTAS, **change)))
