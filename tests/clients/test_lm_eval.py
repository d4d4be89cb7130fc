"""lm-eval's `local-completions`: loglikelihoods through echo and logprobs, as ids and as text, on a task made here;
and its `local-chat-completions`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer

from tests.helpers.front import Front

FACTS = [
    ("The capital of France is", ["Paris", "banana", "seven"], 0),
    ("The opposite of hot is", ["purple", "cold", "Tuesday"], 1),
    ("Two plus two equals", ["green", "dog", "four"], 2),
    ("The sun rises in the", ["east", "carpet", "spoon"], 0),
]
PAIRS = [("the lazy dog", " jumps over"), ("the quick", " brown fox jumps"), ("def f(x):", "\n    return x")]

FORMS: dict[str, dict[str, Any]] = {
    "ids one by one": {"tokenized_requests": True},
    "texts one by one": {"tokenized_requests": False},
    "ids in batches": {"tokenized_requests": True, "batch_size": 5},
    "texts in batches": {"tokenized_requests": False, "batch_size": 2},
    "ids at once": {"tokenized_requests": True, "num_concurrent": 4},
}


def harness(front: Front, tokenizer: str | Path, **more: Any) -> Any:
    asked: dict[str, Any] = {"base_url": f"{front.url}/v1/completions", "model": "m", "tokenizer": str(tokenizer)}
    return LocalCompletionsAPI(**asked, tokenizer_backend="huggingface", max_retries=1, timeout=60, **more)


def score(lm: Any, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    asked = [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs]
    found: list[tuple[float, bool]] = lm.loglikelihood(asked, disable_tqdm=True)
    return found


@pytest.fixture(params=list(FORMS.values()), ids=list(FORMS))
def form(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_loglikelihoods_are_the_sums_of_what_the_engine_said(echo: Front, folder: Path, form: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = []
    for context, continuation in PAIRS:
        ids = tokenizer.encode(context + continuation, add_special_tokens=False).ids
        start = len(tokenizer.encode(context, add_special_tokens=False).ids)
        expected.append(-sum((token * 31 + at) % 1000 / 1000 for at, token in enumerate(ids) if at >= start))
    assert [total for total, _ in score(harness(echo, folder, **form), PAIRS)] == pytest.approx(expected, abs=1e-4)


@pytest.fixture
def task(tmp_path: Path) -> TaskManager:
    """A task of four questions, in a file."""
    rows = [{"question": text, "choices": choices, "label": label} for text, choices, label in FACTS]
    (tmp_path / "facts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "task": "facts",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "facts.jsonl")}, "cache_dir": str(tmp_path / "kept")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "label",
        "metric_list": [
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True},
        ],
    }
    (tmp_path / "facts.yaml").write_text(json.dumps(recipe))
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def test_the_model_knows_the_answers(
    model: Front, model_info: dict[str, Any], task: TaskManager, form: dict[str, Any]
) -> None:
    lm = harness(model, model_info["tokenizer_path"], **form)
    report = lm_eval.simple_evaluate(model=lm, tasks=["facts"], task_manager=task, bootstrap_iters=0)
    assert report["results"]["facts"]["acc,none"] == 1.0


def test_what_the_model_would_say_is_greedy_and_scored_alike_in_all_forms(
    model: Front, model_info: dict[str, Any]
) -> None:
    with model.client() as client:
        body = {"prompt": FACTS[0][0], "max_tokens": 6, "temperature": 0, "logprobs": 1}
        said = client.post("/v1/completions", json=body).json()["choices"][0]
    pairs = [(FACTS[0][0], said["text"]), (FACTS[0][0], " seven bananas")]
    for form in FORMS.values():
        found = score(harness(model, model_info["tokenizer_path"], **form), pairs)
        assert found[0][0] == pytest.approx(sum(said["logprobs"]["token_logprobs"]), abs=1e-3)
        assert [greedy for _, greedy in found] == [True, False]


def test_text_is_generated_until_a_stop(model: Front, model_info: dict[str, Any]) -> None:
    lm = harness(model, model_info["tokenizer_path"])
    wishes = {"until": ["\n"], "max_gen_toks": 24, "temperature": 0}
    asked = Instance(request_type="generate_until", doc={}, arguments=("The capital of France is", wishes), idx=0)
    assert [text.strip(" .") for text in lm.generate_until([asked], disable_tqdm=True)] == ["Paris"]


def test_a_chat_is_asked(model: Front) -> None:
    lm: Any = LocalChatCompletion(base_url=f"{model.url}/v1/chat/completions", model="m", max_retries=1)
    talk = lm.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    wishes = {"until": ["\n"], "max_gen_toks": 24, "temperature": 0}
    asked = Instance(request_type="generate_until", doc={}, arguments=(talk, wishes), idx=0)
    assert "Paris" in lm.generate_until([asked], disable_tqdm=True)[0]


def test_a_text_is_scored_in_windows(model: Front, model_info: dict[str, Any]) -> None:
    lm = harness(model, model_info["tokenizer_path"], max_length=16)
    asked = Instance(request_type="loglikelihood_rolling", doc={}, arguments=("one two three " * 20,), idx=0)
    (found,) = lm.loglikelihood_rolling([asked], disable_tqdm=True)
    assert -400 < found < -10
