"""Settings from a file, the environment and flags: their order, their errors, their public view.

The settings themselves stand in `forebay.settings`. A later source wins: defaults < file < environment < flags.
An unknown name or a wrong value is an error that says where it came from and what is valid.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from forebay.errors import SettingsError
from forebay.redaction import without_secrets
from forebay.settings import TABLE, Row, Settings
from forebay.topology import check_endpoints

__all__ = ["Setting", "Settings", "load", "nearest", "public_view", "save", "settings_table"]

PREFIX = "FOREBAY_"
OTHER_VARIABLES = frozenset({"FOREBAY_CONFIG", "FOREBAY_CACHE", "FOREBAY_PARENT_PID"})
"""Variables with our prefix that are no settings: the settings file, the folder of kept models, a supervisor's pid."""
TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
SIZES = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1}


class Setting(NamedTuple):
    """One setting: what the table says of it, and its type taken apart."""

    name: str
    section: str
    row: Row
    kind: Any
    """The type without `None`: str, int, float, bool, dict, or the tuple of the words that are allowed."""
    optional: bool
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_size(self) -> bool:
        return self.name.endswith("_bytes")

    def valid(self) -> str:
        """What a value must be, in words."""
        if isinstance(self.kind, tuple):
            text = "one of " + ", ".join(self.kind)
        else:
            nouns = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
            text = nouns.get(self.kind, "a table (in a variable or flag: a JSON object)")
        if self.is_size:
            text += " of bytes (64MiB and the like in quotes)"
        limits = [("from", self.row.ge), ("above", self.row.gt), ("to", self.row.le)]
        text += "".join(f" {word} {limit:g}" for word, limit in limits if limit is not None)
        return text + (", or none" if self.optional else "")


