"""The engine as a process of the front: opens the engine, joins the front, runs the loop until a signal."""

from __future__ import annotations

import os
import time

from forebay import Front
from forebay.role import Role
from forebay.shards import ResumeLimits
from forebay_engine import loop
from forebay_engine.engine import open_engine


def run(role: Role) -> None:
    """Serve the engine that the role's settings name. Raises `StartError` or `SettingsError` when it cannot start."""
    settings = role.settings
    engine, facts = open_engine(settings, os.environ, role.log.info)
    front = Front.connect(
        role.run_dir,
        facts,
        apis=settings.apis,
        tokenizers=settings.tokenizers,
        detokenizers=settings.detokenizers,
        number=role.me.number,
        endpoints=settings.endpoints,
        keys_dir=settings.keys_dir,
        keep_memory=True,
        max_link_bytes=settings.max_link_bytes,
        resume=ResumeLimits(settings.resume_kept_bytes, settings.resume_timeout),
    )
    with front:
        role.ready(f"{facts['served_model_name']}, context of {facts['context_length']} tokens")
        loop.run(front, engine, _Watch(role))


class _Watch:
    """Whether the process shall stop; tells the service manager's watchdog, when it is due, that the loop turns."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._due = 0.0

    def __call__(self) -> bool:
        interval = self._role.notifier.watchdog_interval
        if interval is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + interval
            self._role.notifier.watchdog()
        self._role.reload_if_asked()
        return self._role.stopping
