"""Requests on their way in: api -> tokenizer (Work) and tokenizer -> engine (Admit).

Both have the header `[lengths, [item, ...]]` and one int64 column: the prompt ids of all items, one after the
other, `lengths[i]` of them for item `i`. An item that cannot be decoded does not shift its neighbours' slices.
An Admit header has a third entry: the `OpenItem`s of its requests, packed, which the link keeps as they are for a
detokenizer that has to be told of them again.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from forebay.errors import PeerError
from forebay.wire.frames import Buffer, Kind, open_frame, pack_frame
from forebay.wire.messages import (
    GenerateRequest,
    Ids,
    OpenItem,
    RequestFault,
    RequestHead,
    RequestName,
    SamplingParams,
    WorkItem,
)

RequestDecoder = Callable[[memoryview, Ids], Any]
"""Turns the msgpack header of one request and its prompt ids into the engine's own request type.

Raises for a header that it cannot read, best `msgspec.DecodeError` or `ValueError`: the client sees their text.
"""


class Arrivals(NamedTuple):
    """What an Admit frame brought. `names[i]` says whose `requests[i]` is; of our own type, a request is its name."""

    names: Sequence[RequestName]
    requests: list[Any]
    faults: list[RequestFault]
    opens: bytes = b""
    """The packed `OpenItem`s of the frame's requests (`pack_opens`); empty: they were not sent along."""


_encode = msgspec.msgpack.Encoder().encode
_decode_raw = msgspec.msgpack.Decoder(tuple[list[int], list[msgspec.Raw], bytes]).decode
_decode_work = msgspec.msgpack.Decoder(tuple[list[int], list[WorkItem]]).decode
_decode_requests = msgspec.msgpack.Decoder(tuple[list[int], list[GenerateRequest], bytes]).decode
_decode_request = msgspec.msgpack.Decoder(GenerateRequest).decode
_decode_name = msgspec.msgpack.Decoder(RequestName).decode
_decode_any = msgspec.msgpack.Decoder().decode


def encode_work(items: Sequence[WorkItem], ids: Sequence[Ids]) -> bytes:
    """One Work frame; `ids[i]` is the `array("q")` of item `i`, empty when its prompt is text or a chat."""
    return pack_frame(Kind.WORK, _encode((list(map(len, ids)), items)), ids)  # type: ignore[arg-type]


def decode_work(frame: Buffer) -> list[tuple[WorkItem, Ids]]:
    """The items of a Work frame with their ids; raises `PeerError`."""
    header, columns = open_frame(frame, Kind.WORK)
    try:
        lengths, items = _decode_work(header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"a work header cannot be read: {error}") from error
    return list(zip(items, slice_ids(lengths, columns, len(items)), strict=True))


def encode_admit(heads: Sequence[RequestHead], ids: Sequence[Ids], opens: Sequence[OpenItem] = ()) -> bytes:
    """One Admit frame: the heads and the prompt ids of each, in the same order; `opens`: what their detokenizers
    were told of them."""
    packed = _encode(opens) if opens else b""
    return pack_frame(Kind.ADMIT, _encode((list(map(len, ids)), heads, packed)), ids)  # type: ignore[arg-type]


def slice_ids(lengths: list[int], columns: memoryview, items: int) -> list[Ids]:
    """The int64 column cut into one `array("q")` an item; raises `PeerError` when the lengths do not add up."""
    if len(lengths) != items:
        raise PeerError(f"{len(lengths)} lengths came for {items} requests")
    if lengths and min(lengths) < 0:
        raise PeerError("a prompt has a negative length")
    if sum(lengths) * 8 != len(columns):
        raise PeerError(f"the prompt ids take {len(columns)} bytes where their lengths say {sum(lengths) * 8}")
    out, at = [], 0
    for length in lengths:
        end = at + 8 * length
        ids = array("q")
        ids.frombytes(columns[at:end])
        out.append(ids)
        at = end
    return out


def decode_admit(frame: Buffer, decoder: RequestDecoder | None = None) -> Arrivals:
    """The requests of an Admit frame, in order, and a fault for each that cannot be decoded.

    A fault without a rid (`rid == ""`) stands for a header whose rid cannot be read either. Raises `PeerError`
    when the frame as a whole is broken.
    """
    if decoder is None:
        own = decode_own(frame)
        if own is not None:
            return Arrivals(own[0], own[0], [], own[1])
    header, columns = open_frame(frame, Kind.ADMIT)
    try:
        lengths, raws, opens = _decode_raw(header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"an admit header cannot be read: {error}") from error
    return _one_by_one(raws, slice_ids(lengths, columns, len(raws)), decoder or _with_ids)._replace(opens=opens)


def decode_own(frame: Buffer) -> tuple[list[GenerateRequest], bytes] | None:
    """The requests of an Admit frame as our own type, and their packed `OpenItem`s; None when one of them cannot be
    decoded. Raises `PeerError`."""
    header, columns = open_frame(frame, Kind.ADMIT)
    try:
        lengths, requests, opens = _decode_requests(header)
    except (msgspec.DecodeError, RecursionError):
        return None
    if len(requests) == 1 == len(lengths) and lengths[0] * 8 == len(columns):  # mostly: 0.8 us less
        ids = array("q")
        ids.frombytes(columns)
        requests[0].input_ids = ids
        return requests, opens
    for request, ids in zip(requests, slice_ids(lengths, columns, len(requests)), strict=True):
        request.input_ids = ids
    return requests, opens


def rids_of(frame: Buffer) -> list[str]:
    """The readable request ids of an Admit frame that `decode_admit` refuses as a whole."""
    try:
        _, raws, _ = _decode_raw(open_frame(frame, Kind.ADMIT)[0])
    except (PeerError, msgspec.DecodeError, RecursionError):
        return []
    return [rid for rid in map(_rid_of, raws) if rid]


def _with_ids(header: memoryview, ids: Ids) -> GenerateRequest:
    request = _decode_request(header)
    request.input_ids = ids
    return request


def _one_by_one(raws: list[msgspec.Raw], ids: list[Ids], decoder: RequestDecoder) -> Arrivals:
    out = Arrivals([], [], [])
    names: list[RequestName] = []
    for raw, prompt in zip(raws, ids, strict=True):
        try:
            name = _decode_name(raw)
            out.requests.append(decoder(memoryview(raw), prompt))
        except Exception as error:  # the decoder is the engine's code: whatever it raises, one request is refused
            out.faults.append(RequestFault(_rid_of(raw), 400, f"invalid request: {_reason(error)}"))
        else:
            names.append(name)
    return out._replace(names=names)


def _rid_of(raw: msgspec.Raw) -> str:
    try:
        fields = _decode_any(raw)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return fields[0] if isinstance(fields, list) and fields and isinstance(fields[0], str) else ""


def _reason(error: Exception) -> str:
    """What an error says, with field numbers replaced by names: `$[5][2]` -> `sampling.temperature`."""
    if isinstance(error, (msgspec.DecodeError, ValueError)):
        return _PLACE.sub(_named, str(error)) or type(error).__name__
    return f"{type(error).__name__}: {error}"


_PLACE = re.compile(r"\$\[(\d+)\](?:\[(\d+)\])?")


def _named(place: re.Match[str]) -> str:
    fields, inner = RequestHead.__struct_fields__, place[2]
    if int(place[1]) >= len(fields):
        return place[0]
    name = fields[int(place[1])]
    if inner is None:
        return name
    if name == "sampling" and int(inner) < len(SamplingParams.__struct_fields__):
        return f"{name}.{SamplingParams.__struct_fields__[int(inner)]}"
    return f"{name}[{inner}]"
