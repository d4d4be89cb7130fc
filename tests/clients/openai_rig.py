"""What the tests of the official `openai` package share."""

from __future__ import annotations

from typing import Any

import openai

from tests.helpers.front import Front

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def connect(front: Front, **options: Any) -> openai.OpenAI:
    """A client of this front that never tries twice unless told."""
    return openai.OpenAI(**{"base_url": f"{front.url}/v1", "api_key": "none", "max_retries": 0, **options})
