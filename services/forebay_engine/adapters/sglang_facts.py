"""What SGLang's scheduler knows at its launch, as forebay's launch facts and settings.

`read_launch` asks SGLang; the rest is pure. Clients find forebay where they would have found SGLang's front: its
arguments stand in for every forebay setting that the operator has left alone.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from forebay import StartError
from forebay.config import load
from forebay.settings import Settings

TAKEN_OVER = {
    "host": "host",
    "port": "port",
    "ssl_certfile": "tls_certfile",
    "ssl_keyfile": "tls_keyfile",
    "api_key": "api_key",
    "admin_api_key": "admin_api_key",
    "served_model_name": "served_model_name",
    "chat_template": "chat_template",
    "allow_auto_truncate": "allow_auto_truncate",
    "incremental_streaming_output": "incremental_streaming_output",
    "stream_response_default_include_usage": "stream_response_default_include_usage",
    "enable_cache_report": "enable_cache_report",
    "default_chat_template_kwargs": "default_chat_template_kwargs",
    "tokenizer_worker_num": "tokenizers",
    "detokenizer_worker_num": "detokenizers",
}
"""SGLang's argument -> the forebay setting of the same meaning."""
GPT_OSS_CALL = 200012
"""The stop token of gpt-oss that opens a tool call and so belongs to the text."""


class Launch(NamedTuple):
    """All that the adapter needs to start."""

    facts: dict[str, Any]
    settings: Settings
    lora_ids: dict[str, str]
    engine_stops: bool


class Model(NamedTuple):
    """What SGLang has found out about the model and itself."""

    context_length: int
    vocab_size: int
    hidden_size: int
    eos_token_ids: list[int]
    model_type: str | None
    architectures: list[str] | None
    default_sampling_params: dict[str, Any]
    tokenizer_path: str
    num_reserved_tokens: int
    max_total_num_tokens: int
    max_req_input_len: int
    version: str
    port_offset: int = 0
    """The number of this data-parallel rank on its host: each has a front of its own, on its own port."""


def read_launch(scheduler: Any, environ: Mapping[str, str]) -> Launch:
    """Everything about this scheduler. Raises `StartError` for a set-up that forebay cannot serve."""
    arguments = dict(scheduler.server_args.resolved_dict())
    refuse(arguments, is_generation=scheduler.is_generation)
    model = _model(scheduler)
    settings = front_settings(arguments, environ, model)
    return Launch(launch_facts(arguments, model, settings), settings, _lora_ids(), settings.stop_match == "engine")


def _lora_ids() -> dict[str, str]:
    """SGLang's id of each adapter that it was started with, by the adapter's name."""
    lora = importlib.import_module("sglang.srt.runtime_context").get_lora()
    return {ref.lora_name: ref.lora_id for ref in lora.lora_paths or () if ref.lora_name is not None}


def refuse(arguments: Mapping[str, Any], *, is_generation: bool) -> None:
    """Raise `StartError` for what this adapter does not do, and must not seem to do."""
    if not is_generation:
        raise StartError("forebay serves SGLang's generation models, and this is an embedding or reward model")
    mode = arguments.get("disaggregation_mode")
    if mode not in (None, "null"):
        raise StartError(f"forebay does not host SGLang's bootstrap registry: disaggregation mode {mode} is not served")
    for name in ("ssl_ca_certs", "ssl_keyfile_password"):
        if arguments.get(name):
            raise StartError(f"forebay has no {name}: end TLS in a proxy, or start SGLang without it")


