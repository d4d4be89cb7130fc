"""The routes, one module an API family; `all_routes` is the table that the app and its documentation are made from."""

from __future__ import annotations

from forebay_api.routes import (
    adapters,
    control,
    embeddings,
    generation,
    health,
    info,
    loads,
    metrics,
    pause,
    score,
    tokens,
    weights,
)
from forebay_api.routes.route import Route

__all__ = ["Route", "all_routes"]


def all_routes() -> list[Route]:
    """Every route of the front."""
    return [
        *generation.ROUTES,
        *info.ROUTES,
        *health.ROUTES,
        *tokens.ROUTES,
        *loads.ROUTES,
        *metrics.ROUTES,
        *control.ROUTES,
        *pause.ROUTES,
        *weights.ROUTES,
        *adapters.ROUTES,
        *embeddings.ROUTES,
        *score.ROUTES,
    ]
