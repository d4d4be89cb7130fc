"""From a model's config.json to the numbers the graph is built from; refuses what the graph cannot express."""

from __future__ import annotations

from typing import Any

from forebay_engine.errors import ModelError
from forebay_engine.graph import ModelShape

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def shape_of(config: dict[str, Any]) -> ModelShape:
    """The shape of the model that `config` (a Hugging Face config.json) describes. Raises `ModelError`."""
    for complaint in _complaints(config):
        raise ModelError(f"this model cannot be used by the default engine: {complaint}")
    heads = _integer(config, "num_attention_heads")
    hidden = _integer(config, "hidden_size")
    return ModelShape(
        layers=_integer(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or hidden // heads,
        vocab=_integer(config, "vocab_size"),
        norm_eps=float(config.get("rms_norm_eps") or 1e-6),
        rope_theta=float(_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _integer(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value <= 0:
        raise ModelError(f"config.json of the model has no usable {name}: {value!r}")
    return value


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings, under the name of older or newer files."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _complaints(config: dict[str, Any]) -> list[str]:
    found = []
    if config.get("model_type") not in MODEL_TYPES:
        found.append(f"its model_type {config.get('model_type')!r} is not one of {', '.join(MODEL_TYPES)}")
    scaling = _rope(config).get("rope_type") or _rope(config).get("type") or "default"
    if scaling != "default":
        found.append(f"it scales its rotary positions ({scaling})")
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        found.append("it rotates a part of each head only")
    if config.get("sliding_window") and config.get("use_sliding_window", config.get("model_type") == "mistral"):
        found.append("it uses a sliding attention window")
    if config.get("hidden_act", "silu") != "silu":
        found.append(f"its activation is {config['hidden_act']}, not silu")
    return found
