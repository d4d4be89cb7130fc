"""The JSON of answers that hold vectors."""

from __future__ import annotations

import base64
import time
from array import array
from typing import Any

from forebay.errors import RequestError
from forebay_api import replies
from forebay_api.calls import Call, Choice

ABORTED = 499


def embeddings(call: Call, encoding: str) -> dict[str, Any]:
    """The answer of `/v1/embeddings`, inputs in their order; `encoding` is `float` or `base64` (float32)."""
    data = []
    for choice in call.choices:
        raw = _vector(call, choice)
        shown: Any = base64.b64encode(raw).decode() if encoding == "base64" else floats(raw)
        data.append({"object": "embedding", "index": choice.index, "embedding": shown})
    prompt = sum(end.prompt_tokens for end in call.ends.values())
    usage = {"prompt_tokens": prompt, "total_tokens": prompt}
    return {"object": "list", "data": data, "model": call.plan.model, "usage": usage}


def encoded(call: Call) -> Any:
    """The answer of `/encode`: an object, or a list for a batch."""
    items = [_item(call, choice) for choice in call.choices]
    return items if call.plan.batch else items[0]


def _item(call: Call, choice: Choice) -> dict[str, Any]:
    raw, end = _vector(call, choice), call.ends[choice.index]
    body: dict[str, Any] = {
        "embedding": floats(raw),
        "meta_info": {
            "id": replies.public_id(choice),
            "finish_reason": end.reason,
            "prompt_tokens": end.prompt_tokens,
            "cached_tokens": end.cached_tokens,
            "e2e_latency": time.perf_counter() - call.began,
        },
    }
    if call.plan.return_prompt_token_ids:
        body["prompt_token_ids"] = replies.prompt_ids(choice)
    return body


def _vector(call: Call, choice: Choice) -> bytes:
    raw = call.vectors.get(choice.index)
    if raw is None:
        raise RequestError(str(call.ends[choice.index].reason.get("message") or "aborted"), ABORTED)
    return raw


def floats(raw: bytes) -> list[float]:
    """The values of raw float32 (a value that is no finite number becomes null in JSON)."""
    out = array("f")
    out.frombytes(raw)
    return out.tolist()
