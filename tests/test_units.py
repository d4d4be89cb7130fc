"""The systemd units fit the processes and settings of the code; `make deploy-check` lets systemd itself read them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.settings import Settings
from forebay.topology import ROLES

UNITS = Path(__file__).parents[1] / "deploy" / "systemd"


def values(role: str, key: str) -> list[str]:
    text = (UNITS / f"forebay-{role}@.service").read_text()
    return re.findall(rf"(?m)^{key}=(.*)$", text)


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_a_unit_that_runs_its_module(role: str) -> None:
    assert [line.split()[1:3] for line in values(role, "ExecStart")] == [["-m", f"forebay_{role}"]]


@pytest.mark.parametrize("role", ROLES)
def test_every_unit_shares_the_run_folder_that_its_process_is_given(role: str) -> None:
    folder = values(role, "RuntimeDirectory")[0]
    assert f"--run-dir /run/{folder} " in values(role, "ExecStart")[0]
    assert values(role, "RuntimeDirectoryMode") == ["0700"]


@pytest.mark.parametrize("role", ["api", "tokenizer", "detokenizer"])
def test_a_stop_leaves_a_process_time_to_drain(role: str) -> None:
    assert float(values(role, "TimeoutStopSec")[0]) > Settings().drain_timeout


@pytest.mark.parametrize("role", ROLES)
def test_a_reload_is_the_signal_that_the_process_knows(role: str) -> None:
    assert values(role, "ExecReload") == ["kill -HUP $MAINPID"]


def test_a_start_may_take_as_long_as_the_warm_up() -> None:
    assert float(values("api", "TimeoutStartSec")[0]) >= Settings().warmup_timeout


@pytest.mark.parametrize("role", ROLES)
def test_the_api_is_after_everything_else_so_that_it_stops_first(role: str) -> None:
    order = values(role, "After" if role == "api" else "Before")
    assert any("forebay-inner.target" in line.split() for line in order)


def test_the_inner_target_is_before_the_whole_one_that_it_is_part_of() -> None:
    # Else systemd orders it behind, finds a circle, and starts no api; systemd-analyze does not see that.
    lines = (UNITS / "forebay-inner.target").read_text().splitlines()
    assert {"PartOf=forebay.target", "Before=forebay.target"} <= set(lines)


@pytest.mark.parametrize("role", ROLES)
def test_a_crash_leaves_a_traceback_and_no_core_file(role: str) -> None:
    assert "PYTHONFAULTHANDLER=1" in values(role, "Environment")
    assert values(role, "LimitCORE") == ["0"]


def test_the_target_wants_only_units_that_exist() -> None:
    text = (UNITS / "forebay.target").read_text()
    wanted = {name for line in re.findall(r"(?m)^Wants=(.*)$", text) for name in line.split()}
    assert [name for name in wanted if not (UNITS / name.replace("@0", "@")).is_file()] == []
