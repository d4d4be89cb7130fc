"""Control calls over real processes: what the engine is told, what the client is told, and who waits meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer
from tests.helpers.obedient import Obedient, obeyed

FACTS = {
    "served_model_name": "tiny",
    "model_path": "old",
    "context_length": 1000,
    "vocab_size": 420,
    "enable_lora": True,
    "weight_version": "v0",
    "prefix_cache": True,
    "preferred_sampling_params": {"watermark": {"enabled": True, "key": "hush-hush"}},
}
KEY = {"authorization": "Bearer secret"}
REFUSED = {"success": False, "message": "not today"}
GENERATE = {"text": "hello", "sampling_params": {"max_new_tokens": 1}}


class Stage:
    """A front, its obedient engine, and a client that has the admin key."""

    def __init__(self, front: Front, engine: Obedient, client: httpx.Client) -> None:
        self.front, self.engine, self.client = front, engine, client

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.client.post(path, json={} if body is None else body)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    model = make_tokenizer(tmp_path_factory.mktemp("model"))
    folder = tmp_path_factory.mktemp("front")
    flags = ("--tokenizer-path", str(model), "--control-timeout", "1", "--no-warmup")
    with (
        obeyed(folder, FACTS, *flags, environ={"FOREBAY_ADMIN_API_KEY": "secret"}) as (front, engine),
        front.client(headers=KEY) as client,
    ):
        yield Stage(front, engine, client)


@pytest.fixture(autouse=True)
def obedient(request: pytest.FixtureRequest) -> None:
    """Each test begins with an engine that says yes to everything."""
    if "stage" in request.fixturenames:
        stage: Stage = request.getfixturevalue("stage")
        stage.engine.answers.clear()
        stage.engine.holding = False


@contextmanager
def beside(work: Any) -> Iterator[threading.Thread]:
    """Run something in a thread until the end of the block."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(20)
    assert not thread.is_alive()


# ---------------------------------------------------------------- typed calls
CALLS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "/update_weights_from_disk",
        "UpdateWeightsFromDisk",
        {"model_path": "new"},
        {"abort_all_requests": False, "flush_cache": True, "token_step": 0, "load_format": None, "manifest": None},
    ),
    (
        "/update_weights_from_tensor",
        "UpdateWeightsFromTensor",
        {"serialized_named_tensors": ["AA=="]},
        {"selector": "all", "flush_cache": True},
    ),
    (
        "/update_weights_from_distributed",
        "UpdateWeightsFromDistributed",
        {"names": ["a"], "dtypes": ["float16"], "shapes": [[1, 2]]},
        {"group_name": "weight_update_group"},
    ),
    ("/update_weights_from_ipc", "UpdateWeightsFromIpc", {"zmq_handles": {"a": "b"}}, {"flush_cache": True}),
    (
        "/init_weights_update_group",
        "InitWeightsUpdateGroup",
        {"master_address": "h", "master_port": 1, "rank_offset": 0, "world_size": 2},
        {"backend": "nccl", "group_name": "weight_update_group"},
    ),
    ("/destroy_weights_update_group", "DestroyWeightsUpdateGroup", {}, {"group_name": "weight_update_group"}),
    ("/begin_weight_update", "BeginWeightUpdate", {}, {"selector": "all"}),
    ("/end_weight_update", "EndWeightUpdate", {"selector": "draft"}, {}),
    ("/weights_checker", "CheckWeights", {}, {"action": "checksum", "allow_quant_error": False}),
    ("/release_memory_occupation", "ReleaseMemoryOccupation", {}, {"tags": None}),
    ("/resume_memory_occupation", "ResumeMemoryOccupation", {"tags": ["weights"]}, {}),
    (
        "/init_weights_send_group_for_remote_instance",
        "InitWeightsSendGroup",
        {"master_address": "h", "ports": "1,2", "group_rank": 0, "world_size": 2},
        {"group_name": "weight_send_group"},
    ),
    ("/send_weights_to_remote_instance", "SendWeights", {"master_address": "h", "ports": "1"}, {}),
    ("/load_lora_adapter", "LoadLoraAdapter", {"lora_name": "a", "lora_path": "p"}, {"pinned": False}),
    ("/unload_lora_adapter", "UnloadLoraAdapter", {"lora_name": "a"}, {}),
    ("/start_profile", "StartProfile", {"num_steps": 3}, {"profile_by_stage": False, "output_dir": None}),
    ("/stop_profile", "StopProfile", {}, {}),
    ("/close_session", "CloseSession", {"session_id": "s"}, {}),
    ("/pause_generation", "PauseGeneration", {"mode": "retract"}, {}),
    ("/continue_generation", "ContinueGeneration", {}, {"torch_empty_cache": True}),
]


