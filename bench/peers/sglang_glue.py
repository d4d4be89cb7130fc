"""Load the embedded server of an unpacked sglang wheel without its GPU dependencies.

``load(path)`` takes the directory that holds the ``sglang`` package and returns a
namespace with

* ``ext``         the compiled extension (``Server``, ``ServerArgs``, ...)
* ``RustServer``  the wheel's own Python glue class, unmodified: ``drain``,
                  ``push_generation``, ``push_control_output``, ``push_error``
* ``io``          the wheel's ``io_struct`` (typed msgpack decoding), or None when it
                  could not be imported; then headers are decoded untyped

Only a handful of the wheel's modules are executed.  Every other import they make
(torch and the rest of the engine) is answered with an empty stand-in.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
import typing

import msgspec

# modules of the wheel that are really executed
REAL = {
    "sglang.srt.rust_server.server",
    "sglang.srt.utils.flatten",
    "sglang.srt.managers.io_struct",
    "sglang.srt.sampling.sampling_params",
    "sglang.srt.sampling.sampling_mask",
    "sglang.srt.utils.msgpack_utils",
    "sglang.srt.utils.msgspec_utils",
    "sglang.srt.utils.weight_versions",
    "sglang.srt.utils.field_validators",
    "sglang.srt.managers.kv_hints",
    "sglang.srt.beam_search.types",
    "sglang.srt.rust_extensions._server",
    "sglang.version",
}
STUB_ROOTS = ("sglang", "torch", "PIL", "transformers", "triton", "zmq")


class _Any(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _make(name)

    def __or__(cls, other):
        return cls

    __ror__ = __or__


def _make(name):
    return _Any(
        name,
        (),
        {
            "__init__": lambda self, *a, **k: None,
            "__call__": lambda self, *a, **k: None,
            "get": staticmethod(lambda *a, **k: False),
        },
    )


class _Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        # a type used in annotations reads as Any; anything else as an inert object
        v = typing.Any if name[0].isupper() and not name.isupper() else _make(name)
        setattr(self, name, v)
        return v


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in STUB_ROOTS:
            return None
        if name in REAL:
            base = os.path.join(self.root, *name.split("."))
            if name.endswith("._server"):
                d, stem = os.path.split(base)
                for f in sorted(os.listdir(d)):
                    if f.startswith(stem + ".") and f.endswith(".so"):
                        return importlib.util.spec_from_file_location(name, os.path.join(d, f))
            return importlib.util.spec_from_file_location(name, base + ".py")
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        m = _Stub(spec.name)
        m.__path__ = []
        return m

    def exec_module(self, module):
        pass


def load(root):
    finder = _Finder(root)
    sys.meta_path.insert(0, finder)
    try:
        ext = importlib.import_module("sglang.srt.rust_extensions._server")
        utils = importlib.import_module("sglang.srt.managers.utils")

        class MsgpackDecodeError(ValueError):
            def __init__(self, rid, reason):
                super().__init__(reason)
                self.rid, self.reason = rid, reason

        utils.MsgpackDecodeError = MsgpackDecodeError
        mm = importlib.import_module("sglang.srt.rust_server.multimodal")
        mm.settle_shm_buffers = lambda buffers, admitted: None
        io = None
        try:
            # values io_struct needs at import time
            sb = importlib.import_module("sglang.srt.managers.schedule_batch")
            sb.ReturnHiddenStatesMode = bool | str
            sb.SamplingLogprobsMode = str
            io = importlib.import_module("sglang.srt.managers.io_struct")
        except Exception as e:  # whatever a stubbed import raises
            print(f"sgl_glue: io_struct not importable ({e!r}); decoding untyped", file=sys.stderr)
        if io is not None:

            def decode(data):
                try:
                    return io.msgpack_decode(data)
                except Exception as e:
                    arr = msgspec.msgpack.decode(data)
                    raise MsgpackDecodeError(
                        str(arr[1]) if len(arr) > 1 and arr[1] is not None else None, str(e)
                    ) from e
        else:

            def decode(data):
                return msgspec.msgpack.decode(data)

        utils.msgpack_decode_explained = decode
        server = importlib.import_module("sglang.srt.rust_server.server")
        return types.SimpleNamespace(ext=ext, RustServer=server.RustServer, io=io)
    finally:
        sys.meta_path.remove(finder)


def server_args(ext, model_dir, host, port, **kw):
    """ext.ServerArgs with every field filled in; keyword arguments override."""
    cfg = {}
    p = os.path.join(model_dir, "config.json")
    if os.path.exists(p):
        with open(p) as f:
            cfg = json.load(f)
    ctx = kw.pop("context_len", cfg.get("max_position_embeddings", 32768))
    mc = ext.ModelConfig(
        context_len=ctx,
        vocab_size=cfg.get("vocab_size", 32000),
        is_multimodal=False,
        model_type=cfg.get("model_type"),
        default_sampling_params=ext.DefaultSamplingParams(),
    )
    a = {
        "model_path": model_dir,
        "served_model_name": "mock",
        "tokenizer_path": model_dir,
        "revision": None,
        "load_format": "auto",
        "weight_version": "default",
        "hicache_storage_backend": None,
        "hicache_storage_backend_extra_config": None,
        "hicache_storage_prefetch_policy": "best_effort",
        "hicache_write_policy": "write_through",
        "host": host,
        "port": port,
        "grpc_port": None,
        "log_level": "warning",
        "log_level_http": None,
        "chat_template": None,
        "default_chat_template_kwargs": "{}",
        "tool_call_parser": None,
        "reasoning_parser": None,
        "stream_response_default_include_usage": False,
        "tokenizer_worker_num": 1,
        "detokenizer_worker_num": 1,
        "skip_tokenizer_init": False,
        "skip_server_warmup": True,
        "health_generate_headers": {},
        "default_priority_value": None,
        "enable_request_header_overrides": False,
        "incremental_streaming_output": False,
        "disaggregation_mode": ext.DisaggregationMode.Null,
        "model_config": mc,
        "preferred_sampling_params": None,
        "default_max_new_tokens": 128,
        "lora_ids": {},
        "enable_strict_thinking": False,
        "limit_mm_data_per_request": [],
        "allow_auto_truncate": False,
        "enable_return_hidden_states": True,
        "num_reserved_tokens": 0,
        "tokenizer_model_max_length": ctx,
        "version": "0.5.23",
        "max_total_num_tokens": 4_000_000,
        "deployment_info": "{}",
        "launch_server_info": "{}",
        "load_snapshot_path": None,
        "load_snapshot_dp_size": 0,
        "load_snapshot_dp_rank": 0,
        "accelerator": "cpu",
        "num_accelerators": 1,
        "metrics": None,
    }
    unknown = set(kw) - set(a)
    if unknown:
        raise TypeError(f"unknown server args: {sorted(unknown)}")
    a.update(kw)
    return ext.ServerArgs(**a)
