"""`/v1/loads` and `/get_load`: how busy the engine is, for routers that choose among servers.

The numbers come from the engine's answer to `GetInternalState`; a number that it does not tell is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from forebay.errors import RequestError
from forebay_api.http import TEXT, Exchange
from forebay_api.mailbox import ENGINE
from forebay_api.routes.route import Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay_api.app import Api

CORE = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_waiting_uncached_tokens",
    "num_used_tokens",
    "num_total_tokens",
    "num_active_tokens",
    "num_prealloc_ready_tokens",
    "max_total_num_tokens",
    "max_running_requests",
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
    "utilization",
    "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
)
SECTIONS = {
    "memory": "memory",
    "spec": "speculative",
    "lora": "lora",
    "disagg": "disaggregation",
    "queues": "queues",
}
"""The word in `include` and the key of the section."""
INCLUDE = ("core", *SECTIONS, "all")


def load_of(state: Mapping[str, Any], included: frozenset[str], now: float) -> dict[str, Any]:
    """The load of one engine link from its state."""
    load: dict[str, Any] = {"timestamp": now, "dp_rank": _number(state.get("dp_rank"))}
    if "core" in included:
        load |= {name: _number(state.get(name)) for name in CORE}
        load["num_total_tokens"] = load["num_total_tokens"] or load["num_used_tokens"]
        most = load["max_running_requests"]
        if not load["utilization"] and most:
            load["utilization"] = round(load["num_running_reqs"] / most, 4)
        if isinstance(state.get("decode_moments"), (list, dict)):
            load["decode_moments"] = state["decode_moments"]
    for word, key in SECTIONS.items():
        section = state.get(key, state.get(word))
        if word in included and isinstance(section, dict):
            load[key] = section
    return load


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def read_include(text: str | None) -> frozenset[str]:
    """The words of `include`, `all` and an absent parameter written out; raises `RequestError`."""
    words = {word.strip() for word in (text or "all").split(",")}
    unknown = sorted(words - set(INCLUDE))
    if unknown:
        raise RequestError(f"include: unknown {unknown[0][:40]!r}; choose among {', '.join(INCLUDE)}", param="include")
    return frozenset(("core", *SECTIONS)) if "all" in words else frozenset(words)


class _Gauges(Collector):
    """The numbers of loads as gauges with SGLang's names."""

    def __init__(self, loads: list[dict[str, Any]]) -> None:
        self._loads = loads

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for load in self._loads:
            rank = str(load["dp_rank"])
            for name, value in _flat(load):
                if name not in families:
                    families[name] = GaugeMetricFamily(f"sglang_{name}", "See /v1/loads.", labels=["dp_rank"])
                families[name].add_metric([rank], value)
        yield from families.values()


def _flat(load: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    words = {key: word for word, key in SECTIONS.items()}
    for name, value in load.items():
        if isinstance(value, dict) and name in words:
            yield from ((f"{words[name]}_{key}", number) for key, number in value.items() if _is_number(number))
        elif _is_number(value) and name not in ("timestamp", "dp_rank"):
            yield name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_text(loads: list[dict[str, Any]]) -> bytes:
    """The Prometheus form."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Gauges(loads))
    return bytes(generate_latest(registry))


async def loads(api: Api, http: Exchange) -> None:
    """How busy each engine link is; `include` chooses sections, `dp_rank` one link, `format=prometheus` the text."""
    query = http.query()
    included = read_include(query.get("include"))
    form = query.get("format", "json")
    if form not in ("json", "prometheus"):
        raise RequestError("format must be json or prometheus", param="format")
    rank = _rank(query.get("dp_rank"))
    state = await api.control(ENGINE, "GetInternalState", {})
    now = datetime.now(UTC)
    found = [load_of(state if isinstance(state, dict) else {}, included, now.timestamp())]
    if rank is not None:
        found = [load for load in found if load["dp_rank"] == rank]
    if form == "prometheus":
        await http.raw(200, as_text(found), TEXT)
        return
    facts = api.mailbox.facts
    raw = {} if facts is None else facts.raw
    await http.json(
        {
            "timestamp": now.isoformat(),
            "version": None if facts is None else facts.version,
            "accelerator": raw.get("accelerator") or raw.get("device"),
            "num_accelerators": raw.get("num_accelerators") or raw.get("tp_size") or 1,
            "loads": found,
        }
    )


def _rank(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError("dp_rank must be a whole number from 0", param="dp_rank")
    return int(text)


async def get_load(api: Api, http: Exchange) -> None:
    """The old, short form."""
    state = await api.control(ENGINE, "GetInternalState", {})
    load = load_of(state if isinstance(state, dict) else {}, frozenset({"core"}), 0.0)
    running, waiting = load["num_running_reqs"], load["num_waiting_reqs"]
    short = {"num_reqs": running + waiting, "num_waiting_reqs": waiting, "num_tokens": load["num_total_tokens"]}
    await http.json([{"dp_rank": load["dp_rank"], **short}])


ROUTES = [
    Route(("GET",), "/v1/loads", loads, "How busy the engine is", "information"),
    Route(("GET",), "/get_load", get_load, "How busy the engine is (old form)", "information"),
]
