"""The long fault suite (`make test-faults`): random faults, alone and in pairs, round after round, on one front."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.chaos import Fault, Round, assert_idle, is_ready, memory, strike
from tests.helpers.front import Front, running, wait_for

NAMES = [f"{role}-{number}" for role in ("api", "tokenizer", "detokenizer") for number in (0, 1)] + ["engine-0"]
GROWTH_MB = 60.0


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "20", "--restart-limit", "1000"]
    flags += ["--apis", "2", "--tokenizers", "2", "--detokenizers", "2", "--restart-window", "1"]
    with running(tmp_path_factory.mktemp("front"), *flags) as found:
        yield found


def draw(chance: random.Random, name: str) -> Fault:
    """A kill or a freeze, up to 0.2 s after the fault before it."""
    frozen = chance.choice([0.0, 0.0, chance.uniform(0.1, 2.0)])
    return Fault(name, frozen=frozen, after=chance.choice([0.0, chance.random() * 0.2]))


def check(found: Round) -> None:
    """What holds for any faults: no wrong text, no hang, and errors in time."""
    killed = {fault.name.partition("-")[0] for fault in found.faults if not fault.frozen}
    assert found.of_kind("wrong", "hung") == [], found.line()
    if "api" not in killed:
        assert found.of_kind("cut", "refused") == [], found.line()
    if not killed & {"engine", "api"}:
        assert found.of_kind("error") == [], found.line()
    assert {outcome.status for outcome in found.of_kind("error")} <= {503}
    assert found.longest("error", "cut") < (2 if "engine" in killed else 1), found.line()


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.timeout(120)
def test_a_random_fault_ends_what_it_hits_in_time_and_nothing_else(front: Front, folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    check(strike(front, folder, [draw(chance, chance.choice(NAMES))], seed=seed))
    assert_idle(front)


@pytest.mark.parametrize("seed", range(100, 124))
@pytest.mark.timeout(120)
def test_two_random_faults_end_what_they_hit_in_time_and_nothing_else(front: Front, folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    check(strike(front, folder, [draw(chance, name) for name in chance.sample(NAMES, 2)], seed=seed))
    assert_idle(front)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
def test_a_process_that_is_frozen_longer_than_the_heartbeats_allow_is_taken_back(
    front: Front, folder: Path, name: str
) -> None:
    found = strike(front, folder, [Fault(name, frozen=16.0)], seed=7, clients=16)
    assert found.of_kind("wrong", "hung") == [] or name.startswith("api"), found.line()
    wait_for(lambda: is_ready(front), 10, "a front that is ready")
    assert_idle(front)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "engine-0"])
@pytest.mark.timeout(120)
def test_a_process_that_is_stopped_in_order_costs_nobody_anything(front: Front, folder: Path, name: str) -> None:
    found = strike(front, folder, [Fault(name, signal.SIGTERM)], seed=9)
    assert found.of_kind("error", "cut", "refused", "wrong", "hung") == [], found.line()
    assert_idle(front)


def test_memory_is_back_after_all_of_it(front: Front, folder: Path) -> None:
    before = memory(front)
    for seed in range(3):
        strike(front, folder, [], seed=seed)
    assert_idle(front)
    after = memory(front)
    assert {name: after[name] - before[name] for name in after if after[name] - before[name] > GROWTH_MB} == {}
