"""The engine link: vectors, changed facts, and what it holds back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay import ControlRequest, EmbeddingBatch
from forebay.facts import read_blob
from forebay.topology import Peer
from forebay.wire import control
from forebay.wire.embeddings import decode_embeddings
from forebay.wire.frames import Kind
from forebay.wire.messages import AbortRequest, Hello
from tests.shim.front_rig import Rig, head, rig, rows, until

API = Peer("api", 0)
LENGTH = {"type": "length", "length": 1}
DONE = {"success": True}


def tell(r: Rig, type_: str, rid: str = "c", **fields: Any) -> None:
    """An api process sends a control call."""
    exclusive = fields.pop("exclusive", False)
    r.send(API, control.encode_control(ControlRequest(rid, 0, type_, fields, exclusive)))


def turns(r: Rig, condition: Callable[[], Any]) -> list[Any]:
    """What the engine drains until a condition is true."""
    out: list[Any] = []

    def turn() -> Any:
        r.front.wait_ingress(1)
        out.extend(r.front.drain())
        return condition()

    until(turn, "the condition")
    return out


def held(r: Rig) -> list[str]:
    return list(r.front._gate.held)


def greeting(r: Rig, peer: Peer = API) -> Hello:
    return control.decode_hello(r.next(peer, Kind.HELLO))


def test_vectors_go_to_the_process_that_asked() -> None:
    with rig(apis=2) as r:
        r.run(head("a", api=0, embedding=True), head("b", api=1, embedding=True))
        assert r.front.push_embeddings(EmbeddingBatch(["a", "b", "nobody"], [[1.0], [2.0, 3.0], [4.0]], [5, 6, 7]))
        for number, rid, prompt in ((0, "a", 5), (1, "b", 6)):
            found = decode_embeddings(r.next(Peer("api", number), Kind.EMBEDDINGS))
            assert [(one.rid, one.prompt_tokens) for one in found] == [(rid, prompt)]
        assert len(r.front._ledger) == 0


def test_vectors_after_the_end_are_not_sent() -> None:
    with rig() as r:
        r.front.close()
        assert not r.front.push_embeddings(EmbeddingBatch(["a"], [[1.0]], [1]))


def test_changed_facts_reach_every_process() -> None:
    with rig() as r:
        r.front.update_facts(weight_version="v2")
        for peer in r.peers:
            blob = greeting(r, peer).blob
            assert blob is not None
            assert read_blob(blob).weight_version == "v2"


def test_requests_wait_while_paused_and_come_in_their_order() -> None:
    with rig() as r:
        tell(r, "PauseGeneration", mode="abort")
        assert turns(r, lambda: r.front._gate.closed) == []
        assert r.reply().payload["success"] is True
        r.admit(head("a"), head("b"))
        assert turns(r, lambda: held(r) == ["a", "b"]) == []
        tell(r, "ContinueGeneration")
        (resume,) = r.drain(1)
        r.front.push_control_output(resume, DONE)
        assert [entry.rid for entry in r.drain(2)] == ["a", "b"]


def test_a_pause_is_told_in_the_greeting() -> None:
    with rig() as r:
        tell(r, "PauseGeneration", mode="abort")
        turns(r, lambda: r.front._announcement.paused)
        assert greeting(r).status == "paused"


def test_a_probe_of_a_paused_engine_is_answered_by_the_link() -> None:
    with rig() as r:
        tell(r, "PauseGeneration", mode="in_place")
        r.drain(1)
        greeting(r)
        r.admit(head("HEALTH_CHECK_1"), head("after"))
        assert turns(r, lambda: held(r) == ["after"]) == []
        assert greeting(r).status == "paused"
        assert len(r.front._ledger) == 1


def test_a_held_request_whose_client_leaves_never_reaches_the_engine() -> None:
    with rig() as r:
        tell(r, "PauseGeneration", mode="in_place")
        r.drain(1)
        r.admit(head("a"))
        assert turns(r, lambda: held(r) == ["a"]) == []
        r.send(API, control.encode_aborts([AbortRequest("a", "client")]))
        assert turns(r, lambda: not held(r)) == []
        assert len(r.front._ledger) == 0


def test_an_exclusive_call_is_given_when_the_last_request_has_ended() -> None:
    with rig() as r:
        r.run(head("a"))
        tell(r, "NewWeights", exclusive=True)
        assert turns(r, lambda: r.front._gate.waits) == []
        r.admit(head("b"))
        assert turns(r, lambda: held(r) == ["b"]) == []
        r.front.push_generation(rows("a", finish_reasons=[LENGTH]))
        (call,) = r.drain(1)
        assert call.type == "NewWeights"
        r.front.push_control_output(call, DONE)
        assert [entry.rid for entry in r.drain(1)] == ["b"]


def test_an_api_process_that_dies_takes_its_calls_along() -> None:
    with rig(apis=2) as r:
        r.run(head("a", api=1))
        tell(r, "NewWeights", exclusive=True)
        assert turns(r, lambda: r.front._gate.waits) == []
        r.stop(API)
        r.wait_down(API)
        r.send(Peer("api", 1), control.encode_control(ControlRequest("d", 1, "Look")))
        assert [entry.rid for entry in r.drain(1)] == ["d"]
        assert not r.front._gate.closed
