"""The packaged model through the whole path: a sensible answer, streamed and whole, and many at once."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.helpers.front import Front, running

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with running(tmp_path_factory.mktemp("front"), seconds=240) as found:
        yield found


@pytest.fixture
def official(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_chat_question_is_answered_and_streams(official: openai.OpenAI) -> None:
    whole = official.chat.completions.create(model="default", messages=QUESTION, temperature=0, max_tokens=40)
    stream = official.chat.completions.create(
        model="default", messages=QUESTION, temperature=0, max_tokens=40, stream=True
    )
    pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert "Paris" in (whole.choices[0].message.content or "")
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 3
    assert whole.choices[0].finish_reason == "stop"


def test_32_chats_at_once_answer_as_they_do_alone(front: Front, official: openai.OpenAI) -> None:
    questions = [f"Count from {i} to {i + 4}." for i in range(8)]

    def message(text: str) -> Any:
        return [{"role": "user", "content": text}]

    alone = [
        official.chat.completions.create(model="default", messages=message(q), temperature=0, max_tokens=24)
        for q in questions
    ]

    async def ask(client: openai.AsyncOpenAI, question: str) -> str:
        answer = await client.chat.completions.create(
            model="default", messages=message(question), temperature=0, max_tokens=24
        )
        return answer.choices[0].message.content or ""

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, q) for q in questions * 4))

    assert asyncio.run(together()) == [answer.choices[0].message.content for answer in alone] * 4


def test_processes_have_their_names_and_the_cores_that_the_log_says(front: Front) -> None:
    processes = {name: psutil.Process(pid) for name, pid in front.pids().items() if name != "supervisor"}
    assert set(processes) == {"api-0", "tokenizer-0", "detokenizer-0", "engine-0"}
    for name, process in processes.items():
        role = name.partition("-")[0]
        assert f"forebay_{role}" in process.cmdline()
        cores = re.search(rf"{name} INFO \S+ pinned to cores (\S+)", front.text())
        if cores is None:
            assert f"{name} INFO forebay.{role}: not pinned" in front.text()
            assert set(process.cpu_affinity()) == os.sched_getaffinity(0)


def test_the_model_is_kept_for_the_next_start(front: Front) -> None:
    cache = os.environ.get("FOREBAY_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "forebay")
    assert list(Path(cache).rglob("tokenizer.json"))
