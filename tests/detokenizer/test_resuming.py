"""A detokenizer that is killed and told everything again: each client hears what it would have heard without that."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.batch import FlatFamily, GenerationBatch
from forebay.errors import PeerError
from forebay.wire.deltas import Deltas, decode_deltas, encode_deltas
from forebay.wire.egress import EgressEncoder, names_rows
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import OpenItem
from forebay.wire.replay import Replay
from forebay.wire.steady import open_texts
from forebay_detokenizer.resuming import ONCE
from forebay_detokenizer.worker import Detokenizer
from tests.detokenizer.rig import LENGTH, TOKENIZERS, Heard, tables
from tests.detokenizer.samples import TEXT, byte_ids, ids_of

APIS = 2
STOPS = (["fox"], ["こん", "over the"], ["zzz"], ["x +", "e"])


@dataclass
class Request:
    """One request: what is announced of it, when, and its rows."""

    item: OpenItem
    comes: int
    """The step before which the engine has it."""
    late: int
    """Steps that its announcement comes later to a detokenizer that has been there all the time."""
    rows: list[list[int]]


@dataclass
class Script:
    """The requests of one run, and the frames of all steps; frame `i` is the step `i + 1`."""

    requests: list[Request]
    frames: list[bytes]

    def come(self, step: int) -> list[Request]:
        """The requests that the engine has before a step."""
        return [request for request in self.requests if request.comes < step]


def make_script(chance: random.Random, name: str, steps: int) -> Script:
    requests = [make_request(chance, f"r{n}", name, steps) for n in range(chance.randint(1, 6))]
    encoder = EgressEncoder(1)
    frames = []
    for step in range(1, max(request.comes + len(request.rows) for request in requests) + 1):
        live = [request for request in requests if 0 <= step - 1 - request.comes < len(request.rows)]
        frames.append(encoder.encode(batch_of(live, step)))
    return Script(requests, frames)


def make_request(chance: random.Random, rid: str, name: str, steps: int) -> Request:
    """Some words, characters cut anywhere, ids that no vocabulary has."""
    ids = ids_of(TOKENIZERS[name](), TEXT[chance.randrange(60) :])
    if name == "byte_level":
        ids += byte_ids("é世\U0001f600".encode()[: chance.randint(0, 9)]) + [-1] * chance.randint(0, 1)
    chance.shuffle(ids) if chance.random() < 0.3 else None
    most = chance.choice((1, 1, 1, 3))
    count = chance.randint(1, steps)
    rows = [[ids.pop() for _ in range(chance.randint(0 if most > 1 else 1, most)) if ids] for _ in range(count)]
    item = OpenItem(
        rid=rid,
        api=chance.randrange(APIS),
        stream=chance.random() < 0.7,
        stop=list(chance.choice(STOPS)) if chance.random() < 0.4 else [],
        stop_regex=["l[a-z]zy"] if chance.random() < 0.1 else [],
        min_new_tokens=chance.choice((0, 0, 5)),
        no_stop_trim=chance.random() < 0.3,
        prompt_tokens=3,
        prompt_tail=ids[:2],
        want_ids=chance.random() < 0.3,
        return_logprob=chance.random() < 0.3,
        stream_interval=chance.choice((1, 1, 1, 2, 4)),
    )
    return Request(item, chance.randrange(steps), chance.choice((0, 0, 0, 1, 3)), rows)


def batch_of(live: Sequence[Request], step: int) -> GenerationBatch:
    rows = [request.rows[step - 1 - request.comes] for request in live]
    ends = [step - request.comes == len(request.rows) for request in live]
    named = [row for row, request in enumerate(live) if request.item.return_logprob]
    values = [[-0.25 * i for i in rows[row]] for row in named]
    logprobs = FlatFamily(values, [rows[row] for row in named], named) if named else None
    return GenerationBatch(
        rids=[request.item.rid for request in live],
        output_ids=[array("q", row) for row in rows],
        finish_reasons=[LENGTH if end else None for end in ends] if any(ends) else None,
        prompt_tokens=[7] * len(live),
        output_token_logprobs=logprobs,
    )


@dataclass
class Client:
    """One api process: what has come, checked as the real one checks it."""

    heard: dict[str, Heard] = field(default_factory=dict)
    step: int = 0
    place: tuple[int, int] = (-1, -1)
    rows: list[str] = field(default_factory=list)

    def said(self, rid: str) -> Heard:
        return self.heard.setdefault(rid, Heard())

    def take(self, frame: bytes) -> None:
        if kind_of(frame) is Kind.TEXTS:
            texts = open_texts(frame)
            deltas = Deltas(texts.source, texts.epoch, texts.seq, None, texts.texts, step=self.step + 1)
        else:
            deltas = decode_deltas(frame)
        follows = self.place == (deltas.epoch, deltas.seq - 1)
        assert follows or self.place[0] != deltas.epoch, "a frame is missing"
        self.place, self.step = (deltas.epoch, deltas.seq), deltas.step
        if deltas.rids is not None:
            self.rows = deltas.rids
        elif deltas.texts is not None:
            assert follows
            assert len(deltas.texts) == len(self.rows)
        self._rows(deltas)
        for end in deltas.ends:
            self.said(end.rid).finish(end)

    def _rows(self, deltas: Deltas) -> None:
        rids = self.rows if deltas.texts is not None else []
        lens = deltas.lens or [1] * len(rids)
        ids, at = array("q", bytes(deltas.ids)), 0
        for row, (rid, text, count) in enumerate(zip(rids, deltas.texts or [], lens, strict=True)):
            heard = self.said(rid)
            starts = [start[1:] for start in deltas.starts if start[0] == row]
            if heard.end is None:
                assert heard.start is None or not starts, "a request began twice"
                heard.start = starts[0] if starts else heard.start
                heard.texts.append(text)
                heard.tokens += count
                heard.ids += ids[at : at + count]
                heard.extras += [extra for place, extra in deltas.extras if place == row]
            at += count


def _sent(frames: list[bytes], frame: bytes) -> bool:
    frames.append(frame)
    return True


def _next(frames: Iterator[bytes]) -> bytes:
    for frame in frames:
        return frame
    raise zmq.Again


class Life:
    """One life of the detokenizer; `sent[api]` are its frames in order."""

    def __init__(self, name: str, epoch: int) -> None:
        self.core = Detokenizer(tables(name), epoch=epoch)
        self._decoder = EgressDecoder()
        self.sent: list[list[bytes]] = [[] for _ in range(APIS)]

    def open(self, requests: Sequence[Request]) -> None:
        self.core.open([request.item for request in requests], 0.0)
        self._listen()

    def step(self, frame: bytes) -> None:
        """As the service does it."""
        lane = self.core.lane(self._decoder)
        if lane is not None:
            frames = iter([frame])
            senders = {api: partial(_sent, frames) for api, frames in enumerate(self.sent)}
            if lane.run(lambda: _next(frames), senders, 0.0).frame is None:
                return
        decoded = self._decoder.decode(frame)
        if self.core.replaying:
            self.core.reach(decoded.seq, 0.0)
        self.core.step(decoded, 0.0)
        self._listen()

    def begin(self, replay: Replay) -> None:
        self.core.begin_replay(replay, 0.0)
        self._listen()

    def more(self, requests: Sequence[Request]) -> None:
        self.core.more(replay_of("more", requests), 0.0)
        self._listen()

    def end(self) -> None:
        self.core.end_replay(0.0)
        self._listen()

    def _listen(self) -> None:
        mail = self.core.take()
        assert not mail.faults
        for api, deltas in mail.deltas:
            self.sent[api].append(encode_deltas(deltas))


def replay_of(part: Any, requests: Sequence[Request], **fields: Any) -> Replay:
    rids = [request.item.rid for request in requests]
    return Replay(part, rids, [msgspec.msgpack.encode([request.item for request in requests])], **fields)


def first_life(name: str, script: Script, steps: int) -> Life:
    """A detokenizer that has been there from the beginning, up to a step."""
    life = Life(name, 1)
    for step in range(steps + 1):
        if step:
            life.step(script.frames[step - 1])
        life.open([request for request in script.requests if request.comes + request.late == step])
    if steps == len(script.frames):
        life.open([request for request in script.requests if request.comes + request.late > steps])
    return life


def next_life(name: str, number: int, script: Script, clients: list[Client], done: int, steps: int) -> Life:
    """A detokenizer that starts when the engine has done `done` steps, and lives up to the step `steps`."""
    life = Life(name, number)
    waited = [r for r in script.come(done + 1) if clients[r.item.api].said(r.item.rid).end is None]
    begun = {r.item.rid for r in waited if clients[r.item.api].said(r.item.rid).start is not None}
    said = {api: client.step for api, client in enumerate(clients)}
    fresh = [request.item.rid for request in waited if request.item.rid not in begun]
    life.begin(replay_of("begin", waited, said=said, fresh=fresh))
    first = min((request.comes for request in script.come(done + 1)), default=done)
    while first < len(script.frames) and not names_rows(script.frames[first]):
        first += 1
    for step in range(first + 1, steps + 1):
        if step > done + 1 and life.core.replaying:
            life.end()
        come = [request for request in script.requests if request.comes == step - 1 and step > done + 1]
        if come and life.core.replaying:
            life.more(come)
        else:
            life.open(come)
        life.step(script.frames[step - 1])
    if life.core.replaying and steps > done:
        life.end()
    return life


def shown(client: Client, request: Request) -> tuple[Any, ...]:
    """All that a client can see of a request's answer, however it was cut into pieces."""
    heard = client.said(request.item.rid)
    assert heard.end is not None, f"{request.item.rid} has not ended"
    end = heard.end
    pairs = [pair for extra in heard.extras if extra.output_logprobs for pair in _pairs(extra.output_logprobs)]
    counts = (end.prompt_tokens, end.completion_tokens, end.cached_tokens)
    ids = heard.ids if request.item.want_ids else None  # others stand in the column only beside those that do
    return heard.text, ids, heard.tokens, end.reason, counts, pairs


