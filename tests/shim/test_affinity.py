"""Who gets which cores: the automatic rule, explicit plans, and what happens when the system says no."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psutil
import pytest

from forebay import affinity
from forebay.affinity import CorePlan, plan, show_cores
from forebay.errors import SettingsError
from forebay.topology import Peer

ENGINE, API, TOKENIZER, DETOKENIZER = (Peer(role, 0) for role in ("engine", "api", "tokenizer", "detokenizer"))


def shares(cores: int, explicit: str | None = None) -> list[str]:
    """The cores of engine, api, tokenizer and detokenizer on a machine with that many."""
    made = plan(range(cores), 1, 1, 1, explicit)
    return [show_cores(made.of(peer)) for peer in (ENGINE, API, TOKENIZER, DETOKENIZER)]


@pytest.mark.parametrize("cores", [0, 1, 2, 3])
def test_with_fewer_than_four_cores_nothing_is_pinned(cores: int) -> None:
    assert shares(cores) == ["", "", "", ""]


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (4, ["0", "1", "2", "3"]),
        (5, ["0", "1-2", "3", "4"]),
        (6, ["0", "1-2", "3-4", "5"]),
        (7, ["0", "1-2", "3-4", "5-6"]),
        (8, ["0-1", "2-3", "4-5", "6-7"]),
        (12, ["0-1", "2-5", "6-8", "9-11"]),
    ],
)
def test_engine_keeps_one_or_two_cores_and_the_services_share_the_rest(cores: int, expected: list[str]) -> None:
    assert shares(cores) == expected


def test_a_set_with_holes_is_divided_in_ascending_order() -> None:
    made = plan([9, 2, 4, 11], 1, 1, 1)
    assert (made.of(ENGINE), made.services()) == ((2,), (4, 9, 11))


def test_more_processes_than_cores_share_but_never_with_the_engine() -> None:
    made = plan(range(4), 3, 2, 1)
    assert all(len(made.of(peer)) == 1 for peer in made.cores)
    assert made.services() == (1, 2, 3)


def test_every_core_of_the_services_is_used_by_one_process_while_there_are_enough() -> None:
    made = plan(range(16), 3, 2, 2)
    used = [core for peer, own in made.cores.items() if peer.role != "engine" for core in own]
    assert sorted(used) == list(range(2, 16))


def test_both_halves_stay_within_the_mask_of_the_rank() -> None:
    made = plan(range(16), 1, 1, 1, within=[8, 9, 10, 11, 99])
    assert [made.of(peer) for peer in (ENGINE, API, TOKENIZER, DETOKENIZER)] == [(8,), (9,), (10,), (11,)]


def test_the_reason_says_how_many_cores_are_missing() -> None:
    assert plan(range(3), 1, 1, 1).describe() == "nothing is pinned (3 allowed cores, pinning starts at 4)"


def test_a_system_without_affinity_runs_unpinned_even_with_an_explicit_plan() -> None:
    assert plan([], 1, 1, 1, "engine=0;api=1") == CorePlan(reason="this system cannot pin processes")


def test_off_pins_nothing_on_any_machine() -> None:
    assert shares(64, "off") == ["", "", "", ""]


def test_a_bare_list_is_divided_by_the_automatic_rule() -> None:
    assert shares(64, "4-6,20") == ["4", "5", "6", "20"]


def test_explicit_plan_holds_on_two_cores_too() -> None:
    assert shares(2, "engine=0;api=1;tokenizer=1;detokenizer=1") == ["0", "1", "1", "1"]


def test_who_is_not_named_gets_the_cores_that_nobody_named() -> None:
    assert shares(4, "engine=0; api = 1") == ["0", "1", "2-3", "2-3"]


def test_a_number_names_one_process_of_a_role() -> None:
    made = plan(range(4), 2, 1, 1, "engine=0;api=1;api-1=2")
    assert [made.of(Peer("api", 0)), made.of(Peer("api", 1))] == [(1,), (2,)]


def test_explicit_cores_are_cut_to_the_allowed_ones() -> None:
    assert shares(4, "engine=0,77;api=1,99")[:2] == ["0", "1"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("engine=9", "(0-3)"),
        ("9-12", "(0-3)"),
        ("enigne=0", "'enigne'"),
        ("api-1=0", "'api-1'"),
        ("engine=0;engine=1", "twice"),
        ("engine=", "not a list"),
        ("engine=3-1", "not a list"),
        ("one", "not a list"),
        ("engine=0;api=1-3", "tokenizer-0, detokenizer-0"),
    ],
)
def test_bad_plan_is_refused_with_what_is_wrong(text: str, word: str) -> None:
    with pytest.raises(SettingsError, match="cores") as caught:
        shares(4, text)
    assert word in str(caught.value)


def test_describe_names_every_process_and_the_rule() -> None:
    assert plan(range(4), 1, 1, 1).describe() == "engine-0=0 api-0=1 tokenizer-0=2 detokenizer-0=3 (automatic over 0-3)"


def test_cores_are_shown_as_runs() -> None:
    assert show_cores([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.fixture
def own_cores() -> Iterator[list[int]]:
    before = affinity.allowed_cores()
    yield before
    affinity.apply(before)


def test_apply_moves_the_threads_that_exist_too(own_cores: list[int]) -> None:
    seen: list[set[int]] = []
    go = threading.Event()

    def look() -> None:
        go.wait(5)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=look)
    thread.start()
    assert affinity.apply(own_cores[:1])
    go.set()
    thread.join()
    assert seen == [set(own_cores[:1])]


def test_apply_to_thread_leaves_the_other_threads_alone(own_cores: list[int]) -> None:
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(affinity.apply_to_thread(own_cores[:1])))
    thread.start()
    thread.join()
    assert done == [True]
    assert affinity.allowed_cores() == own_cores


def test_refused_pinning_is_a_warning_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: psutil.Process, cores: list[int] | None = None) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(psutil.Process, "cpu_affinity", refuse)
    assert affinity.apply([0]) is False
    assert "running unpinned" in caplog.text
