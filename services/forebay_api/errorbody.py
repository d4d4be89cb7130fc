"""The error object of each API family (spec: native API 1.1, OpenAI API 1.2)."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.errors import RequestError

MAX_MESSAGE = 2000
"""Characters of an error message that a client is shown: messages quote the client's own input."""

# The flat part of an OpenAI error uses the names of the SGLang server, the nested one OpenAI's.
_FLAT = {
    400: "BadRequestError",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    499: "request_cancelled",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
    504: "timeout_error",
}
_NESTED = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def native_error(error: RequestError, *, in_stream: bool = False) -> dict[str, Any]:
    """`{"error": {message, type, code, param}}`; in a stream also whether sending it again may help."""
    body: dict[str, Any] = {
        "message": _shown(error.message),
        "type": error.type,
        "code": error.status,
        "param": error.param,
    }
    if in_stream:
        body["retryable"] = error.status in (429, 503)
    return {"error": body}


def openai_error(error: RequestError, form: str = "both") -> dict[str, Any]:
    """The flat and the nested form in one body, so that OpenAI and SGLang clients both find theirs."""
    message, status = _shown(error.message), error.status
    code: int | str = "model_not_found" if status == 404 and error.param == "model" else status
    nested_type = _NESTED.get(status, "server_error" if status >= 500 else "invalid_request_error")
    nested = {"message": message, "type": nested_type, "param": error.param, "code": code}
    if form == "openai":
        return {"error": nested}
    flat_type = _FLAT.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    flat = {"object": "error", "message": message, "type": flat_type, "param": error.param, "code": status}
    return flat if form == "sglang" else {**flat, "error": nested}


def openai_stream_error(error: RequestError) -> dict[str, Any]:
    """The error event of a stream that has begun."""
    flat = openai_error(error, "sglang")
    return {"error": flat}


def body_of(error: RequestError, *, openai: bool, form: str = "both") -> bytes:
    """The JSON body of an error answer."""
    return msgspec.json.encode(openai_error(error, form) if openai else native_error(error))


def _shown(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
