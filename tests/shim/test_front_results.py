"""The engine link, a step's rows on their way out when everybody is there."""

from __future__ import annotations

from array import array

import pytest

from forebay import FlatFamily, GenerationBatch, WireError
from forebay.topology import Peer
from forebay.wire.egress_decoder import EgressDecoder
from forebay.wire.frames import Kind
from forebay.wire.messages import Pairs
from tests.shim.front_rig import head, rig, rows


def test_step_is_one_frame_for_every_shard() -> None:
    with rig(detokenizers=2) as r:
        r.run(head("a"), head("b"))
        assert r.front.push_generation(rows("a", "b"))
        assert r.next(Peer("detokenizer", 0), Kind.EGRESS) == r.next(Peer("detokenizer", 1), Kind.EGRESS)


def test_rows_of_the_step_before_are_not_said_again() -> None:
    with rig() as r:
        decoder = EgressDecoder()
        r.run(head("a"))
        r.front.push_generation(rows("a"))
        r.front.push_generation(rows("a"))
        assert [r.step(decoder).same_rows for _ in "ab"] == [False, True]


def test_families_reach_the_detokenizer() -> None:
    with rig() as r:
        r.run(head("a"), head("b"))
        r.front.push_generation(rows("a", "b", output_token_logprobs=FlatFamily([[-0.5]], [[7]], rows=[1])))
        family = r.step().families[0]
        assert family is not None
        assert list(family.items()) == [(1, Pairs([-0.5], [7]))]


def test_finish_reason_ends_the_request() -> None:
    with rig() as r:
        r.run(head("a"), head("b"))
        r.front.push_generation(rows("a", "b", finish_reasons=[{"type": "stop", "matched": 2}, None]))
        assert ("a" in r.front._ledger, "b" in r.front._ledger) == (False, True)
        assert r.step().finish == [{"type": "stop", "matched": 2}, None]


def test_abort_outside_the_output_is_a_row_without_tokens() -> None:
    with rig() as r:
        r.run(head("a"))
        r.front.push_abort("a", "out of memory", 503, "engine_overloaded")
        step = r.step()
        assert (step.rids, step.lens, len(step.ids)) == (["a"], [0], 0)
        assert step.finish == [
            {"type": "abort", "message": "out of memory", "status_code": 503, "err_type": "engine_overloaded"}
        ]
        assert "a" not in r.front._ledger


@pytest.mark.parametrize(
    "batch",
    [
        GenerationBatch(["a"], [array("q", [1]), array("q", [2])]),
        rows("a", finish_reasons=["stop"]),
        rows("a", trailing={"weight_versions": []}),
    ],
    ids=["ids", "finish reasons", "trailing columns"],
)
def test_step_that_cannot_be_sent_changes_nothing(batch: GenerationBatch) -> None:
    with rig() as r:
        decoder = EgressDecoder()
        r.run(head("a"))
        r.front.push_generation(rows("a"))
        with pytest.raises(WireError):
            r.front.push_generation(batch)
        r.front.push_generation(rows("a"))
        r.step(decoder)
        assert r.step(decoder).seq == 2
        assert "a" in r.front._ledger
