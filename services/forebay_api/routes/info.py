"""What the front says of itself and its model: `/v1/models`, `/model_info`, `/server_info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay._version import __version__
from forebay.config import public_view
from forebay.errors import RequestError
from forebay.redaction import without_secrets
from forebay_api.http import Exchange
from forebay_api.mailbox import ENGINE
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from forebay_api.app import Api

MODEL_FACTS = {
    "model_path": None,
    "served_model_name": None,
    "tokenizer_path": None,
    "is_generation": True,
    "preferred_sampling_params": None,
    "weight_version": None,
    "load_format": None,
    "reasoning_parser": None,
    "tool_call_parser": None,
    "disaggregation_mode": None,
    "has_image_understanding": False,
    "has_audio_understanding": False,
    "embedding_method": None,
    "model_type": None,
    "architectures": None,
}
"""The keys of `/model_info` and what they are when the engine does not say."""


def _card(api: Api) -> dict[str, Any]:
    name = api.model_name()
    facts = api.mailbox.facts
    return {
        "id": name,
        "object": "model",
        "created": api.started,
        "owned_by": api.settings.owned_by,
        "root": without_secrets(facts.model_path if facts is not None else None) or name,
        "parent": None,
        "max_model_len": api.context_length(),
    }


def _adapter_cards(api: Api) -> list[dict[str, Any]]:
    """A card for each adapter that the engine has loaded."""
    served = _card(api)
    adapters = api.admission().adapters or {}
    return [
        {**served, "id": name, "root": without_secrets(path), "parent": served["id"], "max_model_len": None}
        for name, path in sorted(adapters.items())
    ]


async def models(api: Api, http: Exchange) -> None:
    """The list of models: the one that is served, and its adapters."""
    await http.json({"object": "list", "data": [_card(api), *_adapter_cards(api)]})


async def model(api: Api, http: Exchange) -> None:
    """One model's card."""
    name = http.scope["path_params"]["model_id"]
    card = next((one for one in (_card(api), *_adapter_cards(api)) if one["id"] == name), None)
    if card is None:
        raise RequestError(f"The model '{name}' does not exist", 404, param="model")
    await http.json(card)


async def model_info(api: Api, http: Exchange) -> None:
    """Facts of the model, as the engine gave them."""
    facts = api.mailbox.facts
    raw = {} if facts is None else facts.raw
    body = {key: without_secrets(raw.get(key, default)) for key, default in MODEL_FACTS.items()}
    body["served_model_name"] = api.model_name()
    await http.json(body)


async def server_info(api: Api, http: Exchange) -> None:
    """Facts of the front and the engine, and the engine's live state unless `?static=1`."""
    facts = api.mailbox.facts
    if facts is None:
        raise RequestError("engine is not connected", 503)
    body: dict[str, Any] = {
        **public_view(api.settings),
        **facts.raw,
        "served_model_name": api.model_name(),
        "version": facts.version,
        "num_reserved_tokens": facts.num_reserved_tokens,
        "max_total_num_tokens": facts.max_total_num_tokens,
        "max_req_input_len": facts.max_req_input_len,
        "max_context_length": api.context_length(),
        "status": "ready" if api.problem() is None else api.problem(),
        "frontend": "forebay",
        "forebay_version": __version__,
        "processes": api.family.introductions(),
    }
    if http.query().get("static", "0") not in ("1", "true"):
        state = await api.control(ENGINE, "GetInternalState", {})
        body["internal_states"] = [without_secrets(state)]
    await http.json(without_secrets(body))


ROUTES = [
    Route(("GET",), "/v1/models", models, "List models", "models", openai=True),
    Route(("GET",), "/v1/models/{model_id:path}", model, "One model", "models", openai=True),
    Route(("GET",), "/model_info", model_info, "Model facts", "information"),
    Route(("GET",), "/get_model_info", model_info, "Model facts (old name)", "information"),
    Route(("GET",), "/server_info", server_info, "Server facts and live state", "information"),
    Route(("GET",), "/get_server_info", server_info, "Server facts (old name)", "information"),
]