@pytest.mark.parametrize(("path", "type_", "body", "defaults"), CALLS, ids=[call[1] for call in CALLS])
def test_a_call_reaches_the_engine_with_its_defaults(
    stage: Stage, path: str, type_: str, body: dict[str, Any], defaults: dict[str, Any]
) -> None:
    answer = stage.post(path, body)
    assert answer.status_code == 200, answer.text
    fields = stage.engine.last(type_).fields
    assert {name: fields[name] for name in {**body, **defaults}} == {**body, **defaults}


@pytest.mark.parametrize(("path", "type_", "body"), [call[:3] for call in CALLS], ids=[call[1] for call in CALLS])
def test_the_engines_own_flag_decides_the_status(stage: Stage, path: str, type_: str, body: dict[str, Any]) -> None:
    stage.engine.answers[type_] = REFUSED
    answer = stage.post(path, body)
    if type_ == "ContinueGeneration":  # it would stay paused for the tests to come
        stage.engine.answers.clear()
        assert stage.post(path).status_code == 200
    assert answer.status_code == 400
    assert answer.json()["message"] == "not today"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/update_weights_from_disk", {}, "model_path"),
        ("/update_weights_from_disk", {"model_path": 3}, "model_path"),
        ("/update_weights_from_tensor", {"serialized_named_tensors": [], "selector": "some"}, "selector"),
        ("/load_lora_adapter", {"lora_name": "a"}, "lora_path"),
        ("/open_session", {}, "capacity_of_str_len"),
        ("/pause_generation", {"mode": "soon"}, "mode"),
        ("/set_internal_state", {}, "server_args"),
        ("/configure_logging", {"log_level": "loud"}, "log_level"),
    ],
)
def test_a_bad_body_never_reaches_the_engine(stage: Stage, path: str, body: dict[str, Any], param: str) -> None:
    before = len(stage.engine.calls)
    answer = stage.post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(stage.engine.calls) == before


def test_the_query_stands_for_a_body(stage: Stage) -> None:
    stage.engine.answers["GetWeightsByName"] = {"success": True, "parameter": [0.5, 1.5]}
    assert stage.client.get("/get_weights_by_name?name=a.b&truncate_size=2").json() == [0.5, 1.5]
    assert stage.engine.last("GetWeightsByName").fields == {"name": "a.b", "truncate_size": 2}


def test_weights_by_an_unknown_name_are_400(stage: Stage) -> None:
    stage.engine.answers["GetWeightsByName"] = {"success": True, "parameter": None}
    assert stage.post("/get_weights_by_name", {"name": "x"}).status_code == 400


def test_memory_calls_answer_null(stage: Stage) -> None:
    assert stage.post("/release_memory_occupation").text == "null"


def test_open_session_answers_its_id(stage: Stage) -> None:
    stage.engine.answers["OpenSession"] = {"success": True, "session_id": "s-1"}
    assert stage.post("/open_session", {"capacity_of_str_len": 10}).json() == "s-1"
    assert stage.post("/close_session", {"session_id": "s-1"}).content == b""


def test_internal_state_is_set_link_by_link(stage: Stage) -> None:
    assert stage.post("/set_internal_state", {"server_args": {"a": 1}}).json() == [True]
    stage.engine.answers["SetInternalState"] = REFUSED
    answer = stage.post("/set_internal_state", {"server_args": {"a": 1}})
    assert (answer.status_code, answer.json()) == (200, [False])


def test_secrets_of_the_engines_state_are_not_shown(stage: Stage) -> None:
    stage.engine.answers["GetInternalState"] = {"running": 1, "api_key": "x", "deep": {"hf_token": "y"}}
    assert stage.client.get("/get_internal_state").json() == [{"running": 1, "deep": {}}]


