"""Faults for running fronts: processes killed and frozen under load, and what must be true before and after."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from tests.helpers.front import Front, wait_for
from tests.helpers.load import Load, Outcome

DEPTH = re.compile(r'forebay_queue_depth\{[^}]*stage="(\w+)"[^}]*\} ([\d.]+)')


class Fault(NamedTuple):
    """One thing done to one process: `frozen` seconds between SIGSTOP and SIGCONT, or a signal."""

    name: str
    signal: int = signal.SIGKILL
    frozen: float = 0.0
    after: float = 0.0
    """Seconds after the one before it."""

    def __str__(self) -> str:
        what = f"frozen {self.frozen:g} s" if self.frozen else signal.Signals(self.signal).name
        return f"{self.name} {what}"


class Round(NamedTuple):
    """What a round of faults under load has shown."""

    faults: Sequence[Fault]
    at: float
    """When the first fault happened."""
    over: float
    """When the last one was over: the process killed, or going on."""
    recovered: float
    """When the front said again that it is ready."""
    outcomes: list[Outcome]

    def of_kind(self, *kinds: str) -> list[Outcome]:
        """The requests that ended in one of these ways."""
        return [outcome for outcome in self.outcomes if outcome.kind in kinds]

    def hit(self) -> list[Outcome]:
        """The requests that were under way when the first fault happened."""
        return [outcome for outcome in self.outcomes if outcome.began <= self.at < outcome.ended]

    def longest(self, *kinds: str) -> float:
        """Seconds from the last fault to the last end of a request that was under way and ended in such a way."""
        return max((o.ended - self.over for o in self.hit() if o.kind in kinds), default=0.0)

    def line(self) -> str:
        """One line for people."""
        kinds = {kind: len(self.of_kind(kind)) for kind in sorted({o.kind for o in self.outcomes})}
        said = Counter(outcome.detail[:80] for outcome in self.of_kind("error"))
        return (
            f"{' + '.join(map(str, self.faults))}: {kinds} {dict(said)}, "
            f"last error after {self.longest('error', 'cut'):.2f} s, "
            f"ready after {self.recovered - self.over:.2f} s"
        )


def is_ready(front: Front, times: int = 6) -> bool:
    """Whether `/ready` says so through several connections: each api process takes some of them."""
    with contextlib.suppress(httpx.HTTPError):
        for _ in range(times):
            with front.client() as client:
                if client.get("/ready").status_code != 200:
                    return False
        return True
    return False


def depths(front: Front) -> dict[str, float]:
    """Entries in the tables of all processes, by stage."""
    out: dict[str, float] = {}
    with front.client() as client:
        for stage, value in DEPTH.findall(client.get("/metrics").text):
            out[stage] = out.get(stage, 0.0) + float(value)
    return out


def nothing_left(front: Front) -> bool:
    """No request in the engine, and no entry in any table."""
    with contextlib.suppress(httpx.HTTPError):
        state = front.state()
        return state["num_running_reqs"] == state["num_waiting_reqs"] == 0 and not any(depths(front).values())
    return False


def assert_idle(front: Front) -> None:
    """The engine has no orphan, the tables are empty, and `/health` says that all is well."""
    try:
        wait_for(lambda: nothing_left(front), 10, "a front without a request")
    except AssertionError as error:
        raise AssertionError(f"{error}: {depths(front)}, {front.state()}") from None
    with front.client() as client:
        assert client.get("/health").status_code == 200


def number(front: Front, name: str) -> float:
    """A number of `/metrics` that has no labels but the process's."""
    with front.client() as client:
        found = re.findall(rf"^forebay_{name}(?:\{{[^}}]*\}})? ([\d.e+]+)$", client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


def resumed(front: Front) -> float:
    """Requests that were taken up again after a detokenizer died."""
    return number(front, "resumed_requests_total")


def assert_nothing_kept(front: Front) -> None:
    """The engine's link keeps no step any more."""
    wait_for(lambda: number(front, "kept_bytes") == 0, 10, "a link that keeps nothing")


def memory(front: Front) -> dict[str, float]:
    """MiB of each process that are its own (what it shares with the others does not count)."""
    return {name: psutil.Process(pid).memory_info().rss / (1 << 20) for name, pid in front.pids().items()}


def do(front: Front, faults: Sequence[Fault]) -> tuple[float, float]:
    """Do the faults, one after another; returns when the first began and when the last was over."""
    pids = front.pids()
    at = 0.0
    wakes: list[tuple[float, int]] = []
    for fault in faults:
        time.sleep(fault.after)
        at = at or time.monotonic()
        os.kill(pids[fault.name], signal.SIGSTOP if fault.frozen else fault.signal)
        if fault.frozen:
            wakes.append((time.monotonic() + fault.frozen, pids[fault.name]))
    for due, pid in sorted(wakes):
        time.sleep(max(0.0, due - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return at, time.monotonic()


def strike(
    front: Front,
    folder: Path,
    faults: Sequence[Fault],
    *,
    seed: int = 1,
    clients: int = 64,
    meanwhile: Callable[[], None] = lambda: None,
) -> Round:
    """Faults at a random moment under load; returns once the front is ready again and all requests have ended."""
    chance = random.Random(seed)
    before = front.pids()
    with Load(front.url, folder, clients=clients, seed=seed) as load:
        wait_for(lambda: load.streaming > clients // 2, 20, "running streams")
        time.sleep(chance.random() * 0.5)
        at, over = do(front, faults)
        meanwhile()
        killed = [fault.name for fault in faults if not fault.frozen]

        def back() -> bool:
            pids = front.pids()
            return all(pids.get(name, before[name]) != before[name] for name in killed) and is_ready(front)

        wait_for(back, 30, "a whole front")
        recovered = time.monotonic()
        time.sleep(0.3)
    found = Round(faults, at, over, recovered, load.outcomes)
    print(found.line())
    return found
