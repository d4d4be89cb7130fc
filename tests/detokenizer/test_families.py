"""Logprobs and hidden states on their way: each piece has its own, an end has what is left, and bytes are true."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.batch import FlatFamily, HiddenFamily, RaggedFamily
from forebay.wire.messages import Extra, Pairs
from forebay_detokenizer.shaping import FIELDS, merged, without_last
from tests.detokenizer.rig import LENGTH, Rig
from tests.detokenizer.samples import EMOJI, byte_ids

NAN = float("nan")
BOTH = pytest.mark.parametrize("stream", [True, False], ids=["stream", "unary"])


def chosen(values: list[list[float | None]], ids: list[list[int]], rows: list[int]) -> dict[str, Any]:
    return {"output_token_logprobs": FlatFamily(values, ids, rows)}


def all_of(rig: Rig, rid: str = "r") -> Extra:
    """Everything that was said of a request, put together."""
    whole: Extra | None = None
    for extra in rig.said(rid).extras:
        whole = merged(whole, extra)
    return whole or Extra()


def test_every_piece_has_the_families_of_its_own_tokens() -> None:
    rig = Rig()
    rig.open(return_logprob=True)
    for n, byte in enumerate(b"abc"):
        rig.step({"r": byte_ids(bytes((byte,)))}, **chosen([[-float(n)]], [[byte]], [0]))
    pieces = [extra.output_logprobs for extra in rig.said("r").extras]
    assert pieces == [Pairs([-0.0], [97]), Pairs([-1.0], [98]), Pairs([-2.0], [99])]


@BOTH
@pytest.mark.parametrize("per_step", [1, 2])
def test_the_pieces_join_to_one_position_a_token(stream: bool, per_step: int) -> None:
    rig, ids = Rig(), byte_ids(b"abcd")
    rig.open(stream=stream, return_logprob=True, stop=["zz"])
    for at in range(0, 4, per_step):
        chunk = ids[at : at + per_step]
        done = {"r": LENGTH} if at + per_step >= 4 else None
        rig.step({"r": chunk}, done, **chosen([[-float(i) for i in chunk]], [chunk], [0]))
    assert all_of(rig).output_logprobs == Pairs([-float(i) for i in ids], ids)


def test_a_request_that_did_not_ask_gets_no_families() -> None:
    rig = Rig()
    rig.open("asks", return_logprob=True)
    rig.open("quiet", return_hidden_states=True)
    rig.step({"asks": byte_ids(b"a"), "quiet": byte_ids(b"b")}, **chosen([[-1.0], [-2.0]], [[1], [2]], [0, 1]))
    assert ([len(rig.said(rid).extras) for rid in ("asks", "quiet")]) == [1, 0]


def test_a_value_that_is_no_number_is_null_and_infinity_stays_for_the_api() -> None:
    rig = Rig()
    rig.open(return_logprob=True)
    rig.step({"r": byte_ids(b"ab")}, **chosen([[NAN, float("-inf")]], [[1, 2]], [0]))
    assert all_of(rig).output_logprobs == Pairs([None, float("-inf")], [1, 2])


def test_positions_behind_the_stop_are_dropped() -> None:
    rig, ids = Rig(), byte_ids(b"a.bc")
    rig.open(return_logprob=True, return_hidden_states=True, stop=["."])
    families = chosen([[-1.0, -2.0, -3.0, -4.0]], [ids], [0])
    families["output_top_logprobs"] = RaggedFamily([[[-1.0], [-2.0], None, [-4.0]]], [[[1], [2], None, [4]]], [0])
    families["output_hidden_states"] = HiddenFamily([[[0.0], [1.0], [2.0], [3.0], [4.0]]], [0])
    rig.step({"r": ids}, **families)
    extra = all_of(rig)
    assert extra.output_logprobs == Pairs([-1.0, -2.0], ids[:2])
    assert extra.output_top == [Pairs([-1.0], [1]), Pairs([-2.0], [2])]
    assert extra.hidden_states == [[0.0], [1.0], [2.0]]  # the first one is the prompt's


@BOTH
def test_input_families_are_kept_once_and_replaced_after_a_retraction(stream: bool) -> None:
    rig = Rig()
    rig.open(return_logprob=True, stream=stream)
    rig.step({"r": byte_ids(b"a")}, input_token_logprobs=FlatFamily([[None, -1.0]], [[1, 2]], [0]))
    rig.step({"r": byte_ids(b"b")}, {"r": LENGTH}, input_token_logprobs=FlatFamily([[None, -3.0]], [[1, 2]], [0]))
    assert all_of(rig).input_logprobs == Pairs([None, -3.0], [1, 2])


@BOTH
def test_the_bytes_of_a_part_of_a_character_are_its_own(stream: bool) -> None:
    rig, ids = Rig(), byte_ids(EMOJI.encode())
    rig.open(return_logprob=True, want_token_bytes=True, stream=stream)
    rig.step({"r": ids}, {"r": LENGTH}, **chosen([[-1.0] * 4], [ids], [0]))
    named = all_of(rig).token_bytes or {}
    assert b"".join(named[i] for i in ids).decode() == EMOJI


@BOTH
def test_alternatives_are_named_each_by_itself(stream: bool) -> None:
    rig, (a, b) = Rig(), byte_ids(b"\xf0\x9f")
    rig.open(return_logprob=True, want_token_bytes=True, stream=stream)
    family = RaggedFamily([[[-1.0, -2.0, -3.0]]], [[[a, b, 0]]], [0])
    rig.step({"r": byte_ids(b"x")}, {"r": LENGTH}, output_top_logprobs=family)
    assert all_of(rig).token_bytes == {a: b"\xf0", b: b"\x9f", 0: b"<|end|>"}


def test_bytes_are_left_out_when_nobody_wants_them() -> None:
    rig = Rig()
    rig.open(return_logprob=True)
    rig.step({"r": byte_ids(b"x")}, **chosen([[-1.0]], [[5]], [0]))
    assert all_of(rig).token_bytes is None


@pytest.mark.parametrize("fields", [{"return_logprob": True}, {"return_logprob": True, "stop": ["zz"]}, {}])
def test_families_of_rows_that_have_waited_are_not_lost(fields: dict[str, Any]) -> None:
    rig = Rig()
    rig.step({"r": byte_ids(b"a")}, **chosen([[-1.0]], [[1]], [0]))
    rig.open(**fields)
    rig.step({"r": byte_ids(b"b")}, {"r": LENGTH}, **chosen([[-2.0]], [[2]], [0]))
    expected = Pairs([-1.0, -2.0], [1, 2]) if fields else None
    assert all_of(rig).output_logprobs == expected


def test_families_of_a_row_without_tokens_are_said_when_it_has_waited() -> None:
    rig = Rig()
    rig.step({"r": []}, input_token_logprobs=FlatFamily([[None]], [[1]], [0]))
    rig.open(return_logprob=True)
    assert all_of(rig).input_logprobs == Pairs([None], [1])


def test_families_wait_with_the_tokens_of_an_interval() -> None:
    rig = Rig()
    rig.open(return_logprob=True, stream_interval=2)
    for n in (1, 2):
        rig.step({"r": byte_ids(b"a")}, **chosen([[-float(n)]], [[n]], [0]))
    assert [extra.output_logprobs for extra in rig.said("r").extras] == [Pairs([-1.0, -2.0], [1, 2])]


def test_families_reach_the_right_row_of_an_api_process() -> None:
    rig = Rig()
    for n in range(4):
        rig.open(f"r{n}", api=n % 2, return_logprob=True)
    rig.step({f"r{n}": byte_ids(b"x") for n in range(4)}, **chosen([[-3.0]], [[3]], [3]))
    assert [len(rig.said(f"r{n}").extras) for n in range(4)] == [0, 0, 0, 1]


def test_families_that_cannot_be_read_fail_only_the_requests_that_want_them() -> None:
    rig = Rig()
    rig.open("asks", return_logprob=True)
    rig.open("quiet")
    rows = {"asks": byte_ids(b"a"), "quiet": byte_ids(b"b")}
    rig.step(rows, output_token_logprobs=FlatFamily([["no number"]], [[1]], [0]))
    rig.step({"quiet": byte_ids(b"c")}, {"quiet": LENGTH})
    assert ([(f.rid, f.status) for _, f in rig.faults], rig.said("quiet").text) == ([("asks", 500)], "bc")


def test_every_family_of_a_frame_has_its_field() -> None:
    assert (len(FIELDS), set(FIELDS) < set(Extra.__struct_fields__)) == (7, True)


def test_pieces_are_put_together_in_order() -> None:
    first = Extra(output_top=[None], hidden_states=[[1.0]])
    then = Extra(output_top=[Pairs([-1.0], [1])], output_token_ids=[None], token_bytes={1: b"a"})
    whole = merged(first, then)
    assert (whole.output_top, whole.hidden_states, whole.token_bytes) == (
        [None, Pairs([-1.0], [1])],
        [[1.0]],
        {1: b"a"},
    )


def test_dropping_positions_leaves_the_prompt_alone() -> None:
    extra = Extra(output_logprobs=Pairs([-1.0, -2.0], [1, 2]), input_logprobs=Pairs([None], [9]))
    without_last(extra, 1)
    assert (extra.output_logprobs, extra.input_logprobs) == (Pairs([-1.0], [1]), Pairs([None], [9]))
