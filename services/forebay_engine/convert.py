"""Turns a model as it is published (a GGUF file, or a folder of safetensors) into a folder that the engine loads.

Such a folder holds the OpenVINO graph with its weights, config.json and the tokenizer's files. Where folders
are kept, and that they are complete, is the business of `model_store`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from forebay_engine import graph
from forebay_engine.backend import GRAPH_FILE
from forebay_engine.cache import Progress
from forebay_engine.errors import ModelError
from forebay_engine.gguf import GgufFile
from forebay_engine.gguf_files import config, model_files
from forebay_engine.gguf_weights import GgufWeights
from forebay_engine.safetensors import SafetensorsWeights
from forebay_engine.shapes import shape_of

FORMAT = 1
"""Raised when converted folders change: older ones in the cache are made again."""
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What may stand beside the weights of a published model and is copied as it is."""


def convert_gguf(
    file: Path, target: Path, weights: str, progress: Progress, sampling: Mapping[str, float] | None = None
) -> None:
    """Fill the folder `target` from a GGUF file; a tokenizer.json beside the file wins over the file's own.

    `sampling`: what the model's authors recommend, for generation_config.json.
    """
    with GgufFile(file) as source:
        values = GgufWeights(source)
        if "rope_freqs.weight" in source.tensors:
            raise ModelError(f"{file} scales its rotary positions, which the default engine cannot do")
        beside = file.with_name("tokenizer.json").is_file()
        described = config(source.metadata)
        described["tie_word_embeddings"] = not values.has("lm_head.weight")
        texts = {} if beside else model_files(source.metadata, sampling or {})
        texts["config.json"] = json.dumps(described, indent=1) + "\n"
        for name, text in texts.items():
            (target / name).write_text(text, encoding="utf-8")
        if beside:
            _copy_texts(file.parent, target, [name for name in TEXT_FILES if name != "config.json"])
        _write_graph(described, values, target, weights, progress)


def convert_folder(folder: Path, target: Path, weights: str, progress: Progress) -> None:
    """Fill the folder `target` from a folder with config.json and `*.safetensors`."""
    described = read_config(folder)
    _copy_texts(folder, target, list(TEXT_FILES))
    _write_graph(described, SafetensorsWeights(folder), target, weights, progress)


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a model folder. Raises `ModelError`."""
    path = folder / "config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): a model folder needs it") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def _copy_texts(source: Path, target: Path, names: list[str]) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _write_graph(
    described: dict[str, Any], values: graph.Weights, target: Path, weights: str, progress: Progress
) -> None:
    shape = shape_of(described)
    if weights not in graph.PACKERS:
        raise ModelError(f"engine_weights is {weights!r}; valid: {', '.join(graph.PACKERS)}")
    progress(f"converting {shape.layers} layers to {weights} weights")
    model = graph.build(shape, values, graph.PACKERS[weights])
    # The weights are in the wanted types already; the default would halve the norms too.
    try:
        ov.save_model(model, target / GRAPH_FILE, compress_to_fp16=False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ModelError(f"the graph cannot be written to {target} (is the disk full?): {reason}") from error
