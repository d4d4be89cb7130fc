"""What SIGHUP changes in a running process: the keys of clients and the level of its log lines, nothing else."""

from __future__ import annotations

import logging

import msgspec

from forebay.settings import Settings

RELOADED = ("api_key", "admin_api_key", "log_level")
"""The settings that are read again."""


def reloaded(old: Settings, new: Settings) -> Settings:
    """The settings in force with the reloaded ones taken from `new`."""
    return msgspec.structs.replace(old, **{name: getattr(new, name) for name in RELOADED})


def set_level(settings: Settings) -> None:
    """Use the log level of these settings from now on."""
    logging.getLogger().setLevel(settings.log_level.upper())
