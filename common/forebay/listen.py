"""Whether the address for clients is free: asked before anything slow is started, so that the answer comes at once."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import msgspec
import psutil

from forebay.errors import StartError
from forebay.rundir import clear_socket
from forebay.settings import Settings

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104


def settle_address(settings: Settings) -> Settings:
    """The settings with a real port in place of 0; raises `StartError` when the address is taken or not ours."""
    if settings.uds is not None:
        clear_socket(Path(settings.uds))
        return settings
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartError(f"the address {settings.host} is not known ({error}); choose another --host") from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise StartError(_refusal(settings, error)) from error
        return msgspec.structs.replace(settings, port=probe.getsockname()[1])


def _refusal(settings: Settings, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"port {settings.port} needs more rights than this user has; choose one above 1023 with --port"
    if "in use" in str(error):
        return f"port {settings.port} is in use{_user_of(settings.port)}; choose another with --port, or stop that"
    return f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --host or --port"


def _user_of(port: int) -> str:
    """' by process 12 (name)' where the system tells us, which it does for our own processes."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:2] == (port,)
            if listens and connection.pid:
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""


def client_url(settings: Settings) -> str:
    """Where a client on this host reaches the front (a wildcard address becomes the loopback one)."""
    scheme = "http" if settings.tls_certfile is None else "https"
    if settings.uds is not None:
        return f"{scheme}://localhost"
    host = WILDCARDS.get(settings.host, f"[{settings.host}]" if ":" in settings.host else settings.host)
    return f"{scheme}://{host}:{settings.port}"
