"""Stop strings, stop tokens and patterns in whole requests: what is shown, what is counted, how the request ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.detokenizer.rig import LENGTH, Heard, Rig, answer
from tests.detokenizer.samples import byte_fallback, byte_ids, byte_level, fallback_ids, id_of, ids_of

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])
SPLITS = pytest.mark.parametrize("per_step", [1, 2, 5])


def spoken(text: str, per_step: int = 1, reason: dict[str, Any] | None = None, **fields: Any) -> Heard:
    """The answer when every byte of the text is a token."""
    return answer("byte_level", byte_ids(text.encode()), per_step, reason, **fields)


def stop_at(matched: Any) -> dict[str, Any]:
    return {"type": "stop", "matched": matched}


@BOTH
@SPLITS
def test_stop_string_split_over_tokens_is_not_shown(stream: bool, per_step: int) -> None:
    heard = spoken("ABCDEFGHIJ", per_step, stop=["DEFGHIJ"], stream=stream)
    assert (heard.text, heard.reason) == ("ABC", stop_at("DEFGHIJ"))


def test_no_delta_ever_holds_a_part_of_the_stop_string() -> None:
    assert not set("DEFGHIJ") & set("".join(spoken("ABCDEFGHIJ", stop=["DEFGHIJ"]).texts))


@BOTH
@SPLITS
def test_the_stop_string_ends_the_text_when_it_is_not_trimmed(stream: bool, per_step: int) -> None:
    heard = spoken("one END two", per_step, stop=["END"], no_stop_trim=True, stream=stream)
    assert (heard.text, heard.reason) == ("one END", stop_at("END"))


def test_a_stop_string_that_never_completes_is_released_at_the_end() -> None:
    assert spoken("ABCDEF", stop=["DEFGHIJ"]).text == "ABCDEF"


@BOTH
def test_text_behind_the_match_in_the_same_token_is_dropped(stream: bool) -> None:
    tokenizer = byte_level()
    word = id_of(tokenizer, "Ġquick")
    assert answer("byte_level", [word, *byte_ids(b"x")], stop=["ui"], stream=stream).text == " q"


@pytest.mark.parametrize("stops", [["re", "he"], ["he", "re"]])
def test_the_match_that_completes_first_wins_in_any_order(stops: list[str]) -> None:
    heard = spoken("there", 5, stop=stops)
    assert (heard.text, heard.reason) == ("t", stop_at("he"))


@pytest.mark.parametrize(("stops", "text"), [(["b", "ab"], "xa"), (["ab", "b"], "x")])
def test_list_order_decides_between_matches_that_complete_together(stops: list[str], text: str) -> None:
    assert spoken("xab", stop=stops).text == text


@BOTH
@SPLITS
def test_an_occurrence_below_min_new_tokens_is_ordinary_text(stream: bool, per_step: int) -> None:
    heard = spoken("a END b END c", per_step, stop=["END"], min_new_tokens=6, stream=stream)
    assert (heard.text, heard.end.completion_tokens if heard.end else 0) == ("a END b ", 11)


@BOTH
@SPLITS
def test_tokens_up_to_the_one_that_completed_the_match_count(stream: bool, per_step: int) -> None:
    ids = byte_ids(b"ab.cdefg")
    heard = answer("byte_level", ids, per_step, stop=["."], want_ids=True, stream=stream)
    assert heard.end is not None
    assert (heard.ids, heard.tokens, heard.end.completion_tokens) == (ids[:3], 3, 3)


@BOTH
@SPLITS
def test_a_stop_string_of_several_bytes_a_character_is_found(stream: bool, per_step: int) -> None:
    assert spoken("so 世界 on", per_step, stop=["世界"], stream=stream).text == "so "


def test_a_stop_string_is_found_in_byte_fallback_tokens() -> None:
    assert answer("byte_fallback", fallback_ids("a世b".encode()), stop=["世"], prompt_tokens=1).text == "a"


def test_the_engine_is_told_to_stop_the_request() -> None:
    rig = Rig()
    rig.open(stop=["b"])
    rig.step({"r": byte_ids(b"a")})
    rig.step({"r": byte_ids(b"b")})
    assert [(abort.rid, abort.reason) for abort in rig.aborts] == [("r", "stop")]


def test_an_engine_that_has_ended_is_not_told_to_stop() -> None:
    rig = Rig()
    rig.open(stop=["b"])
    rig.run(byte_ids(b"ab"))
    assert rig.aborts == []


def test_rows_after_the_match_are_dropped() -> None:
    rig = Rig()
    rig.open(stop=["b"])
    for byte in (b"a", b"b", b"c", b"d"):
        rig.step({"r": byte_ids(byte)})
    assert (rig.said("r").text, len(rig.core), rig.core.waiting) == ("a", 0, 0)


def test_a_match_in_the_last_token_is_a_stop_and_not_a_length() -> None:
    assert spoken("ab.", stop=["."], reason=LENGTH).reason == stop_at(".")


def test_an_abort_stays_an_abort_when_its_tokens_complete_a_stop_string() -> None:
    abort = {"type": "abort", "message": "no room", "status_code": 503}
    heard = spoken("ab.", stop=["."], reason=abort)
    assert (heard.text, heard.reason) == ("ab", abort)


@BOTH
def test_an_abort_ends_with_the_text_so_far(stream: bool) -> None:
    abort = {"type": "abort", "message": "Aborted"}
    heard = spoken("ab", reason=abort, stop=["bcd"], stream=stream)
    assert (heard.text, heard.reason) == ("ab", abort)


# ---------------------------------------------------------------- matches that the engine finds


def engine_says(text: str, per_step: int, matched: Any, **fields: Any) -> Heard:
    rig = Rig(front_stops=False)
    rig.open(**fields)
    return rig.run(byte_ids(text.encode()), per_step=per_step, reason=stop_at(matched))


@BOTH
@SPLITS
def test_the_occurrence_that_the_engine_ends_at_is_cut(stream: bool, per_step: int) -> None:
    heard = engine_says("a END b END", per_step, "END", stop=["END"], stream=stream)
    assert (heard.text, heard.tokens) == ("a END b ", 11)


@BOTH
def test_the_occurrence_that_the_engine_ends_at_stays_when_it_is_not_trimmed(stream: bool) -> None:
    assert engine_says("a END", 1, "END", stop=["END"], no_stop_trim=True, stream=stream).text == "a END"


def test_a_part_of_a_stop_string_is_held_for_the_engine_too() -> None:
    rig = Rig(front_stops=False)
    rig.open(stop=["END"])
    for byte in (b"a", b"E", b"N", b"D"):
        rig.step({"r": byte_ids(byte)})
    assert rig.said("r").text == "a"


def test_a_match_that_the_engine_reports_one_step_late_is_cut() -> None:
    rig = Rig(front_stops=False)
    rig.open(stop=["END"])
    rig.step({"r": byte_ids(b"aEND")})
    rig.step({"r": []}, {"r": stop_at("END")})
    assert rig.said("r").text == "a"


def test_what_the_engine_names_is_cut_without_a_list_of_stop_strings() -> None:
    assert engine_says("a.", 1, ".").text == "a"


@pytest.mark.parametrize("matched", ["NaN happened", "", None])
def test_a_name_that_is_not_in_the_text_cuts_nothing(matched: str | None) -> None:
    assert engine_says("ab", 1, matched, stop=["x"]).text == "ab"


def test_the_source_of_a_pattern_is_not_cut_from_the_text() -> None:
    assert engine_says("abc", 1, "c", stop_regex=["c"]).text == "abc"


# ---------------------------------------------------------------- stop tokens


def ended_by(token: str, matched: Any = None, **fields: Any) -> Heard:
    i = id_of(byte_level(), token)
    return answer("byte_level", [*byte_ids(b"ab"), i], reason=stop_at(i if matched is None else matched), **fields)


@BOTH
@pytest.mark.parametrize(("keep", "text"), [(False, "ab"), (True, "ab<|end|>")])
def test_the_stop_token_is_shown_only_when_it_is_not_trimmed(stream: bool, keep: bool, text: str) -> None:
    heard = ended_by("<|end|>", skip_special_tokens=False, no_stop_trim=keep, stream=stream)
    assert heard.text == text


@BOTH
def test_the_stop_token_is_in_the_ids_and_counts(stream: bool) -> None:
    heard = ended_by("<|end|>", want_ids=True, stream=stream)
    assert heard.end is not None
    assert (heard.ids[-1], len(heard.ids), heard.end.completion_tokens) == (id_of(byte_level(), "<|end|>"), 3, 3)


@BOTH
def test_an_ordinary_token_can_be_the_stop_token(stream: bool) -> None:
    assert ended_by("Ġquick", stream=stream).text == "ab"


@BOTH
def test_a_sequence_of_stop_tokens_hides_its_last_one(stream: bool) -> None:
    i = id_of(byte_level(), "Ġquick")
    assert ended_by("Ġquick", [5, i], stream=stream).text == "ab"


@BOTH
def test_a_stop_token_that_the_engine_does_not_send_takes_nothing_away(stream: bool) -> None:
    assert ended_by("Ġquick", 0, stream=stream).text == "ab quick"


@BOTH
def test_a_token_sent_before_its_finish_stays(stream: bool) -> None:
    rig = Rig()
    rig.open(stream=stream)
    i = id_of(byte_level(), "Ġquick")
    rig.step({"r": [i]})
    rig.step({"r": []}, {"r": stop_at(i)})
    assert rig.said("r").text == " quick"


def test_some_stop_tokens_stay_for_a_tool_parser() -> None:
    i = id_of(byte_level(), "<|turn|>")
    rig = Rig(keep_stop_ids=[i])
    rig.open(skip_special_tokens=False)
    assert rig.run([i], reason=stop_at(i)).text == "<|turn|>"


def test_a_stop_string_that_completes_before_the_stop_token_ends_the_request() -> None:
    i = id_of(byte_level(), "<|end|>")
    heard = answer("byte_level", [*byte_ids(b"a."), i], 3, stop_at(i), stop=["."])
    assert (heard.text, heard.reason, heard.tokens) == ("a", stop_at("."), 2)


# ---------------------------------------------------------------- patterns


@BOTH
@SPLITS
def test_a_pattern_ends_the_request_and_trims_nothing(stream: bool, per_step: int) -> None:
    heard = spoken("tel 555-1 and", per_step, stop_regex=["[0-9]{3}-"], stream=stream)
    assert (heard.text, heard.reason, heard.tokens) == ("tel 555-", stop_at("[0-9]{3}-"), 8)


def test_text_held_for_a_stop_string_is_shown_when_a_pattern_ends_the_request() -> None:
    assert spoken("ab1xx", stop=["1xyz"], stop_regex=["[0-9]"]).text == "ab1"


def test_a_stop_string_wins_over_a_pattern_that_the_same_token_completes() -> None:
    assert spoken("ab1", stop=["1"], stop_regex=["[0-9]"]).reason == stop_at("1")


def test_a_pattern_waits_for_min_new_tokens() -> None:
    assert spoken("1a2b3c4", stop_regex=["[0-9]"], min_new_tokens=4).text == "1a2b3"


def test_the_first_space_does_not_hide_a_stop_string() -> None:
    ids = ids_of(byte_fallback(), "Hello world")
    assert answer("byte_fallback", ids, stop=["world"]).text == "Hello "
