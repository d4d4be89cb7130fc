"""Admit frames: every request gets its own ids, a bad one is refused by name and does not disturb the others."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from forebay.errors import PeerError
from forebay.wire import ingress
from forebay.wire.frames import Kind, pack_frame
from forebay.wire.messages import GenerateRequest, RequestHead, RequestName, SamplingParams

HEADS = [RequestHead(rid=name) for name in "abc"]


def raw_admit(lengths: list[int], heads: list[Any], ids: array[int]) -> bytes:
    return pack_frame(Kind.ADMIT, msgspec.msgpack.encode((lengths, heads, b"")), [ids.tobytes()])


def bad(**fields: Any) -> list[Any]:
    """The head of a request `bad` with these fields, whatever their types."""
    whole = msgspec.to_builtins(RequestHead(rid="bad"))
    for name, value in fields.items():
        whole[RequestHead.__struct_fields__.index(name)] = value
    return list(whole)


def test_each_request_gets_its_own_ids() -> None:
    frame = ingress.encode_admit(HEADS, [array("q", [1]), array("q"), array("q", [2, 3])])
    names, requests, faults, _ = ingress.decode_admit(frame)
    assert [(r.rid, r.input_ids.tolist()) for r in requests] == [("a", [1]), ("b", []), ("c", [2, 3])]
    assert names is requests
    assert faults == []


def test_bad_head_in_the_middle_does_not_shift_its_neighbours() -> None:
    frame = raw_admit([1, 2, 1], [HEADS[0], bad(token_ids_logprob=[[0]]), HEADS[2]], array("q", [1, 7, 7, 3]))
    found = ingress.decode_admit(frame)
    assert [(r.rid, r.input_ids.tolist()) for r in found.requests] == [("a", [1]), ("c", [3])]
    assert [name.rid for name in found.names] == ["a", "c"]
    assert [(fault.rid, fault.status) for fault in found.faults] == [("bad", 400)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"token_ids_logprob": [[0]]}, "Expected `int`, got `array` - at `token_ids_logprob[0]`"),
        ({"api": "x"}, "Expected `int`, got `str` - at `api`"),
        ({"sampling": [1, 2, "hot"]}, "Expected `float`, got `str` - at `sampling.temperature`"),
        ({"sampling": 5}, "Expected `array`, got `int` - at `sampling`"),
        ({"extra": [1]}, "Expected `object | null`, got `array` - at `extra`"),
    ],
)
def test_reason_names_the_field(fields: dict[str, Any], reason: str) -> None:
    found = ingress.decode_admit(raw_admit([0], [bad(**fields)], array("q")))
    assert found.faults[0].message.startswith(f"invalid request: {reason}")


@pytest.mark.parametrize("head", [[5], [], 7, None, "x", {}, [None, 0]])
def test_head_without_a_readable_rid_is_a_fault_without_a_rid(head: Any) -> None:
    found = ingress.decode_admit(raw_admit([0], [head], array("q")))
    assert [fault.rid for fault in found.faults] == [""]


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [3, -1], [0, 0], [1 << 62, 1 << 62]])
def test_lengths_that_do_not_fit_the_ids_refuse_the_frame(lengths: list[int]) -> None:
    frame = raw_admit(lengths, HEADS[:2], array("q", [1, 2]))
    with pytest.raises(PeerError):
        ingress.decode_admit(frame)
    assert ingress.rids_of(frame) == ["a", "b"]


def test_frame_without_readable_rids_has_none() -> None:
    assert [ingress.rids_of(frame) for frame in (b"", b"x" * 20, pack_frame(Kind.ADMIT, b"\xc1"))] == [[], [], []]


def test_engine_may_bring_its_own_request_type() -> None:
    frame = ingress.encode_admit([RequestHead(rid="a", api=3, attempt=1, public_rid="p")], [array("q", [4, 5])])
    found = ingress.decode_admit(frame, lambda head, ids: (len(head) > 0, ids.tolist()))
    assert found.requests == [(True, [4, 5])]
    assert found.names == [RequestName(rid="a", api=3, attempt=1, public_rid="p")]


class Unlucky(Exception):
    """What an engine's decoder may raise."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("no mm_inputs"), "no mm_inputs"), (ValueError(), "ValueError"), (Unlucky("x"), "Unlucky: x")],
)
def test_decoder_that_fails_refuses_its_request_only(error: Exception, reason: str) -> None:
    def decode(head: memoryview, ids: array[int]) -> str:
        if ids[0] == 2:
            raise error
        return "fine"

    frame = ingress.encode_admit(HEADS, [array("q", [n]) for n in (1, 2, 3)])
    found = ingress.decode_admit(frame, decode)
    assert (found.requests, [name.rid for name in found.names]) == (["fine", "fine"], ["a", "c"])
    assert [(fault.rid, fault.message) for fault in found.faults] == [("b", f"invalid request: {reason}")]


def test_greedy_decoding_travels_as_it_is() -> None:
    sampling = SamplingParams(top_k=1, logit_bias={5: -1.0}, stop=["\n\n"])
    frame = ingress.encode_admit([RequestHead(rid="a", sampling=sampling)], [array("q")])
    assert ingress.decode_admit(frame).requests[0].sampling == sampling


def test_a_request_without_ids_shares_an_array_that_cannot_grow() -> None:
    with pytest.raises(BufferError):
        GenerateRequest(rid="a").input_ids.append(1)
    assert not len(GenerateRequest(rid="b").input_ids)


@pytest.mark.parametrize("lengths", [[-1], [1], [3], [2, 0], []])
def test_a_single_request_whose_length_does_not_fit_is_refused(lengths: list[int]) -> None:
    with pytest.raises(PeerError):
        ingress.decode_own(raw_admit(lengths, HEADS[:1], array("q", [1, 2])))
