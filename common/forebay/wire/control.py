"""The small frames: greetings, opens, aborts, errors, control calls and their answers.

Each is a msgpack header and no columns: `[[item, ...]]` for the kinds that travel in groups, one struct for the
others. Values of a control answer that msgpack does not know arrive as strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from forebay.errors import PeerError
from forebay.wire.frames import Buffer, Kind, open_frame, pack_frame
from forebay.wire.messages import (
    AbortRequest,
    Admitted,
    ControlReply,
    ControlRequest,
    Hello,
    OpenItem,
    RequestFault,
)

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder(enc_hook=str).encode
"""Foreign values (enums, paths, tensors' dtypes ...) become their text."""


def _reader(kind: Kind, type_: type[T]) -> Callable[[Buffer], T]:
    decode = msgspec.msgpack.Decoder(type_).decode

    def read(frame: Buffer) -> T:
        header, columns = open_frame(frame, kind)
        if len(columns):
            raise PeerError(f"a {kind.name} frame has {len(columns)} bytes behind its header")
        try:
            return decode(header)
        except (msgspec.DecodeError, RecursionError) as error:
            raise PeerError(f"a {kind.name} header cannot be read: {error}") from error

    read.__doc__ = f"The content of a {kind.name} frame; raises `PeerError`."
    return read


decode_hello = _reader(Kind.HELLO, Hello)
decode_opens = _reader(Kind.OPEN, list[OpenItem])
decode_faults = _reader(Kind.ERROR, list[RequestFault])
decode_aborts = _reader(Kind.ABORT, list[AbortRequest])
decode_control = _reader(Kind.CONTROL, ControlRequest)
decode_reply = _reader(Kind.REPLY, ControlReply)
decode_admitted = _reader(Kind.ADMITTED, list[Admitted])


def encode_hello(hello: Hello) -> bytes:
    """A greeting."""
    return pack_frame(Kind.HELLO, _encode(hello))


def encode_opens(items: Sequence[OpenItem]) -> bytes:
    """Requests that a detokenizer must know."""
    return pack_frame(Kind.OPEN, _encode(items))


def encode_faults(items: Sequence[RequestFault]) -> bytes:
    """Requests that end with an error."""
    return pack_frame(Kind.ERROR, _encode(items))


def encode_aborts(items: Sequence[AbortRequest]) -> bytes:
    """Requests that must stop."""
    return pack_frame(Kind.ABORT, _encode(items))


def encode_control(request: ControlRequest) -> bytes:
    """A control call."""
    return pack_frame(Kind.CONTROL, _encode(request))


def encode_reply(rid: str, payload: Any) -> bytes:
    """The answer to a control call: a struct or dataclass becomes a map of its field names."""
    return pack_frame(Kind.REPLY, _encode((rid, to_builtin(payload))))


def encode_admitted(items: Sequence[Admitted]) -> bytes:
    """Prompt ids for the api."""
    return pack_frame(Kind.ADMITTED, _encode(items))


def to_builtin(value: Any) -> Any:
    """A struct, dataclass or container of them as maps of field names; array-like structs included."""
    if isinstance(value, msgspec.Struct):
        return {name: to_builtin(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: to_builtin(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): to_builtin(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_builtin(item) for item in value]
    if isinstance(value, (str, bool, float, bytes, type(None))):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    return str(value)
