"""The units under a live systemd, as an operator handles them: start, order, faults, reload, restarts, stop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import httpx
import pytest

from forebay.topology import ROLES
from tests.helpers.front import wait_for
from tests.helpers.load import Load
from tests.helpers.models import make_tokenizer
from tests.systemd.machine import UNITS, URL, Machine

pytestmark = pytest.mark.timeout(300)
INNER = tuple(unit for unit in UNITS if "-api@" not in unit)
WATCHDOG = 3.0
"""Seconds of the shortened watchdog: the units' own are 30 and 120."""
TOKENIZER = "var/cache/forebay/test-tokenizer"
KEY, OTHER = "sk-front-5d41402a", "sk-other-9f1c03e7"


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(os.environ)


@pytest.fixture(scope="module", autouse=True)
def installed(machine: Machine) -> None:
    """What `deploy/try-systemd` has left: the lines of docs/operating.md were run, the last one starts the target."""
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16}
    answer = httpx.post(f"{URL}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, machine.journal()
    assert answer.json()["usage"]["completion_tokens"] > 0
    assert answer.json()["model"] == "SmolLM2-135M-Instruct"
    began = time.monotonic()
    machine.stop()
    stopped = time.monotonic()
    machine.start()
    print(f"\ndefault model: stopped in {stopped - began:.1f} s, ready in {time.monotonic() - stopped:.1f} s")
    assert machine.ready()
    machine.stop()


@pytest.fixture(scope="module")
def settings(machine: Machine) -> dict[str, str | int | float]:
    """Settings of an echo engine with 10 ms a step."""
    make_tokenizer(machine.root / TOKENIZER)
    return {"engine": "echo", "tokenizer_path": f"/{TOKENIZER}", "echo_step_ms": 10, "drain_timeout": 20}


@pytest.fixture
def echo(machine: Machine, settings: dict[str, str | int | float]) -> Iterator[Machine]:
    """The front, started; it must stop without a word of trouble."""
    machine.configure(**settings)
    since = f"@{time.time():.6f}"
    began = time.monotonic()
    machine.start()
    print(f"\necho: ready in {time.monotonic() - began:.2f} s")
    yield machine
    machine.stop()
    assert machine.left() == []
    assert machine.processes() == []
    assert "Traceback" not in machine.journal("--since", since)


def moment(machine: Machine, unit: str, name: str) -> int:
    """A time of a unit in microseconds since the boot."""
    return int(machine.show(unit, name))


def test_start_returns_when_the_front_serves_and_the_api_comes_last(echo: Machine) -> None:
    assert echo.generate().status_code == 200  # the first request, nothing was waited for
    inner_ready = [moment(echo, unit, "ActiveEnterTimestampMonotonic") for unit in INNER]
    api_begins = moment(echo, "forebay-api@0.service", "ExecMainStartTimestampMonotonic")
    api_ready = moment(echo, "forebay-api@0.service", "ActiveEnterTimestampMonotonic")
    assert max(inner_ready) <= api_begins < api_ready <= moment(echo, "forebay.target", "ActiveEnterTimestampMonotonic")
    starts = [moment(echo, unit, "ExecMainStartTimestampMonotonic") for unit in INNER]
    assert all(ready - start > 50_000 for start, ready in zip(starts, inner_ready, strict=True))  # notify, not fork


def test_systemd_has_no_word_to_say_about_the_units(echo: Machine) -> None:
    said = [line for line in echo.journal("_PID=1").splitlines() if "forebay" in line]
    troubles = ("ordering cycle", "Failed", "failed", "deleted to break", "unknown", "Unknown", "ignoring", "not safe")
    assert [line for line in said if any(word in line for word in troubles)] == []


@pytest.mark.parametrize("unit", UNITS)
def test_lines_of_each_process_stand_in_the_journal_under_its_name(echo: Machine, unit: str) -> None:
    name = unit.removesuffix(".service").replace("@", "-")
    assert "ready: " in echo.journal("-t", name)


@pytest.mark.parametrize("unit", UNITS)
def test_killed_process_is_started_again_and_the_front_serves(echo: Machine, unit: str) -> None:
    began = time.monotonic()
    echo.systemctl("kill", "-s", "KILL", unit)
    wait_for(lambda: echo.restarts(unit) == 1, 20, "the restart")
    echo.wait_ready()
    print(f"\n{unit} killed: ready again after {time.monotonic() - began:.2f} s")
    assert echo.generate().status_code == 200


@pytest.mark.parametrize("unit", UNITS)
def test_process_that_is_told_to_end_by_hand_is_started_again(echo: Machine, unit: str) -> None:
    echo.systemctl("kill", "-s", "TERM", unit)
    wait_for(lambda: echo.restarts(unit) == 1, 20, "the restart")
    echo.wait_ready()
    assert echo.generate().status_code == 200


@pytest.mark.parametrize("unit", UNITS)
def test_process_that_hangs_is_ended_by_the_watchdog_and_says_where_it_stood(echo: Machine, unit: str) -> None:
    echo.drop_in(unit.replace("@0", "@"), f"[Service]\nWatchdogSec={WATCHDOG:g}\n")
    try:
        echo.systemctl("restart", unit)
        echo.wait_ready()
        since = f"@{time.time():.6f}"
        began = time.monotonic()
        echo.systemctl("kill", "-s", "STOP", unit)
        wait_for(lambda: echo.restarts(unit) == 1, WATCHDOG + 20, "the watchdog")
        echo.wait_ready()
        print(f"\n{unit} frozen: ready again after {time.monotonic() - began:.2f} s, watchdog {WATCHDOG:g} s")
        assert echo.generate().status_code == 200
        said = echo.journal("-u", unit, "--since", since)
        assert "Watchdog timeout" in said
        assert "Fatal Python error: Aborted" in said
    finally:
        echo.drop_in(unit.replace("@0", "@"), None)


def test_idle_front_keeps_its_watchdog_quiet(echo: Machine) -> None:
    for unit in UNITS:
        echo.drop_in(unit.replace("@0", "@"), "[Service]\nWatchdogSec=1\n")
    try:
        echo.systemctl("restart", "forebay-*.service")
        echo.wait_ready()
        with Load(URL, echo.root / TOKENIZER, clients=8) as load:
            wait_for(lambda: len(load.outcomes) > 100, 60, "requests")
        assert load.counts().keys() == {"whole"}
        assert [echo.restarts(unit) for unit in UNITS] == [0, 0, 0, 0]
    finally:
        for unit in UNITS:
            echo.drop_in(unit.replace("@0", "@"), None)


def test_reload_takes_the_new_key(echo: Machine, settings: dict[str, str | int | float]) -> None:
    echo.configure(**settings, api_key=KEY)
    echo.systemctl("reload", "forebay-*.service")
    wait_for(lambda: echo.generate().status_code == 401, 10, "the key")
    assert echo.generate(authorization=f"Bearer {KEY}").status_code == 200
    echo.configure(**settings, api_key=OTHER)
    echo.systemctl("reload", "forebay-*.service")
    wait_for(lambda: echo.generate(authorization=f"Bearer {OTHER}").status_code == 200, 10, "the other key")
    assert echo.generate(authorization=f"Bearer {KEY}").status_code == 401
    assert [echo.restarts(unit) for unit in UNITS] == [0, 0, 0, 0]


def restart_under_load(machine: Machine, unit: str) -> None:
    with Load(URL, machine.root / TOKENIZER, clients=16) as load:
        wait_for(lambda: len(load.outcomes) > 20, 30, "requests before the restart")
        began = time.monotonic()
        machine.systemctl("restart", unit)
        took = time.monotonic() - began
        before = len(load.outcomes)
        wait_for(lambda: len(load.outcomes) > before + 20, 30, "requests after the restart")
    print(f"\n{unit} restarted under load: {took:.2f} s, {len(load.outcomes)} requests")
    assert load.counts().keys() == {"whole"}, [outcome for outcome in load.outcomes if outcome.kind != "whole"][:5]


@pytest.mark.parametrize("role", ["tokenizer", "detokenizer"])
def test_restart_of_the_only_process_of_a_role_costs_nobody_anything(echo: Machine, role: str) -> None:
    restart_under_load(echo, f"forebay-{role}@0.service")


def test_more_processes_of_a_role_are_enabled_as_the_page_says(
    machine: Machine, settings: dict[str, str | int | float]
) -> None:
    seconds = [f"forebay-{role}@1.service" for role in ("api", "tokenizer", "detokenizer")]
    machine.configure(**settings, apis=2, tokenizers=2, detokenizers=2)
    machine.systemctl("enable", *seconds)
    try:
        machine.start()
        assert [machine.show(unit, "ActiveState") for unit in seconds] == ["active"] * 3
        for role in ("api", "tokenizer", "detokenizer"):
            restart_under_load(machine, f"forebay-{role}@1.service")
        machine.stop()
        assert machine.left() == []
    finally:
        machine.systemctl("disable", *seconds)
        machine.stop()


def test_masked_engine_leaves_its_place_to_another_one(
    machine: Machine, settings: dict[str, str | int | float]
) -> None:
    machine.configure(**settings)
    words = ("--index", "0", "--run-dir", "/run/forebay", "--config", "/etc/forebay/forebay.toml")
    machine.systemctl("mask", "forebay-engine@0.service")
    try:
        machine.systemctl("start", "--no-block", "forebay.target")
        wait_for(lambda: "listening" in machine.journal("-u", "forebay-api@0.service"), 30, "the api")
        assert machine.show("forebay-engine@0.service", "ActiveState") == "inactive"
        own = ("systemd-run", "--unit=own-engine", "--uid=forebay", "--property=UMask=0077")
        machine.run(*own, "/opt/forebay/bin/python", "-m", "forebay_engine", *words)
        machine.wait_ready()
        assert machine.generate().status_code == 200
    finally:
        machine.systemctl("unmask", "forebay-engine@0.service")
        machine.stop()
        machine.systemctl("stop", "own-engine.service")


def test_stop_lets_running_streams_end_and_leaves_nothing(echo: Machine) -> None:
    body = {"prompt": "fox", "max_tokens": 300, "stream": True}
    with httpx.stream("POST", f"{URL}/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        began = time.monotonic()
        echo.systemctl("stop", "--no-block", "forebay.target", "forebay-*.service")
        rest = list(lines)
    assert [line for line in rest if line][-1] == "data: [DONE]"
    assert not any('"error"' in line for line in rest)
    echo.stop()
    print(f"\nstopped under a stream of 3 s in {time.monotonic() - began:.2f} s")
    assert [(echo.show(unit, "ActiveState"), echo.show(unit, "Result")) for unit in UNITS] == [
        ("inactive", "success")
    ] * 4
    ends = {role: moment(echo, f"forebay-{role}@0.service", "ExecMainExitTimestampMonotonic") for role in ROLES}
    assert ends["api"] == min(ends.values())


def test_process_that_cannot_start_is_given_up_and_systemd_says_so(echo: Machine) -> None:
    unit = "forebay-tokenizer@0.service"
    echo.configure(engine="echo", tokenizer_path="/nowhere")
    echo.systemctl("kill", "-s", "KILL", unit)
    wait_for(lambda: echo.show(unit, "ActiveState") == "failed", 60, "the end of patience")
    assert "/nowhere" in echo.journal("-u", unit)
    assert echo.get("/ready").status_code == 503
