"""`/v1/score`: how likely each of some tokens is behind a query and an item. Generation without output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.wire.messages import End
from forebay_api.admission import plan_generate
from forebay_api.batch import per_item
from forebay_api.controls import ask
from forebay_api.embedding_bodies import ScoreBody, read_score
from forebay_api.fields import SamplingBody
from forebay_api.http import Exchange
from forebay_api.openai_admission import model_of
from forebay_api.routes.generation import run_whole
from forebay_api.routes.route import Route
from forebay_api.schemas import GenerateBody

if TYPE_CHECKING:
    from forebay_api.app import Api


async def score(api: Api, http: Exchange) -> None:
    """The probability of each label token behind query and item, one row an item."""
    http.need_json()
    api.accepting()
    body = read_score(await http.body(api.settings.max_body_bytes))
    items = [body.items] if isinstance(body.items, str) else body.items
    labels = _labels(body, len(items), api)
    if body.temperature is not None and not (0 < body.temperature < math.inf):
        raise RequestError("temperature must be above 0", param="temperature")
    if body.temperature not in (None, 1.0) and not body.apply_softmax:
        raise RequestError("temperature needs apply_softmax", param="temperature")
    query = (await _ids(api, [body.query], "query", special=True))[0]
    found = await _ids(api, items, "items", special=False)
    prompts = [one + query if body.item_first else query + one for one in found]
    model, adapter = model_of(body.model, api.admission())
    plan = plan_generate(
        GenerateBody(
            lora_path=adapter,
            input_ids=list(prompts),
            sampling_params=SamplingBody(max_new_tokens=0, temperature=0.0),
            return_logprob=True,
            token_ids_logprob=list(labels),
        ),
        api.admission(),
    )
    plan.keeps_going = False
    call = await run_whole(api, http, plan)
    if call is None:
        return
    rows = [_logprobs(call.ends[at], labels[at]) for at in range(len(items))]
    prompt_tokens = sum(end.prompt_tokens for end in call.ends.values())
    await http.json(
        {
            "object": "scoring",
            "scores": [scores(row, bool(body.apply_softmax), body.temperature or 1.0) for row in rows],
            "token_logprobs": rows if body.return_token_logprobs else None,
            "model": model,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
        }
    )


def _labels(body: ScoreBody, count: int, api: Api) -> list[list[int]]:
    """The label tokens of each item: one list for all, or one list each."""
    name, given = "label_token_ids", body.label_token_ids
    if not given:
        raise RequestError("label_token_ids is required", param=name)
    if not count:
        raise RequestError("items cannot be empty", param="items")
    nested = [one for one in given if isinstance(one, list)]
    if nested and len(nested) != len(given):
        raise RequestError(f"{name} must be token ids, or one list of token ids for each item", param=name)
    rows: list[Any] = per_item(nested, count, name) if nested else [given] * count
    facts = api.mailbox.facts
    limit = facts.vocab_size if facts is not None else None
    for row in rows:
        if not row or min(row) < 0 or (limit is not None and max(row) >= limit):
            raise RequestError(f"{name} must be token ids of the model's vocabulary", param=name)
    return rows


async def _ids(api: Api, given: list[Any], param: str, *, special: bool) -> list[list[int]]:
    """The token ids of texts; lists of ids are taken as they are."""
    if all(isinstance(one, list) for one in given):
        return given
    if not all(isinstance(one, str) for one in given):
        raise RequestError(f"{param} must be texts or lists of token ids, not a mixture", param=param)
    fields = {"prompt": given, "add_special_tokens": special}
    answer = await ask(api, api.mailbox.tokenizer(), "Tokenize", fields)
    tokens: list[list[int]] = answer["tokens"]
    return tokens


def _logprobs(end: End, labels: list[int]) -> list[float | None]:
    """The logprob of each label behind the prompt; None where the engine gave none."""
    rows = (end.extra.output_token_ids if end.extra is not None else None) or [None]
    found = {} if rows[0] is None else dict(zip(rows[0].ids, rows[0].values, strict=True))
    return [found.get(label) for label in labels]


def scores(row: list[float | None], softmax: bool, temperature: float) -> list[float]:
    """Probabilities of logprobs, or their softmax over the labels. A label without a value counts 0."""
    values = [-math.inf if value is None or math.isnan(value) else value / temperature for value in row]
    if not softmax:
        return [math.exp(value) for value in values]
    top = max(values)
    if top == -math.inf:
        return [0.0] * len(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / sum(weights) for weight in weights]


ROUTES = [Route(("POST",), "/v1/score", score, "Score label tokens", "embeddings", openai=True, body=ScoreBody)]
