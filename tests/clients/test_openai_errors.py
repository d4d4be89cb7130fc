"""The official `openai` package when things go wrong: an exception for each status, time-outs, and its patience."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from tests.clients.openai_rig import QUESTION, TOOL, connect
from tests.helpers.front import Front, running, wait_for


class Place(pydantic.BaseModel):
    """A shape of answer."""

    name: str


@pytest.fixture
def client(echo: Front) -> Iterator[openai.OpenAI]:
    with connect(echo) as found:
        yield found


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": "x" * 20_000}, "prompt"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"stream_options": {"include_usage": 5}, "stream": True}, "stream_options"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_names_the_field(client: openai.OpenAI, asked: dict[str, Any], param: str, stream: bool) -> None:
    body: Any = {"model": "m", "prompt": "x", "max_tokens": 4, "stream": stream, **asked}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**body)
    assert caught.value.type == "invalid_request_error"
    assert (caught.value.param or "").startswith(param)
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "required"),
        ("tool_choice", TOOL),
        ("functions", [TOOL["function"]]),
        ("web_search_options", {}),
        ("modalities", ["text", "audio"]),
    ],
)
def test_what_the_front_does_not_do_is_refused(client: openai.OpenAI, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=field):
        client.chat.completions.create(**{"model": "m", "messages": QUESTION, "tools": [TOOL], field: value})


def test_a_shape_of_answer_that_the_engine_cannot_keep_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="json_schema is not supported"):
        client.chat.completions.parse(model="m", messages=QUESTION, response_format=Place)


def test_what_is_not_here_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="m", input="x")


def test_a_request_over_its_time_on_the_server_is_a_status_error(client: openai.OpenAI, echo: Front) -> None:
    headers = {"X-Request-Timeout-S": "0.1"}
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model="m", prompt="x", max_tokens=3000, extra_headers=headers)
    assert (caught.value.status_code, type(caught.value)) == (504, openai.InternalServerError)
    wait_for(lambda: echo.state()["num_running_reqs"] == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_gives_up_frees_the_engine(client: openai.OpenAI, echo: Front, stream: bool) -> None:
    if stream:
        with client.completions.create(model="m", prompt="x", max_tokens=3000, stream=True) as chunks:
            next(iter(chunks))
    else:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).completions.create(model="m", prompt="x", max_tokens=3000)
    wait_for(lambda: echo.state()["num_running_reqs"] == 0)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, echo_flags: tuple[str, ...]) -> Iterator[Front]:
    """A front that takes one request at a time, with a key, for one name."""
    flags = (*echo_flags, "--max-inflight", "1", "--strict-model-name", "--served-model-name", "mine")
    with running(tmp_path_factory.mktemp("narrow"), *flags, environ={"FOREBAY_API_KEY": "secret"}) as found:
        yield found


def test_a_wrong_key_is_an_authentication_error(narrow: Front) -> None:
    with connect(narrow) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


@pytest.mark.parametrize("stream", [False, True])
def test_another_name_is_not_found(narrow: Front, stream: bool) -> None:
    with connect(narrow, api_key="secret") as client, pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="other", prompt="x", stream=stream)
    assert caught.value.code == "model_not_found"


def test_one_too_many_is_a_rate_limit_error(narrow: Front) -> None:
    with connect(narrow, api_key="secret") as client:
        asked: Any = {"model": "mine", "prompt": "x"}
        with client.completions.create(**asked, max_tokens=3000, stream=True) as chunks:
            next(iter(chunks))
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**asked)
        assert caught.value.response.headers["retry-after"] == "1"
        wait_for(lambda: served_again(client))


def served_again(client: openai.OpenAI) -> bool:
    try:
        client.completions.create(model="mine", prompt="x", max_tokens=1)
    except openai.RateLimitError:
        return False
    return True


def test_the_client_waits_as_long_as_it_was_told_and_is_then_served(narrow: Front) -> None:
    with connect(narrow, api_key="secret", max_retries=4) as client:
        stream = client.completions.create(model="mine", prompt="x", max_tokens=3000, stream=True)
        next(iter(stream))
        leave = threading.Timer(0.3, stream.close)
        leave.start()
        began = time.monotonic()
        raw = client.completions.with_raw_response.create(model="mine", prompt="x", max_tokens=2)
        took = time.monotonic() - began
        leave.join()
    assert raw.retries_taken >= 1
    assert raw.parse().choices[0].finish_reason == "length"
    # Told to wait a second, the client takes a second a try; on its own it would begin with half of one.
    assert 0.9 <= took / raw.retries_taken < 3


def test_a_front_whose_engine_is_away_is_a_503_until_it_is_back(tmp_path: Path, echo_flags: tuple[str, ...]) -> None:
    with running(tmp_path, *echo_flags) as front, connect(front) as client:
        os.kill(front.pids()["engine-0"], signal.SIGKILL)
        with pytest.raises(openai.InternalServerError) as caught:
            ask_until_refused(client)
        assert caught.value.status_code == 503
        patient = client.with_options(max_retries=20)
        assert patient.completions.create(model="m", prompt="x", max_tokens=1).choices[0].finish_reason == "length"


def test_a_stream_whose_engine_dies_is_no_short_answer(tmp_path: Path, echo_flags: tuple[str, ...]) -> None:
    with running(tmp_path, *echo_flags) as front, connect(front) as client:
        stream = client.completions.create(model="m", prompt="x", max_tokens=3000, stream=True)
        next(iter(stream))
        os.kill(front.pids()["engine-0"], signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine"):
            list(stream)


def ask_until_refused(client: openai.OpenAI) -> None:
    while True:
        client.completions.create(model="m", prompt="x", max_tokens=1)
