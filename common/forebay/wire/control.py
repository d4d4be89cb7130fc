"""The small frames: greetings, opens, aborts, errors, control calls and their answers.

Each is a msgpack header and no columns: `[[item, ...]]` for the kinds that travel in groups, one struct for the
others. Values of a control answer that msgpack does not know arrive as strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from forebay.errors import PeerError, WireError
from forebay.wire.frames import Buffer, Kind, open_frame, pack_frame
from forebay.wire.messages import (
    AbortRequest,
    Admitted,
    ControlReply,
    ControlRequest,
    Hello,
    Mark,
    OpenItem,
    RequestFault,
    Unheard,
)

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder(enc_hook=str).encode
"""Foreign values (enums, paths, tensors' dtypes ...) become their text."""


def _pack(kind: Kind, value: Any) -> bytes:
    try:
        return pack_frame(kind, _encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"a {kind.name} frame cannot carry this: {error}") from error


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
decode_mark = _reader(Kind.MARK, Mark)
decode_taken = _reader(Kind.TAKEN, Mark)
decode_unheard = _reader(Kind.UNHEARD, Unheard)


def encode_hello(hello: Hello) -> bytes:
    """A greeting."""
    return _pack(Kind.HELLO, hello)


def encode_opens(items: Sequence[OpenItem]) -> bytes:
    """Requests that a detokenizer must know."""
    return _pack(Kind.OPEN, items)


def encode_faults(items: Sequence[RequestFault]) -> bytes:
    """Requests that end with an error."""
    return _pack(Kind.ERROR, items)


def encode_aborts(items: Sequence[AbortRequest]) -> bytes:
    """Requests that must stop."""
    return _pack(Kind.ABORT, items)


def encode_control(request: ControlRequest) -> bytes:
    """A control call."""
    return _pack(Kind.CONTROL, request)


def encode_reply(rid: str, payload: Any) -> bytes:
    """The answer to a control call: a struct or dataclass becomes a map of its field names.

    Raises `WireError` for a payload that contains itself.
    """
    return _pack(Kind.REPLY, (rid, to_builtin(payload)))


def encode_admitted(items: Sequence[Admitted]) -> bytes:
    """Prompt ids for the api."""
    return _pack(Kind.ADMITTED, items)


def encode_unheard(asked: Unheard) -> bytes:
    """Which requests a detokenizer doubts."""
    return _pack(Kind.UNHEARD, asked)


def encode_mark(mark: Mark) -> bytes:
    """A mark for the reader of a link."""
    return _pack(Kind.MARK, mark)


def encode_taken(mark: Mark) -> bytes:
    """A mark that goes back: everything before it has been taken."""
    return _pack(Kind.TAKEN, mark)


_AS_THEY_ARE = frozenset({type(None), bool, bytes, float})


def to_builtin(value: Any) -> Any:
    """A struct, dataclass or container of them as maps of field names, array-like structs included; numbers and texts
    as they are, anything else as its text. Raises `WireError` for a value that contains itself."""
    try:
        return _plain(value)
    except RecursionError as error:
        raise WireError("a value contains itself, or is nested too deep") from error


def _plain(value: Any) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else str(int(value))
    if isinstance(value, str):
        return to_text(str.__str__(value))
    if isinstance(value, dict):
        return {_plain(k) if isinstance(k, str) else to_text(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value)  # numpy's float64 is one, too
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return to_text(str(value))


def to_text(text: str) -> str:
    """The same text, with a question mark for each lone surrogate: UTF-8 has no place for them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
