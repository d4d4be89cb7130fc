"""From the bodies of `/v1/completions` and `/v1/chat/completions` to a `Plan`: the OpenAI names mapped to our own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay.errors import RequestError
from forebay.wire.messages import Ids, RequestHead, SamplingParams
from forebay_api import again
from forebay_api.batch import check_count, check_items, id_prompts, public_rids
from forebay_api.chat_prompt import chat_prompt
from forebay_api.extras import hidden_states, lora_paths, passed_on, refuse_unsupported, thinking_budget
from forebay_api.fields import SamplingBody
from forebay_api.openai_bodies import ChatBody, CompletionBody
from forebay_api.openai_sampling import sampling_body
from forebay_api.plan import NO_HEADERS, AdmissionContext, HeaderFields, Plan, fresh_id
from forebay_api.sampling import SamplingRules, normalise, samples
from forebay_api.typeerrors import clipped

MAX_MODEL = 512
"""Characters of a model name: every event repeats it."""


def plan_completions(body: CompletionBody, ctx: AdmissionContext, headers: HeaderFields = NO_HEADERS) -> Plan:
    """The plan of a completions body. Raises `RequestError`."""
    if headers == NO_HEADERS:
        return again.completion(body, ctx, lambda whole: _completions(whole, ctx, headers))
    return _completions(body, ctx, headers)


def _completions(body: CompletionBody, ctx: AdmissionContext, headers: HeaderFields) -> Plan:
    _refuse(body)
    if body.suffix:
        raise RequestError("suffix is not supported by this model", param="suffix")
    texts, ids, batch = _prompts(body.prompt)
    count = len(texts or ids)
    if body.max_tokens is not None and body.max_tokens < (0 if body.echo else 1):
        raise RequestError("max_tokens must be positive", param="max_tokens")
    top = None if body.logprobs is None else check_count(body.logprobs, "logprobs", ctx)
    asked = _Asked(body.max_tokens, top, thinking_budget(body.max_thinking_tokens, "max_thinking_tokens", ctx))
    shared = _shared("completion", body, ctx, headers, asked, count, batch=batch)
    plan = shared.plan
    if body.best_of is not None and body.best_of != plan.n:
        raise RequestError("best_of values greater than n are not supported", param="best_of")
    plan.echo = bool(body.echo)
    for at in range(count):
        plan.add(
            ctx,
            shared.head(at, logprob_start_len=0 if plan.echo and plan.return_logprob else -1),
            text=texts[at] if texts else None,
            ids=ids[at] if ids else None,
            add_special_tokens=body.add_special_tokens is not False,
            truncate=body.truncate_prompt_tokens,
        )
    return plan


def plan_chat(body: ChatBody, ctx: AdmissionContext, headers: HeaderFields = NO_HEADERS) -> Plan:
    """The plan of a chat completions body. Raises `RequestError`."""
    if headers == NO_HEADERS:
        return again.chat(body, ctx, lambda whole: _chat(whole, ctx, headers))
    return _chat(body, ctx, headers)


def _chat(body: ChatBody, ctx: AdmissionContext, headers: HeaderFields) -> Plan:
    _refuse(body)
    prompt = chat_prompt(body, ctx)
    ids = id_prompts(body.input_ids, "input_ids")[0][0] if body.input_ids is not None else None
    shared = _shared("chat", body, ctx, headers, _chat_asked(body, ctx), 1, batch=False)
    chat = prompt if ids is None else None
    shared.plan.add(ctx, shared.head(0), chat=chat, ids=ids, truncate=body.truncate_prompt_tokens)
    return shared.plan


@dataclass(slots=True)
class _Asked:
    """What the routes spell differently: new tokens, alternatives (None: no logprobs), custom parameters."""

    limit: int | None
    top: int | None
    budget: dict[str, Any]


@dataclass(slots=True)
class _Shared:
    """The plan without its items, and what goes into the head of each."""

    plan: Plan
    sampling: SamplingParams
    priority: int | None
    extras: list[Any]
    loras: list[str | None]
    hidden: list[bool]

    def head(self, at: int, logprob_start_len: int = -1) -> RequestHead:
        """The head of prompt `at`."""
        return RequestHead(
            rid="",
            public_rid=self.plan.public_rids[at],
            sampling=self.sampling,
            return_logprob=self.plan.return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=self.plan.top_logprobs,
            return_hidden_states=self.hidden[at],
            priority=self.priority,
            lora_path=self.loras[at],
            extra=self.extras[at],
        )


def _shared(
    kind: str,
    body: CompletionBody | ChatBody,
    ctx: AdmissionContext,
    headers: HeaderFields,
    asked: _Asked,
    count: int,
    *,
    batch: bool,
) -> _Shared:
    model, adapter = model_of(body.model, ctx)
    rules = ctx.chat_rules if kind == "chat" else ctx.completion_rules
    written = sampling_body(body, asked.limit)
    n = samples(written, rules)
    check_items(count, n, ctx)
    rid = body.request_id if body.rid is None else body.rid
    rids = public_rids(rid, count, batch=batch)
    extras = passed_on(body, count, n, ctx, headers)
    sampling = _sampling(written, rules, asked.budget)
    hidden = hidden_states(body.return_hidden_states, count, ctx)
    plan = _plan(kind, body, ctx, asked.top)
    plan.n, plan.model, plan.batch, plan.public_rids = n, model, batch, rids
    plan.parent_rid = rid if isinstance(rid, str) else None
    plan.id = plan.parent_rid or fresh_id("chatcmpl-" if kind == "chat" else "cmpl-")
    plan.return_hidden_states = any(hidden)
    priority = ctx.default_priority if body.priority is None else body.priority
    return _Shared(plan, sampling, priority, extras, lora_paths(adapter or body.lora_path, count, ctx), hidden)


def _plan(kind: str, body: CompletionBody | ChatBody, ctx: AdmissionContext, top: int | None) -> Plan:
    stream = bool(body.stream)
    options = body.stream_options if stream else None
    usage = options is not None and options.include_usage
    return Plan(
        kind=kind,
        stream=stream,
        include_usage=stream and bool(usage or ctx.settings.stream_response_default_include_usage),
        continuous_usage=bool(options is not None and options.continuous_usage_stats),
        cache_report=ctx.settings.enable_cache_report,
        return_logprob=top is not None,
        top_logprobs=top or 0,
        return_token_ids=bool(body.return_token_ids or (isinstance(body, ChatBody) and body.return_prompt_token_ids)),
        hidden_size=ctx.hidden_size,
        weight_version=ctx.weight_version,
        log_metrics=body.log_metrics is not False,
        no_logs=bool(body.no_logs),
    )


def _refuse(body: CompletionBody | ChatBody) -> None:
    """What cannot be done, where that hangs on more than the field being there."""
    refuse_unsupported(body)
    if body.length_penalty not in (None, 1.0):
        raise RequestError("length_penalty is not supported", param="length_penalty")
    if body.prompt_logprobs is not None:
        text = "prompt_logprobs is not supported; completions give them with echo and logprobs"
        raise RequestError(text, param="prompt_logprobs")
    if body.modalities and body.modalities != ["text"]:
        raise RequestError('modalities can only be ["text"]', param="modalities")


def _prompts(prompt: Any) -> tuple[list[str], list[Ids], bool]:
    """The prompts as texts or as ids (the other list is empty), and whether they are a batch."""
    if prompt is None:
        raise RequestError("missing field `prompt`", param="prompt")
    if not prompt or (isinstance(prompt, list) and not any(one or one == 0 for one in prompt)):
        raise RequestError("Prompt cannot be empty", param="prompt")
    if isinstance(prompt, str):
        return [prompt], [], False
    if not any(isinstance(one, str) for one in prompt):
        ids, batch = id_prompts(prompt, "prompt")
        return [], ids, batch
    if not all(isinstance(one, str) for one in prompt):
        raise RequestError("prompt must be strings or token ids, not a mixture", param="prompt")
    return prompt, [], True


def _chat_asked(body: ChatBody, ctx: AdmissionContext) -> _Asked:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limit = getattr(body, name)
    context = ctx.context_length
    if limit is not None and limit < 1:
        raise RequestError(f"{name} must be positive", param=name)
    if limit is not None and context is not None and limit > context and not ctx.settings.allow_auto_truncate:
        text = f"{name} must be at most {context}, the model's context length, got {limit}."
        raise RequestError(text, param=name)
    top = check_count(body.top_logprobs or 0, "top_logprobs", ctx)
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    given = "max_thinking_tokens" if body.thinking_token_budget is None else "thinking_token_budget"
    return _Asked(limit, top if body.logprobs else None, thinking_budget(getattr(body, given), given, ctx))


def _sampling(body: SamplingBody, rules: SamplingRules, budget: dict[str, Any]) -> SamplingParams:
    params = normalise(body, rules)
    if budget:
        params.custom_params = {**(params.custom_params or {}), **budget}
    return params


def model_of(name: str | None, ctx: AdmissionContext) -> tuple[str, str | None]:
    """The model name to answer with and the adapter in it: `served`, `served:adapter`, or any name that is let through.

    The served name may itself hold a colon, so it is tried first.
    """
    served = ctx.model_name
    if not name or name in (served, "default"):
        return name or served, None
    if len(name) > MAX_MODEL:
        raise RequestError(f"model must be at most {MAX_MODEL} characters", param="model")
    base, _, adapter = (served, ":", name[len(served) + 1 :]) if name.startswith(served + ":") else name.partition(":")
    if ctx.settings.strict_model_name and base not in (served, "default"):
        text = f"The model '{clipped(name)}' does not exist; this server has '{served}'"
        raise RequestError(text, 404, param="model")
    if adapter and not ctx.has_lora:
        text = f"LoRA adapter '{clipped(adapter)}' was requested, but LoRA is not enabled. Start the engine with LoRA."
        raise RequestError(text, param="model")
    return name, adapter or None
