"""The short fault suite: each role killed or frozen once under load. The long one is `make test-faults`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.chaos import Fault, assert_idle, assert_nothing_kept, resumed, strike
from tests.helpers.front import Front, running

ROLES = ("api", "tokenizer", "detokenizer")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "20", "--restart-limit", "100"]
    flags += [word for role in ROLES for word in (f"--{role}s", "2")]
    with running(tmp_path_factory.mktemp("front"), *flags) as found:
        yield found


def test_a_killed_tokenizer_costs_nobody_anything(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("tokenizer-0")], seed=1)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert_idle(front)


def test_a_killed_detokenizer_costs_nobody_anything(front: Front, folder: Path) -> None:
    before = resumed(front)
    found = strike(front, folder, [Fault("detokenizer-1")], seed=2)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert resumed(front) - before > 10
    assert_idle(front)
    assert_nothing_kept(front)


def test_a_killed_engine_ends_all_streams_within_two_seconds(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("engine-0")], seed=3)
    assert found.of_kind("cut", "refused", "hung", "wrong") == []
    assert {outcome.status for outcome in found.of_kind("error")} == {503}
    assert found.longest("error") < 2
    assert_idle(front)


def test_a_killed_api_process_takes_only_its_own_connections_along(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("api-1")], seed=4)
    assert found.of_kind("error", "hung", "wrong") == []
    assert found.longest("cut") < 1
    assert len([outcome for outcome in found.hit() if outcome.kind == "whole"]) > 10
    assert_idle(front)


def test_a_frozen_engine_delays_and_loses_nothing(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("engine-0", frozen=0.6)], seed=5)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert_idle(front)


def test_a_stopped_detokenizer_costs_nobody_anything(front: Front, folder: Path) -> None:
    found = strike(front, folder, [Fault("detokenizer-0", signal.SIGTERM)], seed=7)
    assert found.of_kind("error", "cut", "refused", "hung", "wrong") == []
    assert_idle(front)
