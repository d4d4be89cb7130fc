"""From the bodies of `/v1/embeddings` and `/encode` to a `Plan` of embedding requests. Pure; raises `RequestError`."""

from __future__ import annotations

from typing import Any

from forebay.errors import RequestError
from forebay.wire.messages import Ids, RequestHead, SamplingParams
from forebay_api.batch import check_items, id_prompts, public_rids
from forebay_api.embedding_bodies import EmbeddingBody, EncodeBody
from forebay_api.extras import lora_paths
from forebay_api.openai_admission import model_of
from forebay_api.plan import AdmissionContext, Plan, fresh_id

NOT_OFFERED = "this model does not give embeddings"


def plan_embeddings(body: EmbeddingBody, ctx: AdmissionContext) -> Plan:
    """The plan of a `/v1/embeddings` body."""
    _offered(ctx, "input")
    texts, ids, batch = _inputs(body.input)
    count = len(texts or ids)
    model, adapter = model_of(body.model, ctx)
    rids = public_rids(body.rid, count, batch=batch)
    plan = Plan(kind="embedding", model=model, batch=batch, public_rids=rids, hidden_size=ctx.hidden_size)
    plan.id = fresh_id("embd-")
    plan.parent_rid = body.rid if isinstance(body.rid, str) else None
    loras = lora_paths(adapter or body.lora_path, count, ctx)
    _add(plan, ctx, texts, ids, loras, body.priority, _dimensions(body.dimensions, ctx), body.truncate_prompt_tokens)
    return plan


def plan_encode(body: EncodeBody, ctx: AdmissionContext) -> Plan:
    """The plan of an `/encode` body."""
    _offered(ctx, "text")
    for name in ("is_cross_encoder_request", "return_pooled_hidden_states"):
        if getattr(body, name):
            raise RequestError(f"{name} is not supported", 501, param=name)
    texts, ids, batch = _prompts(body)
    count = len(texts or ids)
    plan = Plan(
        kind="encode",
        batch=batch,
        public_rids=public_rids(body.rid, count, batch=batch),
        parent_rid=body.rid if isinstance(body.rid, str) else None,
        return_prompt_token_ids=bool(body.return_prompt_token_ids),
    )
    extra = _dimensions(body.dimensions, ctx)
    if body.routing_key is not None:
        extra["routing_key"] = body.routing_key
    _add(plan, ctx, texts, ids, lora_paths(body.lora_path, count, ctx), body.priority, extra, None)
    return plan


def _offered(ctx: AdmissionContext, param: str) -> None:
    if not ctx.gives_embeddings:
        raise RequestError(NOT_OFFERED, param=param)


def _add(
    plan: Plan,
    ctx: AdmissionContext,
    texts: list[str],
    ids: list[Ids],
    loras: list[str | None],
    priority: int | None,
    extra: dict[str, Any],
    truncate: int | None,
) -> None:
    count = len(texts or ids)
    check_items(count, 1, ctx)
    for at in range(count):
        head = RequestHead(
            rid="",
            public_rid=plan.public_rids[at],
            sampling=SamplingParams(max_new_tokens=0, top_k=1),
            embedding=True,
            priority=ctx.default_priority if priority is None else priority,
            lora_path=loras[at],
            extra=extra or None,
        )
        plan.add(ctx, head, text=texts[at] if texts else None, ids=ids[at] if ids else None, truncate=truncate)


def _inputs(value: Any) -> tuple[list[str], list[Ids], bool]:
    """The inputs as texts or as ids (the other list is empty), and whether they are a batch."""
    if isinstance(value, str):
        return [_text(value, "input")], [], False
    if not value:
        raise RequestError("input cannot be empty", param="input")
    if all(isinstance(one, str) for one in value):
        return [_text(one, "input") for one in value], [], True
    if any(isinstance(one, str) for one in value):
        raise RequestError("input must be strings or token ids, not a mixture", param="input")
    ids, batch = id_prompts(value, "input")
    return [], _ids(ids, "input"), batch


def _prompts(body: EncodeBody) -> tuple[list[str], list[Ids], bool]:
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("provide either `text` or `input_ids`", param="text")
    if body.input_ids is not None:
        ids, batch = id_prompts(body.input_ids, "input_ids")
        return [], _ids(ids, "input_ids"), batch
    if isinstance(body.text, str):
        return [_text(body.text, "text")], [], False
    texts = body.text or []
    if not texts:
        raise RequestError("batch must contain at least one item", param="text")
    found = [one for one in texts if isinstance(one, str)]
    if len(found) != len(texts):
        raise RequestError("pairs of texts are for cross encoders, which this front does not serve", 501, param="text")
    return [_text(one, "text") for one in found], [], True


def _text(text: str, param: str) -> str:
    if not text.strip():
        raise RequestError(f"{param} cannot be empty or blank", param=param)
    return text


def _ids(prompts: list[Ids], param: str) -> list[Ids]:
    if any(min(ids) < 0 for ids in prompts):
        raise RequestError(f"{param} must be token ids of at least 0", param=param)
    return prompts


def _dimensions(wanted: int | None, ctx: AdmissionContext) -> dict[str, Any]:
    """The extra field that asks for shorter vectors. The launch facts `matryoshka_dimensions` (a list) or
    `is_matryoshka` say which models can."""
    if wanted is None:
        return {}
    if wanted < 1:
        raise RequestError("dimensions must be at least 1", param="dimensions")
    allowed = ctx.embedding_dimensions
    if allowed is None:
        raise RequestError("dimensions is not supported by this model", param="dimensions")
    if allowed and wanted not in allowed:
        raise RequestError(f"dimensions must be one of {', '.join(map(str, allowed))}", param="dimensions")
    return {"dimensions": wanted}
