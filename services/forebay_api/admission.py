"""Everything about a request that needs no tokenizer: from a body to a `Plan`, or to the one reason against it.

Here: `/generate`. The OpenAI routes are in `openai_admission`. Nothing is made for a request before its size is known
to be within the limits, and nothing of it is sent before all of its items have passed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from forebay.errors import RequestError
from forebay.wire.messages import RequestHead, SamplingParams
from forebay_api import again
from forebay_api.batch import (
    check_count,
    check_items,
    id_prompts,
    list_with_samples,
    per_item,
    public_rids,
    token_ids_of,
)
from forebay_api.extras import hidden_states, lora_paths, passed_on, refuse_unsupported, thinking_budget
from forebay_api.fields import SamplingBody
from forebay_api.openai_admission import plan_chat, plan_completions
from forebay_api.plan import NO_HEADERS, AdmissionContext, HeaderFields, Plan
from forebay_api.sampling import SamplingRules, normalise, samples, written
from forebay_api.schemas import GenerateBody

__all__ = [
    "AdmissionContext",
    "HeaderFields",
    "Plan",
    "plan_chat",
    "plan_completions",
    "plan_generate",
]

_NO_SAMPLING = SamplingBody()


def plan_generate(body: GenerateBody, ctx: AdmissionContext, headers: HeaderFields = NO_HEADERS) -> Plan:
    """The plan of a `/generate` body. Raises `RequestError`; the first fault in the spec's order decides."""
    if headers == NO_HEADERS:
        return again.generate(body, ctx, lambda whole: _generate(whole, ctx, headers))
    return _generate(body, ctx, headers)


def _generate(body: GenerateBody, ctx: AdmissionContext, headers: HeaderFields) -> Plan:
    refuse_unsupported(body)
    texts, ids, batch = _prompts(body)
    count = len(texts or ids)
    n = _samples(body.sampling_params, count, ctx)
    check_items(count, n, ctx)
    logprobs = _logprobs(body, count, n, ctx, batch=batch)
    rids = public_rids(body.rid, count, batch=batch)
    extras = passed_on(body, count, n, ctx, headers)
    budget = thinking_budget(body.max_thinking_tokens, "max_thinking_tokens", ctx)
    sampling = _sampling(body.sampling_params, count, budget, extras, ctx)
    hidden = hidden_states(body.return_hidden_states, count, ctx)
    loras = lora_paths(body.lora_path, count, ctx)
    priority = ctx.default_priority if body.priority is None else body.priority
    plan = _plan(body, ctx, n, rids, batch=batch)
    for at in range(count):
        head = RequestHead(
            rid="",
            public_rid=rids[at],
            sampling=sampling[at],
            return_logprob=logprobs[at][0],
            logprob_start_len=logprobs[at][1],
            top_logprobs_num=logprobs[at][2],
            token_ids_logprob=logprobs[at][3],
            return_hidden_states=hidden[at],
            priority=priority,
            lora_path=loras[at],
            extra=extras[at],
        )
        plan.add(ctx, head, text=texts[at] if texts else None, ids=ids[at] if ids else None)
    return plan


def _plan(body: GenerateBody, ctx: AdmissionContext, n: int, rids: list[str | None], *, batch: bool) -> Plan:
    stream = bool(body.stream)
    incremental = ctx.settings.incremental_streaming_output if body.stream_output is None else body.stream_output
    return Plan(
        kind="generate",
        parent_rid=body.rid if isinstance(body.rid, str) else None,
        public_rids=rids,
        n=n,
        stream=stream,
        batch=batch,
        keeps_going=(batch or n > 1) and not stream and ctx.settings.batch_error_mode == "item",
        incremental=incremental,
        text_in_logprobs=bool(body.return_text_in_logprobs),
        return_prompt_token_ids=body.return_prompt_token_ids,
        hidden_size=ctx.hidden_size,
        weight_version=ctx.weight_version,
        log_metrics=body.log_metrics is not False,
        no_logs=bool(body.no_logs),
    )


