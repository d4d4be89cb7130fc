"""The tokenizer and configuration files of a model folder, made from the metadata of a GGUF file.

Covered: byte-level BPE vocabularies whose splitting rule is known here (`SPLITTERS`). For other vocabularies
the operator gives a tokenizer folder; nothing is guessed, since a wrong split gives wrong ids without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forebay_engine.errors import ModelError

CONTROL, USER_DEFINED = 3, 4
"""GGUF token types: special tokens, and added tokens that are shown."""
MODEL_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


SPLITTERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_byte_level(True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False},
        _byte_level(False),
    ],
}
"""`tokenizer.ggml.pre` -> the pre-tokenizers of tokenizer.json."""


def model_files(metadata: dict[str, Any], sampling: Mapping[str, float]) -> dict[str, str]:
    """File name -> text of every file beside the weights. Raises `ModelError`.

    `sampling` has the recommended parameters, which a GGUF file does not hold.
    """
    files = {
        "config.json": _pretty(config(metadata)),
        "generation_config.json": _pretty({**_special_ids(metadata), **sampling}),
        "tokenizer_config.json": _pretty(_tokenizer_config(metadata)),
        "tokenizer.json": json.dumps(_tokenizer(metadata), ensure_ascii=False),
    }
    if template := metadata.get("tokenizer.chat_template"):
        files["chat_template.jinja"] = template
    return files


def config(metadata: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the model. Raises `ModelError` for an architecture that is not covered."""
    arch = metadata.get("general.architecture")
    if arch not in MODEL_CLASSES:
        raise ModelError(
            f"GGUF files of the architecture {arch!r} are not covered; covered: {', '.join(MODEL_CLASSES)}"
        )
    if metadata.get(f"{arch}.expert_count"):
        raise ModelError("GGUF files of mixture-of-experts models are not covered")
    scaling = metadata.get(f"{arch}.rope.scaling.type", "none")
    return {
        "architectures": [MODEL_CLASSES[arch]],
        "model_type": arch,
        "vocab_size": len(_need(metadata, "tokenizer.ggml.tokens")),
        "hidden_size": _need(metadata, f"{arch}.embedding_length"),
        "intermediate_size": metadata.get(f"{arch}.feed_forward_length"),
        "num_hidden_layers": _need(metadata, f"{arch}.block_count"),
        "num_attention_heads": _need(metadata, f"{arch}.attention.head_count"),
        "num_key_value_heads": metadata.get(f"{arch}.attention.head_count_kv"),
        "head_dim": metadata.get(f"{arch}.attention.key_length"),
        "max_position_embeddings": _need(metadata, f"{arch}.context_length"),
        "rms_norm_eps": metadata.get(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.get(f"{arch}.rope.freq_base"),
        "rope_scaling": None if scaling == "none" else {"rope_type": scaling},
        **_special_ids(metadata),
    }


def _need(metadata: dict[str, Any], key: str) -> Any:
    if key not in metadata:
        raise ModelError(f"the GGUF file has no {key}: it is not a complete text model")
    return metadata[key]


def _special_ids(metadata: dict[str, Any]) -> dict[str, Any]:
    eos = [metadata[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in metadata]
    unique = sorted(set(eos))
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": unique[0] if len(unique) == 1 else unique or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = _need(metadata, "tokenizer.ggml.tokens")

    def text(name: str) -> str | None:
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return None if number is None else tokens[number]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", False),
        "bos_token": text("bos"),
        "eos_token": text("eos"),
        "unk_token": text("unknown"),
        "pad_token": text("padding"),
        "model_max_length": metadata[f"{metadata['general.architecture']}.context_length"],
    }


def _tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    kind, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or rule not in SPLITTERS:
        raise ModelError(
            f"the vocabulary of this GGUF file ({kind}, {rule}) cannot be turned into a tokenizer.json; covered are "
            f"byte-level BPE with {', '.join(SPLITTERS)}: put the model's tokenizer.json beside the .gguf file"
        )
    tokens = _need(metadata, "tokenizer.ggml.tokens")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, _need(metadata, "tokenizer.ggml.token_type")),
        "normalizer": {"type": "NFC"} if rule == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": SPLITTERS[rule]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in _need(metadata, "tokenizer.ggml.merges")],
        },
    }


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": token, **plain, "special": kind == CONTROL}
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _pretty(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
