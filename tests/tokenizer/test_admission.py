"""From work items to what the engine and the detokenizer are told."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from forebay.errors import RequestError
from forebay.wire.messages import OpenItem, SamplingParams
from forebay_tokenizer.admission import Admission, Admitter, prompt_size
from forebay_tokenizer.bounds import Bound
from forebay_tokenizer.lanes import SMALL
from tests.tokenizer.samples import (
    BOS_FIRST,
    CHATML,
    admit,
    admitter,
    chat,
    plain,
    sentence_piece,
    user,
    with_bos,
    work,
)


def refusal(one: Admitter, item: Any, ids: Any = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        admit(one, item, ids)
    return caught.value


def test_a_text_is_encoded_with_special_tokens_unless_they_are_unwanted() -> None:
    one = admitter(with_bos())
    bos = with_bos().token_to_id("<s>")
    assert admit(one, work(text="hello")).ids[0] == bos
    assert admit(one, work(text="hello", add_special_tokens=False)).ids[0] != bos


def test_a_chat_is_encoded_without_adding_special_tokens() -> None:
    ids = admit(admitter(with_bos(), BOS_FIRST), work(chat=chat(user()))).ids
    assert [one for one in ids if one == with_bos().token_to_id("<s>")] == ids.tolist()[:1]


def test_a_chats_ids_are_those_of_its_rendered_text() -> None:
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    expected = plain().encode(text, add_special_tokens=False).ids
    assert admit(admitter(), work(chat=chat(user()))).ids.tolist() == expected


@pytest.mark.parametrize("begun", ["Sure:", " a", "\n\nx", ""])
def test_a_continued_prompt_ends_exactly_with_the_begun_answer(begun: str) -> None:
    turns = [*user(), {"role": "assistant", "content": begun}]
    item = work(chat=chat(turns, continue_final_message=True))
    for tokenizer in (plain(), sentence_piece()):
        ids = admit(admitter(tokenizer, "{% for m in messages %}{{ m.content }}\n{% endfor %}>"), item).ids
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == "hello\n>" + begun


def test_ids_go_through_as_they_are() -> None:
    assert admit(admitter(), work(has_ids=True), array("q", [5, 0, 7])).ids == array("q", [5, 0, 7])


@pytest.mark.parametrize("bad", [-1, 10**6, (1 << 63) - 1])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    assert refusal(admitter(), work(has_ids=True), array("q", [1, bad])).param == "input_ids"


def test_the_engines_vocabulary_is_the_one_that_counts() -> None:
    error = refusal(admitter(vocab_size=60), work(text="hello"))
    assert error.message.startswith("text must be in [0, 59]")
    assert admit(admitter(vocab_size=10**7), work(has_ids=True), array("q", [10**6])).ids


@pytest.mark.parametrize("item", [work(text=""), work(has_ids=True)], ids=["text", "ids"])
def test_an_empty_prompt_is_refused(item: Any) -> None:
    assert refusal(admitter(), item).message == "input_ids cannot be empty."


def test_an_empty_text_is_a_prompt_where_the_tokenizer_begins_with_a_token() -> None:
    assert len(admit(admitter(with_bos()), work(text="")).ids) == 1


def test_half_a_surrogate_pair_is_refused_and_nul_is_text() -> None:
    one = admitter()
    assert refusal(one, work(text="x\ud800")).status == 400
    assert len(admit(one, work(text="a\x00b")).ids) == 3


@pytest.mark.parametrize(
    ("fields", "param"), [({"text": "xyzw " * 30}, "text"), ({"chat": chat(user("x" * 99))}, "messages")]
)
def test_a_prompt_over_the_context_is_refused_with_its_field(fields: Any, param: str) -> None:
    assert refusal(admitter(), work(**fields)).param == param


def test_a_hopeless_text_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = admitter(bound=Bound(4))
    monkeypatch.setattr(one.encoder, "encode_many", lambda texts, **_: pytest.fail("it was encoded"))
    assert "at least 100 tokens" in refusal(one, work(text="x" * 400)).message


def test_a_text_that_will_be_cut_is_not_refused_for_its_bytes() -> None:
    item = work(text="xyz" * 200, truncate_prompt_tokens=5)
    assert len(admit(admitter(bound=Bound(4)), item).ids) == 5


def test_the_longest_stop_string_is_counted_in_tokens() -> None:
    item = work(text="hello", sampling=SamplingParams(max_new_tokens=1, stop=["hello", "xyz"]))
    assert admit(admitter(), item).heads[0].sampling.stop_str_max_len == 3


def test_each_sample_has_its_own_head_and_open_and_all_share_the_ids() -> None:
    item = work(text="hello world", rids=["a", "b", "c"], sampling=SamplingParams(n=3, max_new_tokens=1))
    opens, heads, ids = admit(admitter(), item)
    assert [head.rid for head in heads] == [one.rid for one in opens] == ["a", "b", "c"]
    assert {head.sampling.n for head in heads} == {1}
    assert {one.prompt_tokens for one in opens} == {len(ids)}


@pytest.mark.parametrize(
    ("seed", "seeds"), [(5, [5, 6]), (None, [None, None]), ((1 << 63) - 1, [(1 << 63) - 1, -(1 << 63)])]
)
def test_seeds_count_up_over_the_samples(seed: int | None, seeds: list[int | None]) -> None:
    item = work(text="hello", rids=["a", "b"], sampling=SamplingParams(sampling_seed=seed, max_new_tokens=1))
    heads = admit(admitter(), item).heads
    assert [head.sampling.sampling_seed for head in heads] == seeds
    msgspec.msgpack.encode(heads)


def test_the_detokenizer_sees_the_last_six_ids_of_the_prompt() -> None:
    ids = array("q", range(10))
    assert admit(admitter(), work(has_ids=True), ids).opens[0].prompt_tail == [4, 5, 6, 7, 8, 9]
    assert admit(admitter(), work(has_ids=True), ids[:2]).opens[0].prompt_tail == [0, 1]


def test_prompt_ids_go_to_the_api_only_when_asked_for() -> None:
    item = work(text="hello")
    assert admit(admitter(), item).admitted(str) == []
    asked = replace(item, open=OpenItem(rid="r0", want_prompt_ids=True))
    admission = admit(admitter(), asked)
    assert [(one.rid, one.prompt_ids) for one in admission.admitted(str)] == [("r0", admission.ids.tobytes())]


def test_a_shortened_answer_reaches_engine_and_detokenizer() -> None:
    sampling = SamplingParams(max_new_tokens=50, min_new_tokens=40)
    opens, heads, _ = admit(admitter(context=10, allow_auto_truncate=True), work(text="xyzxy", sampling=sampling))
    assert (heads[0].sampling.max_new_tokens, heads[0].sampling.min_new_tokens, opens[0].min_new_tokens) == (5, 5, 5)


def test_one_bad_request_does_not_touch_its_batch() -> None:
    items = [work(text="hello"), work(text="\ud800"), work(chat=chat(b"[")), work(text=""), work(chat=chat(user()))]
    results = admitter().admit_many([(item, array("q")) for item in items])
    assert [isinstance(result, Admission) for result in results] == [True, False, False, False, True]


def test_a_fault_of_ours_is_told_to_the_log_and_not_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    item = replace(work(text="hello"), rids=None)
    error = refusal(admitter(), item)
    assert (error.status, error.message) == (500, "Internal server error")
    assert "'NoneType' object is not iterable" in caplog.text


def test_big_prompts_are_known_by_their_size() -> None:
    assert prompt_size(work(text="x" * SMALL)) >= SMALL
    assert prompt_size(work(chat=chat(user("x" * SMALL)))) >= SMALL
    assert prompt_size(work(text="x", sampling=SamplingParams(stop=["y" * SMALL]))) >= SMALL
    assert prompt_size(work(has_ids=True)) == 0


def test_the_cache_gives_the_same_ids_for_a_chat_that_goes_on() -> None:
    one = admitter(context=10_000)
    turns = user("hello world")
    for number in range(4):
        ids = admit(one, work(chat=chat(turns))).ids.tolist()
        assert ids == admit(admitter(template=CHATML, context=10_000), work(chat=chat(turns))).ids.tolist()
        turns += [{"role": "assistant", "content": f"answer {number}"}, *user(f"and {number}?")]
