"""Ids to text: whole characters, nothing lost, the same for any split into steps, streamed or not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_detokenizer.incremental import unfinished
from forebay_detokenizer.tables import Tables
from forebay_detokenizer.windows import MAX_HELD
from tests.detokenizer import samples
from tests.detokenizer.rig import LENGTH, Rig, answer, tables, whole
from tests.detokenizer.samples import EMOJI, byte_fallback, byte_ids, byte_level, fallback_ids, id_of, word_piece

FAST = settings(max_examples=60, deadline=None, database=None)
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
SIZES = {name: make().get_vocab_size() for name, make in (("byte_level", byte_level), ("word_piece", word_piece))}


def decoded(name: str, ids: Sequence[int], cuts: Sequence[int], hide: bool = True) -> str:
    """The text of a decoder that gets the ids in pieces."""
    decoder = tables(name).of(hide, True).decoder([], 0)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [decoder.feed(ids[start:end]) for start, end in pairwise(edges)]
    return "".join(pieces) + decoder.flush()


CUTS = st.lists(st.integers(0, 40), max_size=8)


@FAST
@given(st.lists(st.integers(0, SIZES["byte_level"] + 5), max_size=20), CUTS, st.booleans())
def test_byte_level_text_is_the_decode_of_all_ids_for_any_split(ids: list[int], cuts: list[int], hide: bool) -> None:
    assert decoded("byte_level", ids, cuts, hide) == whole("byte_level", ids, hide)


@FAST
@given(st.lists(st.integers(0, 320), max_size=24), st.integers(1, 24), st.booleans())
@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_ids_together_give_the_text_of_ids_one_by_one(name: str, ids: list[int], size: int, hide: bool) -> None:
    single, many = (tables(name).of(hide, True).decoder([], 0) for _ in range(2))
    for at in range(0, len(ids), size):
        assert many.feed(ids[at : at + size]) == "".join(map(single.one, ids[at : at + size]))
        assert many.idle == single.idle
    assert many.flush() == single.flush()


@FAST
@given(st.text(max_size=12), CUTS)
def test_any_text_comes_back_from_single_bytes(text: str, cuts: list[int]) -> None:
    assert decoded("byte_level", byte_ids(text.encode()), cuts) == text


@FAST
@given(st.binary(max_size=10), CUTS)
def test_random_bytes_give_what_decode_gives(data: bytes, cuts: list[int]) -> None:
    assert decoded("byte_level", byte_ids(data), cuts) == data.decode("utf-8", "replace")


@FAST
@given(st.lists(st.sampled_from(["▁Hello", "é", "!", "▁", "<s>", "a", "世", EMOJI, "\ufffd"]), max_size=12), CUTS)
def test_byte_fallback_text_is_the_decode_of_all_ids_for_any_split(pieces: list[str], cuts: list[int]) -> None:
    ids = [i for piece in pieces for i in _piece_ids(piece)]
    assert decoded("byte_fallback", ids, cuts) == whole("byte_fallback", ids)


def _piece_ids(piece: str) -> list[int]:
    known = byte_fallback().token_to_id(piece)
    return fallback_ids(piece.encode()) if known is None else [known]


@FAST
@given(st.lists(st.sampled_from([*range(150, 262), *range(3, 10)]), max_size=12), CUTS)
def test_broken_byte_tokens_give_the_same_text_for_any_split(ids: list[int], cuts: list[int]) -> None:
    assert decoded("byte_fallback", ids, cuts) == decoded("byte_fallback", ids, [])


@FAST
@given(st.lists(st.integers(0, SIZES["word_piece"] + 3), max_size=12), CUTS, st.booleans())
def test_word_piece_text_is_the_decode_of_all_ids_for_any_split(ids: list[int], cuts: list[int], hide: bool) -> None:
    assert decoded("word_piece", ids, cuts, hide) == whole("word_piece", ids, hide)


@FAST
@given(st.binary(max_size=6))
def test_the_held_tail_is_the_longest_start_of_a_character(data: bytes) -> None:
    valid_starts = [k for k in range(1, 4) if k <= len(data) and _is_start(data[-k:])]
    assert unfinished(data) == max(valid_starts, default=0)


def _is_start(tail: bytes) -> bool:
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


@BOTH
@pytest.mark.parametrize("per_step", [1, 2, 4])
def test_a_character_of_four_tokens_comes_once_and_whole(stream: bool, per_step: int) -> None:
    heard = answer("byte_fallback", fallback_ids(EMOJI.encode()), per_step, stream=stream)
    assert heard.text == EMOJI


def test_a_character_comes_with_its_last_byte() -> None:
    rig = Rig("byte_fallback")
    rig.open()
    for i in fallback_ids(EMOJI.encode()):
        rig.step({"r": [i]})
    assert rig.said("r").texts == ["", "", "", EMOJI]


@BOTH
def test_a_text_cut_within_a_character_keeps_all_before_it(stream: bool) -> None:
    heard = answer("byte_level", byte_ids(b"ok " + EMOJI.encode()[:3]), stream=stream)
    assert heard.text == "ok \ufffd"


@BOTH
def test_a_cut_run_of_byte_tokens_keeps_its_whole_characters(stream: bool) -> None:
    heard = answer("byte_fallback", fallback_ids("世".encode() + EMOJI.encode()[:2]), stream=stream)
    assert heard.text == "世\ufffd\ufffd"


@BOTH
@pytest.mark.parametrize("per_step", [1, 3, 8])
def test_text_does_not_depend_on_tokens_per_step(stream: bool, per_step: int) -> None:
    ids = samples.ids_of(byte_level(), samples.TEXT)
    assert answer("byte_level", ids, per_step, stream=stream).text == samples.TEXT


@pytest.mark.parametrize("per_step", [1, 2])
def test_the_first_space_stays_after_a_prompt(per_step: int) -> None:
    tokenizer = byte_fallback()
    ids = [id_of(tokenizer, "▁world"), id_of(tokenizer, "▁again")]
    prompt = [id_of(tokenizer, "▁Hello")]
    assert answer("byte_fallback", ids, per_step, prompt_tokens=1, prompt_tail=prompt).text == " world again"


def test_the_first_space_goes_after_a_prompt_without_text() -> None:
    tokenizer = byte_fallback()
    ids, start = [id_of(tokenizer, "▁world"), id_of(tokenizer, "▁again")], [id_of(tokenizer, "<s>")]
    assert answer("byte_fallback", ids, prompt_tokens=1, prompt_tail=start).text == "world again"


def test_the_first_space_stays_when_only_the_tail_of_the_prompt_has_no_text() -> None:
    ids, start = [id_of(byte_fallback(), "▁world")], [id_of(byte_fallback(), "<s>")]
    assert answer("byte_fallback", ids, prompt_tokens=30, prompt_tail=start).text == " world"


def test_a_word_continues_the_prompt_of_a_word_piece_tokenizer() -> None:
    ids = [id_of(word_piece(), "##s"), id_of(word_piece(), "again")]
    assert answer("word_piece", ids, prompt_tokens=1, prompt_tail=[id_of(word_piece(), "world")]).text == "s again"


@BOTH
@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "word_piece"])
def test_special_tokens_are_hidden_unless_asked_for(name: str, stream: bool) -> None:
    special = {"byte_level": "<|turn|>", "byte_fallback": "</s>", "word_piece": "[A]"}[name]
    i = id_of({"byte_level": byte_level, "byte_fallback": byte_fallback, "word_piece": word_piece}[name](), special)
    shown = answer(name, [5, i, 6], stream=stream, skip_special_tokens=False).text
    assert (special in answer(name, [5, i, 6], stream=stream).text, special in shown) == (False, True)


@BOTH
@pytest.mark.parametrize(("spaces", "text"), [(True, "go [A] [B] go"), (False, "go [A][B] go")])
def test_spaces_between_special_tokens_are_kept_or_left_out(stream: bool, spaces: bool, text: str) -> None:
    ids = [id_of(word_piece(), token) for token in ("go", "[A]", "[B]", "go")]
    heard = answer("word_piece", ids, skip_special_tokens=False, spaces_between_special_tokens=spaces, stream=stream)
    assert heard.text == text


def test_a_table_puts_no_spaces_between_special_tokens() -> None:
    ids = [id_of(byte_level(), text) for text in samples.SPECIAL]
    assert answer("byte_level", ids, skip_special_tokens=False).text == "<|end|><|turn|>"


@BOTH
@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "word_piece"])
@pytest.mark.parametrize("wild", [-1, -(2**40), 100_000, 2**31 - 1, 2**62])
def test_an_id_outside_the_vocabulary_gives_no_text_and_counts(name: str, stream: bool, wild: int) -> None:
    heard = answer(name, [5, wild, 6], stream=stream, prompt_tokens=1)
    assert (heard.text, heard.tokens) == (answer(name, [5, 6], prompt_tokens=1).text, 3)


@pytest.mark.parametrize("wild", [-1, 100_000])
def test_an_id_outside_the_vocabulary_does_not_touch_other_rows(wild: int) -> None:
    rig = Rig()
    rig.open("good")
    rig.open("wild")
    rig.step({"wild": [wild], "good": byte_ids(b"x")})
    assert (rig.said("good").text, rig.said("wild").text) == ("x", "")


@BOTH
@pytest.mark.parametrize("count", [1, 3])
def test_tokens_that_come_with_the_finish_are_delivered(stream: bool, count: int) -> None:
    rig = Rig()
    rig.open(stream=stream)
    rig.step({"r": byte_ids(b"ab")})
    rig.step({"r": byte_ids(b"cde"[:count])}, {"r": LENGTH})
    assert rig.said("r").text == "ab" + "cde"[:count]


def test_a_finish_without_tokens_releases_what_is_held() -> None:
    rig = Rig()
    rig.open()
    rig.step({"r": byte_ids(EMOJI.encode()[:2])})
    rig.step({"r": []}, {"r": LENGTH})
    assert rig.said("r").text == "\ufffd"


@BOTH
def test_a_genuine_replacement_character_is_delivered_and_counted(stream: bool) -> None:
    heard = answer("byte_fallback", [id_of(byte_fallback(), "\ufffd")], stream=stream)
    assert (heard.text, heard.tokens) == ("\ufffd", 1)


def test_hidden_tokens_do_not_break_a_character() -> None:
    head, tail = byte_ids(EMOJI.encode())[:2], byte_ids(EMOJI.encode())[2:]
    assert answer("byte_level", [*head, id_of(byte_level(), "<|turn|>"), *tail]).text == EMOJI


def test_a_window_that_shows_nothing_does_not_grow_for_ever() -> None:
    table = tables("word_piece").of(True, True)
    decoder = table.decoder([], 0)
    hidden, word = id_of(word_piece(), "[A]"), id_of(word_piece(), "go")
    text = decoder.feed([hidden] * (3 * MAX_HELD)) + decoder.feed([word, word])
    assert (text, len(decoder._ids) < MAX_HELD + 3) == ("go go", True)  # type: ignore[attr-defined]


def test_both_tables_of_a_tokenizer_share_their_texts() -> None:
    hiding, showing = Tables(byte_level()).of(True, True), Tables(byte_level()).of(False, True)
    assert hiding.token_bytes(0) == showing.token_bytes(0) == b"<|end|>"


def test_token_bytes_are_those_of_the_vocabulary_entry() -> None:
    table = tables("byte_level").of(True, True)
    assert [table.token_bytes(i) for i in byte_ids(b"\xf0 a")] == [b"\xf0", b" ", b"a"]


def test_token_bytes_of_fallback_tokens_join_to_the_text() -> None:
    ids = samples.ids_of(byte_fallback(), "Hello 世 é")
    table = tables("byte_fallback").of(True, True)
    assert b"".join(map(table.token_bytes, ids)).decode() == " Hello 世 é"


def test_token_bytes_of_a_word_have_its_space_and_not_its_marks() -> None:
    table = tables("word_piece").of(True, True)
    named = [table.token_bytes(id_of(word_piece(), token)) for token in ("world", "##ing", "[A]")]
    assert named == [b" world", b"ing", b"[A]"]


@pytest.mark.parametrize("wild", [-1, 10**9])
@pytest.mark.parametrize("name", ["byte_level", "word_piece"])
def test_token_bytes_of_an_unknown_id_are_empty(name: str, wild: int) -> None:
    assert tables(name).of(True, True).token_bytes(wild) == b""
