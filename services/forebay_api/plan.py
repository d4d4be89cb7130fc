"""What a request becomes: the work for the tokenizer, and what the reply side must know to answer it.

Also the context that admission works in: the settings and the engine's facts, looked through once.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from forebay.errors import RequestError
from forebay.facts import LaunchFacts
from forebay.settings import Settings
from forebay.wire.messages import ChatPrompt, Ids, OpenItem, RequestHead, WorkItem
from forebay_api.sampling import SamplingRules, layer, model_layer
from forebay_api.shapes import Shapes

COMPLETION_TOKENS = 16
"""`max_tokens` of a completions request that does not say."""
_OPENAI_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}


class HeaderFields(NamedTuple):
    """HTTP headers that stand for fields of the body, as they came; they win over the body."""

    data_parallel_rank: str | None = None
    routing_key: str | None = None


NO_HEADERS = HeaderFields()


class AdmissionContext:
    """Settings and facts in the form that admission asks for. Raises `SettingsError` for bad sampling defaults."""

    def __init__(
        self,
        settings: Settings,
        facts: LaunchFacts | None,
        new_rid: Callable[[str | None], str],
        api: int = 0,
    ) -> None:
        self.settings = settings
        self.facts = facts
        self.new_rid = new_rid
        """From the client's own id to a wire id that has never been used; called once a sample."""
        self.api = api
        known = LaunchFacts() if facts is None else facts
        raw = known.raw
        self.context_length = settings.context_length or known.context_length
        self.model_name = settings.served_model_name or known.served_model_name or known.model_path or "default"
        self.hidden_size = known.hidden_size
        self.weight_version = known.weight_version
        self.gives_hidden_states = known.enable_hidden_states
        self.has_lora = raw.get("enable_lora") is True
        adapters = raw.get("loaded_adapters")
        self.adapters: dict[str, Any] | None = adapters if isinstance(adapters, dict) else None
        """Loaded adapters and their paths; None: the engine does not say."""
        self.has_logit_processors = raw.get("enable_custom_logit_processor") is True
        self.has_thinking_budget = raw.get("enable_strict_thinking") is True
        self.has_tokenizer = raw.get("skip_tokenizer_init") is not True
        self.gives_embeddings = raw.get("embedding_method") is not None or raw.get("is_generation") is False
        self.embedding_dimensions = _dimensions(raw)
        """Sizes to which embeddings may be cut; empty: any; None: none."""
        caches = raw.get("prefix_cache") is True
        self.warms_prefix = caches if settings.prefix_warmup is None else settings.prefix_warmup
        self.dp_size = _number(raw.get("dp_size")) or 1
        scheduled = raw.get("enable_priority_scheduling") is True
        self.default_priority = _number(raw.get("default_priority_value")) if scheduled else None
        self.shapes: Shapes[Plan] = Shapes()
        """Plans of earlier requests (`forebay_api.again`)."""
        self._rules(known)

    def _rules(self, known: LaunchFacts) -> None:
        """The sampling rules of each route; the operator's own setting goes before what the engine says."""
        settings = self.settings
        wished = settings.preferred_sampling_params or known.preferred_sampling_params
        preferred = layer(wished, "preferred_sampling_params")
        model = known.default_sampling_params or known.model_config.get("default_sampling_params")
        defaults = model_layer(model if settings.sampling_defaults == "model" else None)

        def rules(limit: int | None, *layers: dict[str, object], native: bool = False) -> SamplingRules:
            return SamplingRules(
                max_new_tokens=limit,
                layers=tuple(keys for keys in layers if keys),
                vocab_size=known.vocab_size,
                max_n=settings.max_n,
                has_tokenizer=self.has_tokenizer,
                prefix="sampling_params." if native else "",
                renamed={} if native else _OPENAI_NAMES,
            )

        self.generate_rules = rules(settings.default_max_new_tokens, dict(preferred), native=True)
        self.completion_rules = rules(COMPLETION_TOKENS, dict(preferred))
        self.chat_rules = rules(None, dict(preferred), dict(defaults))


