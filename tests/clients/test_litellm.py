"""LiteLLM: as a library, and as a proxy in front of the front."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import litellm
import openai
import pytest

from tests.helpers.front import Front, wait_for
from tests.helpers.tied import tied

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
KEY = "sk-of-the-proxy"


@pytest.fixture
def asked(model: Front) -> dict[str, Any]:
    place = {"model": "openai/m", "api_base": f"{model.url}/v1", "api_key": "none"}
    return {**place, "messages": QUESTION, "max_tokens": 24, "temperature": 0, "num_retries": 0}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "litellm_proxy"])
def test_a_stream_adds_up_to_the_answer(asked: dict[str, Any], provider: str) -> None:
    asked["model"] = f"{provider}/m"
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert "Paris" in whole.choices[0].message.content
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert built.usage.total_tokens == whole.usage.total_tokens
    assert len(chunks) > 5


def test_completions_and_embeddings(asked: dict[str, Any]) -> None:
    place = {key: asked[key] for key in ("api_base", "api_key")}
    text = litellm.text_completion(
        model="text-completion-openai/m", prompt="The capital of France is", max_tokens=4, temperature=0, **place
    )
    assert "Paris" in text.choices[0].text
    assert text.usage.completion_tokens == 4
    found = litellm.embedding(model="openai/m", input=["a", "b"], **place)
    assert [one["index"] for one in found.data] == [0, 1]


def test_a_prompt_that_is_too_long_is_known_as_such(asked: dict[str, Any]) -> None:
    asked["messages"] = [{"role": "user", "content": "a b " * 9000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**asked)


def test_a_bad_parameter_is_a_bad_request(asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**{**asked, "temperature": -1})


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, model: Front) -> Iterator[str]:
    """The address of a LiteLLM proxy whose one model is served by the front."""
    folder = tmp_path_factory.mktemp("proxy")
    upstream = {"model": "openai/m", "api_base": f"{model.url}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "behind", "litellm_params": upstream}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"num_retries": 0},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).parent / "litellm"), "--config", str(folder / "config.yaml")]
    # Its environment holds nothing of ours: it is a stranger that logs and reports.
    environ = {"PATH": os.defpath, "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            tied([*command, "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"

    def alive() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/health/liveliness", timeout=5).is_success
        return False

    try:
        wait_for(alive, 120, "the proxy")
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def behind(proxy: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{proxy}/v1", api_key=KEY, max_retries=0) as found:
        yield found


def test_a_chat_streams_through_the_proxy(behind: openai.OpenAI) -> None:
    asked: Any = {"model": "behind", "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = behind.chat.completions.create(**asked)
    chunks = list(behind.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "Paris" in "".join(pieces)
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 3
    assert whole.usage is not None
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [whole.usage.total_tokens]


def test_logprobs_come_through_the_proxy(behind: openai.OpenAI) -> None:
    answer = behind.chat.completions.create(
        model="behind", messages=QUESTION, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or []) == 5


def test_a_refusal_comes_through_the_proxy(behind: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        behind.chat.completions.create(model="behind", messages=QUESTION, temperature=-1)


def test_a_client_of_the_proxy_that_leaves_frees_the_engine(behind: openai.OpenAI, model: Front) -> None:
    with behind.chat.completions.create(
        model="behind", messages=QUESTION, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    wait_for(lambda: model.state()["num_running_reqs"] == 0)
