"""Health: `/live` (the process runs), `/ready` (take traffic), `/health` (the whole path answers)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forebay.errors import RequestError
from forebay_api.http import Exchange
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api


async def live(api: Api, http: Exchange) -> None:
    """200 while this process runs."""
    await http.raw(200, b"")


async def ready(api: Api, http: Exchange) -> None:
    """200 while requests are welcome."""
    await http.raw(200 if api.problem() is None else 503, b"")


async def ping(api: Api, http: Exchange) -> None:
    """Like `/ready`, but a pause is no reason against it."""
    await http.raw(200 if api.problem(pause_counts=False) is None else 503, b"")


async def health(api: Api, http: Exchange) -> None:
    """The deep probe, unless the operator chose the shallow one."""
    if api.settings.health_generation:
        await deep(api, http)
    else:
        await ready(api, http)


async def deep(api: Api, http: Exchange) -> None:
    """200 once the engine is heard of after a probe request; 503 when that takes too long or a process is dead."""

    def problem() -> str | None:
        return api.problem(unhealthy_counts=False, pause_counts=False)

    found = problem()
    try:
        if found is None:
            await asyncio.wait_for(api.probe_engine(problem), api.settings.health_timeout)
    except TimeoutError:
        api.healthy = False
        found = "the engine did not answer the health probe"
        api.log.warning("no sign of life of the engine within health_timeout (%g s)", api.settings.health_timeout)
    except RequestError as error:
        found = error.message
    if found is not None:
        await http.text(found, 503)
        return
    api.healthy = True
    await http.raw(200, b"")


async def root(api: Api, http: Exchange) -> None:
    """A word for people."""
    await http.text("forebay is running")


BOTH = ("GET", "HEAD")
ROUTES = [
    Route(BOTH, "/live", live, "The process runs", "health", access="open"),
    Route(BOTH, "/ready", ready, "Requests are welcome", "health", access="open"),
    Route(BOTH, "/ping", ping, "Requests are welcome, even while paused", "health", access="open"),
    Route(BOTH, "/health", health, "The whole path answers", "health", access="open"),
    Route(BOTH, "/health_generate", deep, "The whole path answers", "health", access="open"),
    Route(BOTH, "/", root, "A word for people", "health", access="open"),
]
