"""The FastAPI side: documentation pages, paths with parameters, and the answers to what is not found.

The OpenAPI document is generated from the same route table and the same msgspec structs that serve the requests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response

from forebay._version import __version__
from forebay.errors import RequestError
from forebay_api import errorbody
from forebay_api.http import Exchange, Receive, Scope, Send
from forebay_api.routes import Route, all_routes

if TYPE_CHECKING:
    from forebay_api.app import Api


class _Handled(Response):
    """A response that one of our handlers writes itself, on the connection of the request."""

    def __init__(self, api: Api, route: Route) -> None:
        super().__init__()
        self._api, self._route = api, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The exchange goes on as it began; only the parameters of the path are new.
        http: Exchange = scope["forebay"]
        http.scope = scope
        try:
            await self._api.run(self._route, http)
        except RequestError as error:
            await http.error(error, self._api.settings.error_format)


def build_pages(api: Api) -> FastAPI:
    """The FastAPI application of one api process."""
    pages = FastAPI(title="forebay", version=__version__, docs_url="/docs", redoc_url=None, redirect_slashes=False)
    routes = all_routes()
    for route in routes:
        for method in route.methods:
            pages.add_api_route(
                route.path,
                _endpoint(api, route),
                methods=[method],
                summary=route.summary,
                description=route.handler.__doc__,
                tags=[route.tag],
                operation_id=f"{method.lower()}_{route.path.strip('/') or 'root'}".replace("/", "_"),
                response_class=Response,
                openapi_extra={**_path_parameters(route), **_request_body(route)},
            )
    schemas = _components([route.body for route in routes if route.body is not None])

    def document() -> dict[str, Any]:
        if pages.openapi_schema is None:
            made = get_openapi(title="forebay", version=__version__, routes=pages.routes)
            made.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
            pages.openapi_schema = made
        return pages.openapi_schema

    pages.openapi = document  # type: ignore[method-assign]

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = {404: f"no route {request.url.path}", 405: f"{request.method} is not allowed here"}
        shown = RequestError(text.get(error.status_code, str(error.detail)), error.status_code)
        body = errorbody.body_of(shown, openai=request.url.path.startswith("/v1/"), form=api.settings.error_format)
        return Response(body, error.status_code, media_type="application/json", headers=dict(error.headers or {}))

    pages.add_exception_handler(HTTPException, refused)
    return pages


def _endpoint(api: Api, route: Route) -> Any:
    async def endpoint(request: Request) -> Response:
        return _Handled(api, route)

    return endpoint


def _components(bodies: list[Any]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    return dict(components)


def _path_parameters(route: Route) -> dict[str, Any]:
    names = re.findall(r"{(\w+)", route.path)
    text = {"in": "path", "required": True, "schema": {"type": "string"}}
    return {"parameters": [{"name": name, **text} for name in names]} if names else {}


def _request_body(route: Route) -> dict[str, Any]:
    if route.body is None:
        return {}
    reference = {"$ref": f"#/components/schemas/{route.body.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}
