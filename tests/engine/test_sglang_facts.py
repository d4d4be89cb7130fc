"""SGLang's arguments as forebay's settings and launch facts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay import SettingsError, StartError
from forebay.facts import make_blob, read_blob
from forebay_engine.adapters.sglang_facts import Model, front_settings, launch_facts, port_offset, refuse

ARGUMENTS: dict[str, Any] = {
    "model_path": "model",
    "context_length": None,
    "host": "127.0.0.1",
    "port": 30000,
    "api_key": "hush",
    "served_model_name": "small",
    "tokenizer_worker_num": 2,
    "detokenizer_worker_num": 1,
    "incremental_streaming_output": True,
    "preferred_sampling_params": '{"top_p": 0.5}',
    "watermark_key_b": "hush",
    "enable_return_hidden_states": True,
    "tool_call_parser": None,
}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(
        context_length=8192,
        vocab_size=49152,
        hidden_size=576,
        eos_token_ids=[2],
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        default_sampling_params={"temperature": 0.6},
        tokenizer_path=str(tmp_path),
        num_reserved_tokens=0,
        max_total_num_tokens=9000,
        max_req_input_len=8186,
        version="0.5.23",
    )


def test_clients_find_forebay_where_they_would_find_sglang(model: Model) -> None:
    settings = front_settings(ARGUMENTS, {}, model)
    assert (settings.host, settings.port, settings.api_key, settings.served_model_name) == (
        *("127.0.0.1", 30000, "hush", "small"),
    )
    assert (settings.tokenizers, settings.incremental_streaming_output) == (2, True)
    assert settings.tokenizer_path == model.tokenizer_path


def test_https_stays_https(model: Model) -> None:
    settings = front_settings({**ARGUMENTS, "ssl_certfile": "c.pem", "ssl_keyfile": "k.pem"}, {}, model)
    assert (settings.tls_certfile, settings.tls_keyfile) == ("c.pem", "k.pem")


def test_a_variable_of_forebay_wins_over_sglangs_argument_even_with_the_default_value(model: Model) -> None:
    assert front_settings(ARGUMENTS, {"FOREBAY_PORT": "8000"}, model).port == 8000


def test_a_file_of_forebay_wins_over_sglangs_argument(model: Model, tmp_path: Path) -> None:
    file = tmp_path / "forebay.toml"
    file.write_text("port = 9000\n")
    assert front_settings(ARGUMENTS, {"FOREBAY_CONFIG": str(file)}, model).port == 9000


def test_a_wrong_variable_is_named(model: Model) -> None:
    with pytest.raises(SettingsError, match="FOREBAY_PORT"):
        front_settings(ARGUMENTS, {"FOREBAY_PORT": "near"}, model)


def test_each_data_parallel_rank_of_a_host_has_its_own_port(model: Model) -> None:
    assert front_settings(ARGUMENTS, {}, model._replace(port_offset=2)).port == 30002


def test_the_port_offset_counts_the_ranks_of_this_host() -> None:
    parallel = SimpleNamespace(tp_size=8, nnodes=2, pp_size=1, tp_rank=6, attn_tp_size=2, attn_cp_size=1)
    assert port_offset(parallel) == 1


def test_sglangs_skipped_warm_up_is_skipped_here_too(model: Model) -> None:
    assert not front_settings({**ARGUMENTS, "skip_server_warmup": True}, {}, model).warmup


def test_a_named_chat_template_that_is_no_file_stops_the_launch(model: Model) -> None:
    with pytest.raises(StartError, match="'chatml' is no file"):
        front_settings({**ARGUMENTS, "chat_template": "chatml"}, {}, model)


@pytest.mark.parametrize(
    ("arguments", "generates", "text"),
    [
        ({}, False, "embedding"),
        ({"disaggregation_mode": "prefill"}, True, "prefill"),
        ({"ssl_ca_certs": "a.pem"}, True, "ssl_ca_certs"),
    ],
)
def test_what_cannot_be_served_stops_the_launch(arguments: dict[str, Any], generates: bool, text: str) -> None:
    with pytest.raises(StartError, match=text):
        refuse(arguments, is_generation=generates)


def test_an_ordinary_launch_is_not_refused() -> None:
    refuse({"disaggregation_mode": "null", "ssl_ca_certs": None}, is_generation=True)


def test_the_facts_are_what_sglang_has_resolved_and_hold_no_secret(model: Model) -> None:
    blob = make_blob(launch_facts(ARGUMENTS, model, front_settings(ARGUMENTS, {}, model)))
    facts = read_blob(blob)
    assert (facts.context_length, facts.vocab_size, facts.hidden_size, facts.eos_token_ids) == (8192, 49152, 576, [2])
    assert (facts.preferred_sampling_params, facts.default_sampling_params) == ({"top_p": 0.5}, {"temperature": 0.6})
    assert (facts.version, facts.stop_match, facts.enable_hidden_states) == ("0.5.23", "front", True)
    assert b"hush" not in blob


def test_the_tool_call_token_of_gpt_oss_stays_in_the_text(model: Model) -> None:
    arguments = {**ARGUMENTS, "tool_call_parser": "gpt-oss"}
    assert launch_facts(arguments, model, front_settings(arguments, {}, model))["keep_stop_token_ids"] == [200012]
