"""What an operator sees of the settings: a flag with help for each, and the page `deploy/forebay.toml`."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from forebay.config import Setting, settings_table
from forebay.settings import TABLE


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for every setting, grouped by section, with its sentence and default."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in settings_table().values():
        if setting.section not in groups:
            groups[setting.section] = parser.add_argument_group(setting.section)
        _add_flag(groups[setting.section], setting)


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    text = f"{setting.row.sentence} [{shown_default(setting)}]".replace("%", "%%")
    if setting.kind is bool:
        group.add_argument(
            setting.flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text, dest=setting.name
        )
        return
    words = {str: "TEXT", int: "N", float: "SECONDS" if "timeout" in setting.name else "X", dict: "JSON"}
    metavar = "|".join(setting.kind) if isinstance(setting.kind, tuple) else words[setting.kind]
    group.add_argument(setting.flag, default=argparse.SUPPRESS, help=text, dest=setting.name, metavar=metavar)


def shown_default(setting: Setting) -> str:
    """The default as the operator would write it: `none`, `true`, `64MiB`, `8000`."""
    value = setting.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if setting.is_size and value % (1 << 20) == 0:
        return f"{value >> 20}MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def given_flags(namespace: argparse.Namespace) -> dict[str, Any]:
    """The settings among parsed flags, as `overrides` of `load`."""
    return {name: value for name, value in vars(namespace).items() if name in settings_table()}


PAGE_HEAD = """\
# All settings of forebay. Every line is commented out and shows the default: uncomment what you change.
# Use it with `forebay serve --config FILE`, FOREBAY_CONFIG=FILE, or the systemd units beside it.
# The environment (FOREBAY_PORT=8080) wins over this file, and flags (--port 8080) win over both.
# Text stands in quotes; `none` is written "none"; sizes may be written "64MiB".
"""


def settings_page() -> str:
    """The text of `deploy/forebay.toml`: every setting with its sentence, what is valid, and its default."""
    parts = [PAGE_HEAD]
    table = settings_table()
    for section, rows in TABLE.items():
        parts.append(f"\n# ---- {section} ----\n")
        parts += [_page_entry(table[name]) for name in rows]
    return "".join(parts)


def _page_entry(setting: Setting) -> str:
    about = textwrap.wrap(f"{setting.row.sentence} Valid: {setting.valid()}.", width=110)
    shown = shown_default(setting)
    bare = setting.default is not None and not isinstance(setting.default, str) and not setting.is_size
    value = shown if bare else json.dumps(shown)
    if isinstance(setting.default, float):
        value = repr(setting.default)
    return "\n" + "".join(f"# {line}\n" for line in about) + f"# {setting.name} = {value}\n"
