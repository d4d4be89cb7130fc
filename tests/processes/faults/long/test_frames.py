"""Frames that no process of ours sends, to every inbox of a working front: they cost their own requests at most."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
import zmq

from forebay.batch import GenerationBatch
from forebay.facts import make_blob
from forebay.wire import control, ingress
from forebay.wire.deltas import Deltas, encode_deltas
from forebay.wire.egress import EgressEncoder
from forebay.wire.messages import (
    AbortRequest,
    Admitted,
    ControlRequest,
    End,
    Hello,
    OpenItem,
    RequestFault,
    RequestHead,
    SamplingParams,
    WorkItem,
)
from forebay.wire.replay import Claim, Replay, encode_claim, encode_replay
from tests.helpers.chaos import assert_idle, depths
from tests.helpers.front import Front, running, wait_for
from tests.helpers.load import Load

LATER = 1 << 62
"""A life that no process knows: its work is taken, since its greeting may be late."""
HEAD = RequestHead(rid="stranger", life=LATER, sampling=SamplingParams(max_new_tokens=30), stream=True)
BATCH = GenerationBatch(["stranger"], [array("q", [40])], [None], [3])


def hello(role: str, life: int = 7, **more: object) -> bytes:
    return control.encode_hello(Hello(role=role, index=0, incarnation=life, pid=1, version="0", **more))  # type: ignore[arg-type]


FRAMES = {
    "work": ingress.encode_work([WorkItem(head=HEAD, rids=["w"], open=OpenItem(rid="w"))], [array("q")]),
    "admit": ingress.encode_admit([HEAD], [array("q", [40, 41, 42])]),
    "open": control.encode_opens([OpenItem(rid="stranger", api=0, life=LATER, stream=True)]),
    "egress": EgressEncoder(1).encode(BATCH),
    "deltas": encode_deltas(Deltas(0, 9, 4, ["stranger"], ["x"], ends=[End(rid="e", reason={"type": "stop"})])),
    "faults": control.encode_faults([RequestFault("stranger", 400, "no")]),
    "aborts": control.encode_aborts([AbortRequest("stranger", "lost")]),
    "control": control.encode_control(ControlRequest("c", 0, "GetInternalState")),
    "reply": control.encode_reply("c", {"a": 1}),
    "admitted": control.encode_admitted([Admitted(rid="stranger", prompt_ids=b"\0" * 8)]),
    "claim": encode_claim(Claim(0, 0, 7, 9, ["stranger"], [])),
    "replay": encode_replay(Replay("begin", ["stranger"], [], {0: 1 << 40})),
}


def go_on(load: Load, requests: int = 100) -> None:
    """Let so many more requests of a load come to their end."""
    before = sum(load.counts().values())
    wait_for(lambda: sum(load.counts().values()) >= before + requests, 20, "the load going on")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "20", "--open-wait", "0.5"]
    flags += ["--apis", "2", "--tokenizers", "2", "--detokenizers", "2", "--restart-limit", "20"]
    with running(tmp_path_factory.mktemp("front"), *flags) as found:
        yield found


class Stranger:
    """A process that is none of the front's and writes into its inboxes."""

    def __init__(self, front: Front) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        for name in front.pids():
            path = front.run_dir / f"{name}.sock"
            if path.exists():
                socket = self.sockets[name] = self._context.socket(zmq.PUSH)
                socket.connect(f"ipc://{path}")

    def send(self, name: str, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self.sockets[name].send(frame)

    def close(self) -> None:
        self._context.destroy(2000)


@pytest.fixture
def stranger(front: Front) -> Iterator[Stranger]:
    found = Stranger(front)
    yield found
    found.close()


def cut(chance: random.Random, frame: bytes) -> bytes:
    return frame[: chance.randrange(len(frame))]


def unreadable(chance: random.Random, frame: bytes) -> bytes:
    """A frame of another version, of no kind, or with a length that is not its own."""
    return chance.choice(
        [
            frame[:1] + bytes([frame[1] + 1 + chance.randrange(200)]) + frame[2:],
            bytes([100 + chance.randrange(150)]) + frame[1:],
            frame[:4] + chance.randbytes(4) + frame[8:],
            chance.randbytes(chance.randrange(64)),
        ]
    )


def flipped(chance: random.Random, frame: bytes) -> bytes:
    out = bytearray(frame)
    for _ in range(chance.randint(1, 4)):
        out[chance.randrange(8, len(out))] = chance.randrange(256)
    return bytes(out)


QUIET = {"api": ("egress",), "tokenizer": ("admit", "egress"), "engine": ("open", "work", "egress", "deltas")}
"""Frames that have no business there."""


def test_what_nobody_can_read_harms_nobody(front: Front, folder: Path, stranger: Stranger) -> None:
    chance = random.Random(1)
    pids = front.pids()
    with Load(front.url, folder, clients=32, seed=11) as load:
        wait_for(lambda: load.streaming > 10, 10, "running streams")
        for name in stranger.sockets:
            role = name.partition("-")[0]
            kinds = list(FRAMES)
            stranger.send(name, [cut(chance, FRAMES[chance.choice(kinds)]) for _ in range(150)])
            stranger.send(name, [unreadable(chance, FRAMES[chance.choice(kinds)]) for _ in range(150)])
            stranger.send(name, [FRAMES[kind] for kind in QUIET.get(role, ())])
        go_on(load)
    assert set(load.counts()) == {"whole"}
    assert front.pids() == pids
    assert_idle(front)


def test_frames_with_flipped_bytes_end_no_process_and_leave_nothing(
    front: Front, folder: Path, stranger: Stranger
) -> None:
    chance = random.Random(2)
    pids = front.pids()
    kinds = [kind for kind in FRAMES if kind != "work"]  # it may be a whole request of nobody
    with Load(front.url, folder, clients=16, seed=12) as load:
        wait_for(lambda: load.streaming > 4, 10, "running streams")
        for name in stranger.sockets:
            stranger.send(name, [flipped(chance, FRAMES[chance.choice(kinds)]) for _ in range(300)])
        go_on(load)
    assert not set(load.counts()) - {"whole", "error"}
    assert front.pids() == pids
    with front.client() as client:
        wait_for(lambda: client.get("/ready").status_code == 200, 10, "a front that is ready")
    assert_idle(front)
    with Load(front.url, folder, clients=16, seed=13) as load:
        go_on(load)
    assert set(load.counts()) == {"whole"}


def test_a_step_of_an_engine_that_has_not_greeted_harms_nobody(front: Front, folder: Path, stranger: Stranger) -> None:
    with Load(front.url, folder, clients=32, seed=14) as load:
        wait_for(lambda: load.streaming > 10, 10, "running streams")
        stranger.send("detokenizer-0", [FRAMES["egress"]] * 3)
        stranger.send("api-0", [FRAMES["deltas"]] * 3)
        go_on(load)
    assert set(load.counts()) == {"whole"}
    assert_idle(front)


def test_a_request_that_only_the_engine_knows_is_given_up(front: Front, stranger: Stranger) -> None:
    head = RequestHead(rid="orphan", life=LATER, sampling=SamplingParams(max_new_tokens=10**6), stream=True)
    stranger.send("engine-0", [ingress.encode_admit([head], [array("q", [40, 41, 42])])])
    wait_for(lambda: front.state()["num_running_reqs"] == 1, 5, "the orphan")
    wait_for(lambda: front.state()["num_running_reqs"] == 0, 5, "its end")
    assert_idle(front)


def test_a_second_greeting_of_another_life_ends_what_the_first_one_had(
    front: Front, folder: Path, stranger: Stranger
) -> None:
    with Load(front.url, folder, clients=32, seed=15) as load:
        wait_for(lambda: load.streaming > 10, 10, "running streams")
        stranger.send("api-0", [hello("detokenizer"), hello("tokenizer")])
        stranger.send("detokenizer-0", [hello("engine", blob=make_blob({}))])
        go_on(load)
    assert not set(load.counts()) - {"whole", "error"}
    with front.client() as client:
        wait_for(lambda: client.get("/ready").status_code == 200, 10, "a front that is ready")
    assert_idle(front)


def test_announcements_of_requests_that_do_not_exist_are_given_up(front: Front, stranger: Stranger) -> None:
    opens = [OpenItem(rid=f"nobody-{at}", api=at % 3, life=LATER, stream=bool(at % 2)) for at in range(300)]
    stranger.send("detokenizer-0", [control.encode_opens(opens)])
    wait_for(lambda: depths(front)["detokenizer"] == len(opens), 5, "the entries")
    assert_idle(front)


@pytest.mark.parametrize("life", [7, LATER])
def test_a_greeting_in_the_name_of_an_api_process_costs_errors_at_most(
    front: Front, folder: Path, stranger: Stranger, life: int
) -> None:
    with Load(front.url, folder, clients=32, seed=16) as load:
        wait_for(lambda: load.streaming > 10, 10, "running streams")
        for name in ("engine-0", "detokenizer-0", "detokenizer-1"):
            stranger.send(name, [hello("api", life)])
        go_on(load)
    assert not set(load.counts()) - {"whole", "error"}
    assert_idle(front)
    with Load(front.url, folder, clients=16, seed=17) as load:
        go_on(load)
    assert set(load.counts()) == {"whole"}


def test_the_front_serves_on_after_all_of_it(front: Front) -> None:
    with front.client() as client:
        answer = client.post("/generate", json={"text": "hello", "sampling_params": {"max_new_tokens": 5}})
    assert answer.status_code == httpx.codes.OK
    assert answer.json()["meta_info"]["completion_tokens"] == 5