def test_any_call_by_its_type(stage: Stage) -> None:
    stage.engine.answers["Dance"] = {"success": True, "steps": [1, 2]}
    assert stage.post("/control/Dance", {"speed": 2}).json() == {"success": True, "steps": [1, 2]}
    assert stage.engine.last("Dance").fields == {"speed": 2}
    stage.engine.answers["Dance"] = REFUSED
    assert stage.post("/control/Dance").status_code == 400
    assert stage.post("/control/Da-nce").status_code == 400
    assert stage.client.post("/control/Dance", content="[1]").status_code == 400


def test_control_needs_the_admin_key(stage: Stage) -> None:
    with stage.front.client() as stranger:
        for path in ("/control/Dance", "/pause_generation", "/update_weights_from_disk", "/abort_request"):
            assert stranger.post(path, json={}).status_code == 401


def test_processes_answer_for_themselves(stage: Stage) -> None:
    assert stage.post("/freeze_gc").text == "Garbage collection frozen.\n"
    assert stage.post("/configure_logging", {"log_level": "debug"}).status_code == 200
    assert stage.post("/configure_logging", {"log_level": "info"}).status_code == 200
    assert stage.engine.last("ConfigureLogging").fields["log_level"] == "info"
    refused = stage.post("/configure_logging", {"dump_requests_folder": "/tmp"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (501, "dump_requests_folder")


# ---------------------------------------------------------------- time
def test_a_silent_engine_is_504_and_the_next_call_has_its_turn(stage: Stage) -> None:
    stage.engine.answers["Slow"] = None
    assert stage.post("/control/Slow").status_code == 504
    stage.engine.answers["Slow"] = {"success": True}
    assert stage.post("/control/Slow").status_code == 200


def test_calls_of_one_type_reach_the_engine_one_after_the_other(stage: Stage) -> None:
    engine = stage.engine
    engine.answers["Turn"] = None
    answers: list[Any] = []
    before = len(engine.seen("Turn"))

    def call(number: int) -> None:
        answers.append(stage.post("/control/Turn", {"number": number}).json())

    with beside(lambda: call(1)):
        wait_for(lambda: len(engine.seen("Turn")) == before + 1)
        with beside(lambda: call(2)):
            assert stage.post("/control/Other").status_code == 200
            assert len(engine.seen("Turn")) == before + 1
            engine.answer(engine.last("Turn"), {"success": True, "number": 1})
            wait_for(lambda: len(engine.seen("Turn")) == before + 2)
            engine.answer(engine.last("Turn"), {"success": True, "number": 2})
    assert answers == [{"success": True, "number": 1}, {"success": True, "number": 2}]


# ---------------------------------------------------------------- weights
def test_a_new_weight_version_is_told_everywhere(stage: Stage) -> None:
    answer = stage.post("/update_weights_from_disk", {"model_path": "new", "weight_version": "v1", "load_format": "x"})
    assert answer.json()["message"] == "done Weight version updated to v1."
    info = wait_for(lambda: _changed(stage, "v1"), what="the new facts")
    assert (info["model_path"], info["load_format"]) == ("new", "x")
    assert stage.post("/generate", GENERATE).json()["meta_info"]["weight_version"] == "v1"
    body = {"prompt": "x", "max_tokens": 1}
    assert stage.post("/v1/completions", body).json()["metadata"] == {"weight_version": "v1"}
    stage.post("/update_weight_version", {"new_version": "v2"})
    wait_for(lambda: _changed(stage, "v2"), what="the second version")


def _changed(stage: Stage, version: str) -> Any:
    info = stage.client.get("/model_info").json()
    return info if info["weight_version"] == version else None


def test_refused_weights_change_no_version(stage: Stage) -> None:
    before = stage.client.get("/model_info").json()
    stage.engine.answers["UpdateWeightsFromDisk"] = REFUSED
    stage.post("/update_weights_from_disk", {"model_path": "other", "weight_version": "bad"})
    assert stage.client.get("/model_info").json() == before


def test_new_weights_wait_for_running_requests_and_hold_new_ones(stage: Stage) -> None:
    engine, done = stage.engine, []
    engine.holding = True
    before = len(engine.seen("UpdateWeightsFromIpc"))
    with beside(lambda: done.append(stage.post("/generate", GENERATE).status_code)):
        wait_for(lambda: len(engine.held) == 1)
        with beside(lambda: done.append(stage.post("/update_weights_from_ipc", {"zmq_handles": {}}).status_code)):
            wait_for(lambda: stage.post("/control/Look").status_code == 200)
            with beside(lambda: done.append(stage.post("/generate", GENERATE).status_code)):
                assert len(engine.seen("UpdateWeightsFromIpc")) == before
                engine.holding = False
    assert done == [200, 200, 200]
    assert len(engine.seen("UpdateWeightsFromIpc")) == before + 1


def test_new_weights_may_abort_what_runs(stage: Stage) -> None:
    engine, ends = stage.engine, []
    engine.holding = True
    with beside(lambda: ends.append(stage.post("/generate", GENERATE).json()["meta_info"]["finish_reason"]["type"])):
        wait_for(lambda: len(engine.held) == 1)
        body = {"model_path": "x", "abort_all_requests": True}
        assert stage.post("/update_weights_from_disk", body).status_code == 200
    assert ends == ["abort"]


# ---------------------------------------------------------------- what the engine sees of requests
def test_one_sample_is_one_request(stage: Stage) -> None:
    before = len(stage.engine.requests)
    stage.post("/generate", GENERATE)
    assert len(stage.engine.requests) == before + 1


def test_samples_come_after_their_prompt_where_the_engine_keeps_prefixes(stage: Stage) -> None:
    before = len(stage.engine.requests)
    answer = stage.post("/generate", {**GENERATE, "sampling_params": {"n": 2, "max_new_tokens": 1}}).json()
    ahead, *samples = stage.engine.requests[before:]
    assert [one["meta_info"]["completion_tokens"] for one in answer] == [1, 1]
    assert (ahead.sampling.max_new_tokens, len(samples)) == (0, 2)
    assert all(sample.input_ids == ahead.input_ids for sample in samples)
    assert [sample.sampling.max_new_tokens for sample in samples] == [1, 1]


def test_an_abort_before_the_samples_start_ends_them_all(stage: Stage) -> None:
    engine, answers = stage.engine, []
    engine.holding = True
    before = len(engine.requests)
    body = {**GENERATE, "rid": "early", "sampling_params": {"n": 3}}
    with beside(lambda: answers.append(stage.post("/generate", body).json())):
        wait_for(lambda: len(engine.held) == 1)
        stage.post("/abort_request", {"rid": "early"})
    assert [one["meta_info"]["finish_reason"]["type"] for one in answers[0]] == ["abort"] * 3
    assert len(engine.requests) == before + 1


def test_a_client_that_leaves_before_the_samples_start_leaves_nothing(stage: Stage) -> None:
    engine = stage.engine
    engine.holding = True
    body = {**GENERATE, "sampling_params": {"n": 3}}
    with pytest.raises(httpx.ReadTimeout):
        stage.client.post("/generate", json=body, timeout=0.3)
    wait_for(lambda: not engine.held)


def test_a_grammar_that_the_engine_cannot_build_is_that_clients_400(stage: Stage) -> None:
    sampling: list[Any] = [{"json_schema": "{}"}, {"max_new_tokens": 1}]
    bad, good = stage.post("/generate", {"text": ["a", "b"], "sampling_params": sampling}).json()
    assert (bad["error"]["code"], bad["error"]["param"]) == (400, "json_schema")
    assert good["meta_info"]["completion_tokens"] == 1
    body = {"prompt": "a", "response_format": {"type": "json_object"}, "stream": True}
    answer = stage.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["message"]) == (400, "the schema cannot be compiled")


def test_a_loaded_adapter_is_a_model_and_an_unknown_one_is_400(stage: Stage) -> None:
    stage.engine.answers["LoadLoraAdapter"] = {"success": True, "loaded_adapters": {"a": "/a"}}
    stage.post("/load_lora_adapter", {"lora_name": "a", "lora_path": "/a"})
    cards = wait_for(lambda: stage.client.get("/v1/models").json()["data"][1:], what="the adapter's card")
    assert [(card["id"], card["root"], card["max_model_len"]) for card in cards] == [("a", "/a", None)]
    assert stage.client.get("/v1/models/a").json() == cards[0]
    assert stage.post("/generate", {**GENERATE, "lora_path": "a"}).status_code == 200
    assert stage.engine.requests[-1].lora_path == "a"
    refused = stage.post("/generate", {**GENERATE, "lora_path": "b"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "LoRA adapter 'b' is not loaded; loaded: a"


def test_an_adapter_that_is_called_after_a_key_is_served(stage: Stage) -> None:
    loaded = {"key-extraction": "https://me:hush-hush@host/a", "sql": "/s"}
    stage.engine.answers["LoadLoraAdapter"] = {"success": True, "loaded_adapters": loaded}
    answer = stage.post("/load_lora_adapter", {"lora_name": "key-extraction", "lora_path": "/a"})
    assert answer.json()["loaded_adapters"] == {"key-extraction": "https://***@host/a", "sql": "/s"}
    wait_for(lambda: stage.client.get("/v1/models/key-extraction").status_code == 200, what="the adapter's card")
    assert stage.post("/generate", {**GENERATE, "lora_path": "key-extraction"}).status_code == 200
    assert stage.engine.requests[-1].lora_path == "key-extraction"
    info = stage.client.get("/server_info?static=1").json()
    assert sorted(info["loaded_adapters"]) == ["key-extraction", "sql"]


def test_the_key_of_a_preferred_watermark_reaches_the_engine_and_no_client(stage: Stage) -> None:
    answers = [stage.post("/generate", GENERATE)]
    assert stage.engine.requests[-1].extra == {"watermark": {"enabled": True, "key": "hush-hush"}}
    answers += [
        stage.client.get(path) for path in ("/server_info?static=1", "/model_info", "/v1/models", "/get_server_info")
    ]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert answers[2].json()["preferred_sampling_params"] == {"watermark": {"enabled": True}}
    assert not [answer.text for answer in answers if "hush-hush" in answer.text]


# ---------------------------------------------------------------- two api processes
@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, list[httpx.Client]]]:
    """A front with two api processes, and a client on a connection to each."""
    model = make_tokenizer(tmp_path_factory.mktemp("model"))
    flags = ("--engine", "echo", "--tokenizer-path", str(model), "--apis", "2", "--echo-step-ms", "5")
    with running(tmp_path_factory.mktemp("front"), *flags) as front:
        found: dict[str, httpx.Client] = {}
        while len(found) < 2:
            client = front.client()
            name = client.get("/server_info?static=1").json()["processes"][0]["name"]
            if found.setdefault(name, client) is not client:
                client.close()
        yield front, [found["api-0"], found["api-1"]]
        for client in found.values():
            client.close()


LONG = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}


