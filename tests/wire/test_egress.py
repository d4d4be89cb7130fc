"""Egress frames: what is not said again, every family in both forms, and columns that do not fit."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from forebay.batch import FlatFamily, GenerationBatch, HiddenFamily, RaggedFamily
from forebay.errors import PeerError, WireError
from forebay.wire.columns import FAMILIES
from forebay.wire.egress import EgressEncoder
from forebay.wire.egress_decoder import EgressDecoder, EgressFrame
from forebay.wire.frames import Kind, kind_of
from forebay.wire.messages import Pairs
from forebay.wire.steady import Texts, open_step, open_texts, pack_texts


def ids_of(frame: EgressFrame) -> list[int]:
    return frame.ids.cast("q" if frame.id_width == 8 else "i").tolist()


def once(batch: GenerationBatch) -> EgressFrame:
    return EgressDecoder().decode(EgressEncoder(1).encode(batch))


def family(batch: GenerationBatch, name: str) -> list[tuple[int, Any]]:
    found = once(batch).families[FAMILIES.index(name)]
    return [] if found is None else list(found.items())


def rows(count: int = 3, **columns: Any) -> GenerationBatch:
    return GenerationBatch([f"r{i}" for i in range(count)], [array("q", [i]) for i in range(count)], **columns)


def test_same_rows_are_not_said_again() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    first, second = (encoder.encode(rows(prompt_tokens=[4, 5, 6])) for _ in range(2))
    assert len(second) < len(first)
    told = decoder.decode(first)
    again = decoder.decode(second)
    assert (told.same_rows, again.same_rows) == (False, True)
    assert again.rids is told.rids
    assert again.prompt_tokens == [4, 5, 6]


def test_a_list_that_the_engine_reuses_is_seen_as_changed() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    batch = rows()
    decoder.decode(encoder.encode(batch))
    batch.rids[0] = "new"
    assert decoder.decode(encoder.encode(batch)).rids == ["new", "r1", "r2"]


def test_a_column_changed_in_place_is_sent_again() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    batch = rows(prompt_tokens=[1, 2, 3])
    decoder.decode(encoder.encode(batch))
    assert batch.prompt_tokens is not None
    batch.prompt_tokens[1] = 9
    assert decoder.decode(encoder.encode(batch)).prompt_tokens == [1, 9, 3]


def test_a_reader_that_missed_a_frame_does_not_trust_same_rows() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    decoder.decode(encoder.encode(rows()))
    encoder.encode(rows())  # lost
    with pytest.raises(PeerError, match="missed"):
        decoder.decode(encoder.encode(rows()))


def test_full_rows_after_a_gap_are_taken_and_the_gap_is_told() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    decoder.decode(encoder.encode(rows()))
    encoder.encode(rows())  # lost
    encoder.send_full()
    assert decoder.decode(encoder.encode(rows())).rids == ["r0", "r1", "r2"]
    assert decoder.lost


def test_a_new_life_of_the_engine_is_no_gap_in_the_old_one() -> None:
    decoder = EgressDecoder()
    decoder.decode(EgressEncoder(1).encode(rows()))
    assert decoder.decode(EgressEncoder(2).encode(rows())).epoch == 2


def test_nobody_ends_means_no_finish_column() -> None:
    assert once(rows(finish_reasons=[None] * 3)).finish is None


def test_finish_reasons_travel_when_somebody_ends() -> None:
    reasons = [None, {"type": "stop", "matched": 2}, None]
    assert once(rows(finish_reasons=reasons)).finish == reasons


@pytest.mark.parametrize(
    ("ids", "lens", "flat"),
    [
        ([array("q", [1]), array("q", [2])], None, [1, 2]),
        ([array("i", [1]), array("i", [2])], None, [1, 2]),
        ([array("q", [1, 2]), array("q")], [2, 0], [1, 2]),
        ([array("i", [1, 2]), array("i", [3])], [2, 1], [1, 2, 3]),
        ([[1], [2]], None, [1, 2]),
        ([[1, 2], []], [2, 0], [1, 2]),
        ([[1, 2], array("q", [3])], [2, 1], [1, 2, 3]),
        (np.array([1, 2]), None, [1, 2]),
        (np.array([1, 2], np.int32), None, [1, 2]),
    ],
)
def test_ids_come_in_every_form_an_engine_has(ids: Any, lens: list[int] | None, flat: list[int]) -> None:
    frame = once(GenerationBatch(["a", "b"], ids))
    assert (frame.lens, ids_of(frame)) == (lens, flat)


def test_one_array_with_lengths_is_cut_by_them() -> None:
    frame = once(GenerationBatch(["a", "b"], np.array([1, 2, 3]), tok_lens=[1, 2]))
    assert (frame.lens, ids_of(frame)) == ([1, 2], [1, 2, 3])


@pytest.mark.parametrize(
    "batch",
    [
        GenerationBatch(["a"], [array("q", [1]), array("q", [2])]),
        GenerationBatch(["a"], [array("h", [1])]),
        GenerationBatch(["a", "b"], np.array([1, 2, 3])),
        GenerationBatch(["a", "b"], np.array([1, 2, 3]), tok_lens=[1, 1]),
        GenerationBatch(["a"], np.array([1.5])),
        GenerationBatch(["a", "b"], [array("i", [1]), array("q", [2])]),
        rows(finish_reasons=[None]),
        rows(prompt_tokens=[1]),
        rows(output_token_logprobs=FlatFamily([[1.0]], [[1]])),
        rows(output_token_logprobs=FlatFamily([[1.0]], [[1]], rows=[3])),
        rows(output_token_logprobs=FlatFamily(np.ones(3, "f4"), [[1]] * 3)),
        rows(output_token_logprobs=FlatFamily(np.ones(2, "f4"), np.ones(2, "i4"))),
        rows(output_top_logprobs=RaggedFamily(np.ones(3, "f4"), np.ones(3, "i4"))),
        rows(output_hidden_states=HiddenFamily(np.ones((2, 4), "f4"))),
        rows(output_hidden_states=HiddenFamily(np.ones((4, 3), "f4").T[:3])),
        rows(finish_reasons=[{"type": object()}, None, None]),
        rows(finish_reasons=["stop", None, None]),
        rows(finish_reasons=[{}, None, None]),
        rows(finish_reasons=[{"matched": 1}, None, None]),
        rows(finish_reasons=[{"type": "stop", 5: 1}, None, None]),
        rows(finish_reasons=5),
        rows(prompt_tokens=np.array([1, 2, 3])),
        rows(trailing={"weight_versions": ["a"]}),
        rows(trailing={"weight_versions": None}),
        rows(output_token_logprobs=5),
        rows(output_token_logprobs=FlatFamily([np.ones(1), [], []], [[1], [], []])),
        rows(output_token_logprobs=FlatFamily([[1.0]], [[1]], rows=[-1])),
        rows(output_token_logprobs=FlatFamily(np.float32(1), np.int32(1))),
        rows(output_top_logprobs=RaggedFamily(np.ones((3, 2), "f4"), np.ones((3, 2), "i4"), lens=[1, 1])),
        rows(output_hidden_states=HiddenFamily(np.ones((3, 0), "f4"))),
        rows(output_hidden_states=HiddenFamily([[[1.0]], np.ones((1, 1), "f4"), [[1.0]]])),
        rows(output_hidden_states=HiddenFamily([np.ones((1, 1), "f4"), [[1.0]], [[1.0]]])),
        GenerationBatch(["a"], [1]),
        GenerationBatch(["a"], [[1.5]]),
        GenerationBatch(["a"], [[1 << 70]]),
        GenerationBatch(["a"], "a"),
        GenerationBatch(["a", "b"], np.array([1, 2]), tok_lens=[3, -1]),
        GenerationBatch(["a"], np.array([1]).astype(">i8")),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_they_are_sent(batch: GenerationBatch) -> None:
    with pytest.raises(WireError):
        EgressEncoder(1).encode(batch)


def test_step_that_was_refused_is_not_counted() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    decoder.decode(encoder.encode(rows()))
    with pytest.raises(WireError):
        encoder.encode(rows(prompt_tokens=[1]))
    assert decoder.decode(encoder.encode(rows())).same_rows


def test_error_names_the_family() -> None:
    with pytest.raises(WireError, match="output_hidden_states"):
        EgressEncoder(1).encode(rows(output_hidden_states=HiddenFamily([[[1.0]]])))


@pytest.mark.parametrize(
    ("ids", "lens"), [([np.array([0]), np.array([1])], None), ([np.array([5, 6]), np.array([], np.int64)], [2, 0])]
)
def test_rows_may_be_numpy_arrays(ids: Any, lens: list[int] | None) -> None:
    frame = once(GenerationBatch(["a", "b"], ids))
    assert (frame.lens, ids_of(frame)) == (lens, np.concatenate(ids).tolist())


def test_tuples_serve_as_columns() -> None:
    columns: list[Any] = [("a",), (array("q", [1]),), ({"type": "stop"},), (3,)]
    frame = once(GenerationBatch(*columns))
    assert (frame.rids, frame.finish, frame.prompt_tokens) == (["a"], [{"type": "stop"}], [3])


def test_flat_family_as_lists_and_as_arrays_say_the_same() -> None:
    lists = rows(output_token_logprobs=FlatFamily([[-0.5], [None]], [[3], [4]], rows=[0, 2]))
    arrays = rows(output_token_logprobs=FlatFamily(np.array([-0.5, np.nan], "f4"), np.array([3, 4], "i4"), rows=[0, 2]))
    meant = [(0, Pairs([-0.5], [3])), (2, Pairs([None], [4]))]
    assert family(lists, "output_token_logprobs") == family(arrays, "output_token_logprobs") == meant


def test_flat_family_may_have_several_positions_a_row() -> None:
    batch = rows(input_token_logprobs=FlatFamily(np.array([np.nan, -1.0], "f8"), np.array([5, 6]), rows=[1], lens=[2]))
    assert family(batch, "input_token_logprobs") == [(1, Pairs([None, -1.0], [5, 6]))]


def test_ragged_family_keeps_positions_without_data() -> None:
    batch = rows(input_top_logprobs=RaggedFamily([[None, [-1.0, -2.0]]], [[None, [1, 2]]], rows=[1]))
    assert family(batch, "input_top_logprobs") == [(1, [None, Pairs([-1.0, -2.0], [1, 2])])]


def test_ragged_family_as_arrays_has_widths_a_position() -> None:
    values, ids = np.array([-1.0, -2.0], "f4"), np.array([1, 2], "i8")
    batch = rows(output_top_logprobs=RaggedFamily(values, ids, rows=[2], lens=[2], pos_lens=[0, 2]))
    assert family(batch, "output_top_logprobs") == [(2, [None, Pairs([-1.0, -2.0], [1, 2])])]


def test_ragged_family_as_one_matrix() -> None:
    batch = rows(output_top_logprobs=RaggedFamily(np.full((3, 2), -1.0, "f4"), np.full((3, 2), 7, "i4")))
    assert family(batch, "output_top_logprobs") == [(row, [Pairs([-1.0, -1.0], [7, 7])]) for row in range(3)]


def test_ragged_family_of_width_0_has_positions_without_data() -> None:
    batch = rows(output_top_logprobs=RaggedFamily(np.ones((3, 0), "f4"), np.ones((3, 0), "i4")))
    assert family(batch, "output_top_logprobs") == [(row, [None]) for row in range(3)]


def test_half_floats_travel_as_they_are() -> None:
    ragged = RaggedFamily(np.array([[-0.5, -1.5]], "f2"), np.array([[1, 2]], "i4"), rows=[1])
    hidden = HiddenFamily(np.array([[0.25, 2.0]], "f2"), rows=[2])
    batch = rows(output_top_logprobs=ragged, output_hidden_states=hidden)
    assert family(batch, "output_top_logprobs") == [(1, [Pairs([-0.5, -1.5], [1, 2])])]
    assert family(batch, "output_hidden_states") == [(2, [[0.25, 2.0]])]


class Tensor:
    """What forebay uses of a torch tensor."""

    def __init__(self, values: Any, dtype: str = "torch.float32") -> None:
        self._values, self.dtype = values, dtype

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return self

    def float(self) -> Tensor:
        return Tensor(self._values.astype("f4"))

    def numpy(self) -> Any:
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._values


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_tensors_serve_as_arrays(dtype: str) -> None:
    batch = GenerationBatch(
        ["a"], Tensor(np.array([9])), output_hidden_states=HiddenFamily(Tensor(np.ones((1, 2), "f4"), dtype))
    )
    assert ids_of(once(batch)) == [9]
    assert family(batch, "output_hidden_states") == [(0, [[1.0, 1.0]])]


@pytest.mark.parametrize(
    "states",
    [
        HiddenFamily([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]], rows=[0, 2]),
        HiddenFamily([np.array([[1, 2], [3, 4]], "f4"), np.array([5, 6], "f4")], rows=[0, 2]),
        HiddenFamily(np.array([[1, 2], [3, 4], [5, 6]], "f4"), rows=[0, 2], lens=[2, 1]),
    ],
)
def test_hidden_states_come_in_three_forms(states: HiddenFamily) -> None:
    meant = [(0, [[1.0, 2.0], [3.0, 4.0]]), (2, [[5.0, 6.0]])]
    assert family(rows(output_hidden_states=states), "output_hidden_states") == meant


def test_step_without_families_does_no_work_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.wire.egress.encode_family", None)
    assert once(rows()).families == (None,) * 7


def test_empty_cells_cost_nothing_on_the_wire() -> None:
    empty = rows(64, output_token_logprobs=FlatFamily([[]] * 64, [[]] * 64))
    assert len(EgressEncoder(1).encode(empty)) == len(EgressEncoder(1).encode(rows(64)))


def test_one_row_with_data_among_empty_cells_travels_alone() -> None:
    values: list[list[float]] = [[] for _ in range(64)]
    ids: list[list[int]] = [[] for _ in range(64)]
    values[40], ids[40] = [-0.5], [9]
    batch = rows(64, output_token_logprobs=FlatFamily(values, ids))
    assert family(batch, "output_token_logprobs") == [(40, Pairs([-0.5], [9]))]
    assert len(EgressEncoder(1).encode(batch)) < len(EgressEncoder(1).encode(rows(64))) + 40


def test_all_families_keep_their_places() -> None:
    flat, ragged = FlatFamily([[-1.0]], [[1]], rows=[0]), RaggedFamily([[[-1.0]]], [[[1]]], rows=[0])
    names: dict[str, Any] = {**dict.fromkeys(FAMILIES[:2], flat), **dict.fromkeys(FAMILIES[2:6], ragged)}
    batch = rows(**names, output_hidden_states=HiddenFamily([[[1.0]]], rows=[0]))
    assert [found is not None for found in once(batch).families] == [True] * 7


def test_trailing_columns_pass_by_name() -> None:
    assert once(rows(trailing={"weight_versions": ["a", "b", "c"]})).trailing == {"weight_versions": ["a", "b", "c"]}


def test_a_step_without_rows_is_a_frame() -> None:
    assert once(GenerationBatch([], [])).rids == []


def test_a_frame_of_a_life_that_is_over_is_not_taken() -> None:
    old, new, decoder = EgressEncoder(1), EgressEncoder(2), EgressDecoder()
    decoder.decode(old.encode(rows()))
    decoder.decode(new.encode(rows()))
    with pytest.raises(PeerError, match="gone"):
        decoder.decode(old.encode(rows()))
    assert not decoder.lost
    assert decoder.decode(new.encode(rows())).same_rows


def test_an_unreadable_step_is_told_as_lost_and_the_next_full_one_is_taken() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    decoder.decode(encoder.encode(rows()))
    with pytest.raises(PeerError):
        decoder.decode(encoder.encode(rows(trailing={"v": [1, 2, 3]}))[:-3])
    assert decoder.lost
    encoder.send_full()
    assert decoder.decode(encoder.encode(rows())).rids == ["r0", "r1", "r2"]
    assert not decoder.lost


def test_a_steady_step_has_a_short_frame_of_its_own() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    decoder.decode(encoder.encode(rows(prompt_tokens=[1, 2, 3])))
    frame = encoder.encode(rows(prompt_tokens=[1, 2, 3]))
    assert kind_of(frame) is Kind.STEP
    step = decoder.decode(frame)
    assert (step.rids, ids_of(step), step.prompt_tokens, step.same_rows) == (
        ["r0", "r1", "r2"],
        [0, 1, 2],
        [1, 2, 3],
        True,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"finish_reasons": [None, None, {"type": "length", "length": 1}]},
        {"prompt_tokens": [1, 2, 4]},
        {"cached_tokens": [0, 0, 1]},
        {"trailing": {"v": [1, 2, 3]}},
        {"output_token_logprobs": FlatFamily([[-1.0]], [[1]], rows=[0])},
    ],
)
def test_a_step_with_anything_to_say_is_not_steady(change: dict[str, Any]) -> None:
    encoder = EgressEncoder(1)
    encoder.encode(rows(prompt_tokens=[1, 2, 3]))
    assert kind_of(encoder.encode(rows(**{"prompt_tokens": [1, 2, 3], **change}))) is Kind.EGRESS


def test_steady_steps_count_in_the_same_sequence() -> None:
    encoder, decoder = EgressEncoder(1), EgressDecoder()
    decoder.decode(encoder.encode(rows()))
    encoder.encode(rows())  # lost
    with pytest.raises(PeerError, match="missed"):
        decoder.decode(encoder.encode(rows()))
    assert decoder.lost


def test_a_steady_step_that_is_cut_is_refused() -> None:
    encoder = EgressEncoder(1)
    encoder.encode(rows())
    frame = encoder.encode(rows())
    for end in range(len(frame)):
        with pytest.raises(PeerError):
            open_step(frame[:end])
    with pytest.raises(PeerError):
        open_step(frame + b"\0")


def test_texts_of_a_steady_step_say_the_same_on_both_sides() -> None:
    frame = pack_texts(1, 2, 3, ["a", "\U0001f600", ""])
    assert open_texts(frame) == Texts(2, 3, 1, ["a", "\U0001f600", ""])
    for end in range(len(frame)):
        with pytest.raises(PeerError):
            open_texts(frame[:end])
