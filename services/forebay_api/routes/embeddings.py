"""Vectors in place of text: `/v1/embeddings` (OpenAI) and `/encode` (native)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.errors import RequestError
from forebay_api import embedding_replies
from forebay_api.embedding_admission import plan_embeddings, plan_encode
from forebay_api.embedding_bodies import EmbeddingBody, EncodeBody, read_embedding, read_encode
from forebay_api.http import Exchange
from forebay_api.routes.generation import run_whole
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api


async def embeddings(api: Api, http: Exchange) -> None:
    """OpenAI embeddings. What the vectors are is said by `embedding_method` in `/model_info`."""
    http.need_json()
    api.accepting()
    body = read_embedding(await http.body(api.settings.max_body_bytes))
    call = await run_whole(api, http, plan_embeddings(body, api.admission()))
    if call is not None:
        await http.json(embedding_replies.embeddings(call, body.encoding_format or "float"))


async def encode(api: Api, http: Exchange) -> None:
    """Native embeddings."""
    api.accepting()
    body = read_encode(await http.body(api.settings.max_body_bytes))
    call = await run_whole(api, http, plan_encode(body, api.admission()))
    if call is not None:
        await http.json(embedding_replies.encoded(call))


async def classify(api: Api, http: Exchange) -> None:
    """Classification needs a reward or classification model, which no engine here serves."""
    raise RequestError("this model does not classify")


ROUTES = [
    Route(
        ("POST",), "/v1/embeddings", embeddings, "Embeddings (OpenAI)", "embeddings", openai=True, body=EmbeddingBody
    ),
    Route(("POST", "PUT"), "/encode", encode, "Embeddings (native)", "embeddings", body=EncodeBody),
    Route(("POST", "PUT"), "/classify", classify, "Classification", "embeddings", body=EncodeBody),
]
