"""What the link costs the engine's thread, as the loop counts it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from forebay import ControlRequest, Front
from forebay_engine.link_meter import LinkMeter
from tests.engine.test_loop import drive

BUSY_NS = 2_000_000


def busy(*_: Any) -> list[Any]:
    """Spend processor time."""
    end = time.thread_time_ns() + BUSY_NS
    while time.thread_time_ns() < end:
        pass
    return []


def meter(**methods: Any) -> LinkMeter:
    names = ("wait_ingress", "push_error", "push_control_output", "drain", "push_generation", "push_embeddings")
    return LinkMeter(cast(Front, SimpleNamespace(**{name: methods.get(name) for name in names})))


def test_processor_time_of_drains_and_pushes_adds_up() -> None:
    link = meter(drain=busy, push_generation=busy, push_embeddings=busy)
    link.drain()
    link.push_generation(cast(Any, None))
    link.push_embeddings(cast(Any, None))
    assert link.cpu_s >= 3 * BUSY_NS / 1e9


def test_waiting_does_not_count() -> None:
    link = meter(wait_ingress=busy)
    link.wait_ingress(1)
    assert link.cpu_s == 0


def test_state_of_an_engine_has_the_cost_of_its_link() -> None:
    ((_, state),) = drive(ControlRequest("c", 0, "GetInternalState")).replies
    assert state["link_cpu_s"] > 0