class Plan(msgspec.Struct, kw_only=True):
    """One admitted call. `items[i]` is prompt `i`, with one wire id a sample; `ids[i]` its token ids, or empty."""

    kind: str
    """`generate`, `completion`, `chat`, `embedding` or `encode`."""
    model: str = ""
    """The model's name as the client wrote it."""
    id: str = ""
    """The `id` of an OpenAI answer."""
    parent_rid: str | None = None
    """The one id that the client gave to the whole call, if it did; `public_rids` are made of it."""
    public_rids: list[str | None] = []
    """What the client calls each prompt; None where it gave no id."""
    items: list[WorkItem] = []
    ids: list[Ids] = []
    n: int = 1
    stream: bool = False
    batch: bool = False
    """The prompts came as a list, so the answer is one."""
    keeps_going: bool = False
    """An item that fails after admission does not end the others."""
    incremental: bool = False
    """Frames of `/generate` hold only what is new."""
    include_usage: bool = False
    continuous_usage: bool = False
    cache_report: bool = False
    echo: bool = False
    return_logprob: bool = False
    """OpenAI routes; on `/generate` each item's head says it."""
    top_logprobs: int = 0
    text_in_logprobs: bool = False
    return_token_ids: bool = False
    return_prompt_token_ids: bool = False
    return_hidden_states: bool = False
    """OpenAI routes; on `/generate` each item's head says it."""
    hidden_size: int | None = None
    weight_version: str | None = None
    log_metrics: bool = True
    no_logs: bool = False

    @classmethod
    def probe(cls) -> Plan:
        """The plan of a health probe, whose one item the caller adds: a prompt of one token id."""
        return cls(kind="generate", ids=[array("q", [0])], public_rids=[None], log_metrics=False, no_logs=True)

    def add(
        self,
        ctx: AdmissionContext,
        head: RequestHead,
        *,
        text: str | None = None,
        chat: ChatPrompt | None = None,
        ids: Ids | None = None,
        add_special_tokens: bool = True,
        truncate: int | None = None,
    ) -> None:
        """Add a prompt: give each sample its wire id, and complete `head` and what the detokenizer must know."""
        if ids is None and not ctx.has_tokenizer:
            raise RequestError("text is unavailable when skip_tokenizer_init=True; send input_ids", param="text")
        rids = [ctx.new_rid(head.public_rid) for _ in range(self.n)]
        head.rid, head.api, head.stream = rids[0], ctx.api, self.stream
        self.ids.append(array("q") if ids is None else ids)
        self.items.append(
            WorkItem(
                head=head,
                rids=rids,
                open=self._open(ctx, head, echoes_ids=self.echo and text is None),
                text=text,
                chat=chat,
                has_ids=ids is not None,
                add_special_tokens=add_special_tokens,
                truncate_prompt_tokens=truncate,
                max_new_tokens_given=head.sampling.max_new_tokens is not None,
            )
        )

    def _open(self, ctx: AdmissionContext, head: RequestHead, *, echoes_ids: bool) -> OpenItem:
        sampling = head.sampling
        return OpenItem(
            rid=head.rid,
            api=ctx.api,
            stream=self.stream,
            skip_special_tokens=sampling.skip_special_tokens,
            spaces_between_special_tokens=sampling.spaces_between_special_tokens,
            no_stop_trim=sampling.no_stop_trim,
            stop=sampling.stop,
            stop_regex=sampling.stop_regex,
            min_new_tokens=sampling.min_new_tokens,
            want_ids=self.kind == "generate" or self.return_token_ids,
            want_prompt_ids=self.return_prompt_token_ids or self.return_token_ids,
            want_prompt_text=echoes_ids,
            want_token_bytes=head.return_logprob and (self.kind != "generate" or self.text_in_logprobs),
            return_logprob=head.return_logprob,
            return_hidden_states=head.return_hidden_states,
            stream_interval=sampling.stream_interval or ctx.settings.stream_interval,
        )


def fresh_id(prefix: str = "") -> str:
    """An id that nobody has or can guess: the prefix and 32 hex digits (0.5 us; `uuid4` 1.8)."""
    return prefix + os.urandom(16).hex()


def _dimensions(raw: dict[str, Any]) -> list[int] | None:
    sizes = raw.get("matryoshka_dimensions")
    if isinstance(sizes, list) and sizes:
        return [size for size in sizes if isinstance(size, int)]
    return [] if raw.get("is_matryoshka") is True else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
