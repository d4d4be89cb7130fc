"""What a route is: methods, path, handler, and what the documentation and the door need to know of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay_api.http import Exchange

if TYPE_CHECKING:
    from forebay_api.app import Api

Handler = Callable[["Api", Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One path. `access`: `open` needs no key, `normal` the api key, `admin` the admin key if there is one,
    `force` the admin key always (`forebay_api.access`).

    `body` is the msgspec struct of the request body, for the documentation.
    """

    methods: tuple[str, ...]
    path: str
    handler: Handler
    summary: str
    tag: str
    access: str = "normal"
    openai: bool = False
    body: Any = None
