"""Bytes that are no proper JSON object end here, each with a 400 that says why."""

from __future__ import annotations

import json

import msgspec
import pytest

from forebay_api.fields import SamplingBody
from forebay_api.jsonbody import MAX_DEPTH, BodyReader, refuse_deep
from forebay_api.schemas import read_abort, read_chat, read_generate, read_tokenize
from tests.api.samples import refusal, said

INVALID = "the request body is not valid JSON: "


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Input data was truncated"),
        (b'{"text": "a"', "Input data was truncated"),
        (b'{"text": "a"} x', "trailing characters (byte 15)"),
        (b'{"text": tru}', "invalid character (byte 13)"),
        (b'{"text": "a",}', "trailing comma in object (byte 13)"),
        (b"\xef\xbb\xbf{}", "it begins with a byte order mark"),
        (b'{"text": "\xb2\xe2"}', "not UTF-8 (byte 10)"),
        (b'{"text": "\xe4\xbd"}', "not UTF-8 (byte 10)"),
        (b'{"unknown": "\xff"}', "not UTF-8 (byte 13)"),
        (b'{"session_params": {"id": "\xff"}}', "not UTF-8 (byte 27)"),
    ],
)
def test_a_body_that_is_no_json_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    assert said(read_generate, body) == (400, INVALID + reason, None)


def test_utf_16_is_refused() -> None:
    assert refusal(read_generate, '{"text":"a"}'.encode("utf-16")).status == 400


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    "field", ['"sampling_params": {"temperature": %s}', '"anything": [%s]', '"kv_hints": {"a": %s}']
)
def test_a_bare_word_for_a_number_is_refused_in_every_field(field: str, number: str) -> None:
    assert refusal(read_generate, ("{" + field % number + "}").encode()).message.startswith(INVALID)


@pytest.mark.parametrize("field", ["text", "anything", "rid"])
@pytest.mark.parametrize("half", ["\\ud800", "\\udc00", "\\ud800\\u0041", "\\ud800 abcdefgh"])
def test_half_a_surrogate_pair_is_refused_in_every_field(field: str, half: str) -> None:
    assert refusal(read_generate, f'{{"{field}": "{half}"}}'.encode()).status == 400


def test_a_nul_character_is_legal_text() -> None:
    assert read_generate(b'{"text": "a\\u0000b"}').text == "a\0b"


@pytest.mark.parametrize(
    ("body", "got"), [("[]", "sequence"), ("null", "null"), ("1", "integer `1`"), ('"x"', 'string "x"')]
)
def test_a_body_that_is_no_object_is_refused(body: str, got: str) -> None:
    message = f"invalid type: {got}, expected struct GenerateRequest"
    assert said(read_generate, body.encode()) == (400, message, None)


@pytest.mark.parametrize("field", ["anything", "kv_hints", "input_embeds"])
@pytest.mark.parametrize("levels", [MAX_DEPTH, 3000, 100_000])
def test_deep_nesting_is_refused_in_every_field(field: str, levels: int) -> None:
    body = f'{{"{field}": {{"a": {"[" * levels}{"]" * levels}}}}}'
    assert "nested deeper than 128 levels" in refusal(read_generate, body.encode()).message


def test_nesting_up_to_the_limit_is_read() -> None:
    levels = MAX_DEPTH - 1
    read_generate(f'{{"anything": {"[" * levels}{"]" * levels}}}'.encode())


def test_brackets_within_strings_are_no_nesting() -> None:
    text = '[[{"\\' * 1000
    assert read_generate(json.dumps({"text": text}).encode()).text == text


def test_a_wide_body_is_not_taken_for_a_deep_one() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": '"]}'}]}] * 500
    body = read_chat(json.dumps({"messages": messages}).encode())
    assert msgspec.json.decode(bytes(body.messages)) == messages  # type: ignore[arg-type]


def test_a_string_over_the_edge_of_a_chunk_hides_its_brackets() -> None:
    refuse_deep(b'["' + b"[" * (3 << 20) + b'", []]')


@pytest.mark.parametrize("spacing", [(", ", ": "), (",", ":"), (" ,\n", " : ")])
def test_a_field_given_twice_is_refused(spacing: tuple[str, str]) -> None:
    comma, colon = spacing
    body = "{" + comma.join(f'"{name}"{colon}"a"' for name in ("text", "rid", "text")) + "}"
    assert said(read_generate, body.encode()) == (400, "duplicate field `text`", "text")


@pytest.mark.parametrize("body", ['{"text": "a", "rid": "b"}', '{"text":"a","rid":"b"}', '{ "text" :"a",\n"rid": "b"}'])
def test_different_fields_in_any_spacing_are_read(body: str) -> None:
    assert read_generate(body.encode()).rid == "b"


def test_a_field_of_an_inner_object_may_have_the_name_of_an_outer_one() -> None:
    assert read_generate(b'{ "text": "a", "kv_hints": {"text": 1, "rid": 2}, "rid":"b"}').rid == "b"


def test_a_key_written_with_escapes_is_still_the_same_key() -> None:
    assert refusal(read_generate, b'{"text": "a", "te\\u0078t": "b"}').message == "duplicate field `text`"


def test_null_is_absent_for_the_raw_fields_of_tokenize() -> None:
    assert read_tokenize(b'{"prompt": "a", "messages": null}').messages is msgspec.UNSET


def test_null_is_absent_for_the_fields_of_abort() -> None:
    assert read_abort(b'{"rid": null, "abort_all": null}') == ("", False)


def test_a_reader_knows_absent_from_null() -> None:
    body = BodyReader(SamplingBody, {}).read(b'{"temperature": null}')
    assert (body.temperature, body.top_p) == (None, msgspec.UNSET)


def test_no_beginning_of_a_body_is_taken_for_the_whole() -> None:
    body = json.dumps({"text": 'a"b\\', "input_ids": None, "sampling_params": {"top_p": 0.5, "stop": ["x"]}}).encode()
    for end in range(len(body)):
        assert refusal(read_generate, body[:end]).message.startswith(INVALID)
