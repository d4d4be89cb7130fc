"""`/metrics`: the numbers of the whole front, for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forebay_api.exposition import Front, render, summed
from forebay_api.http import Exchange
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api

ENGINE_TYPE = "unified"


async def metrics(api: Api, http: Exchange) -> None:
    """The counters of all processes, summed, in the Prometheus text format (or OpenMetrics, if asked for)."""
    if api.settings.metrics_need_key:
        api.authorize(http, "normal")
    api.role.tally.copy(time.monotonic())
    counts = api.family.counts()
    model = {"model_name": api.model_name(), "engine_type": ENGINE_TYPE}
    front = Front(summed(counts, api.family.up(counts)), api.settings.metrics_names, model)
    body, kind = render(front, (http.header(b"accept") or b"").decode("latin-1"))
    await http.raw(200, body, kind.encode())


ROUTES = [Route(("GET",), "/metrics", metrics, "Numbers for Prometheus", "information", access="open")]
