"""Real processes, echo engine, real clients: what comes back is exactly what the engine produced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from tests.helpers.front import Front, running

ECHO = "Größe \U0001f600\U0001f680 世界, the quick brown fox: naïve café! "


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-text", ECHO, "--echo-step-ms", "1")
    with running(tmp_path_factory.mktemp("front"), *flags) as found:
        yield found


@pytest.fixture
def client(front: Front) -> Iterator[httpx.Client]:
    with front.client() as found:
        yield found


@pytest.fixture
def official(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def expected(folder: Path, tokens: int) -> str:
    """What the echo engine says in `tokens` tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    source = tokenizer.encode(ECHO, add_special_tokens=False).ids
    return str(tokenizer.decode([source[i % len(source)] for i in range(tokens)], skip_special_tokens=True))


def events(response: httpx.Response) -> list[Any]:
    """The JSON of each event of a stream, which must end with exactly one [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    assert lines.count("[DONE]") == 1
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 60])
def test_generate_says_the_same_whole_cumulative_and_decoded(client: httpx.Client, folder: Path, tokens: int) -> None:
    body = {"text": "x", "sampling_params": {"max_new_tokens": tokens}}
    whole = client.post("/generate", json=body).json()
    frames = events(client.post("/generate", json={**body, "stream": True}))
    assert whole["text"] == frames[-1]["text"] == expected(folder, tokens)
    assert whole["output_ids"] == frames[-1]["output_ids"]
    assert whole["meta_info"]["completion_tokens"] == tokens
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": tokens}
    assert [frame["meta_info"]["finish_reason"] for frame in frames[:-1]] == [None] * (len(frames) - 1)


def test_no_event_holds_a_broken_character(client: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 60, "stream": True}
    texts = [chunk["choices"][0]["text"] for chunk in events(client.post("/v1/completions", json=body))]
    assert "\ufffd" not in "".join(texts)


def test_completion_stream_and_whole_answer_agree(official: openai.OpenAI, folder: Path) -> None:
    whole = official.completions.create(model="echo", prompt="hello", max_tokens=40)
    stream = official.completions.create(
        model="echo", prompt="hello", max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert whole.choices[0].text == "".join(c.choices[0].text for c in chunks if c.choices) == expected(folder, 40)
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_stream_and_whole_answer_agree(official: openai.OpenAI, folder: Path) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    whole = official.chat.completions.create(model="echo", messages=messages, max_tokens=40)
    chunks = list(official.chat.completions.create(model="echo", messages=messages, max_tokens=40, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole.choices[0].message.content == text == expected(folder, 40)
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]


def test_the_async_client_streams_many_at_once(front: Front, folder: Path) -> None:
    async def one(client: openai.AsyncOpenAI, tokens: int) -> str:
        stream = await client.completions.create(model="echo", prompt="x", max_tokens=tokens, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, 20 + i) for i in range(32)))

    assert asyncio.run(all_of_them()) == [expected(folder, 20 + i) for i in range(32)]


def test_a_stop_string_over_tokens_is_never_shown(client: httpx.Client, folder: Path) -> None:
    body = {"prompt": "x", "max_tokens": 60, "stop": ["brown fox"], "stream": True}
    chunks = events(client.post("/v1/completions", json=body))
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == expected(folder, 60).split("brown fox")[0]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"][0]["matched_stop"] == "brown fox"


def test_a_batch_with_samples_keeps_prompt_order(client: httpx.Client) -> None:
    body = {"text": ["a", "b", "c"], "sampling_params": {"max_new_tokens": 3, "n": 2}}
    answer = client.post("/generate", json=body).json()
    assert len(answer) == 6
    assert [item["meta_info"]["completion_tokens"] for item in answer] == [3] * 6


def test_batch_stream_numbers_its_choices(client: httpx.Client, folder: Path) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 20, "stream": True}
    texts = dict.fromkeys(range(4), "")
    ends: list[int] = []
    for chunk in events(client.post("/v1/completions", json=body)):
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            ends.append(choice["index"])
    assert list(texts.values()) == [expected(folder, 20)] * 4
    assert sorted(ends) == [0, 1, 2, 3]


def test_logprobs_can_be_computed_again(client: httpx.Client) -> None:
    body = {
        "input_ids": [5, 6, 7],
        "sampling_params": {"max_new_tokens": 4},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
    }
    meta = client.post("/generate", json=body).json()
    ids, meta = meta["output_ids"], meta["meta_info"]
    values = [triple[0] for triple in meta["output_token_logprobs"]]
    assert values == pytest.approx([-((t * 31 + 3 + p) % 1000) / 1000 for p, t in enumerate(ids)])
    assert [triple[1] for triple in meta["output_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None
    assert [triple[1] for triple in meta["input_token_logprobs"]] == [5, 6, 7]
    assert [len(row) for row in meta["output_top_logprobs"]] == [2, 2, 2, 2]
    assert meta["input_top_logprobs"][0] is None


def test_chat_logprob_bytes_join_to_the_text(official: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    answer = official.chat.completions.create(
        model="echo", messages=messages, max_tokens=30, logprobs=True, top_logprobs=1
    ).choices[0]
    assert answer.logprobs is not None
    raw = b"".join(bytes(entry.bytes or []) for entry in answer.logprobs.content or [])
    text = answer.message.content or ""
    # The last token may be a part of a character, which the text shows as U+FFFD.
    assert raw.decode("utf-8", "replace") == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_a_4xx_before_any_event(client: httpx.Client, stream: bool) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("/generate", {"text": "x", "sampling_params": {"temperature": -1}}),
        ("/generate", {"input_ids": [10**9]}),
        ("/v1/completions", {"prompt": "", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ]
    for path, body in cases:
        answer = client.post(path, json={**body, "stream": stream})
        assert answer.status_code == 400, (path, answer.text)
        assert answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_id_that_the_vocabulary_lacks_is_an_error_of_the_prompt(client: httpx.Client, stream: bool) -> None:
    answer = client.post("/v1/completions", json={"prompt": [10**6], "stream": stream})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "prompt")
    assert error["message"].startswith("prompt must be")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_puts_the_prompt_in_front(client: httpx.Client, folder: Path, stream: bool, as_ids: bool) -> None:
    ids = client.post("/tokenize", json={"prompt": "the fox"}).json()["tokens"]
    body = {"prompt": ids if as_ids else "the fox", "echo": True, "max_tokens": 9, "logprobs": 1, "stream": stream}
    answer = client.post("/v1/completions", json=body)
    chunks = events(answer) if stream else [answer.json()]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "the fox" + expected(folder, 9)
    logprobs = {
        name: [entry for choice in choices for entry in choice["logprobs"][name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    assert {len(entries) for entries in logprobs.values()} == {len(ids) + 9}
    assert logprobs["token_logprobs"][0] is None
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(lengths[:i]) for i in range(len(lengths))]


def test_tokenize_and_detokenize_round_trip(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"prompt": ECHO}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json()["text"] == ECHO


def test_tokenize_counts_a_chat_as_the_chat_route_does(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hello"}]
    count = client.post("/tokenize", json={"messages": messages}).json()["count"]
    answer = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == count


def test_information_routes_answer(client: httpx.Client) -> None:
    models = client.get("/v1/models").json()["data"]
    assert [card["id"] for card in models] == ["echo"]
    assert client.get("/v1/models/echo").json()["id"] == "echo"
    assert client.get("/v1/models/none").status_code == 404
    assert client.get("/model_info").json()["is_generation"] is True
    info = client.get("/server_info").json()
    assert {process["name"] for process in info["processes"]} == {"detokenizer-0", "engine-0", "tokenizer-0", "api-0"}
    assert info["internal_states"][0]["num_running_reqs"] == 0
    for path in ("/health", "/ready", "/live"):
        assert client.get(path).status_code == 200


def test_control_routes_answer(client: httpx.Client) -> None:
    assert client.post("/flush_cache").status_code == 200
    assert client.post("/abort_request", json={"rid": "nobody"}).status_code == 200
    assert client.post("/abort_request", json={}).status_code == 400


def test_unknown_routes_have_an_error_body(client: httpx.Client) -> None:
    assert client.get("/nowhere").json()["error"]["code"] == 404
    assert client.get("/generate").json()["error"]["code"] == 405


def test_the_documentation_shows_every_route(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert "/v1/chat/completions" in document["paths"]
    assert "GenerateBody" in document["components"]["schemas"]
