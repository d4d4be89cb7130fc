"""The bodies of the routes that give vectors and scores in place of text, and their readers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from forebay_api.fields import Int64
from forebay_api.jsonbody import BodyReader


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """`POST /v1/embeddings`."""

    input: str | list[str | Int64 | list[Int64]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int64 | None = None
    user: str | None = None
    rid: str | list[str] | None = None
    priority: Int64 | None = None
    lora_path: str | None = None
    truncate_prompt_tokens: Int64 | None = None


class EncodeBody(msgspec.Struct, kw_only=True):
    """`POST /encode`."""

    text: str | list[str | list[str]] | None = None
    input_ids: list[Int64 | list[Int64]] | None = None
    rid: str | list[str] | None = None
    sampling_params: Raw | UnsetType = UNSET
    priority: Int64 | None = None
    routing_key: str | None = None
    lora_path: str | list[str | None] | None = None
    dimensions: Int64 | None = None
    is_cross_encoder_request: bool | None = None
    return_prompt_token_ids: bool | None = None
    return_pooled_hidden_states: bool | None = None


class ScoreBody(msgspec.Struct, kw_only=True):
    """`POST /v1/score`."""

    query: str | list[Int64]
    items: str | list[str | list[Int64]]
    label_token_ids: list[Int64 | list[Int64]] | None = None
    apply_softmax: bool | None = None
    temperature: float | None = None
    item_first: bool | None = None
    return_token_logprobs: bool | None = None
    model: str | None = None


def _reader(body: type[Any], title: str) -> BodyReader[Any]:
    return BodyReader(body, {"": (title, body.__struct_fields__)})


read_embedding = _reader(EmbeddingBody, "EmbeddingRequest").read
read_encode = _reader(EncodeBody, "EncodeRequest").read
read_score = _reader(ScoreBody, "ScoringRequest").read
