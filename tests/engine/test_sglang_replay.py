"""Recorded steps of SGLang's scheduler through the adapter, the wire, the detokenizer and the api's shaping.

The answers must be those that SGLang's own front gave for the same requests, but for the differences that
docs/sglang.md names. `tests.helpers.sglang_fixtures` made the files; nothing here needs SGLang.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from forebay.facts import LaunchFacts
from forebay.settings import Settings
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder
from forebay_api import replies, schemas
from forebay_api.admission import AdmissionContext, plan_generate
from forebay_api.calls import Call, Choice
from forebay_detokenizer.tables import Tables
from forebay_detokenizer.worker import Detokenizer
from forebay_engine.adapters.sglang_outputs import Outputs
from tests.helpers.sglang_compare import RULES, differences, reason
from tests.helpers.sglang_fixtures import KEPT, cases

FIXTURES = Path(__file__).parent / "fixtures" / "sglang"
DOCS = Path(__file__).parents[2] / "docs" / "sglang.md"
VOCABULARY = 49152
SPECIAL = {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"}
CASES = cases()


def _read(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


def _tables() -> Tables:
    """The tokens that the steps name, at their ids; the others stand for themselves."""
    known = {number: token for token, number in _read("tokens.json").items()} | SPECIAL
    vocabulary = {known.get(number, f"<{number}>"): number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL.values()])
    return Tables(tokenizer)


def _context() -> AdmissionContext:
    made: defaultdict[str | None, int] = defaultdict(int)

    def new_rid(public: str | None) -> str:
        made[public] += 1
        return f"{public}.{made[public] - 1}"

    facts = LaunchFacts(vocab_size=VOCABULARY, context_length=8192, hidden_size=KEPT, weight_version="default")
    return AdmissionContext(Settings(), facts, new_rid)


def _payload(step: dict[str, Any]) -> SimpleNamespace:
    """A step with the types that SGLang gives it."""
    spans = step["weight_versions"]
    return SimpleNamespace(
        **{
            **step,
            "output_ids": [array("q", ids) for ids in step["output_ids"]],
            "weight_versions": spans and [cell and [SimpleNamespace(**span) for span in cell] for cell in spans],
        }
    )


@cache
def _replayed() -> dict[str, list[Any]]:
    """The answer objects of every case."""
    steps = _read("steps.json")
    prompt_tokens = {
        rid: count for step in steps for rid, count in zip(step["rids"], step["prompt_tokens"], strict=True)
    }
    core, calls = Detokenizer(_tables(), epoch=1), {}
    loop, context = asyncio.new_event_loop(), _context()
    for name, body in CASES.items():
        plan = plan_generate(schemas.read_generate(msgspec.json.encode({**body, "stream": False})), context)
        call = calls[name] = Call(plan, loop, name)
        call.choices = [Choice(call, item.rids[0], at, item, at) for at, item in enumerate(plan.items)]
        opens = [(choice.item.open, choice.rid) for choice in call.choices]
        core.open([msgspec.structs.replace(o, rid=rid, prompt_tokens=prompt_tokens[rid]) for o, rid in opens], 0.0)
    outputs, encoder, decoder = Outputs(), EgressEncoder(1), EgressDecoder()
    for step in steps:
        core.step(decoder.decode(encoder.encode(outputs.batch(_payload(step)))), 0.0)
    choices = {choice.rid: choice for call in calls.values() for choice in call.choices}
    for _, deltas in core.take().deltas:
        for end in deltas.ends:
            choices[end.rid].finish(end)
    loop.close()
    answers = {name: json.loads(replies.whole(call)) for name, call in calls.items()}
    return {name: body if isinstance(body, list) else [body] for name, body in answers.items()}


@cache
def _answers() -> dict[str, list[Any]]:
    answers: dict[str, list[Any]] = _read("answers.json")
    return answers


@pytest.mark.parametrize("name", CASES)
def test_a_replayed_request_is_answered_as_by_sglangs_own_front(name: str) -> None:
    found = differences(_answers()[name], _replayed()[name])
    assert [found for found in found if reason(name, found[0], found[1]) is None] == []


@pytest.mark.parametrize("name", sorted({rule.name for rule in RULES}))
def test_every_meant_difference_is_named_in_the_docs(name: str) -> None:
    assert f"\n| {name} | " in DOCS.read_text(encoding="utf-8")


def test_a_changed_logprob_would_be_seen() -> None:
    answer = json.loads(json.dumps(_answers()["generate-logprob-all"]))
    answer[0]["meta_info"]["output_token_logprobs"][1][0] += 0.01
    place, _, _ = next(differences(answer, _replayed()["generate-logprob-all"]))
    assert place.endswith("output_token_logprobs[1][0]")
