"""forebay: the front of an LLM inference engine. An engine's author needs what is imported here and nothing else."""

from __future__ import annotations

from forebay._version import __version__
from forebay.batch import EmbeddingBatch, FlatFamily, GenerationBatch, HiddenFamily, RaggedFamily
from forebay.errors import ForebayError, LinkError, PeerError, RequestError, SettingsError, StartError, WireError
from forebay.shim import Front, should_launch
from forebay.wire.messages import AbortRequest, ControlRequest, GenerateRequest, SamplingParams

__all__ = [
    "AbortRequest",
    "ControlRequest",
    "EmbeddingBatch",
    "FlatFamily",
    "ForebayError",
    "Front",
    "GenerateRequest",
    "GenerationBatch",
    "HiddenFamily",
    "LinkError",
    "PeerError",
    "RaggedFamily",
    "RequestError",
    "SamplingParams",
    "SettingsError",
    "StartError",
    "WireError",
    "__version__",
    "should_launch",
]
