"""Real processes, echo engine: every shape of answer holds exactly what the engine's formulas give."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer

from tests.helpers.front import Front, running

WIDTH = 64


def logprob(token: int, position: int) -> float:
    return -((token * 31 + position) % 1000) / 1000


def hidden(token: int, position: int) -> list[float]:
    return [((token + position + i) % 97) / 97 for i in range(WIDTH)]


def near(values: Any) -> Any:
    return pytest.approx(values, abs=1e-6)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=[1, 3], ids=["one token a step", "three tokens a step"])
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Front]:
    flags = ("--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "1", "--prefix-warmup")
    more = ("--echo-tokens-per-step", str(request.param))
    with running(tmp_path_factory.mktemp("front"), *flags, *more) as found:
        yield found


@pytest.fixture
def client(front: Front) -> Iterator[httpx.Client]:
    with front.client() as found:
        yield found


def frames(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    text = client.post(path, json={**body, "stream": True}).text
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


PROMPT = [5, 6, 7]
EVERYTHING = {
    "input_ids": PROMPT,
    "sampling_params": {"max_new_tokens": 7},
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 2,
    "token_ids_logprob": [9, 8],
    "return_hidden_states": True,
}


def check_everything(meta: dict[str, Any], ids: list[int]) -> None:
    places = list(enumerate(ids, len(PROMPT)))
    assert [triple[1] for triple in meta["output_token_logprobs"]] == ids
    assert [triple[0] for triple in meta["output_token_logprobs"]] == near([logprob(t, p) for p, t in places])
    assert [[triple[1] for triple in row] for row in meta["output_token_ids_logprobs"]] == [[9, 8]] * len(ids)
    assert [row[0][0] for row in meta["output_token_ids_logprobs"]] == near([logprob(9, p) for p, _ in places])
    assert [row[0][1] for row in meta["output_top_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None
    assert [row is None for row in meta["input_top_logprobs"]] == [True, False, False]


def check_hidden(rows: list[Any], ids: list[int]) -> None:
    assert rows[0] == [near(hidden(token, place)) for place, token in enumerate(PROMPT)]
    # The first row covers the prompt; the token that came with it has none of its own.
    later = list(enumerate(ids, len(PROMPT)))[1:]
    assert rows[1:] == [near(hidden(token, place)) for place, token in later]


@pytest.mark.parametrize("stream_output", [None, False, True])
def test_generate_says_all_families_whole_and_in_streams(client: httpx.Client, stream_output: bool | None) -> None:
    if stream_output is None:
        answer = client.post("/generate", json=EVERYTHING).json()
        check_everything(answer["meta_info"], answer["output_ids"])
        check_hidden(answer["meta_info"]["hidden_states"], answer["output_ids"])
        return
    found = frames(client, "/generate", {**EVERYTHING, "stream_output": stream_output})
    last = found[-1]["meta_info"]
    if not stream_output:
        check_everything(last, found[-1]["output_ids"])
        check_hidden(last["hidden_states"], found[-1]["output_ids"])
        return
    ids = [i for frame in found for i in frame["output_ids"]]
    joined: dict[str, Any] = {}
    for frame in found:
        for name, value in frame["meta_info"].items():
            if name.endswith("logprobs"):
                joined.setdefault(name, []).extend(value)
    check_everything(joined, ids)
    check_hidden(last["hidden_states"], ids)


@pytest.mark.parametrize(
    ("start", "status", "count"), [(0, 200, 3), (2, 200, 1), (3, 200, 0), (4, 400, 0), (-1, 200, 0), (-2, 400, 0)]
)
def test_prompt_logprobs_from_every_start(client: httpx.Client, start: int, status: int, count: int) -> None:
    body = {**EVERYTHING, "logprob_start_len": start}
    answer = client.post("/generate", json=body)
    assert answer.status_code == status
    if status == 200:
        found = answer.json()["meta_info"]["input_token_logprobs"]
        assert [triple[1] for triple in found] == PROMPT[len(PROMPT) - count :]
        assert [triple[0] for triple in found[:1]] == [None] * min(count, 1)


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("batch", [False, True])
def test_echo_scores_the_prompt_for_evaluation_tools(
    client: httpx.Client, tokenizer: Tokenizer, tokens: int, batch: bool
) -> None:
    text = "hello world"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    body = {"prompt": [text] if batch else text, "max_tokens": tokens, "echo": True, "logprobs": 1}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    found = choice["logprobs"]
    assert choice["text"].startswith(text)
    assert {len(column) for column in found.values()} == {len(ids) + tokens}
    assert found["token_logprobs"][0] is None
    assert found["token_logprobs"][1 : len(ids)] == near([logprob(t, p) for p, t in enumerate(ids)][1:])
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"][-1] == len(choice["text"]) - len(found["tokens"][-1])


def test_samples_share_one_prompt(client: httpx.Client, tokenizer: Tokenizer) -> None:
    body = {"prompt": ["hello", "world"], "n": 3, "max_tokens": 4}
    answer = client.post("/v1/completions", json=body).json()
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in body["prompt"]]  # type: ignore[attr-defined]
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert len({choice["text"] for choice in answer["choices"][:3]}) == 1
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert answer["usage"]["completion_tokens"] == 24
    whole = {choice["index"]: choice["text"] for choice in answer["choices"]}
    streamed = dict.fromkeys(whole, "")
    for chunk in frames(client, "/v1/completions", body):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == whole


def test_samples_with_echo_begin_with_their_prompt(client: httpx.Client) -> None:
    body = {"prompt": "hello", "n": 2, "max_tokens": 2, "echo": True}
    answer = client.post("/v1/completions", json=body).json()
    assert all(choice["text"].startswith("hello") for choice in answer["choices"])


def test_a_prompt_that_is_refused_is_refused_with_samples_too(client: httpx.Client) -> None:
    answer = client.post("/generate", json={"input_ids": [10**6], "sampling_params": {"n": 2}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_ids")


# ---------------------------------------------------------------- vectors and scores
def mean(ids: list[int]) -> list[float]:
    rows = [hidden(token, place) for place, token in enumerate(ids)]
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_the_official_client_gets_embeddings(front: Front, tokenizer: Tokenizer, encoding: Any) -> None:
    texts = ["hello", "the lazy dog"]
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as official:
        answer = official.embeddings.create(model="echo", input=texts, encoding_format=encoding)
        if encoding == "float":
            default = official.embeddings.create(model="echo", input=texts)
            assert [one.embedding for one in default.data] == [near(one.embedding) for one in answer.data]
    ids = [tokenizer.encode(text).ids for text in texts]
    assert [one.index for one in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    if encoding == "float":
        assert [one.embedding for one in answer.data] == [near(mean(one)) for one in ids]


def test_encode_gives_the_same_vectors(client: httpx.Client) -> None:
    one = client.post("/encode", json={"input_ids": PROMPT}).json()
    assert one["embedding"] == near(mean(PROMPT))
    assert one["meta_info"]["prompt_tokens"] == 3
    many = client.post("/encode", json={"input_ids": [PROMPT, [8]], "return_prompt_token_ids": True}).json()
    assert [item["embedding"] for item in many] == [near(mean(PROMPT)), near(mean([8]))]
    assert [item["prompt_token_ids"] for item in many] == [PROMPT, [8]]


def test_the_model_says_what_its_embeddings_are(client: httpx.Client) -> None:
    assert client.get("/model_info").json()["embedding_method"] == "mean of made-up hidden states"


def test_an_embedding_of_an_unknown_id_is_400(client: httpx.Client) -> None:
    answer = client.post("/v1/embeddings", json={"input": [10**6]})
    assert (answer.status_code, answer.json()["param"]) == (400, "input")


@pytest.mark.parametrize("item_first", [False, True])
def test_scores_are_the_probabilities_behind_query_and_item(
    client: httpx.Client, tokenizer: Tokenizer, item_first: bool
) -> None:
    body = {"query": "hello", "items": ["a", "the fox"], "label_token_ids": [9, 8], "item_first": item_first}
    answer = client.post("/v1/score", json={**body, "return_token_logprobs": True}).json()
    lengths = [len(tokenizer.encode("hello").ids) + len(tokenizer.encode(item).ids) for item in ("a", "the fox")]
    expected = [[logprob(label, length) for label in (9, 8)] for length in lengths]
    assert answer["token_logprobs"] == [near(row) for row in expected]
    assert answer["scores"] == [near([math.exp(value) for value in row]) for row in expected]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)
    soft = client.post("/v1/score", json={**body, "apply_softmax": True, "temperature": 2.0}).json()
    assert [sum(row) for row in soft["scores"]] == near([1.0, 1.0])


def test_scores_of_ids_with_labels_of_their_own(client: httpx.Client) -> None:
    body = {"query": [5], "items": [[6], [7, 8]], "label_token_ids": [[1], [2, 3]]}
    answer = client.post("/v1/score", json=body).json()
    assert answer["scores"] == [
        near([math.exp(logprob(1, 2))]),
        near([math.exp(logprob(2, 3)), math.exp(logprob(3, 3))]),
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": ["a"], "label_token_ids": [1]}, "query"),
        ({"query": "a", "label_token_ids": [1]}, "items"),
        ({"query": "a", "items": ["b"]}, "label_token_ids"),
        ({"query": "a", "items": [], "label_token_ids": [1]}, "items"),
        ({"query": "a", "items": ["b"], "label_token_ids": [10**6]}, "label_token_ids"),
        ({"query": "a", "items": ["b"], "label_token_ids": [[1], [2]]}, "label_token_ids"),
        ({"query": "a", "items": ["b", [1]], "label_token_ids": [1]}, "items"),
        ({"query": "a", "items": ["b"], "label_token_ids": [1], "temperature": 2.0}, "temperature"),
        (
            {"query": "a", "items": ["b"], "label_token_ids": [1], "apply_softmax": True, "temperature": 0},
            "temperature",
        ),
    ],
)
def test_a_bad_score_request_is_400_and_names_the_field(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = client.post("/v1/score", json=body)
    assert (answer.status_code, answer.json()["param"]) == (400, param)
