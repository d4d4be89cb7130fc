"""Writes the committed corpus: `python -m tests.fuzz.seeds`. One good input a reader; findings lie beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

from forebay.facts import make_blob
from tests.fuzz.targets import BODIES, READERS
from tests.wire.test_fuzz import FRAMES

CORPUS = Path(__file__).parent / "corpus"
USER = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
SAMPLED: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "stop": ["a", "bc"], "logit_bias": {"3": 1.5}, "n": 2}
GOOD: dict[str, Any] = {
    "generate": {
        "text": ["a", "b"],
        "sampling_params": {"max_new_tokens": 3, "stop": "x", "regex": "a+", "stop_regex": "[0-9]+"},
        "rid": ["r", "s"],
        "return_logprob": True,
        "top_logprobs_num": 2,
        "token_ids_logprob": [[1, 2]],
        "stream": True,
    },
    "completion": {"model": "served", "prompt": [[1, 2], [3]], "logprobs": 2, "echo": True, **SAMPLED},
    "chat": {
        "model": "served",
        "messages": USER,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "stream_options": {"include_usage": True},
        **SAMPLED,
    },
    "embedding": {"model": "served", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 4},
    "encode": {"text": "a"},
    "score": {"query": "a", "items": ["b", "c"], "label_token_ids": [1, 2]},
    "tokenize": {"prompt": "a", "add_special_tokens": True},
    "detokenize": {"tokens": [1, 2, 3]},
    "abort": {"rid": "r", "abort_all": False},
}


def good(name: str) -> bytes:
    """A body that a reader takes, or an object with a member that means nothing."""
    if name == "zstd":
        return zstandard.ZstdCompressor().compress(b'{"text": "a"}' * 20)
    return b"core,queues" if name == "include" else json.dumps(GOOD.get(name, {"path": "a"})).encode()


def plain(name: str) -> str:
    """A reader's name as a file name."""
    return name.replace(", ", "-").replace(" ", "-")


def main() -> None:
    """Write every seed that is not there."""
    seeds = {f"bodies/{name}": bytes([at]) + good(name) for at, name in enumerate(BODIES)}
    seeds |= {f"frames/{plain(name)}": bytes([at + 1]) + FRAMES[name][0] for at, name in enumerate(FRAMES)}
    seeds["frames/kind"] = bytes([list(READERS).index("kind")]) + FRAMES["hello"][0][:8]
    seeds["facts/all"] = make_blob({"context_length": 64, "eos_token_ids": [1], "model_config": {"a": 1.5}})
    seeds["stops/overlapping"] = b"\x02\x01aab\0ab\0b\0xaa\0ab\0c"
    seeds["stops/kept"] = b"\x01\xffaa\0aaa\0a\0a\0a"
    for at, name in enumerate(("byte_level", "byte_fallback", "word_piece")):
        ids = [*range(200, 212), 0x8000 + 5, 7, 0x8000 + 90, 11]
        seeds[f"decoders/{name}"] = bytes([at]) + b"".join(number.to_bytes(2, "big") for number in ids)
    for name, data in seeds.items():
        path = CORPUS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)


if __name__ == "__main__":
    main()
