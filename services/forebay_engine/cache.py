"""Where fetched and converted models are kept, and how their making is told to the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

Progress: TypeAlias = Callable[[str], None]
"""Takes one line for the operator."""


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """FOREBAY_CACHE, else `forebay` under XDG_CACHE_HOME, else ~/.cache/forebay."""
    if chosen := environ.get("FOREBAY_CACHE"):
        return Path(chosen)
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "forebay"
