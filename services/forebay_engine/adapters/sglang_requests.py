"""From forebay's requests to SGLang's own request types. SGLang is imported in `load_types` only.

A request that asks for what SGLang cannot do is refused here with the field's name; the client gets 400.
"""

from __future__ import annotations

import importlib
import inspect
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from forebay import AbortRequest, ControlRequest, GenerateRequest, SamplingParams
from forebay.redaction import without_secrets

PASSED = (
    "session_id",
    "custom_logit_processor",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "decode_tp_size",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "routing_key",
    "require_reasoning",
    "extra_key",
    "cache_salt",
)
"""Fields of `GenerateRequest.extra` that SGLang's request has under the same name."""
TRACING = ("custom_labels", "conversation_id", "external_trace_header")
"""Fields of `extra` about metrics and traces of a front: SGLang's scheduler has no place for them."""
FIELD_NAMES = {"FlushCache": {"timeout": "timeout_s"}}
"""Fields of control requests that SGLang calls otherwise."""
SILENT = ("PauseGenerationReqInput", "ContinueGenerationReqInput", "CloseSessionReqInput", "FreezeGCReq")
"""Control types that SGLang carries out without an answer."""
NOT_OURS = ("RpcReqInput", "ShutdownReq", "ConfigureLoggingReq", "DumperControlReqInput")
"""Control types that call any method, end the engine, or speak to a detokenizer of SGLang that does not run."""

_decode = msgspec.msgpack.Decoder(GenerateRequest).decode


class UnknownControl(ValueError):
    """SGLang has no control request of this type, or not with these fields."""


class Types(NamedTuple):
    """SGLang's classes that requests are made of. `controls` are those of its control requests, by their name."""

    generate: Any
    sampling: Any
    session: Any
    abort: Any
    hints: Any
    controls: Mapping[str, Any]


def load_types() -> Types:
    """The classes of the SGLang that is installed."""
    structs = importlib.import_module("sglang.srt.managers.io_struct")
    controls = {
        name: made
        for name, made in inspect.getmembers(structs, inspect.isclass)
        if issubclass(made, structs.BaseReq) and name not in NOT_OURS
    }
    return Types(
        generate=structs.TokenizedGenerateReqInput,
        sampling=importlib.import_module("sglang.srt.sampling.sampling_params").SamplingParams,
        session=structs.SessionParams,
        abort=structs.AbortReq,
        hints=importlib.import_module("sglang.srt.managers.kv_hints").KvHintsEnvelope,
        controls=controls,
    )


