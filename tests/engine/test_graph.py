"""The graph against a plain numpy model of the same weights, from a folder of safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay.settings import Settings
from forebay_engine.arrays import Floats
from forebay_engine.backend import Backend, StepInput
from forebay_engine.errors import ModelError
from forebay_engine.model_store import prepare
from forebay_engine.shapes import shape_of

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
HEAD, INNER = 8, 48
IDS = [3, 14, 15, 9, 2, 6, 5, 35]
Tensors = dict[str, Floats]


def weights(config: dict[str, Any]) -> Tensors:
    """Random weights that float16 holds exactly, by their usual names."""
    random = np.random.default_rng(1)

    def values(*shape: int) -> Floats:
        return random.normal(0, 0.3, shape).astype(np.float16).astype(np.float32)

    width = config["hidden_size"]
    out = {"model.embed_tokens.weight": values(config["vocab_size"], width), "model.norm.weight": 1 + values(width)}
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = values(config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", 4 * HEAD, width),
            ("self_attn.k_proj", 2 * HEAD, width),
            ("self_attn.v_proj", 2 * HEAD, width),
            ("self_attn.o_proj", width, 4 * HEAD),
            ("mlp.gate_proj", INNER, width),
            ("mlp.up_proj", INNER, width),
            ("mlp.down_proj", width, INNER),
        ):
            out[f"{at}{name}.weight"] = values(rows, columns)
            if config["model_type"] == "qwen2" and name[10:] in ("q_proj", "k_proj", "v_proj"):
                out[f"{at}{name}.bias"] = values(rows)
        if config["model_type"] == "qwen3":
            out[f"{at}self_attn.q_norm.weight"] = 1 + values(HEAD)
            out[f"{at}self_attn.k_norm.weight"] = 1 + values(HEAD)
        out[f"{at}input_layernorm.weight"] = 1 + values(width)
        out[f"{at}post_attention_layernorm.weight"] = 1 + values(width)
    return out


def norm(x: Floats, weight: Floats) -> Floats:
    out: Floats = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-5)) * weight
    return out


def rotate(x: Floats) -> Floats:
    """Rotary embedding of (heads, tokens, HEAD), position = token number."""
    angle = np.arange(x.shape[1])[:, None] / 10000.0 ** (np.arange(0, HEAD, 2) / HEAD)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def attention(x: Floats, tensors: Tensors, at: str) -> Floats:
    def heads(name: str) -> Floats:
        y = x @ tensors[f"{at}{name}_proj.weight"].T + tensors.get(f"{at}{name}_proj.bias", np.float32(0))
        y = y.reshape(len(x), -1, HEAD)
        if f"{at}{name}_norm.weight" in tensors:
            y = norm(y, tensors[f"{at}{name}_norm.weight"])
        return y.swapaxes(0, 1)

    query, key, value = rotate(heads("q")), rotate(heads("k")), heads("v")
    key, value = np.repeat(key, 2, axis=0), np.repeat(value, 2, axis=0)
    grades = query @ key.swapaxes(1, 2) / np.sqrt(HEAD)
    grades = np.where(np.tri(len(x), dtype=bool), grades, -np.inf)
    parts = np.exp(grades - grades.max(axis=-1, keepdims=True))
    mixed = (parts / parts.sum(axis=-1, keepdims=True)) @ value
    out: Floats = mixed.swapaxes(0, 1).reshape(len(x), -1) @ tensors[f"{at}o_proj.weight"].T
    return out


def reference(config: dict[str, Any], tensors: Tensors) -> tuple[Floats, Floats]:
    """Logits and final hidden rows of every position of IDS."""
    x = tensors["model.embed_tokens.weight"][IDS]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        x = x + attention(norm(x, tensors[f"{at}input_layernorm.weight"]), tensors, f"{at}self_attn.")
        y = norm(x, tensors[f"{at}post_attention_layernorm.weight"])
        gate = y @ tensors[f"{at}mlp.gate_proj.weight"].T
        up = y @ tensors[f"{at}mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ tensors[f"{at}mlp.down_proj.weight"].T
    x = norm(x, tensors["model.norm.weight"])
    return x @ tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).T, x


def write_folder(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """A model folder as it is published, in float16."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = values.astype(np.float16).tobytes()
        header[name] = {"dtype": "F16", "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)


def whole_step() -> StepInput:
    count = len(IDS)
    every = np.arange(count, dtype=np.int32)
    return StepInput(
        tokens=np.array(IDS, np.int64),
        positions=np.arange(count, dtype=np.int64),
        past=np.zeros(1, np.int32),
        begins=np.array([0, count], np.int32),
        blocks=np.zeros(1, np.int32),
        block_begins=np.array([0, 1], np.int32),
        longest=count,
        logit_rows=every,
        hidden_rows=every,
    )


@pytest.mark.parametrize(
    "change",
    [{}, {"tie_word_embeddings": False}, {"model_type": "qwen2"}, {"model_type": "qwen3", "head_dim": HEAD}],
    ids=["tied", "own-output", "biases", "head-norms"],
)
def test_logits_and_hidden_rows_equal_a_plain_model(tmp_path: Path, change: dict[str, Any]) -> None:
    config = CONFIG | change
    tensors = weights(config)
    tensors = {name: values.astype(np.float16).astype(np.float32) for name, values in tensors.items()}
    write_folder(tmp_path / "m", config, tensors)
    folder = prepare(str(tmp_path / "m"), tmp_path / "cache", Settings(), lambda line: None)
    result = Backend(folder.path, threads=1, precision="f32", cache_tokens=64).run(whole_step())
    logits, hidden = reference(config, tensors)
    np.testing.assert_allclose(result.hidden, hidden, atol=2e-4)
    np.testing.assert_allclose(result.logits, logits, atol=1e-3)


def rounded(values: Floats) -> Floats:
    """A matrix as 8-bit codes with a float16 scale for every 32 values of a row."""
    if values.ndim != 2 or values.shape[1] % 32:
        return values
    groups = values.reshape(len(values), -1, 32)
    scale = (np.abs(groups).max(axis=2, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    out: Floats = (np.rint(groups / scale) * scale).reshape(values.shape)
    return out


def test_eight_bit_weights_are_codes_times_scales(tmp_path: Path) -> None:
    tensors = weights(CONFIG)
    write_folder(tmp_path / "m", CONFIG, tensors)
    folder = prepare(str(tmp_path / "m"), tmp_path / "cache", Settings(engine_weights="q8_0"), lambda line: None)
    result = Backend(folder.path, threads=1, precision="f32", cache_tokens=64).run(whole_step())
    logits, _ = reference(CONFIG, {name: rounded(values) for name, values in tensors.items()})
    np.testing.assert_allclose(result.logits, logits, atol=0.03)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gemma"}, "model_type 'gemma'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "scales its rotary positions"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "scales its rotary positions"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding attention window"),
        ({"hidden_act": "gelu"}, "activation is gelu"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_models_that_the_graph_cannot_express_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        shape_of(CONFIG | change)


def test_unused_window_of_qwen_is_no_obstacle() -> None:
    config = CONFIG | {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}
    assert shape_of(config).heads == 4


def test_rotary_base_is_found_under_its_new_name() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    assert shape_of(config | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}).rope_theta == 5e5
