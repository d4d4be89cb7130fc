"""The account of requests: whose they are, what their names stand for, which ones came before or are over."""

from __future__ import annotations

import pytest

from forebay.ledger import Ledger, Recent
from forebay.topology import shard_of
from forebay.wire.messages import AbortRequest, RequestHead


def ledger(*heads: RequestHead, shards: int = 1) -> Ledger:
    made = Ledger(shards)
    for head in heads:
        assert made.begin(head)
    return made


def head(rid: str, api: int = 0, attempt: int = 0, public_rid: str | None = None) -> RequestHead:
    return RequestHead(rid=rid, api=api, attempt=attempt, public_rid=public_rid)


def test_live_request_has_an_owner() -> None:
    assert ledger(head("a", api=2)).owner("a") == 2


def test_request_that_is_over_has_no_owner() -> None:
    made = ledger(head("a"))
    made.end("a")
    assert (made.owner("a"), "a" in made, len(made)) == (None, False, 0)


def test_request_ends_once() -> None:
    made = ledger(head("a"))
    assert [made.end("a"), made.end("a"), made.end("nobody")] == [True, False, False]


@pytest.mark.parametrize("attempt", [0, 1])
def test_live_request_does_not_begin_again(attempt: int) -> None:
    made = ledger(head("a", api=1))
    assert not made.begin(head("a", api=2, attempt=attempt))
    assert made.owner("a") == 1


def test_request_sent_again_does_not_begin_after_its_end() -> None:
    made = ledger(head("a"))
    made.end("a")
    assert not made.begin(head("a", attempt=1))


def test_first_sending_that_was_lost_does_not_keep_the_second_out() -> None:
    assert ledger().begin(head("a", attempt=1))


def test_requests_of_an_api_process_are_found() -> None:
    assert ledger(head("a", api=1), head("b"), head("c", api=1)).of_api(1) == ["a", "c"]


def test_requests_of_a_shard_are_those_that_all_processes_agree_on() -> None:
    names = [f"r{i}" for i in range(20)]
    made = ledger(*map(head, names), shards=3)
    made.end("r0")
    for shard in range(3):
        assert made.of_shard(shard) == {name for name in names[1:] if shard_of(name, 3) == shard}


def test_wire_id_stands_for_itself() -> None:
    assert ledger(head("a"), head("b")).named("a") == ["a"]


def test_clients_id_stands_for_all_of_its_live_requests() -> None:
    made = ledger(head("w2", public_rid="mine"), head("w1", public_rid="mine"), head("w3", public_rid="mine"))
    made.end("w3")
    assert made.named("mine") == ["w1", "w2"]


def test_clients_id_stands_for_nothing_after_the_last_end() -> None:
    made = ledger(head("w1", public_rid="mine"))
    made.end("w1")
    assert made.named("mine") == []


@pytest.mark.parametrize("name", ["req-1", "req", "", "req-10 "])
def test_only_the_whole_id_counts(name: str) -> None:
    assert ledger(head("w", public_rid="req-10"), head("req-10")).named(name) == []


def test_early_abort_counts_once() -> None:
    made = ledger()
    made.abort_early(AbortRequest("a", "user"))
    assert made.aborted_early("a") == AbortRequest("a", "user")
    assert made.aborted_early("a") is None


def test_abort_after_the_end_is_not_an_early_one() -> None:
    made = ledger(head("a"))
    made.end("a")
    made.abort_early(AbortRequest("a"))
    assert made.aborted_early("a") is None


def test_end_of_everything_leaves_nothing() -> None:
    made = ledger(head("a", public_rid="mine"), head("b"), shards=2)
    made.end_all()
    assert (len(made), made.named("mine"), made.of_shard(0), made.of_shard(1)) == (0, [], set(), set())


def test_newest_keys_are_remembered() -> None:
    recent: Recent[int] = Recent(4)
    for number in range(100):
        recent.put(str(number), number)
        assert all(str(n) in recent for n in range(max(0, number - 3), number + 1))


def test_memory_of_keys_is_bounded() -> None:
    recent: Recent[int] = Recent(4)
    for number in range(100):
        recent.put(str(number), number)
    assert len(recent) <= 8


def test_value_that_was_put_again_is_the_later_one() -> None:
    recent: Recent[int] = Recent(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        recent.put(key, value)
    assert [recent.pop("a"), recent.pop("a")] == [3, None]
