"""The bodies of the control routes: each is the fields of one control request to the engine, with its defaults.

A field without a default is required. Null for a field with a default is that default.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Selector = Literal["target", "draft", "all"]


class PauseBody(msgspec.Struct, kw_only=True):
    """`abort` ends what runs; `retract` lets it wait and computes it anew; `in_place` keeps it where it is."""

    mode: Literal["abort", "retract", "in_place"] | None = "abort"


class ContinueBody(msgspec.Struct, kw_only=True):
    """`POST /continue_generation`."""

    torch_empty_cache: bool | None = True


class ProfileBody(msgspec.Struct, kw_only=True):
    """`/start_profile`."""

    output_dir: str | None = None
    start_step: int | None = None
    num_steps: int | None = None
    activities: list[str] | None = None
    profile_by_stage: bool | None = False
    with_stack: bool | None = None
    record_shapes: bool | None = None
    profile_id: str | None = None
    merge_profiles: bool | None = False
    profile_prefix: str | None = None
    profile_stages: list[str] | None = None


class InternalStateBody(msgspec.Struct, kw_only=True):
    """`/set_internal_state`."""

    server_args: dict[str, Any]


class LoggingBody(msgspec.Struct, kw_only=True):
    """`/configure_logging`. What is not given stays as it is."""

    log_level: Literal["debug", "info", "warning", "error", "DEBUG", "INFO", "WARNING", "ERROR"] | None = None
    log_requests: bool | None = None
    log_requests_level: int | None = None
    log_requests_format: str | None = None
    dump_requests_folder: str | None = None
    dump_requests_threshold: int | None = None


class DiskWeightsBody(msgspec.Struct, kw_only=True):
    """`POST /update_weights_from_disk`."""

    model_path: str
    load_format: str | None = None
    abort_all_requests: bool | None = False
    weight_version: str | None = None
    is_async: bool | None = False
    torch_empty_cache: bool | None = False
    keep_pause: bool | None = False
    recapture_cuda_graph: bool | None = False
    token_step: int | None = 0
    flush_cache: bool | None = True
    manifest: dict[str, Any] | None = None


class TensorWeightsBody(msgspec.Struct, kw_only=True):
    """`POST /update_weights_from_tensor`; the tensors are base64 texts."""

    serialized_named_tensors: list[str]
    load_format: str | None = None
    flush_cache: bool | None = True
    abort_all_requests: bool | None = False
    weight_version: str | None = None
    selector: Selector | None = "all"
    torch_empty_cache: bool | None = False


class DistributedWeightsBody(msgspec.Struct, kw_only=True):
    """`POST /update_weights_from_distributed`."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str | None = "weight_update_group"
    load_format: str | None = None
    flush_cache: bool | None = True
    abort_all_requests: bool | None = False
    weight_version: str | None = None
    selector: Selector | None = "all"
    torch_empty_cache: bool | None = False


class IpcWeightsBody(msgspec.Struct, kw_only=True):
    """`POST /update_weights_from_ipc`."""

    zmq_handles: dict[str, str]
    flush_cache: bool | None = True
    weight_version: str | None = None
    torch_empty_cache: bool | None = False


class InitGroupBody(msgspec.Struct, kw_only=True):
    """`POST /init_weights_update_group`."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str | None = "weight_update_group"
    backend: str | None = "nccl"


class GroupBody(msgspec.Struct, kw_only=True):
    """`POST /destroy_weights_update_group`."""

    group_name: str | None = "weight_update_group"


class SelectorBody(msgspec.Struct, kw_only=True):
    """`POST /begin_weight_update` and `/end_weight_update`."""

    selector: Selector | None = "all"


class VersionBody(msgspec.Struct, kw_only=True):
    """`POST /update_weight_version`."""

    new_version: str
    abort_all_requests: bool | None = True


class WeightsByNameBody(msgspec.Struct, kw_only=True):
    """`/get_weights_by_name`."""

    name: str
    truncate_size: int | None = 100


class WeightsCheckBody(msgspec.Struct, kw_only=True):
    """`/weights_checker`."""

    action: str | None = "checksum"
    allow_quant_error: bool | None = False
    skip_tensor_list: list[str] | None = None
    selector: Selector | None = "all"


class MemoryBody(msgspec.Struct, kw_only=True):
    """`/release_memory_occupation` and `/resume_memory_occupation`; without tags everything."""

    tags: list[str] | None = None


class SendGroupBody(msgspec.Struct, kw_only=True):
    """`POST /init_weights_send_group_for_remote_instance`."""

    master_address: str
    ports: str
    group_rank: int
    world_size: int
    group_name: str | None = "weight_send_group"
    backend: str | None = "nccl"


class SendBody(msgspec.Struct, kw_only=True):
    """`POST /send_weights_to_remote_instance`."""

    master_address: str
    ports: str
    group_name: str | None = "weight_send_group"


class LoadAdapterBody(msgspec.Struct, kw_only=True):
    """`POST /load_lora_adapter`."""

    lora_name: str
    lora_path: str
    pinned: bool | None = False


class LoadAdapterTensorsBody(msgspec.Struct, kw_only=True):
    """`POST /load_lora_adapter_from_tensors`."""

    lora_name: str
    config_dict: dict[str, Any]
    serialized_tensors: str
    load_format: str | None = None
    pinned: bool | None = False
    added_tokens_config: dict[str, Any] | None = None


class UnloadAdapterBody(msgspec.Struct, kw_only=True):
    """`POST /unload_lora_adapter`."""

    lora_name: str


class OpenSessionBody(msgspec.Struct, kw_only=True):
    """`/open_session`."""

    capacity_of_str_len: int
    session_id: str | None = None
    streaming: bool | None = None
    timeout: float | None = None


class CloseSessionBody(msgspec.Struct, kw_only=True):
    """`/close_session`."""

    session_id: str
