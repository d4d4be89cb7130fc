"""forebay's requests as SGLang's: what is set, what is left to the front, what is refused by name."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from forebay import AbortRequest, ControlRequest, SamplingParams
from forebay.wire.ingress import decode_admit, encode_admit
from forebay.wire.messages import RequestHead
from forebay_engine.adapters.sglang_requests import Requests, UnknownControl
from tests.engine import sglang_types as sglang

IDS = array("q", [5, 6])


def decoded(head: RequestHead, *, engine_stops: bool = False) -> Any:
    """SGLang's request of a head, by the decoder that the front is given."""
    requests = Requests(sglang.TYPES, {"poet": "id-7"}, engine_stops=engine_stops)
    return requests.decode(memoryview(msgspec.msgpack.encode(head)), IDS)


def test_a_request_keeps_its_rid_ids_and_wishes() -> None:
    made = decoded(RequestHead(rid="r.1", stream=True, return_logprob=True, top_logprobs_num=2, priority=3))
    assert (made.rid, made.input_ids, made.stream, made.priority) == ("r.1", IDS, True, 3)
    assert (made.return_logprob, made.logprob_start_len, made.top_logprobs_num) == (True, -1, 2)


def test_greedy_stays_as_forebay_has_normalised_it() -> None:
    made = decoded(RequestHead(rid="r", sampling=SamplingParams(temperature=1.0, top_k=1))).sampling_params
    assert (made.temperature, made.top_k, made.is_normalized) == (1.0, 1, True)


def test_ids_of_a_logit_bias_become_texts_and_stop_ids_a_set() -> None:
    made = decoded(RequestHead(rid="r", sampling=SamplingParams(logit_bias={7: -1.0}, stop_token_ids=[3, 4])))
    assert (made.sampling_params.logit_bias, made.sampling_params.stop_token_ids) == ({"7": -1.0}, {3, 4})


def test_no_stop_ids_are_none_as_sglang_expects() -> None:
    assert decoded(RequestHead(rid="r")).sampling_params.stop_token_ids is None


def test_stop_strings_stay_with_the_front_which_then_wants_every_step() -> None:
    made = decoded(RequestHead(rid="r", sampling=SamplingParams(stop=["x"], stop_str_max_len=1, stream_interval=4)))
    assert (made.sampling_params.stop_strs, made.sampling_params.stop_str_max_len) == ([], 0)
    assert (made.stream, made.sampling_params.stream_interval) == (True, 1)


def test_stop_strings_go_to_the_engine_if_it_shall_find_them() -> None:
    params = SamplingParams(stop=["x"], stop_regex=["y+"], stop_str_max_len=1, stop_regex_max_len=9)
    made = decoded(RequestHead(rid="r", sampling=params), engine_stops=True)
    assert (made.sampling_params.stop_strs, made.sampling_params.stop_str_max_len) == (["x"], 1)
    assert (made.sampling_params.stop_regex_strs, made.sampling_params.stop_regex_max_len) == (["y+"], 9)
    assert not made.stream


def test_fields_that_are_passed_on_reach_sglangs_request() -> None:
    extra = {"routing_key": "k", "cache_salt": "s", "session_params": {"id": "one", "offset": 4}, "custom_labels": {}}
    made = decoded(RequestHead(rid="r", extra=extra))
    assert (made.routing_key, made.cache_salt) == ("k", "s")
    assert made.session_params == sglang.SessionParams(id="one", offset=4)


def test_an_adapter_is_found_by_its_name() -> None:
    made = decoded(RequestHead(rid="r", lora_path="poet"))
    assert (made.lora_id, made.lora_name) == ("id-7", "poet")


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (
            RequestHead(rid="r", lora_path="clerk"),
            "lora_path: the adapter 'clerk' is not loaded; loaded adapters: poet",
        ),
        (RequestHead(rid="r", extra={"watermark": {}}), "watermark is not supported"),
        (RequestHead(rid="r", extra={"session_params": {"id": 5}}), "session_params"),
        (RequestHead(rid="r", extra={"session_params": {"depth": 5}}), "session_params: there is no field depth"),
        (RequestHead(rid="r", embedding=True), "embedding is not supported"),
    ],
)
def test_what_sglang_cannot_do_is_refused_by_name(head: RequestHead, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decoded(head)


def test_a_refused_request_leaves_its_neighbours_alone() -> None:
    heads = [RequestHead(rid="a"), RequestHead(rid="b", extra={"watermark": {}}), RequestHead(rid="c")]
    frame = encode_admit(heads, [array("q", [1]), array("q", [2, 2]), array("q", [3])])
    arrivals = decode_admit(frame, Requests(sglang.TYPES, {}).decode)
    assert [(made.rid, made.input_ids.tolist()) for made in arrivals.requests] == [("a", [1]), ("c", [3])]
    assert [(fault.rid, fault.status) for fault in arrivals.faults] == [("b", 400)]
    assert arrivals.faults[0].message == "invalid request: watermark is not supported by this engine"


# ---------------------------------------------------------------- aborts and controls
REQUESTS = Requests(sglang.TYPES, {})


def test_an_abort_names_its_request() -> None:
    assert REQUESTS.abort(AbortRequest("r.1", "user")) == sglang.AbortReq(rid="r.1")


def test_an_abort_of_nobody_does_not_become_one_of_everybody() -> None:
    assert REQUESTS.abort(AbortRequest("", "user")) is None


def test_an_abort_of_all_says_so() -> None:
    assert REQUESTS.abort(AbortRequest("", "user", abort_all=True)) == sglang.AbortReq(rid="", abort_all=True)


def test_a_control_request_is_found_by_its_type_and_its_fields_are_renamed() -> None:
    made = REQUESTS.control(ControlRequest("c", 0, "FlushCache", {"timeout": 2}))
    assert made == sglang.FlushCacheReqInput(rid="c", timeout_s=2.0)


@pytest.mark.parametrize(
    ("type_", "fields", "text"),
    [
        ("Shutdown", {}, "SGLang has no control request Shutdown"),
        ("FlushCache", {"depth": 1}, "FlushCache: there is no field depth"),
        ("FlushCache", {"timeout": "soon"}, "FlushCache: Expected `float | null`"),
    ],
)
def test_an_unknown_control_request_is_refused_with_what_is_wrong(type_: str, fields: Any, text: str) -> None:
    with pytest.raises(UnknownControl) as caught:
        REQUESTS.control(ControlRequest("c", 0, type_, fields))
    assert text in str(caught.value)


def test_an_answer_is_a_map_without_what_routes_it() -> None:
    output = sglang.FlushCacheReqOutput(success=False, message="busy")
    assert REQUESTS.answer(output) == {"success": False, "message": "busy"}


def test_the_internal_state_is_the_answer_itself_without_secrets() -> None:
    output = sglang.GetInternalStateReqOutput(internal_state={"a": 1, "watermark_key_b": "s"})
    assert REQUESTS.answer(output) == {"a": 1}