@functools.cache
def settings_table() -> Mapping[str, Setting]:
    """Every setting by name, in the order of the table."""
    hints = typing.get_type_hints(Settings)
    defaults = Settings()
    return {
        name: Setting(name, section, row, *_kind(hints[name]), getattr(defaults, name))
        for section, rows in TABLE.items()
        for name, row in rows.items()
    }


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of a setting without `None`, and whether `None` is allowed."""
    optional = isinstance(hint, types.UnionType)
    if optional:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is Literal:
        hint = typing.get_args(hint)
    elif typing.get_origin(hint) is dict:
        hint = dict
    return hint, optional


def load(*, config: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Settings:
    """Settings from all sources; raises `SettingsError` naming the setting, where it came from and what is valid.

    `config` is a .toml or .json file, or None. Of `environ` only FOREBAY_<NAME> counts. A text in `overrides` is
    read as on a command line, any other value as it is. The word none means None wherever that is allowed.
    """
    table = settings_table()
    values: dict[str, Any] = {}
    for name, value in _read_file(config).items():
        setting = _known(table, name, name, str(config))
        values[name] = _check(setting, value, f"in {config}", as_text=False)
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES:
            name = variable.removeprefix(PREFIX).lower()
            setting = _known(table, name, variable, "the environment")
            values[name] = _check(setting, text, f"in the environment ({variable})", as_text=True)
    for name, value in overrides.items():
        setting = _known(table, name, name, "the command line")
        values[name] = _check(setting, value, f"given as {setting.flag}", as_text=isinstance(value, str))
    settings = Settings(**values)
    _check_together(settings)
    return settings


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    if path.suffix not in (".toml", ".json"):
        raise SettingsError(f"{path}: a settings file ends in .toml or .json")
    try:
        data = path.read_bytes()
        found = tomllib.loads(data.decode()) if path.suffix == ".toml" else msgspec.json.decode(data)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{path}: a settings file holds one JSON object")
    return found


def _known(table: Mapping[str, Setting], name: str, written: str, source: str) -> Setting:
    if name in table:
        return table[name]
    written_like = PREFIX + "{}" if written.startswith(PREFIX) else "{}"
    hint = nearest(name, table, written_like)
    raise SettingsError(f"unknown setting {written} in {source}{hint}; `forebay settings` lists all of them")


def nearest(word: str, words: Iterable[str], form: str = "{}") -> str:
    """' (did you mean X?)' for the most similar of `words`, or nothing; `form` writes it as the user would."""
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    if not found:
        return ""
    shown = form.format(found[0].upper() if form.startswith(PREFIX) else found[0])
    return f" (did you mean {shown}?)"


def _check(setting: Setting, value: Any, source: str, *, as_text: bool) -> Any:
    try:
        if isinstance(value, str) and setting.optional and value.lower() == "none":
            value = None
        if isinstance(value, str) and (as_text or setting.is_size):
            value = _read_text(setting, value)
        return _limited(setting, _typed(setting, value))
    except (ValueError, msgspec.MsgspecError) as error:
        shown = "its value" if setting.row.secret else repr(value)
        raise SettingsError(f"{setting.name}: {shown} {source} is not valid; it must be {setting.valid()}") from error


def _read_text(setting: Setting, text: str) -> Any:
    """A value as it is written in a variable or flag."""
    if setting.optional and text == "" and not setting.row.secret:
        return None
    if setting.kind is str or isinstance(setting.kind, tuple):
        return text
    if setting.kind is bool:
        if text.lower() not in TRUTH:
            raise ValueError("not true or false")
        return TRUTH[text.lower()]
    if setting.kind is dict:
        return msgspec.json.decode(text)
    return _size(text) if setting.is_size else setting.kind(text)


def _size(text: str) -> int:
    """Bytes of a size such as `64MiB` or `65536`."""
    lowered = text.strip().lower()
    unit = next((unit for unit in SIZES if lowered.endswith(unit)), "")
    return int(lowered.removesuffix(unit)) * SIZES.get(unit, 1)


def _typed(setting: Setting, value: Any) -> Any:
    if value is None and setting.optional:
        return None
    if isinstance(setting.kind, tuple):
        if value not in setting.kind:
            raise ValueError("not one of the words")
        return value
    if value == "" and setting.row.secret:
        raise ValueError("an empty key would leave the door open")
    return msgspec.convert(value, dict[str, Any] if setting.kind is dict else setting.kind)


def _limited(setting: Setting, value: Any) -> Any:
    if isinstance(value, (int, float)):
        row = setting.row
        low = (row.ge is None or value >= row.ge) and (row.gt is None or value > row.gt)
        if not (math.isfinite(value) and low and (row.le is None or value <= row.le)):
            raise ValueError("out of range")
    return value


def _check_together(settings: Settings) -> None:
    if not settings.host:
        raise SettingsError("host: an empty address would listen on every interface; write 0.0.0.0 if you mean that")
    if settings.uds is not None and settings.apis > 1:
        raise SettingsError("uds: a unix socket serves one api process; set apis to 1, or use host and port")
    if (settings.tls_certfile is None) != (settings.tls_keyfile is None):
        raise SettingsError("tls_certfile, tls_keyfile: HTTPS needs both")
    check_endpoints(settings.endpoints or {})
    if settings.endpoints and settings.keys_dir is None:
        raise SettingsError("endpoints: TCP between processes needs keys_dir; `forebay keys DIR` makes the keys")


def public_view(settings: Settings) -> dict[str, Any]:
    """All settings but the secrets: what may be logged and answered."""
    table = settings_table()
    shown = {name: value for name, value in msgspec.to_builtins(settings).items() if not table[name].row.secret}
    view = without_secrets(shown)
    assert isinstance(view, dict)
    return view


def save(settings: Settings, path: Path) -> None:
    """Write all settings, secrets too, to a file that only this user can read; `load` reads it again.

    The file is replaced as a whole: a process that starts meanwhile reads the old or the new one.
    """
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(settings))
    fresh.replace(path)