def _model(scheduler: Any) -> Model:
    """Ask SGLang; every name below is one of SGLang 0.5.23."""
    context = importlib.import_module("sglang.srt.runtime_context")
    utils = importlib.import_module("sglang.srt.managers.utils")
    config = scheduler.model_config
    hf_config = config.hf_config
    return Model(
        context_length=config.context_len,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        eos_token_ids=sorted(config.hf_eos_token_id or ()),
        model_type=getattr(hf_config, "model_type", None),
        architectures=getattr(hf_config, "architectures", None),
        default_sampling_params=dict(config.get_default_sampling_params()),
        tokenizer_path=scheduler.rust_server_tokenizer_path(),
        num_reserved_tokens=utils.compute_num_reserved_tokens(),
        max_total_num_tokens=scheduler.max_total_num_tokens,
        max_req_input_len=scheduler.max_req_input_len,
        version=importlib.import_module("sglang.version").__version__,
        port_offset=port_offset(context.get_parallel()),
    )


def port_offset(parallel: Any) -> int:
    """Which of the data-parallel ranks of this host the scheduler belongs to: SGLang's own rule for its ports."""
    on_node = parallel.tp_size // max(parallel.nnodes // parallel.pp_size, 1)
    offset: int = (parallel.tp_rank % on_node) // (parallel.attn_tp_size * parallel.attn_cp_size)
    return offset


def front_settings(arguments: Mapping[str, Any], environ: Mapping[str, str], model: Model) -> Settings:
    """FOREBAY_... variables and the file FOREBAY_CONFIG, then SGLang's arguments for all that they leave alone.

    Raises `SettingsError` for a wrong setting and `StartError` for a chat template that is no file.
    """
    file = environ.get("FOREBAY_CONFIG")
    base, plain = load(config=Path(file) if file else None, environ=environ, overrides={}), Settings()
    taken: dict[str, Any] = {}
    for argument, name in TAKEN_OVER.items():
        value = arguments.get(argument)
        if value is not None and _left_alone(base, plain, name, environ):
            taken[name] = value
    if taken.get("chat_template") is not None and not Path(taken["chat_template"]).is_file():
        raise StartError(f"chat_template {taken['chat_template']!r} is no file: forebay takes the path of a Jinja file")
    if taken.get("port") is not None:
        taken["port"] += model.port_offset
    if arguments.get("skip_server_warmup") and _left_alone(base, plain, "warmup", environ):
        taken["warmup"] = False
    if base.tokenizer_path is None:
        taken["tokenizer_path"] = local_folder(model.tokenizer_path)
    return msgspec.structs.replace(base, **taken)


def _left_alone(base: Settings, plain: Settings, name: str, environ: Mapping[str, str]) -> bool:
    return f"FOREBAY_{name.upper()}" not in environ and getattr(base, name) == getattr(plain, name)


def local_folder(path: str) -> str:
    """The folder of a tokenizer that SGLang has loaded: the path itself, or its copy in the hub's cache."""
    if Path(path).exists():
        return path
    hub = importlib.import_module("huggingface_hub")
    folder: str = hub.snapshot_download(path, local_files_only=True)
    return folder


def launch_facts(arguments: Mapping[str, Any], model: Model, settings: Settings) -> dict[str, Any]:
    """SGLang's arguments, and under forebay's names what it has resolved. `Front` takes the secrets out."""
    preferred = arguments.get("preferred_sampling_params")
    return {
        **arguments,
        "tokenizer_path": settings.tokenizer_path,
        "chat_template": settings.chat_template,
        "preferred_sampling_params": json.loads(preferred) if isinstance(preferred, str) else preferred,
        "context_length": model.context_length,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "eos_token_ids": model.eos_token_ids,
        "model_type": model.model_type,
        "architectures": model.architectures,
        "default_sampling_params": model.default_sampling_params,
        "num_reserved_tokens": model.num_reserved_tokens,
        "max_total_num_tokens": model.max_total_num_tokens,
        "max_req_input_len": model.max_req_input_len,
        "version": model.version,
        "stop_match": settings.stop_match,
        "enable_hidden_states": bool(arguments.get("enable_return_hidden_states")),
        "keep_stop_token_ids": [GPT_OSS_CALL] if arguments.get("tool_call_parser") == "gpt-oss" else [],
    }