class Streaming:
    """A stream that is read in a thread to its end."""

    def __init__(self, front: Front, **body: Any) -> None:
        self.frames: list[Any] = []
        self.began = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(front, {**LONG, **body}))
        self._thread.start()
        assert self.began.wait(20)

    def _read(self, front: Front, body: Any) -> None:
        with front.client() as client, client.stream("POST", "/generate", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.frames.append(json.loads(line[6:]))
                    self.began.set()

    def reasons(self) -> list[Any]:
        """The finish reasons of the stream, which must come to its end by itself."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        found = [frame["meta_info"]["finish_reason"] for frame in self.frames]
        return [reason for reason in found if reason is not None]


@pytest.mark.parametrize("number", [0, 1])
def test_abort_works_whichever_process_is_asked(pair: Any, number: int) -> None:
    front, clients = pair
    stream = Streaming(front, rid=f"mine-{number}")
    assert clients[number].post("/abort_request", json={"rid": f"mine-{number}"}).status_code == 200
    assert [reason["type"] for reason in stream.reasons()] == ["abort"]


@pytest.mark.parametrize("number", [0, 1])
def test_abort_of_a_parent_ends_its_children_whichever_process_is_asked(pair: Any, number: int) -> None:
    front, clients = pair
    stream = Streaming(front, rid="parent", text=["a", "b"], sampling_params={"max_new_tokens": 100_000, "n": 2})
    assert clients[number].post("/abort_request", json={"rid": "parent"}).status_code == 200
    assert len(stream.reasons()) == 4
    wait_for(lambda: front.state()["num_running_reqs"] == 0)


def test_abort_is_exact(pair: Any) -> None:
    front, clients = pair
    other = Streaming(front, rid="req-10")
    one = Streaming(front, rid="req-1")
    clients[0].post("/abort_request", json={"rid": "req-1"})
    assert len(one.reasons()) == 1
    assert other.frames[-1]["meta_info"]["finish_reason"] is None
    clients[0].post("/abort_request", json={"rid": "", "abort_all": True})
    assert len(other.reasons()) == 1


def test_an_abort_that_names_nothing_is_400_and_an_unknown_one_is_not(pair: Any) -> None:
    _, clients = pair
    assert clients[0].post("/abort_request", json={}).status_code == 400
    assert clients[0].post("/abort_request", json={"rid": "nobody"}).status_code == 200


def test_flush_is_refused_while_busy_and_done_after(pair: Any) -> None:
    front, clients = pair
    stream = Streaming(front, rid="busy")
    refused = clients[0].get("/flush_cache")
    assert refused.status_code == 400
    assert "1 requests are running" in refused.text
    threading.Timer(0.3, lambda: clients[1].post("/abort_request", json={"rid": "busy"})).start()
    waited = clients[0].post("/flush_cache?timeout=10")
    assert (waited.status_code, waited.text[:14]) == (200, "Cache flushed.")
    assert len(stream.reasons()) == 1
    assert clients[0].get("/flush_cache?timeout=-1").status_code == 400


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_pause_is_the_same_for_every_process(pair: Any, mode: str, number: int) -> None:
    front, clients = pair
    stream = Streaming(front, sampling_params={"max_new_tokens": 200})
    paused = clients[number].post("/pause_generation", json={"mode": mode})
    assert paused.json() == {"message": "Generation paused successfully.", "status": "ok"}
    for client in clients:
        wait_for(lambda client=client: client.get("/ready").status_code == 503)  # type: ignore[misc]
    answers: list[Any] = []
    body = {"text": "held", "sampling_params": {"max_new_tokens": 2}}
    threads = [
        threading.Thread(target=lambda: answers.append(httpx.post(f"{front.url}/generate", json=body, timeout=20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    said = len(stream.frames)
    assert clients[0].get("/health").status_code in (200, 503)
    assert not answers
    resumed = clients[1 - number].post("/continue_generation", json={})
    assert resumed.json() == {"message": "Generation continued successfully.", "status": "ok"}
    for thread in threads:
        thread.join(20)
    assert [one.json()["meta_info"]["completion_tokens"] for one in answers] == [2] * 4
    reasons = [reason["type"] for reason in stream.reasons()]
    assert reasons == (["abort"] if mode == "abort" else ["length"])
    assert mode == "abort" or len(stream.frames) > said
    for client in clients:
        wait_for(lambda client=client: client.get("/ready").status_code == 200)  # type: ignore[misc]


def test_held_requests_can_be_aborted_and_left(pair: Any) -> None:
    front, clients = pair
    clients[0].post("/pause_generation", json={"mode": "in_place"})
    answers: list[Any] = []
    body = {"text": "held", "rid": "held", "sampling_params": {"max_new_tokens": 2}}
    with beside(lambda: answers.append(httpx.post(f"{front.url}/generate", json=body, timeout=20).json())):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{front.url}/generate", json={**body, "rid": "leaves"}, timeout=0.3)
        clients[1].post("/abort_request", json={"rid": "held"})
    assert answers[0]["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
    clients[0].post("/continue_generation", json={})
    wait_for(lambda: clients[0].get("/ready").status_code == 200)
    assert front.state()["num_running_reqs"] == 0


def test_log_level_and_garbage_collector_are_everywhere(pair: Any) -> None:
    _, clients = pair
    assert clients[0].post("/configure_logging", json={"log_level": "info"}).status_code == 200
    assert clients[1].get("/freeze_gc").status_code == 200
