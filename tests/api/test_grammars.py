"""Constraints: at most one, in whichever field it is asked for, and never dropped."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.wire.messages import SamplingParams
from forebay_api.grammars import KEYS, MAX_GRAMMAR_BYTES, MAX_REGEX_BYTES
from tests.api.samples import chat, complete, generate, refusal, said, sampling

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
COMPACT = '{"type":"object","properties":{"a":{"type":"string"}}}'
ANY_OBJECT = '{"type": "object"}'
ONLY_ONE = "Only one of json_schema, regex, ebnf, or structural_tag can be set."


def constraint(params: SamplingParams) -> dict[str, str]:
    return {key: value for key in KEYS if (value := getattr(params, key)) is not None}


def native(**params: Any) -> dict[str, str]:
    return constraint(sampling(generate(sampling_params=params)))


def openai(**fields: Any) -> dict[str, str]:
    seen = constraint(sampling(chat(**fields)))
    assert seen == constraint(sampling(complete(**fields)))
    return seen


@pytest.mark.parametrize(
    "asked", [{"json_schema": ANY_OBJECT}, {"regex": "a+"}, {"ebnf": 'root ::= "a"'}, {"structural_tag": "{}"}]
)
def test_one_constraint_reaches_the_engine_as_it_is(asked: dict[str, str]) -> None:
    assert native(**asked) == asked


@pytest.mark.parametrize("second", ["regex", "ebnf"])
def test_two_constraints_are_refused(second: str) -> None:
    written = {"json_schema": "{}", second: "a"}
    assert said(generate, sampling_params=written)[:2] == (400, ONLY_ONE)


def test_an_empty_constraint_is_unset() -> None:
    assert native(json_schema="", regex="", ebnf="", structural_tag="") == {}
    assert native(json_schema="", regex="a") == {"regex": "a"}


@pytest.mark.parametrize("key", ["json_schema", "structural_tag"])
def test_json_that_is_none_is_refused(key: str) -> None:
    status, message, param = said(generate, sampling_params={key: "{"})
    assert (status, param) == (400, f"sampling_params.{key}")
    assert message.startswith(f"{key} is not valid JSON: ")


def test_a_deep_schema_within_a_string_is_refused() -> None:
    deep = '{"not":' * 5000 + "{}" + "}" * 5000
    assert refusal(generate, sampling_params={"json_schema": deep}).status == 400
    assert "nested deeper" in refusal(generate, sampling_params={"json_schema": "[" * 200 + "]" * 200}).message


@pytest.mark.parametrize(
    ("key", "limit"), [("regex", MAX_REGEX_BYTES), ("ebnf", MAX_GRAMMAR_BYTES), ("json_schema", MAX_GRAMMAR_BYTES)]
)
def test_a_huge_constraint_is_refused(key: str, limit: int) -> None:
    text = '"' + "a" * (limit - 1) + '"'
    message = f"{key} is {limit + 1} bytes, over the {limit}-byte limit"
    assert said(generate, sampling_params={key: text}) == (400, message, f"sampling_params.{key}")


def test_a_choice_becomes_a_regex_of_its_words() -> None:
    assert native(choice=["yes", "a.b|c"]) == {"regex": "(?:yes|a\\.b\\|c)"}


def test_an_empty_choice_is_unset() -> None:
    assert native(choice=[]) == {}


def test_a_choice_and_another_constraint_are_refused() -> None:
    assert refusal(generate, sampling_params={"choice": ["a"], "regex": "b"}).param == "sampling_params.choice"
    assert refusal(generate, sampling_params={"choice": ["a"], "ebnf": "b"}).message == ONLY_ONE


def test_an_empty_word_in_a_choice_is_refused() -> None:
    assert refusal(generate, sampling_params={"choice": ["a", ""]}).param == "sampling_params.choice"


# ---------------------------------------------------------------- OpenAI forms
@pytest.mark.parametrize(
    ("form", "seen"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"json_schema": ANY_OBJECT}),
        ({"type": "json_object", "schema": SCHEMA}, {"json_schema": COMPACT}),
        ({"type": "json_schema", "schema": SCHEMA}, {"json_schema": COMPACT}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            {"json_schema": COMPACT},
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": None}},
            {"json_schema": COMPACT},
        ),
        ({"type": "structural_tag", "x": [1, 2]}, {"structural_tag": '{"type":"structural_tag","x":[1,2]}'}),
    ],
)
def test_a_response_format_becomes_a_constraint(form: dict[str, Any], seen: dict[str, str]) -> None:
    assert openai(response_format=form) == seen


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "response_format.type"),
        ({"type": None}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": 5}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.schema"),
        ({"type": "json_schema", "json_schema": None}, "response_format.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": "{}"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}, "response_format.json_schema.strict"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, "response_format.json_schema.strict"),
        ("json_object", "response_format"),
        ([], "response_format"),
    ],
)
def test_a_malformed_response_format_is_refused(form: Any, param: str) -> None:
    error = refusal(chat, response_format=form)
    assert (error.status, error.param) == (400, param)


def test_no_response_format_is_no_constraint() -> None:
    assert openai(response_format=None) == {}


@pytest.mark.parametrize(
    ("outputs", "seen"),
    [
        ({"json": SCHEMA}, {"json_schema": COMPACT}),
        ({"json": COMPACT}, {"json_schema": COMPACT}),
        ({"json_object": True}, {"json_schema": ANY_OBJECT}),
        ({"json_object": False}, {}),
        ({"regex": "a"}, {"regex": "a"}),
        ({"choice": ["a", "b"]}, {"regex": "(?:a|b)"}),
        ({"grammar": "root ::= a"}, {"ebnf": "root ::= a"}),
        ({"structural_tag": {"a": 1}}, {"structural_tag": '{"a":1}'}),
        ({"structural_tag": '{"a": 1}'}, {"structural_tag": '{"a": 1}'}),
        ({"regex": None}, {}),
    ],
)
def test_structured_outputs_become_a_constraint(outputs: dict[str, Any], seen: dict[str, str]) -> None:
    assert openai(structured_outputs=outputs) == seen


def test_two_structured_outputs_are_refused() -> None:
    outputs = {"regex": "a", "grammar": "b"}
    message = "structured_outputs can hold only one constraint"
    assert said(complete, structured_outputs=outputs) == (400, message, "structured_outputs")


@pytest.mark.parametrize("extra", [{"regex": "a"}, {"ebnf": "a"}, {"json_schema": "{}"}])
def test_a_constraint_can_be_given_in_its_own_field(extra: dict[str, str]) -> None:
    assert openai(**extra) == extra


def test_constraints_in_two_fields_are_refused() -> None:
    fields = {"response_format": {"type": "json_object"}, "regex": "a"}
    assert said(chat, **fields) == (400, "only one constraint can be set, got response_format and regex", "regex")


def test_a_text_format_beside_a_constraint_is_none() -> None:
    assert openai(response_format={"type": "text"}, regex="a") == {"regex": "a"}
