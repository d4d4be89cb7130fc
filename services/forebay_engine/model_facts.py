"""What the engine tells the front about its model: the launch facts, read from the model folder's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forebay import __version__
from forebay.settings import Settings
from forebay_engine.convert import read_config
from forebay_engine.errors import ModelError
from forebay_engine.model_store import ModelFolder

SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a model's generation_config.json may recommend."""


def model_facts(folder: ModelFolder, settings: Settings) -> dict[str, Any]:
    """The launch facts of a model folder. Raises `ModelError` for a folder without a usable config.json."""
    config = read_config(folder.path)
    generation = _optional(folder.path / "generation_config.json")
    context = context_length(config, settings)
    return {
        "model_path": settings.model_path or folder.name,
        "model_dir": str(folder.path),
        "tokenizer_path": tokenizer_path(folder, settings),
        "served_model_name": folder.name,
        "chat_template": settings.chat_template,
        "context_length": context,
        "vocab_size": config.get("vocab_size"),
        "hidden_size": config.get("hidden_size"),
        "eos_token_ids": eos_token_ids(config, generation),
        "version": f"forebay-{__version__}",
        "num_reserved_tokens": 0,
        "max_total_num_tokens": settings.engine_cache_tokens,
        "max_req_input_len": min(context, settings.engine_cache_tokens) - 1,
        "stop_match": settings.stop_match,
        "default_sampling_params": {key: generation[key] for key in SAMPLING_KEYS if generation.get(key) is not None},
        "model_config": config,
        "model_type": config.get("model_type"),
        "architectures": config.get("architectures"),
        "is_generation": True,
        "embedding_method": "mean-pooled last hidden state",
    }


def context_length(config: dict[str, Any], settings: Settings) -> int:
    """Tokens of a prompt and its answer together: the model's limit, or a smaller one from the settings."""
    limit = config.get("max_position_embeddings")
    if not isinstance(limit, int) or limit < 1:
        raise ModelError("config.json of the model has no max_position_embeddings: set --context-length")
    return min(limit, settings.context_length or limit)


def eos_token_ids(config: dict[str, Any], generation: dict[str, Any]) -> list[int]:
    """The ids that end an answer, of both files."""
    found: set[int] = set()
    for source in (config, generation):
        value = source.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(found)


def tokenizer_path(folder: ModelFolder, settings: Settings) -> str | None:
    """Where the tokenizer's files are; None for a model folder without any."""
    if settings.tokenizer_path is not None:
        return settings.tokenizer_path
    return str(folder.path) if (folder.path / "tokenizer.json").is_file() else None


def _optional(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}
