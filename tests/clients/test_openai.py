"""The official `openai` package: its helpers put streams together, and its other calls work."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.openai_rig import QUESTION, TOOL, connect
from tests.helpers.front import Front


@pytest.fixture
def client(echo: Front) -> Iterator[openai.OpenAI]:
    with connect(echo) as found:
        yield found


@pytest.fixture
def served(model: Front) -> Iterator[openai.OpenAI]:
    with connect(model) as found:
        yield found


# ---------------------------------------------------------------- answers of a model
def test_the_stream_helper_puts_the_whole_answer_together(served: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "messages": QUESTION, "temperature": 0, "max_tokens": 30}
    whole = served.chat.completions.create(**asked)
    kinds = []
    with served.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "Paris" in (whole.choices[0].message.content or "")
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert final.usage == whole.usage
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)


def test_the_stream_helper_puts_logprobs_together(served: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    asked |= {"logprobs": True, "top_logprobs": 3}
    whole = served.chat.completions.create(**asked).choices[0].logprobs
    with served.chat.completions.stream(**asked) as stream:
        stream.until_done()
        final = stream.get_final_completion().choices[0].logprobs
    assert whole is not None
    assert final is not None
    assert whole.content
    assert final.content
    assert [entry.token for entry in final.content] == [entry.token for entry in whole.content]
    assert [entry.logprob for entry in final.content] == pytest.approx([e.logprob for e in whole.content], abs=1e-3)
    for entry in whole.content:
        # Greedy: the chosen token is the best of its alternatives.
        assert entry.top_logprobs[0].token == entry.token
        assert [top.logprob for top in entry.top_logprobs] == sorted(t.logprob for t in entry.top_logprobs)[::-1]
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.001


def test_the_score_of_a_text_is_that_of_its_generation(served: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    said = served.completions.create(model="m", prompt=prompt, temperature=0, max_tokens=6, logprobs=2).choices[0]
    scored = served.completions.create(model="m", prompt=prompt + said.text, max_tokens=1, echo=True, logprobs=2)
    found = scored.choices[0].logprobs
    assert said.logprobs is not None
    assert said.logprobs.tokens
    assert found is not None
    assert found.tokens
    assert found.token_logprobs
    start = len(found.tokens) - 1 - len(said.logprobs.tokens)
    assert found.tokens[start:-1] == said.logprobs.tokens
    assert found.token_logprobs[start:-1] == pytest.approx(said.logprobs.token_logprobs, abs=1e-3)
    assert found.text_offset is not None
    assert found.text_offset[start] == len(prompt)


def test_async_chats_run_at_once_and_stream(model: Front) -> None:
    questions = ("What is the capital of France?", "What is the capital of Italy?", "Say hello.", "Count to three.")

    async def ask(client: openai.AsyncOpenAI, text: str) -> tuple[str, str]:
        asked: Any = {"model": "m", "temperature": 0, "max_tokens": 16}
        asked["messages"] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": text}]
        async with await client.chat.completions.create(**asked, stream=True) as stream:
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        return "".join(pieces), (await client.chat.completions.create(**asked)).choices[0].message.content or ""

    async def all_of_them() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, text) for text in questions))

    answers = asyncio.run(all_of_them())
    assert [streamed for streamed, _ in answers] == [whole for _, whole in answers]
    assert "Paris" in answers[0][0]


def test_tools_may_be_offered(served: openai.OpenAI) -> None:
    answer = served.chat.completions.create(model="m", messages=QUESTION, tools=[TOOL], temperature=0, max_tokens=20)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


def test_samples_stream_side_by_side(served: openai.OpenAI) -> None:
    asked: Any = {"model": "m", "messages": QUESTION, "temperature": 0, "max_tokens": 30, "n": 2}
    with served.chat.completions.stream(**asked) as stream:
        stream.until_done()
        texts = [choice.message.content for choice in stream.get_final_completion().choices]
    assert len(texts) == 2
    assert texts[0] == texts[1] != ""


# ---------------------------------------------------------------- other calls
def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    cards = list(client.models.list())
    assert [card.object for card in cards] == ["model"]
    assert client.models.retrieve(cards[0].id) == cards[0]


def test_embeddings_come_for_texts_and_for_ids(client: openai.OpenAI) -> None:
    one = client.embeddings.create(model="m", input="the lazy dog")
    ids: Any = client.post("/tokenize", cast_to=object, body={"prompt": "the lazy dog"})
    same = client.embeddings.create(model="m", input=[ids["tokens"]], encoding_format="float")
    assert one.data[0].embedding == pytest.approx(same.data[0].embedding)
    assert one.usage == same.usage
    assert one.usage.total_tokens == len(ids["tokens"])


def test_samples_of_several_prompts_come_in_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="m", prompt=["the fox", "the dog"], n=2, max_tokens=3, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text[:7] for choice in answer.choices] == ["the fox", "the fox", "the dog", "the dog"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


def test_further_fields_go_in_extra_body_and_come_back(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True, "top_k": 5, "min_p": 0.1, "stop_token_ids": [7], "rid": "mine"}
    answer = client.completions.create(model="m", prompt="the fox", max_tokens=3, extra_body=extra)
    more = answer.choices[0].model_extra
    assert more is not None
    assert len(more["token_ids"]) == 3
    assert len(more["prompt_token_ids"]) == answer.usage.prompt_tokens  # type: ignore[union-attr]
    assert answer.id == "mine"


def test_an_answer_carries_the_id_of_its_request(client: openai.OpenAI) -> None:
    headers = {"X-Request-Id": "seen-in-both-logs"}
    answer = client.completions.create(model="m", prompt="x", max_tokens=1, extra_headers=headers)
    assert answer._request_id == "seen-in-both-logs"