def _pairs(pairs: Any) -> list[tuple[Any, int]]:
    return list(zip(pairs.values, pairs.ids, strict=True))


def deliver(life: Life, clients: list[Client], chance: random.Random | None) -> None:
    """Frames arrive at each api process, in order; with `chance` any number of the last ones is lost."""
    for client, frames in zip(clients, life.sent, strict=True):
        count = len(frames) if chance is None else chance.choice((len(frames), chance.randint(0, len(frames))))
        for frame in frames[:count]:
            client.take(frame)


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 1 << 32), name=st.sampled_from(sorted(TOKENIZERS)), kills=st.integers(1, 3))
def test_nobody_hears_of_a_detokenizer_that_is_killed(seed: int, name: str, kills: int) -> None:
    chance = random.Random(seed)
    script = make_script(chance, name, 20)
    whole = [Client() for _ in range(APIS)]
    deliver(first_life(name, script, len(script.frames)), whole, None)
    clients = [Client() for _ in range(APIS)]
    at = chance.randint(0, len(script.frames))
    deliver(first_life(name, script, at), clients, chance)
    for number in range(2, kills + 1):
        done = chance.randint(at, len(script.frames))  # the engine goes on meanwhile
        at = chance.randint(0, len(script.frames))
        deliver(next_life(name, number, script, clients, done, at), clients, chance)
        at = max(at, done)
    deliver(next_life(name, 9, script, clients, at, len(script.frames)), clients, None)
    for request in script.requests:
        api = request.item.api
        assert shown(clients[api], request) == shown(whole[api], request), request


