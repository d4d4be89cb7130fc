"""LangChain's `ChatOpenAI`, `OpenAI` and `OpenAIEmbeddings` (langchain-openai)."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

from tests.helpers.front import Front

QUESTION = "What is the capital of France?"
TOOL = {"name": "weather", "description": "Weather", "parameters": {"type": "object", "properties": {"place": {}}}}


@pytest.fixture
def chat(model: Front) -> Any:
    return ChatOpenAI(
        model="m", base_url=f"{model.url}/v1", api_key="none", temperature=0, max_tokens=24, max_retries=0, timeout=60
    )


def test_an_answer_comes_with_its_usage(chat: Any) -> None:
    answer = chat.invoke(QUESTION)
    usage = answer.usage_metadata
    assert "Paris" in answer.content
    assert answer.response_metadata["finish_reason"] == "stop"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens"] > 3


def test_a_stream_adds_up_to_the_answer_and_its_usage(chat: Any) -> None:
    whole = chat.invoke(QUESTION)
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert len(chunks) > 5
    assert total.content == whole.content
    assert total.usage_metadata == whole.usage_metadata
    assert total.response_metadata["finish_reason"] == "stop"


def test_a_batch_answers_as_each_alone(chat: Any) -> None:
    texts = [QUESTION, "Say hello.", "Count from one to three.", "What is the capital of Italy?"]
    assert [a.content for a in chat.batch(texts)] == [chat.invoke(text).content for text in texts]


def test_a_chain_runs_asynchronously(chat: Any) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be short."), ("user", "What is the capital of {country}?")])
    chain = prompt | chat | StrOutputParser()

    async def ask() -> list[str]:
        return [piece async for piece in chain.astream({"country": "France"})]

    pieces = asyncio.run(ask())
    assert "Paris" in "".join(pieces)
    assert len(pieces) > 3


def test_a_tool_that_is_bound_but_not_forced_leaves_the_answer_alone(chat: Any) -> None:
    bound = chat.bind_tools([TOOL])
    answer = bound.invoke(QUESTION)
    assert "Paris" in answer.content
    assert (answer.tool_calls, answer.invalid_tool_calls) == ([], [])
    assert "".join(chunk.content for chunk in bound.stream(QUESTION)) == answer.content


def test_a_conversation_with_a_tool_call_in_it_is_taken(chat: Any) -> None:
    call = {"name": "weather", "args": {"place": "Paris"}, "id": "call_1", "type": "tool_call"}
    talk = [SystemMessage("Be short."), HumanMessage("Weather in Paris?"), AIMessage("", tool_calls=[call])]
    answer = chat.bind_tools([TOOL]).invoke([*talk, ToolMessage("sunny", tool_call_id="call_1"), HumanMessage("So?")])
    assert answer.usage_metadata["input_tokens"] > 20


def test_logprobs_come_with_the_answer(chat: Any) -> None:
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    entries = answer.response_metadata["logprobs"]["content"]
    assert len(entries) == answer.usage_metadata["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize("way", ["json_schema", "function_calling", "json_mode"])
def test_a_forced_shape_is_a_clear_refusal(chat: Any, way: str) -> None:
    with pytest.raises(openai.BadRequestError, match=r"json_schema is not supported|tool_choice"):
        chat.with_structured_output({"title": "place", **TOOL["parameters"]}, method=way).invoke(QUESTION)  # type: ignore[dict-item]


def test_a_plain_language_model_completes_texts(model: Front) -> None:
    llm = OpenAI(model="m", base_url=f"{model.url}/v1", api_key="none", temperature=0, max_tokens=4, max_retries=0)
    texts = ["The capital of France is", "One, two, three,"]
    # The prompts of one call travel as one list.
    together = [found[0].text for found in llm.generate(texts).generations]
    assert together == llm.batch(texts)
    assert "Paris" in together[0]
    assert "".join(llm.stream(texts[0])) == together[0]


def test_texts_become_vectors(model: Front) -> None:
    vectors = OpenAIEmbeddings(
        model="m", base_url=f"{model.url}/v1", api_key="none", check_embedding_ctx_length=False
    ).embed_documents(["a cat", "a kitten", "the stock market fell"])
    assert len({len(vector) for vector in vectors}) == 1
    assert close(vectors[0], vectors[1]) > close(vectors[0], vectors[2])


def close(one: list[float], other: list[float]) -> float:
    """The cosine of two vectors."""
    size = sum(a * a for a in one) ** 0.5 * sum(b * b for b in other) ** 0.5
    return float(sum(a * b for a, b in zip(one, other, strict=True)) / size)
