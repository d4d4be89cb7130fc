"""`forebay probe`: asks a running front whether it is well; the exit code is the answer (for a health check)."""

from __future__ import annotations

import http.client
import socket
import ssl
from pathlib import Path

from forebay import config
from forebay.errors import StartError
from forebay.listen import WILDCARDS
from forebay.rundir import SETTINGS_FILE
from forebay.settings import Settings

SLACK = 2.0
"""Seconds beyond `health_timeout`, within which `/health` itself answers."""


class _OverSocket(http.client.HTTPConnection):
    """HTTP over the unix socket of the setting `uds`."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def running_settings(settings: Settings) -> Settings:
    """What the front in the run folder of these settings was started with, flags and all; without one, these."""
    saved = Path(settings.run_dir or "") / SETTINGS_FILE
    if settings.run_dir is None or not saved.is_file():
        return settings
    return config.load(config=saved, environ={}, overrides={})


def ask(settings: Settings, path: str) -> str:
    """The first line of what the front answers to a GET; raises `StartError` unless that is 200."""
    settings = running_settings(settings)
    connection = _connection(settings, settings.health_timeout + SLACK)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(4096).decode("utf-8", "replace").strip().partition("\n")[0]
    except (OSError, http.client.HTTPException) as error:
        raise StartError(f"no answer from the front: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise StartError(f"the front answers {answer.status} to {path}: {text}")
    return text


def _connection(settings: Settings, seconds: float) -> http.client.HTTPConnection:
    if settings.uds is not None:
        return _OverSocket(settings.uds, seconds)
    host = WILDCARDS.get(settings.host, settings.host).strip("[]")
    if settings.tls_certfile is None:
        return http.client.HTTPConnection(host, settings.port, timeout=seconds)
    # It must show the very certificate of the settings; the name in it is the outer one, and not the one we dial.
    context = ssl.create_default_context(cafile=settings.tls_certfile)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, settings.port, timeout=seconds, context=context)