def test_a_replay_that_cannot_be_read_is_a_bad_frame() -> None:
    with pytest.raises(PeerError):
        Life("byte_level", 1).begin(Replay("begin", ["r"], [b"\xc1"]))


def test_nothing_stays_in_a_detokenizer_that_has_caught_up() -> None:
    script = make_script(random.Random(5), "byte_level", 12)
    life = next_life("byte_level", 2, script, [Client() for _ in range(APIS)], len(script.frames), len(script.frames))
    life.end()
    assert len(life.core) == 0
    assert life.core.waiting == 0
    assert life.core.expects is None


def one(rid: str, ids: bytes, **fields: Any) -> Request:
    return Request(OpenItem(rid=rid, **fields), 0, 0, [byte_ids(bytes((i,))) for i in ids])


def script_of(*requests: Request) -> Script:
    encoder = EgressEncoder(1)
    steps = range(max(len(request.rows) for request in requests))
    live = [[request for request in requests if step < len(request.rows)] for step in steps]
    return Script(list(requests), [encoder.encode(batch_of(some, step + 1)) for step, some in enumerate(live)])


def test_an_end_among_steps_that_were_said_does_not_say_them_to_be_less() -> None:
    script = script_of(one("whole", b"ab"), one("stream", b"abcdef", stream=True))
    life = Life("byte_level", 2)
    life.begin(replay_of("begin", script.requests, said={0: 4}, fresh=["whole"]))
    for frame in script.frames[:3]:
        life.step(frame)
    _, said = map(decode_deltas, life.sent[0])
    assert ([end.text for end in said.ends], said.texts, said.step) == (["ab"], None, 4)