class Requests:
    """Makes SGLang's requests. `lora_ids`: adapter name -> SGLang's id of it. `engine_stops`: stop strings are SGLang's
    business, not the front's."""

    def __init__(self, types: Types, lora_ids: Mapping[str, str], *, engine_stops: bool = False) -> None:
        self._types = types
        self._lora_ids = lora_ids
        self._engine_stops = engine_stops

    def decode(self, header: memoryview, ids: array[int]) -> Any:
        """A `TokenizedGenerateReqInput` from a request's header and prompt ids: the decoder that `Front` is given.

        Raises `msgspec.ValidationError` for a header that is no request and `ValueError` for what SGLang cannot do.
        """
        head = _decode(header)
        if head.embedding:
            raise ValueError("embedding is not supported: this engine generates")
        searched = bool(head.sampling.stop or head.sampling.stop_regex) and not self._engine_stops
        request = self._types.generate(
            rid=head.rid,
            input_text=None,
            input_ids=ids,
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=self._sampling(head.sampling, searched=searched),
            return_logprob=head.return_logprob,
            logprob_start_len=head.logprob_start_len,
            top_logprobs_num=head.top_logprobs_num,
            token_ids_logprob=head.token_ids_logprob,
            # SGLang hands out a request that does not stream every 50 tokens; a stop string must be found before that.
            stream=head.stream or searched,
            return_hidden_states=head.return_hidden_states,
            priority=head.priority,
        )
        if head.lora_path is not None:
            self._set_lora(request, head.lora_path)
        if head.extra:
            self._set_extra(request, head.extra)
        return request

    def _sampling(self, params: SamplingParams, *, searched: bool) -> Any:
        """SGLang's parameters, already normalised: forebay and SGLang agree that greedy is `top_k` 1.

        `searched`: the front looks for stops in the text, and a step that it sees late is one computed for nothing.
        """
        stops, patterns = (params.stop, params.stop_regex) if self._engine_stops else ([], [])
        bias = params.logit_bias
        return self._types.sampling(
            max_new_tokens=params.max_new_tokens,
            stop_token_ids=set(params.stop_token_ids) or None,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            min_new_tokens=params.min_new_tokens,
            json_schema=params.json_schema,
            regex=params.regex,
            ebnf=params.ebnf,
            structural_tag=params.structural_tag,
            ignore_eos=params.ignore_eos,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            no_stop_trim=params.no_stop_trim,
            stream_interval=1 if searched else params.stream_interval,
            logit_bias=None if bias is None else {str(token): value for token, value in bias.items()},
            sampling_seed=params.sampling_seed,
            custom_params=params.custom_params,
            stop_strs=stops,
            stop_regex_strs=patterns,
            stop_str_max_len=params.stop_str_max_len if stops else 0,
            stop_regex_max_len=params.stop_regex_max_len if patterns else 0,
            is_normalized=True,
        )

    def _set_lora(self, request: Any, name: str) -> None:
        lora_id = self._lora_ids.get(name)
        if lora_id is None:
            known = ", ".join(sorted(self._lora_ids)) or "none"
            raise ValueError(f"lora_path: the adapter {name!r} is not loaded; loaded adapters: {known}")
        request.lora_id, request.lora_name = lora_id, name

    def _set_extra(self, request: Any, extra: Mapping[str, Any]) -> None:
        for name, value in extra.items():
            if name in PASSED:
                setattr(request, name, value)
            elif name == "session_params":
                request.session_params = _struct(self._types.session, value, name)
            elif name == "kv_hints":
                request.kv_hints = _struct(self._types.hints, value, name)
            elif name not in TRACING:
                raise ValueError(f"{name} is not supported by this engine")

    # ---------------------------------------------------------------- aborts and controls
    def abort(self, abort: AbortRequest) -> Any:
        """SGLang's abort; None for one that names nobody, since SGLang takes a rid as the start of rids."""
        if not abort.rid and not abort.abort_all:
            return None
        return self._types.abort(rid=abort.rid, abort_all=abort.abort_all)

    def control(self, request: ControlRequest) -> Any:
        """SGLang's control request of a type's name (`FlushCache` -> `FlushCacheReqInput`); raises `UnknownControl`."""
        names = (request.type, f"{request.type}ReqInput", f"{request.type}Req")
        type_ = next((self._types.controls[name] for name in names if name in self._types.controls), None)
        if type_ is None:
            raise UnknownControl(f"SGLang has no control request {request.type}")
        renamed = FIELD_NAMES.get(request.type, {})
        fields = {renamed.get(name, name): value for name, value in request.fields.items()}
        try:
            return type_(rid=request.rid, **_converted(type_, fields))
        except (TypeError, msgspec.ValidationError) as error:
            raise UnknownControl(f"{request.type}: {error}") from error

    @staticmethod
    def is_silent(request: Any) -> bool:
        """Whether SGLang gives no answer to a control request."""
        return type(request).__name__ in SILENT

    @staticmethod
    def answer(output: Any) -> Any:
        """What an answer says: the fields of SGLang's struct, without those that route it inside SGLang."""
        if not isinstance(output, msgspec.Struct):
            return output
        fields = msgspec.structs.asdict(output)
        for name in ("rid", "http_worker_ipc"):
            fields.pop(name, None)
        state = fields.get("internal_state")
        if not isinstance(state, dict):
            return fields
        return without_secrets(state)


def _converted(type_: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the types that a struct declares. Raises `msgspec.ValidationError` or `TypeError`."""
    declared = {field.name: field.type for field in msgspec.structs.fields(type_)}
    unknown = sorted(fields.keys() - declared.keys())
    if unknown:
        raise TypeError(f"there is no field {unknown[0]}")
    return {name: msgspec.convert(value, declared[name]) for name, value in fields.items()}


def _struct(type_: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object")
    try:
        return type_(**_converted(type_, value))
    except (TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"{name}: {error}") from error
