"""The launch facts: what an engine tells the front about itself, once, as one JSON object.

Everything an engine passes travels and shows up in `/server_info`, except secrets; the keys below are read by the
front itself. A missing key means the default; a wrong type stops the launch with the key's name.

Secrets are taken out before a fact leaves the engine, but for those with which the front works: they travel between our
own processes as they are (an adapter may be called `key-extraction`, a watermark has a key), and each answer that shows
them takes the secrets out itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.errors import SettingsError, WireError
from forebay.redaction import without_secrets
from forebay.wire.control import to_builtin

COUNTS = ("vocab_size", "context_length", "max_req_input_len")
"""Facts that are at least 1."""
WORKED_WITH = (
    "served_model_name",
    "chat_template",
    "loaded_adapters",
    "preferred_sampling_params",
    "default_sampling_params",
)
"""Facts that the front needs to the letter. `model_config` may hold the last one, too."""


class LaunchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the front reads; `raw` has all of them. What is in `WORKED_WITH` may hold secrets: whoever shows
    it uses `without_secrets`."""

    model_path: str | None = None
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    context_length: int | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    max_req_input_len: int | None = None
    max_total_num_tokens: int | None = None
    num_reserved_tokens: int = 0
    weight_version: str | None = None
    version: str | None = None
    chat_template: str | None = None
    preferred_sampling_params: dict[str, Any] | None = None
    default_sampling_params: dict[str, Any] | None = None
    eos_token_ids: list[int] = []
    stop_match: str | None = None
    enable_hidden_states: bool = True
    model_config: dict[str, Any] = {}
    raw: dict[str, Any] = {}


def make_blob(facts: dict[str, Any]) -> bytes:
    """The launch facts as JSON text: secrets (but for `WORKED_WITH`) and the unserialisable model config object taken
    out, foreign values as strings. Raises `SettingsError` for a wrong type of a key that the front reads."""
    try:
        plain = to_builtin(_without_config_object(facts))
        blob = msgspec.json.encode(_fit_to_travel(plain))
    except WireError as error:
        raise SettingsError(f"the launch facts cannot be sent: {error}") from error
    read_blob(blob)
    return blob


def _fit_to_travel(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts without secrets, but for what the front works with."""
    out: dict[str, Any] = without_secrets(facts)
    out.update((name, facts[name]) for name in WORKED_WITH if name in facts)
    config = facts.get("model_config")
    if isinstance(config, dict) and "default_sampling_params" in config:
        out["model_config"]["default_sampling_params"] = config["default_sampling_params"]
    return out


def _without_config_object(facts: dict[str, Any]) -> dict[str, Any]:
    """Null in place of `model_config.hf_config`, whether the config is a map, a struct or a dataclass."""
    config = facts.get("model_config")
    names = getattr(config, "__struct_fields__", None) or getattr(config, "__dataclass_fields__", None)
    if names is not None:
        config = {name: getattr(config, name) for name in names}
    if isinstance(config, dict) and "hf_config" in config:
        return {**facts, "model_config": {**config, "hf_config": None}}
    return facts


def read_blob(blob: bytes) -> LaunchFacts:
    """The facts of a blob; raises `SettingsError` naming the key that has a wrong type."""
    try:
        raw = msgspec.json.decode(blob, type=dict[str, Any])
        known = {
            name: raw[name] for name in LaunchFacts.__struct_fields__ if name != "raw" and raw.get(name) is not None
        }
        facts = msgspec.convert(known, LaunchFacts)
    except msgspec.ValidationError as error:
        raise SettingsError(f"a launch fact has a wrong type: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise SettingsError(f"the launch facts are not a JSON object: {error}") from error
    for name in COUNTS:
        value = getattr(facts, name)
        if value is not None and value < 1:
            raise SettingsError(f"the launch fact `{name}` must be at least 1, not {value}")
    if facts.stop_match not in (None, "front", "engine"):
        raise SettingsError(f"the launch fact `stop_match` must be front or engine, not {facts.stop_match!r}")
    if facts.num_reserved_tokens < 0:
        raise SettingsError(f"the launch fact `num_reserved_tokens` must not be negative: {facts.num_reserved_tokens}")
    return msgspec.structs.replace(facts, raw=raw)
