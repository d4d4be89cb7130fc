"""The error tree of forebay. Errors that a client may see carry their HTTP status and public text.

ForebayError
|-- SettingsError        a setting, flag or file is wrong: the operator can fix it
|-- StartError           a process cannot start (run folder in use, port taken, path too long ...)
|-- LinkError            a link is closed, full or dead
|-- WireError            we are asked to encode something that has no place on the wire
|-- PeerError            a frame from a peer cannot be decoded
`-- RequestError         a client's request is refused: status, message, type, param
"""

from __future__ import annotations


class ForebayError(Exception):
    """Root of all errors that forebay raises on purpose."""


class SettingsError(ForebayError):
    """A setting has a wrong value; the text names the setting and what to do."""


class StartError(ForebayError):
    """A process cannot start; the text says what to do."""


class LinkError(ForebayError):
    """A link between processes is closed, full or dead."""


class WireError(ForebayError):
    """We were asked to encode something that has no place on the wire."""


class PeerError(ForebayError):
    """A frame from a peer cannot be decoded; the frame is dropped, the process goes on."""


# Error types of the native routes by HTTP status (spec: native API, section 1.1).
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    499: "request_cancelled",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable_error",
    504: "timeout_error",
}


class RequestError(ForebayError):
    """A client's request is refused. `message` is shown to the client as it is."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        type: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.type = type or ERROR_TYPES.get(status, "internal_error" if status >= 500 else "invalid_request_error")
        self.retry_after = retry_after
