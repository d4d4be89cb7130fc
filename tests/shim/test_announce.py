"""What the engine's greeting says, and what a control call changes of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.announce import Announcement, facts_after
from forebay.errors import SettingsError
from forebay.facts import read_blob
from forebay.housekeeping import keep_house
from forebay.topology import Peer
from forebay.wire.control import decode_hello
from forebay.wire.messages import ControlRequest


def announcement() -> Announcement:
    return Announcement(Peer("engine", 0), 7, {"model_path": "m", "weight_version": "v0", "api_key": "secret"})


def facts(said: Announcement) -> Any:
    blob = decode_hello(said.greeting()).blob
    assert blob is not None
    return read_blob(blob)


def test_greeting_tells_facts_without_secrets() -> None:
    found = facts(announcement())
    assert (found.model_path, "api_key" in found.raw) == ("m", False)


def test_a_pause_is_in_the_greeting() -> None:
    said = announcement()
    assert decode_hello(said.greeting()).status == "up"
    said.paused = True
    assert decode_hello(said.greeting()).status == "paused"


def test_an_update_keeps_the_other_facts() -> None:
    said = announcement()
    said.update({"weight_version": "v1"})
    assert (facts(said).weight_version, facts(said).model_path) == ("v1", "m")


def test_an_update_with_a_wrong_type_changes_nothing() -> None:
    said = announcement()
    with pytest.raises(SettingsError):
        said.update({"weight_version": 3})
    assert facts(said).weight_version == "v0"


@pytest.mark.parametrize(
    ("type_", "fields", "answer", "changes"),
    [
        ("UpdateWeightVersion", {"new_version": "v1"}, {"success": True}, {"weight_version": "v1"}),
        ("UpdateWeightsFromTensor", {"weight_version": "v1"}, {"success": True}, {"weight_version": "v1"}),
        ("UpdateWeightsFromTensor", {"weight_version": None}, {"success": True}, {}),
        ("UpdateWeightVersion", {"new_version": "v1"}, {"success": False}, {}),
        ("UpdateWeightVersion", {"new_version": "v1"}, None, {}),
        (
            "UpdateWeightsFromDisk",
            {"model_path": "n", "load_format": None},
            {"success": True},
            {"model_path": "n", "served_model_name": "n"},
        ),
        (
            "LoadLoraAdapter",
            {},
            {"success": True, "loaded_adapters": {"a": "p"}},
            {"loaded_adapters": {"a": "p"}},
        ),
    ],
)
def test_what_a_call_changes(type_: str, fields: dict[str, Any], answer: Any, changes: dict[str, Any]) -> None:
    assert facts_after(ControlRequest("c", 0, type_, fields), answer) == changes


@pytest.fixture
def level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize(("word", "number"), [("debug", logging.DEBUG), ("ERROR", logging.ERROR)])
def test_a_process_changes_its_own_log_level(word: str, number: int) -> None:
    assert keep_house(ControlRequest("c", 0, "ConfigureLogging", {"log_level": word}))["success"] is True
    assert logging.getLogger().level == number


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("word", [None, "loud", 3])
def test_an_unknown_log_level_changes_nothing(word: Any) -> None:
    before = logging.getLogger().level
    keep_house(ControlRequest("c", 0, "ConfigureLogging", {"log_level": word}))
    assert logging.getLogger().level == before
