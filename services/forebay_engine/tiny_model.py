"""Writes a tiny Llama as a GGUF file: 2 layers, width 64, random weights from a fixed seed, a byte vocabulary.

Its text is noise, but it is a real model with a real tokenizer and chat template, made in some milliseconds: for
tests of everything that needs a model and does not care what it says.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from forebay_engine.arrays import AnyArray

LAYERS, WIDTH, INNER, HEADS, KV_HEADS = 2, 64, 128, 4, 2
CONTEXT = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "e r", "a n"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALIGNMENT = 32
F32, F16 = 0, 1


def write_tiny_model(path: Path, seed: int = 0) -> None:
    """Write the model of this `seed` to `path` (225 KB)."""
    tokens = SPECIAL + byte_symbols() + [merge.replace(" ", "") for merge in MERGES]
    tensors = _tensors(len(tokens), np.random.default_rng(seed))
    metadata = _metadata(tokens)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [_text(key) + _value(value) for key, value in metadata.items()]
    offset, blobs = 0, []
    for name, values in tensors.items():
        kind = F16 if values.dtype == np.float16 else F32
        shape = values.shape[::-1]
        head.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        blobs.append(_padded(values.tobytes()))
        offset += len(blobs[-1])
    path.write_bytes(_padded(b"".join(head)) + b"".join(blobs))


def byte_symbols() -> list[str]:
    """The character that stands for each of the 256 bytes in a byte-level vocabulary."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def _metadata(tokens: list[str]) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "tiny-random",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _tensors(vocab: int, random: np.random.Generator) -> dict[str, AnyArray]:
    def matrix(rows: int, columns: int) -> AnyArray:
        values: AnyArray = random.standard_normal((rows, columns)) / np.sqrt(columns)
        return values.astype(np.float16)

    kv_width = KV_HEADS * WIDTH // HEADS
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (kv_width, WIDTH),
        "attn_v": (kv_width, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    # An output matrix of its own, four times larger than the others: one token is clearly best, not always the same.
    out = {"token_embd.weight": matrix(vocab, WIDTH), "output.weight": matrix(vocab, WIDTH) * np.float16(4)}
    for layer in range(LAYERS):
        out |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        out |= {f"blk.{layer}.{name}.weight": np.ones(WIDTH, np.float32) for name in ("attn_norm", "ffn_norm")}
    out["output_norm.weight"] = np.ones(WIDTH, np.float32)
    return out


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """A metadata value with its type number in front."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % ALIGNMENT)
