"""What takes the streams of a dead detokenizer up again: claims to the engine, and its replay of what it kept.

The text of a request is a function of its `OpenItem` and its rows alone. The link in the engine keeps both, so a
detokenizer that starts anew can be told them from the beginning; and each api process knows how far it has got, since
every frame of text names the step of the engine up to which everything has been said (`Deltas.step`).

    CLAIM    api -> engine            after each greeting of another life of a detokenizer
    REPLAY   engine -> detokenizer    `begin`, then kept steps as they were (EGRESS, STEP), then `end`

Between `begin` and `end` nothing is said of the steps that an api process has had. A `more` names requests that were
admitted meanwhile, before their first row, and api processes that have claimed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from forebay.errors import PeerError
from forebay.wire.frames import Buffer, Kind, open_frame, pack_frame
from forebay.wire.messages import OpenItem


class Claim(msgspec.Struct, array_like=True):
    """What an api process waits for from a detokenizer that has just greeted."""

    api: int
    shard: int
    life: int
    """The incarnation of the detokenizer that has greeted."""
    step: int
    """The last step of which everything has come."""
    begun: list[str]
    """Requests of which something has come; what they said up to `step` is not to be said again."""
    fresh: list[str]
    """Requests of which nothing has come."""


class Replay(msgspec.Struct, array_like=True):
    """What a detokenizer is told around the steps that are sent again."""

    part: Literal["begin", "more", "end"]
    rids: list[str] = []
    """The requests that go on here, all of them described in `opens`."""
    opens: list[bytes] = []
    """Packed lists of `OpenItem`; those of other requests are left out."""
    said: dict[int, int] = {}
    """The step up to which everything has been said, by api process. Those of a `more` have only to be answered."""
    fresh: list[str] = []
    """Requests among `rids` of which nothing has been said yet."""


_encode = msgspec.msgpack.Encoder().encode
_decode_claim = msgspec.msgpack.Decoder(Claim).decode
_decode_replay = msgspec.msgpack.Decoder(Replay).decode
_decode_opens = msgspec.msgpack.Decoder(list[OpenItem]).decode


def encode_claim(claim: Claim) -> bytes:
    """The frame of a claim."""
    return pack_frame(Kind.CLAIM, _encode(claim))


def decode_claim(frame: Buffer) -> Claim:
    """A claim; raises `PeerError` for a frame that cannot be read."""
    try:
        return _decode_claim(open_frame(frame, Kind.CLAIM)[0])
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"a claim cannot be read: {error}") from error


def encode_replay(replay: Replay) -> bytes:
    """The frame of one part of a replay."""
    return pack_frame(Kind.REPLAY, _encode(replay))


def decode_replay(frame: Buffer) -> Replay:
    """One part of a replay; raises `PeerError` for a frame that cannot be read."""
    try:
        return _decode_replay(open_frame(frame, Kind.REPLAY)[0])
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"a replay cannot be read: {error}") from error


def pick_opens(packed: Iterable[bytes], rids: Iterable[str]) -> list[OpenItem]:
    """The announcements of these requests; raises `PeerError` for a list that cannot be read."""
    wanted = set(rids)
    try:
        return [item for opens in packed for item in _decode_opens(opens) if item.rid in wanted]
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerError(f"announcements cannot be read: {error}") from error
