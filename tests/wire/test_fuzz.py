"""Every reader against frames that no sender makes: `PeerError` or an object, nothing else, and little memory.

The examples are the same in every run.
"""

from __future__ import annotations

import resource
import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.batch import EmbeddingBatch, FlatFamily, GenerationBatch, HiddenFamily, RaggedFamily
from forebay.errors import PeerError, SettingsError
from forebay.facts import make_blob, read_blob
from forebay.wire import control, ingress
from forebay.wire.deltas import Deltas, decode_deltas, encode_deltas
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder, EgressFrame
from forebay.wire.embeddings import decode_embeddings, encode_embeddings, vectors_of
from forebay.wire.frames import PREFIX, VERSION, Kind, kind_of, pack_frame
from forebay.wire.messages import (
    AbortRequest,
    Admitted,
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
from forebay.wire.replay import (
    Claim,
    Replay,
    decode_claim,
    decode_replay,
    encode_claim,
    encode_replay,
    pick_opens,
)

MEGABYTE = 1 << 20
HUGE = [0xFFFFFFFF, 1 << 20]
fuzz = settings(max_examples=25, derandomize=True, deadline=None, database=None)


@pytest.fixture(scope="module", autouse=True)
def _little_memory() -> Iterator[None]:
    """A frame of a few hundred bytes that makes its reader ask for 256 MB ends in `MemoryError`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 256 * MEGABYTE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def step(form: str) -> GenerationBatch:
    """A step with every family, as lists or as arrays."""
    flat, ragged = (
        FlatFamily([[-0.5, None]], [[2, 3]], rows=[1]),
        RaggedFamily([[[1.0], None]], [[[2], None]], rows=[0]),
    )
    hidden = HiddenFamily([[[0.5, 1.5]], [[2.5, 3.5]]])
    if form == "arrays":
        flat = FlatFamily(np.ones(3, "f4"), np.ones(3, "i8"), rows=[0, 1], lens=[1, 2])
        ragged = RaggedFamily(np.ones(3, "f2"), np.ones(3, "i4"), rows=[0], lens=[2], pos_lens=[0, 3])
        hidden = HiddenFamily(np.ones((2, 3), "f8"))
    return GenerationBatch(
        ["a", "b"],
        [array("q", [1]), array("q", [2, 3])],
        [None, {"type": "length", "length": 2}],
        [4, 5],
        None,
        [0, 1],
        [0, 0],
        flat,
        flat,
        ragged,
        ragged,
        ragged,
        ragged,
        hidden,
        {"weight_versions": ["v", "v"]},
    )


def walk(frame: EgressFrame) -> EgressFrame:
    """Read everything that a frame holds."""
    for family in frame.families:
        if family is not None:
            list(family.items())
    return frame


def read_egress(frame: bytes) -> Any:
    return walk(EgressDecoder().decode(frame))


def read_replay(frame: bytes) -> Any:
    replay = decode_replay(frame)
    return pick_opens(replay.opens, replay.rids)


HEAD = RequestHead(rid="r", public_rid="p", sampling=SamplingParams(stop=["x"], logit_bias={5: 1.5}), extra={"a": [1]})
FRAMES: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "work": (
        ingress.encode_work([WorkItem(head=HEAD, rids=["r"], open=OpenItem(rid="r"))], [array("q", [1])]),
        ingress.decode_work,
    ),
    "admit": (ingress.encode_admit([HEAD, HEAD], [array("q", [1, 2]), array("q", [3])]), ingress.decode_admit),
    "admit, own type": (
        ingress.encode_admit([HEAD], [array("q", [1])]),
        lambda frame: ingress.decode_admit(frame, lambda head, ids: msgspec.msgpack.decode(head)[0]),
    ),
    "admit, rids": (ingress.encode_admit([HEAD], [array("q", [1])]), ingress.rids_of),
    "egress, lists": (EgressEncoder(1).encode(step("lists")), read_egress),
    "egress, arrays": (EgressEncoder(1).encode(step("arrays")), read_egress),
    "deltas": (
        encode_deltas(
            Deltas(
                1,
                9,
                4,
                ["a", "b"],
                ["x", "y"],
                [1, 2],
                True,
                [(1, Extra(output_logprobs=Pairs([-0.5], [7])))],
                [End(rid="c", reason={"type": "stop"})],
                array("q", [1, 2, 3]).tobytes(),
                [(0, 5, 0)],
            )
        ),
        decode_deltas,
    ),
    "embeddings": (
        encode_embeddings(vectors_of(EmbeddingBatch(["a", "b"], [[0.5, 1.5], [2.5]], [3, 4]))),
        decode_embeddings,
    ),
    "opens": (control.encode_opens([OpenItem(rid="r", stop=["a"], prompt_tail=[1])]), control.decode_opens),
    "aborts": (control.encode_aborts([AbortRequest("r", "stop")]), control.decode_aborts),
    "faults": (control.encode_faults([RequestFault("r", 400, "no", "t", "p")]), control.decode_faults),
    "control": (control.encode_control(ControlRequest("r", 0, "X", {"a": [1, {"b": None}]})), control.decode_control),
    "reply": (control.encode_reply("r", {"ok": [True, 1.5, b"x"]}), control.decode_reply),
    "hello": (
        control.encode_hello(Hello(role="engine", index=0, incarnation=1, pid=2, version="v", blob=b"{}")),
        control.decode_hello,
    ),
    "admitted": (control.encode_admitted([Admitted(rid="r", prompt_ids=b"\0" * 8)]), control.decode_admitted),
    "unheard": (control.encode_unheard(Unheard(1, ["r", "s"])), control.decode_unheard),
    "mark": (control.encode_mark(Mark("api", 1, 7, 1 << 40)), control.decode_mark),
    "taken": (control.encode_taken(Mark("api", 1, 7, 1 << 40)), control.decode_taken),
    "claim": (encode_claim(Claim(0, 1, 7, 9, ["a"], ["b", "c"])), decode_claim),
    "replay": (
        encode_replay(Replay("begin", ["r"], [msgspec.msgpack.encode([OpenItem(rid="r")])], {0: 9}, ["r"])),
        read_replay,
    ),
}
readers = pytest.mark.parametrize("name", FRAMES)


def survives(read: Callable[[bytes], Any], frame: bytes) -> None:
    """The reader takes the frame or calls it bad."""
    try:
        read(frame)
    except PeerError:
        return


def flip(frame: bytes, bits: list[int]) -> bytes:
    out = bytearray(frame)
    for bit in bits:
        out[bit // 8 % len(out)] ^= 1 << bit % 8
    return bytes(out)


def reframed(frame: bytes, header: bytes, columns: bytes) -> bytes:
    return PREFIX.pack(frame[0], VERSION, 0, len(header)) + header + columns


def parts(frame: bytes) -> tuple[bytes, bytes]:
    end = PREFIX.size + int.from_bytes(frame[4:8], "little")
    return frame[PREFIX.size : end], frame[end:]


@readers
@fuzz
@given(bits=st.lists(st.integers(0, 1 << 14), min_size=1, max_size=6))
def test_flipped_bits(name: str, bits: list[int]) -> None:
    frame, read = FRAMES[name]
    survives(read, flip(frame, bits))


@readers
@fuzz
@given(header=st.binary(max_size=64), columns=st.binary(max_size=32))
def test_random_header_and_columns(name: str, header: bytes, columns: bytes) -> None:
    frame, read = FRAMES[name]
    survives(read, reframed(frame, header, columns))


@readers
@fuzz
@given(start=st.integers(0, 400), length=st.integers(0, 12), new=st.binary(max_size=12))
def test_header_with_a_piece_exchanged(name: str, start: int, length: int, new: bytes) -> None:
    frame, read = FRAMES[name]
    header, columns = parts(frame)
    at = start % (len(header) + 1)
    survives(read, reframed(frame, header[:at] + new + header[at + length :], columns))


@readers
@pytest.mark.parametrize("code", [0xDD, 0xDF, 0xDB, 0xC6, 0xC9], ids=["array", "map", "text", "bytes", "extension"])
def test_claimed_length_is_not_believed(name: str, code: int) -> None:
    frame, read = FRAMES[name]
    header, columns = parts(frame)
    for claim in HUGE:
        for at in range(len(header)):
            survives(
                read, reframed(frame, header[:at] + bytes([code]) + struct.pack(">I", claim) + header[at:], columns)
            )


plain = st.none() | st.booleans() | st.integers(-2, 1 << 40) | st.floats(allow_nan=True) | st.text(max_size=3)
values = st.recursive(
    plain | st.sampled_from(["f", "i", "q", "e", "stop", "type"]),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("name", ["work", "admit", "egress, lists", "deltas", "embeddings"])
@fuzz
@given(header=st.lists(values, max_size=12), columns=st.binary(max_size=32))
def test_well_formed_header_of_any_shape(name: str, header: list[Any], columns: bytes) -> None:
    frame, read = FRAMES[name]
    survives(read, reframed(frame, msgspec.msgpack.encode(header), columns))


@pytest.mark.parametrize("name", ["egress, lists", "egress, arrays", "deltas"])
@fuzz
@given(field=st.integers(0, 11), inner=st.integers(0, 7), leaf=st.integers(0, 8), value=values)
def test_one_value_of_a_step_exchanged(name: str, field: int, inner: int, leaf: int, value: Any) -> None:
    frame, read = FRAMES[name]
    header, columns = parts(frame)
    whole = place = msgspec.msgpack.decode(header)
    for at in (field, inner):
        if isinstance(place[at % len(place)], list) and place[at % len(place)]:
            place = place[at % len(place)]
    place[leaf % len(place)] = value
    survives(read, reframed(frame, msgspec.msgpack.encode(whole), columns))


@readers
def test_nesting_without_end(name: str) -> None:
    frame, read = FRAMES[name]
    for opening in (b"\x91", b"\x81\xa1a", b"\x92\xa1r", b"\x94\xa1r\x00\xa1t\x81\xa1a"):
        survives(read, reframed(frame, opening * 100_000, b""))
        survives(read, reframed(frame, opening + b"\x91" * 100_000, b""))


@fuzz
@given(frame=st.binary(max_size=24))
def test_kind_of_random_bytes(frame: bytes) -> None:
    survives(kind_of, frame)


@fuzz
@given(bits=st.lists(st.lists(st.integers(0, 1 << 12), max_size=3), max_size=6))
def test_reader_that_met_bad_frames_reads_the_next_full_one(bits: list[list[int]]) -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    for flips in bits:
        survives(lambda frame: walk(decoder.decode(frame)), flip(encoder.encode(step("lists")), flips))
    encoder.send_full()
    frame = walk(decoder.decode(encoder.encode(step("lists"))))
    assert (frame.rids, frame.prompt_tokens) == (["a", "b"], [4, 5])


BLOB = make_blob({"context_length": 64, "eos_token_ids": [1], "model_config": {"a": 1.5}, "stop_match": "front"})


@fuzz
@given(bits=st.lists(st.integers(0, 8 * len(BLOB) - 1), min_size=1, max_size=4))
def test_launch_facts_with_flipped_bits(bits: list[int]) -> None:
    try:
        read_blob(flip(BLOB, bits))
    except SettingsError:
        return


@fuzz
@given(facts=st.dictionaries(st.sampled_from(["context_length", "eos_token_ids", "model_config", "x"]), values))
def test_launch_facts_of_any_shape(facts: dict[str, Any]) -> None:
    try:
        make_blob(facts)
    except SettingsError:
        return


def test_frame_larger_than_it_says_is_no_surprise() -> None:
    survives(read_egress, pack_frame(Kind.EGRESS, msgspec.msgpack.encode([1, 1, 1 << 40, ["a"]]), [b"\0" * 8]))