def test_rows_of_requests_that_do_not_go_on_are_left_out_for_good() -> None:
    script = script_of(one("r", b"abcdef", stream=True), one("gone", b"abcdef", stream=True))
    life = Life("byte_level", 2)
    life.begin(replay_of("begin", script.requests[:1], said={0: 2}))
    for frame in script.frames[:3]:
        life.step(frame)
    life.end()
    for frame in script.frames[3:]:
        life.step(frame)
    assert life.core.waiting == 0
    client = Client()
    for frame in life.sent[0]:
        client.take(frame)
    assert (client.said("r").text, list(client.heard)) == ("cdef", ["r"])


def test_the_ends_of_a_replay_say_how_far_everything_has_come() -> None:
    script = script_of(one("r", b"ab", stream=True))
    life = Life("byte_level", 2)
    life.begin(replay_of("begin", script.requests, said={0: 1, 1: 0}))
    life.step(script.frames[0])
    life.end()
    assert [[decode_deltas(frame).step for frame in frames] for frames in life.sent] == [[1, 1], [0, 1]]


def test_api_process_that_claims_after_the_beginning_hears_of_it() -> None:
    life = Life("byte_level", 2)
    life.begin(Replay("begin"))
    life.core.more(Replay("more", said={1: 0}), 0.0)
    life._listen()
    assert [len(frames) for frames in life.sent] == [0, 1]


def test_replay_whose_end_is_lost_is_over_in_time() -> None:
    script = script_of(one("r", b"abcd", stream=True))
    life = Life("byte_level", 2)
    life.begin(replay_of("begin", script.requests, said={0: 2}))
    life.step(script.frames[0])
    life.core.tick(ONCE + 1)
    assert life.core.replaying, "what the api process has had would be said again"
    for frame in script.frames[1:3]:
        life.step(frame)
    life.core.tick(ONCE)
    assert life.core.replaying
    life.core.tick(ONCE + 1)
    assert (life.core.replaying, life.core.expects) == (False, None)
    life.step(script.frames[3])
    client = Client()
    for sent in life.sent[0]:
        client.take(sent)
    assert client.said("r").text == "cd"


def test_announcement_that_comes_late_after_a_replay_opens_nothing() -> None:
    script = script_of(one("r", b"ab", stream=True))
    life = Life("byte_level", 2)
    life.begin(replay_of("begin", script.requests))
    for frame in script.frames:
        life.step(frame)
    life.end()
    life.open(script.requests)
    assert len(life.core) == 0


def test_request_that_was_announced_before_the_replay_is_opened_once() -> None:
    script = script_of(one("r", b"ab", stream=True))
    life = Life("byte_level", 2)
    life.open(script.requests)
    life.begin(replay_of("begin", script.requests))
    for frame in script.frames:
        life.step(frame)
    life.end()
    client = Client()
    for sent in life.sent[0]:
        client.take(sent)
    assert client.said("r").text == "ab"


def test_texts_stand_for_the_step_after_the_last_frame_and_for_no_other() -> None:
    request = Request(
        OpenItem(rid="r", stream=True), 0, 0, [byte_ids(char) for char in (b"a", b"b", b"", b"c", b"d", b"")]
    )
    script = script_of(request)
    life = first_life("byte_level", script, 5)
    client = Client()
    steps = []
    for frame in life.sent[0]:
        client.take(frame)
        steps.append((kind_of(frame), client.step))
    assert client.said("r").text == "abcd"
    assert steps == [(Kind.DELTAS, 1), (Kind.TEXTS, 2), (Kind.DELTAS, 4), (Kind.TEXTS, 5)]
