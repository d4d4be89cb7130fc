"""SGLang's native API as its documentation uses it: plain HTTP with `requests`; and its frontend language's calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from tests.helpers.front import Front

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 12}


def generate(front: Front, **body: Any) -> Any:
    answer = requests.post(f"{front.url}/generate", json=body, timeout=60)
    answer.raise_for_status()
    return answer.json()


def test_generate_from_text_and_from_ids_is_the_same(model: Front) -> None:
    said = generate(model, text=PROMPT, sampling_params=GREEDY)
    ids = requests.post(f"{model.url}/tokenize", json={"prompt": PROMPT}, timeout=60).json()["tokens"]
    assert "Paris" in said["text"]
    assert generate(model, input_ids=ids, sampling_params=GREEDY)["text"] == said["text"]
    assert said["meta_info"]["prompt_tokens"] == len(ids)
    assert said["meta_info"]["completion_tokens"] == len(said["output_ids"])


def test_a_stream_is_read_as_the_documentation_reads_it(model: Front) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY, "stream": True}
    answer = requests.post(f"{model.url}/generate", json=body, stream=True, timeout=60)
    shown, pieces = 0, []
    for line in answer.iter_lines(decode_unicode=False):
        text = line.decode("utf-8")
        if text and text.startswith("data:"):
            if text == "data: [DONE]":
                break
            output = json.loads(text[5:].strip("\n"))["text"]
            pieces.append(output[shown:])
            shown = len(output)
    assert len(pieces) > 3
    assert "".join(pieces) == generate(model, text=PROMPT, sampling_params=GREEDY)["text"]


def test_logprobs_of_prompt_and_answer(model: Front) -> None:
    wishes = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    found = generate(model, text=PROMPT, sampling_params=GREEDY, **wishes)
    meta = found["meta_info"]
    assert "".join(text for _, _, text in meta["input_token_logprobs"]) == PROMPT
    assert "".join(text for _, _, text in meta["output_token_logprobs"]) == found["text"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == found["output_ids"]
    # Greedy: the best alternative is the token that was taken.
    assert [row[0][1] for row in meta["output_top_logprobs"]] == found["output_ids"]


def test_a_batch_with_its_own_parameters_each(model: Front) -> None:
    params = [{**GREEDY, "max_new_tokens": 2}, {**GREEDY, "max_new_tokens": 5, "ignore_eos": True}]
    found = generate(model, text=[PROMPT, "One, two, three,"], sampling_params=params)
    assert [item["meta_info"]["completion_tokens"] for item in found] == [2, 5]
    assert found[0]["text"] == generate(model, text=PROMPT, sampling_params=params[0])["text"]


def test_select_of_the_frontend_language_takes_the_likeliest_choice(model: Front) -> None:
    choices = [" Paris", " banana", " the number seven"]
    # The language fills the cache with the common part first, and then scores all choices at once.
    prompt_tokens = generate(model, text=PROMPT, sampling_params={"max_new_tokens": 0, "temperature": 0})["meta_info"]
    found = generate(
        model,
        text=[PROMPT + choice for choice in choices],
        sampling_params={"max_new_tokens": 0, "temperature": 0},
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=max(prompt_tokens["prompt_tokens"] - 2, 0),
    )
    scores = []
    for item in found:
        values = [value for value, _, _ in item["meta_info"]["input_token_logprobs"] if value is not None]
        assert item["meta_info"]["output_token_logprobs"] == []
        scores.append(sum(values) / len(values))
    assert max(range(3), key=scores.__getitem__) == 0


def test_information_and_control_routes_of_the_documentation(model: Front) -> None:
    info = requests.get(f"{model.url}/get_model_info", timeout=60).json()
    assert info["is_generation"] is True
    assert info["model_path"]
    assert info["tokenizer_path"]
    assert requests.get(f"{model.url}/get_server_info", timeout=60).json()["version"]
    assert requests.get(f"{model.url}/health_generate", timeout=60).status_code == 200
    assert requests.post(f"{model.url}/flush_cache", timeout=60).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"text": PROMPT, "sampling_params": {"json_schema": "{}"}},
        {"text": PROMPT, "image_data": "x.png"},
        {"text": PROMPT, "sampling_params": {"temperature": "hot"}},
        {},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_said(model: Front, body: dict[str, Any], stream: bool) -> None:
    answer = requests.post(f"{model.url}/generate", json={**body, "stream": stream}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
