"""/metrics, health and the request log with real processes: two of each role, any of which may answer."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.front import Front, running, wait_for
from tests.helpers.models import make_tokenizer


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = make_tokenizer(tmp_path_factory.mktemp("model"))
    flags = ["--engine", "echo", "--tokenizer-path", str(folder), "--echo-step-ms", "2", "--restart-limit", "20"]
    flags += ["--apis", "2", "--tokenizers", "2", "--detokenizers", "2"]
    flags += ["--health-timeout", "2", "--log-requests", "--log-format", "json", "--log-request-text"]
    with running(tmp_path_factory.mktemp("front"), *flags) as found:
        yield found


def get(front: Front, path: str, **options: Any) -> httpx.Response:
    """A request on a connection of its own: the system chooses the api process."""
    with front.client() as client:
        return client.get(path, **options)


def post(front: Front, path: str, body: Any, **options: Any) -> httpx.Response:
    with front.client() as client:
        return client.post(path, json=body, **options)


def value(front: Front, name: str, **labels: str) -> float:
    """The sum of a sample over the labels that are not given."""
    wanted = labels.items()
    families = text_string_to_metric_families(get(front, "/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if wanted <= sample.labels.items())


def generate(front: Front, tokens: int = 3, **more: Any) -> httpx.Response:
    return post(front, "/generate", {"text": "hello", "sampling_params": {"max_new_tokens": tokens}, **more})


def lines_of(front: Front, request_id: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in front.text().splitlines() if f'"{request_id}"' in line]
    return [line for line in found if line["logger"] == "forebay.requests"]


def test_every_scrape_sees_the_requests_of_all_processes(front: Front) -> None:
    before = value(front, "forebay_num_requests_total")
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: generate(front).status_code, range(40)))
    assert statuses == [200] * 40
    assert [value(front, "forebay_num_requests_total") - before for _ in range(10)] == [40] * 10


def test_both_api_processes_take_connections(front: Front) -> None:
    for _ in range(40):
        get(front, "/live")
    took = [line for line in front.text().splitlines() if '"logger":"forebay.requests"' in line]
    processes = {json.loads(line)["process"] for line in took}
    assert processes == {"api-0", "api-1"}


def test_a_stream_counts_its_tokens_once_and_is_no_abort(front: Front) -> None:
    names = ["forebay_generation_tokens_total", "forebay_num_aborted_requests_total"]
    names += ["forebay_time_to_first_token_seconds_count", "forebay_inter_token_latency_seconds_count"]
    before = [value(front, name) for name in names]
    assert generate(front, tokens=20, stream=True).text.endswith("data: [DONE]\n\n")
    tokens, aborts, firsts, waits = (value(front, name) - was for name, was in zip(names, before, strict=True))
    assert (tokens, aborts, firsts) == (20, 0, 1)
    # One wait for each token after the first, unless several steps were read at once.
    assert 10 <= waits <= 19


def test_a_client_that_leaves_counts_as_one_abort(front: Front) -> None:
    before = value(front, "forebay_num_aborted_requests_total")
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}
    with front.client() as client, client.stream("POST", "/generate", json=body) as answer:
        next(answer.iter_lines())
    wait_for(lambda: value(front, "forebay_num_aborted_requests_total") - before == 1, 5, "the abort in the metrics")


def test_health_probes_are_no_requests(front: Front) -> None:
    before = value(front, "forebay_num_requests_total")
    assert get(front, "/health").status_code == 200
    assert value(front, "forebay_num_requests_total") == before


def test_a_request_may_be_left_out(front: Front) -> None:
    before = value(front, "forebay_num_requests_total")
    generate(front, log_metrics=False)
    assert value(front, "forebay_num_requests_total") == before


def test_paths_of_clients_do_not_become_labels(front: Front) -> None:
    for path in ("/secret-1", "/v1/models/mine", "/v1/%6dodels"):
        get(front, path)
    text = get(front, "/metrics").text
    assert "secret" not in text
    assert "mine" not in text
    assert 'endpoint="/v1/models/{model_id:path}"' in text


def test_stages_are_timed_and_links_counted(front: Front) -> None:
    generate(front)

    def seen() -> bool:
        return all(
            value(front, name) > 0 for name in ("forebay_tokenize_seconds_count", "forebay_detokenize_seconds_count")
        ) and all(
            value(front, "forebay_frames_total", link=link) > 0
            for link in ("api_to_tokenizer", "tokenizer_to_engine", "engine_to_detokenizer", "detokenizer_to_api")
        )

    wait_for(seen, 5, "all stages in the metrics")


def test_openmetrics_is_given_to_who_asks_for_it(front: Front) -> None:
    answer = get(front, "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_server_info_names_every_process(front: Front) -> None:
    for _ in range(6):
        processes = get(front, "/server_info", params={"static": "1"}).json()["processes"]
        names = sorted(process["name"] for process in processes)
        assert names == sorted(
            [f"{role}-{n}" for role in ("api", "tokenizer", "detokenizer") for n in (0, 1)] + ["engine-0"]
        )
        assert {process["name"]: process["pid"] for process in processes}.items() <= front.pids().items()


# ---------------------------------------------------------------- the request log
def test_a_request_is_one_line_in_the_log(front: Front) -> None:
    post(front, "/v1/completions", {"prompt": "hi", "max_tokens": 4}, headers={"x-request-id": "log-1"})
    line = wait_for(lambda: lines_of(front, "log-1"), 5, "the line")
    assert len(line) == 1
    found = line[0]
    assert (found["route"], found["status"], found["completion_tokens"]) == ("/v1/completions", 200, 4)
    assert found["finish_reason"] == "length"
    assert found["prompt"] == ["hi"]
    assert 0 < found["e2e_s"] < 10


def test_no_logs_keeps_the_text_out_of_the_log(front: Front) -> None:
    body = {"text": "top secret", "no_logs": True, "sampling_params": {"max_new_tokens": 1}}
    post(front, "/generate", body, headers={"x-request-id": "log-2"})
    wait_for(lambda: lines_of(front, "log-2"), 5, "the line")
    assert "top secret" not in front.text()


def test_probes_are_not_logged(front: Front) -> None:
    for path in ("/health", "/ready", "/live", "/ping"):
        get(front, path, headers={"x-request-id": "log-3"})
    post(front, "/tokenize", {"prompt": "x"}, headers={"x-request-id": "log-4"})
    wait_for(lambda: lines_of(front, "log-4"), 5, "the line of another request")
    assert lines_of(front, "log-3") == []


# ---------------------------------------------------------------- health
@pytest.mark.parametrize("path", ["/live", "/ready", "/ping", "/health", "/health_generate"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_healthy_front_says_so_with_an_empty_body(front: Front, path: str, method: str) -> None:
    with front.client() as client:
        answer = client.request(method, path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert "content-type" not in answer.headers


def test_probes_of_two_processes_have_different_ids(front: Front) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: get(front, "/health").status_code, range(24))) == {200}


def test_loads_come_from_the_engine(front: Front) -> None:
    body = get(front, "/v1/loads").json()
    assert body["loads"][0]["num_running_reqs"] == 0
    assert get(front, "/v1/loads", params={"dp_rank": 9}).json()["loads"] == []
    assert get(front, "/v1/loads", params={"include": "nonsense"}).status_code == 400
    text = get(front, "/v1/loads", params={"format": "prometheus"}).text
    assert 'sglang_num_running_reqs{dp_rank="0"} 0.0' in text
    assert get(front, "/get_load").json()[0]["num_reqs"] == 0


def test_a_silent_engine_is_unhealthy_until_the_next_success(front: Front) -> None:
    engine = front.pids()["engine-0"]
    os.kill(engine, signal.SIGSTOP)
    try:
        with front.client() as client:  # one connection: one api process
            began = time.monotonic()
            assert client.get("/health").status_code == 503
            assert 1.5 < time.monotonic() - began < 5
            assert client.get("/ready").status_code == 503
            assert client.get("/live").status_code == 200
            os.kill(engine, signal.SIGCONT)
            assert client.get("/health").status_code == 200
            assert client.get("/ready").status_code == 200
    finally:
        os.kill(engine, signal.SIGCONT)


def test_a_loaded_engine_is_healthy(front: Front) -> None:
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(generate, front, tokens=600) for _ in range(8)]
        assert [get(front, "/health").status_code for _ in range(5)] == [200] * 5
        assert {one.result().status_code for one in running} == {200}


@pytest.mark.parametrize("name", ["tokenizer-1", "detokenizer-0"])
def test_a_dead_role_turns_health_red_within_a_second(front: Front, name: str) -> None:
    os.kill(front.pids()[name], signal.SIGSTOP)
    os.kill(front.pids()[name], signal.SIGKILL)
    wait_for(lambda: get(front, "/health").status_code == 503, 1, "an unhealthy answer")
    assert get(front, "/live").status_code == 200
    wait_for(lambda: get(front, "/health").status_code == 200, 20, "a healthy answer")


def test_a_dead_process_keeps_its_counts_in_the_sum(front: Front) -> None:
    generate(front)
    before = value(front, "forebay_num_requests_total")
    victim = front.pids()["api-1"]
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: front.pids().get("api-1", victim) != victim, 20, "the restarted api process")
    wait_for(lambda: _ready(front), 20, "a front that is ready")
    assert value(front, "forebay_num_requests_total") == before


def _ready(front: Front) -> bool:
    try:
        return all(get(front, "/ready").status_code == 200 for _ in range(6))
    except httpx.TransportError:
        return False
