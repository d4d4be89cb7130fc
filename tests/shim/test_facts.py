"""Launch facts: secrets and the config object stay behind, foreign values become texts, wrong types are named."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.errors import SettingsError
from forebay.facts import LaunchFacts, make_blob, read_blob


def passed(facts: dict[str, Any]) -> dict[str, Any]:
    """What arrives of these facts."""
    return read_blob(make_blob(facts)).raw


def test_secret_does_not_travel() -> None:
    assert passed({"api_key": "k", "host": "h"}) == {"host": "h"}


def test_what_the_front_works_with_travels_as_it_is() -> None:
    facts = {
        "loaded_adapters": {"key-extraction": "/k", "secrets-v2": "/s", "access-token": "/a", "sql": "/q"},
        "preferred_sampling_params": {"watermark": {"key": "abc"}, "custom_params": {"key": 1}},
        "default_sampling_params": {"custom_params": {"token": 2}},
        "model_config": {"default_sampling_params": {"custom_params": {"token": 2}}},
        "chat_template": "{{ 'Bearer token=a' }}",
    }
    assert passed(facts) == facts
    assert passed({"model_config": {"hf_token": "t", "vocab_size": 8}}) == {"model_config": {"vocab_size": 8}}


@dataclass
class ModelConfig:
    """A model config as some engines have it."""

    hf_config: object
    hf_token: str = "t"
    vocab_size: int = 8


def test_secret_inside_another_value_does_not_travel() -> None:
    nested = {"servers": [{"name": "s", "password": "p"}], "deep": {"a": {"auth_token": "t", "b": 1}}}
    assert passed(nested) == {"servers": [{"name": "s"}], "deep": {"a": {"b": 1}}}


class Unreadable:
    """A config object whose text must never be made."""

    def __str__(self) -> str:
        raise AssertionError("this object was turned into text")


@pytest.mark.parametrize("config", [{"hf_config": Unreadable(), "vocab_size": 8}, ModelConfig(Unreadable())])
def test_config_object_of_the_model_is_null(config: Any) -> None:
    assert passed({"model_config": config}) == {"model_config": {"hf_config": None, "vocab_size": 8}}


class Kind(enum.Enum):
    """A value that is no plain data."""

    A = 1


def test_foreign_values_are_texts() -> None:
    facts = {"path": Path("/x"), "kind": Kind.A, "names": {"n"}, "pair": (1, 2), "none": None, 5: b"a"}
    assert passed(facts) == {  # type: ignore[arg-type]
        "path": "/x",
        "kind": "Kind.A",
        "names": ["n"],
        "pair": [1, 2],
        "none": None,
        "5": "YQ==",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_length", "4096"),
        ("context_length", True),
        ("vocab_size", 1.5),
        ("model_path", 5),
        ("eos_token_ids", 2),
        ("eos_token_ids", ["2"]),
        ("preferred_sampling_params", [1]),
        ("model_config", "text"),
        ("context_length", 0),
        ("vocab_size", -1),
        ("max_req_input_len", 0),
        ("num_reserved_tokens", -1),
        ("stop_match", "nobody"),
    ],
)
def test_wrong_value_stops_the_launch_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        make_blob({name: value})


def test_missing_key_is_the_default() -> None:
    assert read_blob(make_blob({})) == LaunchFacts()


def test_null_is_the_default_too() -> None:
    facts = read_blob(make_blob({"num_reserved_tokens": None, "model_config": None}))
    assert (facts.num_reserved_tokens, facts.model_config) == (0, {})


def test_facts_that_the_front_reads_have_their_types() -> None:
    facts = read_blob(make_blob({"context_length": 64, "eos_token_ids": [1, 2], "preferred_sampling_params": {"n": 2}}))
    assert (facts.context_length, facts.eos_token_ids, facts.preferred_sampling_params) == (64, [1, 2], {"n": 2})


def test_facts_that_the_front_does_not_know_are_kept() -> None:
    assert passed({"tp_size": 4}) == {"tp_size": 4}


def test_facts_that_contain_themselves_stop_the_launch() -> None:
    facts: dict[str, Any] = {}
    facts["self"] = facts
    with pytest.raises(SettingsError, match="contains itself"):
        make_blob(facts)


def test_facts_given_are_not_changed() -> None:
    facts = {"api_key": "k", "model_config": {"hf_config": 1}}
    make_blob(facts)
    assert facts == {"api_key": "k", "model_config": {"hf_config": 1}}


@pytest.mark.parametrize("blob", [b"", b"[]", b"{", b"\xff", b'{"a":' * 100_000, msgspec.json.encode("text")])
def test_blob_that_is_no_object_is_refused(blob: bytes) -> None:
    with pytest.raises(SettingsError):
        read_blob(blob)
