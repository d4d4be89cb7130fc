"""Log set-up of every process: one line a record on standard error, as text or as JSON."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A JSON object a line: time, level, process, logger, message, and what was passed as `extra`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up(process: str, level: str, form: str) -> None:
    """Send the records of this process to standard error; `form` is `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonLines(process))
    else:
        text = f"%(asctime)s {process} %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text, "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # One line for each HTTP request is the front's own business (`log_requests`).
    logging.getLogger("uvicorn.access").disabled = True
