"""Finds and reads a model's tokenizer files: what they say beside the vocabulary. Tokenises nothing itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.errors import SettingsError

LARGEST_LENGTH = (1 << 63) - 1
"""Published files write 10**30 for "no limit"; what does not fit 64 bits is no limit."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The tokenizer of one model as found on disk."""

    tokenizer: Path
    special_tokens: dict[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token` and others by their name: the texts that templates refer to."""
    templates: dict[str, str] = field(default_factory=dict)
    """Chat template sources by name; the usual one is `default`."""
    add_bos: bool | None = None
    """What the files say about a first token for plain text; None: nothing beside tokenizer.json."""
    model_max_length: int | None = None


def read_files(path: str | Path, chat_template: str | Path | None = None) -> TokenizerFiles:
    """Read a model folder, or a `tokenizer.json` and its neighbours.

    `chat_template` is the path of a template that wins over the model's own. Raises `SettingsError`.
    """
    path = Path(path)
    tokenizer = path / "tokenizer.json" if path.is_dir() else path
    if not tokenizer.is_file():
        raise SettingsError(f"there is no tokenizer at {tokenizer}: `tokenizer_path` is a folder with a tokenizer.json")
    folder = tokenizer.parent
    config = _read_object(folder / "tokenizer_config.json")
    special = _token_texts(_read_object(folder / "special_tokens_map.json")) | _token_texts(config)
    add_bos = config.get("add_bos_token")
    length = config.get("model_max_length")
    return TokenizerFiles(
        tokenizer=tokenizer,
        special_tokens=special,
        templates=_override(Path(chat_template)) if chat_template else _templates(folder, config),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        model_max_length=int(length) if isinstance(length, (int, float)) and 0 < length <= LARGEST_LENGTH else None,
    )


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an absent file is an empty object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{path} must hold a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"the chat template {path} cannot be read: {error}") from error


def _token_texts(config: dict[str, Any]) -> dict[str, str]:
    """The entries named `..._token`; each is a string or an object with the string as `content`."""
    out = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            out[name] = text
    return out


def _override(path: Path) -> dict[str, str]:
    """The operator's template: a jinja text, or a JSON object with the text (or a list of them) as `chat_template`."""
    if path.suffix != ".json":
        return {"default": _read_text(path)}
    templates = _named(_read_object(path).get("chat_template"))
    if not templates:
        raise SettingsError(f"{path} has no `chat_template`")
    return templates


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The model's templates: files win over tokenizer_config.json, which wins over the older chat_template.json."""
    plain = folder / "chat_template.jinja"
    more = {path.stem: _read_text(path) for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if plain.is_file():
        return more | {"default": _read_text(plain)}
    old = _read_object(folder / "chat_template.json").get("chat_template")
    return more or _named(config.get("chat_template")) or _named(old)


def _named(value: Any) -> dict[str, str]:
    """Templates of a `chat_template` entry: a text, or a list of `{"name", "template"}`."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    return {
        item["name"]: item["template"]
        for item in value
        if isinstance(item, dict) and {"name", "template"} <= item.keys()
    }