def _prompts(body: GenerateBody) -> tuple[list[str], list[Any], bool]:
    """The prompts as texts or as ids (the other list is empty), and whether they are a batch."""
    text, ids = body.text, body.input_ids
    if text is not None:
        if ids is not None:
            raise RequestError("provide either `text` or `input_ids`, not both", param="input_ids")
        if text == []:
            raise RequestError("batch must contain at least one item", param="text")
        return ([text], [], False) if isinstance(text, str) else (text, [], True)
    if ids is None:
        raise RequestError("either `text` or `input_ids` must be provided", param="text")
    session = bool((body.session_params or {}).get("id"))
    prompts, batch = id_prompts(ids, "input_ids", may_be_empty=session)
    return [], prompts, batch


def _samples(params: SamplingBody | list[SamplingBody] | None, count: int, ctx: AdmissionContext) -> int:
    """`n`, which is one for the whole call."""
    rules = ctx.generate_rules
    if not isinstance(params, list):
        return samples(params or _NO_SAMPLING, rules)
    per_item(params, count, "sampling_params")
    found = {samples(one, _rules_of(rules, at)) for at, one in enumerate(params)}
    if len(found) > 1:
        raise RequestError(f"all n in sampling_params must be equal, got {sorted(found)[:8]}", param="sampling_params")
    return found.pop()


def _rules_of(rules: SamplingRules, at: int) -> SamplingRules:
    """The same rules, naming entry `at` of a list in errors."""
    return dataclasses.replace(rules, prefix=f"sampling_params.{at}.")


def _sampling(
    params: SamplingBody | list[SamplingBody] | None,
    count: int,
    budget: dict[str, Any],
    extras: list[Any],
    ctx: AdmissionContext,
) -> list[SamplingParams]:
    """The parameters of each prompt; those of a whole batch are made once and shared."""
    if not isinstance(params, list):
        body = params or _NO_SAMPLING
        out = [_one_sampling(body, ctx.generate_rules, budget)] * count
        bodies = [body] * count
    else:
        bodies = params
        out = [_one_sampling(one, _rules_of(ctx.generate_rules, at), budget) for at, one in enumerate(params)]
    for at, body in enumerate(bodies):
        watermark = written(body, "watermark", ctx.generate_rules)
        if watermark is not None:
            named = {name: value for name, value in msgspec.structs.asdict(watermark).items() if value is not None}
            extras[at] = {**(extras[at] or {}), "watermark": named}
    return out


def _one_sampling(body: SamplingBody, rules: SamplingRules, budget: dict[str, Any]) -> SamplingParams:
    params = normalise(body, rules)
    if budget:
        params.custom_params = {**(params.custom_params or {}), **budget}
    return params


def _logprobs(
    body: GenerateBody, count: int, n: int, ctx: AdmissionContext, *, batch: bool
) -> list[tuple[bool, int, int, list[int] | None]]:
    """For each prompt: logprobs wanted, first prompt position, number of alternatives, ids asked for.

    Where none are wanted the other three say nothing, so that no engine computes them.
    """
    if n > 1:
        for name in ("return_logprob", "logprob_start_len", "top_logprobs_num"):
            if isinstance(getattr(body, name), list):
                raise list_with_samples(name)
    wanted = per_item(False if body.return_logprob is None else body.return_logprob, count, "return_logprob")
    starts = per_item(-1 if body.logprob_start_len is None else body.logprob_start_len, count, "logprob_start_len")
    tops = per_item(0 if body.top_logprobs_num is None else body.top_logprobs_num, count, "top_logprobs_num")
    ids = token_ids_of(body.token_ids_logprob, count, n, ctx, batch=batch)
    for start, top in set(zip(starts, tops, strict=True)):
        if start < -1:
            text = f"logprob_start_len must be at least -1, got {start}."
            raise RequestError(text, param="logprob_start_len")
        check_count(top, "top_logprobs_num", ctx)
    return [(True, starts[at], tops[at], ids[at]) if wanted[at] else (False, -1, 0, None) for at in range(count)]
