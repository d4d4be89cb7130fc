"""What is fuzzed: one function a target, from bytes to nothing. Any exception but the allowed one is a finding.

The test (`test_corpus.py`) and the guided fuzzer (`guided.py`) call the same functions. The first byte of an input
chooses among the readers of a target, the rest is what they read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from forebay.errors import PeerError, RequestError, SettingsError
from forebay.facts import make_blob, read_blob
from forebay.wire.frames import kind_of
from forebay_api import control_bodies, embedding_bodies, schemas
from forebay_api.admission import plan_chat, plan_completions, plan_generate
from forebay_api.compressed import unpack_zstd
from forebay_api.controls import _reader as control_reader
from forebay_api.embedding_admission import plan_embeddings, plan_encode
from forebay_api.plan import HeaderFields, Plan
from forebay_api.routes.loads import read_include
from tests.api.samples import context
from tests.detokenizer.rig import tables, whole
from tests.detokenizer.test_stops import fed, searched
from tests.wire.test_fuzz import FRAMES

LARGEST_BODY = 1 << 16


class Body(NamedTuple):
    """A reader of bodies, and what plans the generation that it asks for."""

    read: Callable[[bytes], Any]
    plan: Callable[..., Plan] | None = None


BODIES: dict[str, Body] = {
    "generate": Body(schemas.read_generate, lambda body, ctx: plan_generate(body, ctx, HeaderFields("1", "key"))),
    "completion": Body(schemas.read_completion, plan_completions),
    "chat": Body(schemas.read_chat, plan_chat),
    "embedding": Body(embedding_bodies.read_embedding, plan_embeddings),
    "encode": Body(embedding_bodies.read_encode, plan_encode),
    "score": Body(embedding_bodies.read_score),
    "tokenize": Body(schemas.read_tokenize),
    "detokenize": Body(schemas.read_detokenize),
    "abort": Body(schemas.read_abort),
    "zstd": Body(lambda body: unpack_zstd(body, LARGEST_BODY)),
    "include": Body(lambda body: read_include(body.decode("latin-1"))),
    **{
        name.removesuffix("Body"): Body(control_reader(one).read)
        for name, one in vars(control_bodies).items()
        if isinstance(one, type) and issubclass(one, msgspec.Struct)
    },
}
CONTEXTS = (
    context({"enable_lora": True, "dp_size": 2, "embeddings": True}, max_batch_items=8),
    context(None, max_batch_items=8, trust_request_chat_template=True, stop_match="engine"),
)
READERS: dict[str, Callable[[bytes], Any]] = {"kind": kind_of, **{name: read for name, (_, read) in FRAMES.items()}}


def bodies(data: bytes) -> None:
    """A body is read and planned, or refused with a 4xx or 501."""
    if data:
        names = list(BODIES)
        read_and_plan(names[data[0] % len(names)], data[1:])


def read_and_plan(name: str, body: bytes) -> None:
    """One body for one reader."""
    read, plan = BODIES[name]
    for ctx in CONTEXTS if plan else CONTEXTS[:1]:
        try:
            asked = read(body)
            made = plan(asked, ctx) if plan is not None else None
        except RequestError as error:
            if not (400 <= error.status < 500 or error.status == 501):
                raise AssertionError(f"a bad body is answered with {error.status}") from error
            continue
        if made is not None:
            msgspec.msgpack.encode(made.items)
            assert len(made.items) == len(made.ids) == len(made.public_rids)


def frames(data: bytes) -> None:
    """A frame is read, or it is the peer's error."""
    if data:
        names = list(READERS)
        with contextlib.suppress(PeerError):
            READERS[names[data[0] % len(names)]](data[1:])


def facts(data: bytes) -> None:
    """Launch facts are read, or the operator is told; what was read can be told on."""
    try:
        make_blob(read_blob(data).raw)
    except SettingsError:
        return


def stops(data: bytes) -> None:
    """The matcher of stop strings against a plain search. A zero byte ends a stop string or a piece of the text."""
    if len(data) < 2:
        return
    parts = [part.decode("latin-1") for part in data[2:200].split(b"\0")]
    count = 1 + data[0] % 4
    wanted, pieces = [part[:8] for part in parts[:count] if part], parts[count:]
    if wanted:
        ripe, keep = data[1] % 8, data[1] > 127
        assert fed(wanted, pieces, ripe, keep=keep) == searched(wanted, pieces, ripe, keep)


def decoders(data: bytes) -> None:
    """Ids to text in pieces against the decode of all of them: two bytes an id, above 32,768 the end of a piece."""
    if len(data) < 3:
        return
    name = ("byte_level", "byte_fallback", "word_piece")[data[0] % 3]
    numbers = [int.from_bytes(data[at : at + 2], "big") for at in range(1, min(len(data) - 1, 120), 2)]
    ids = [number % 420 for number in numbers]
    cuts = [0, *(at for at, number in enumerate(numbers) if number >= 1 << 15), len(ids)]
    text = pieced(name, ids, cuts)
    assert text == pieced(name, ids, [0, len(ids)])
    if name != "byte_fallback":  # its library decoder gives a broken run of bytes another text
        assert text == whole(name, ids, True)


def pieced(name: str, ids: Sequence[int], cuts: Sequence[int]) -> str:
    """The text of a decoder that gets the ids in the pieces between `cuts`."""
    decoder = tables(name).of(True, True).decoder([], 0)
    return "".join(decoder.feed(ids[start:end]) for start, end in pairwise(cuts)) + decoder.flush()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bodies": bodies,
    "frames": frames,
    "facts": facts,
    "stops": stops,
    "decoders": decoders,
}
