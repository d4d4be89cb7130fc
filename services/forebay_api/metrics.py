"""What this api process counts: HTTP exchanges as they come and go, calls once each when they end.

Nothing is counted per token. A request is a prompt (see `forebay.metric_table`); its samples count as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.counters import Cell, Counters, Histogram
from forebay.metric_table import METRICS
from forebay_api.pace import Pace

if TYPE_CHECKING:
    from forebay.wire.messages import End
    from forebay_api.calls import Call, Choice

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
REASONS = frozenset({"stop", "length", "abort"})
OTHER = "other"
LEFT = 499
"""The status that is counted and logged for an exchange whose client left before its answer."""


class Way:
    """The numbers of the HTTP requests of one path and method, kept together: two lookups a request."""

    __slots__ = ("active", "answered", "requests")

    def __init__(self, requests: Cell, active: Cell) -> None:
        self.requests, self.active = requests, active
        self.answered: dict[int, Cell] = {}


class Metrics:
    """The counters of one api process."""

    def __init__(self, counters: Counters, pace: Pace, endpoints: Iterable[str]) -> None:
        """`endpoints`: the paths that stand in labels; every other path is `other`."""
        self._counters = counters
        self._pace = pace
        self._endpoints = frozenset(endpoints)
        self._cells: dict[tuple[str, str], Cell] = {}
        self._ways: dict[tuple[str, str], Way] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._keys: Counter[str] = Counter()
        self._active_keys = counters.gauge("routing_keys_active")
        pace.histogram = self._histogram("inter_token_latency_seconds")
        for name in ("prompt_tokens_total", "generation_tokens_total", "num_aborted_requests_total"):
            self._cell(name)
        for name in ("num_so_requests_total",):
            self._cell(name)

    # ---------------------------------------------------------------- HTTP
    def came(self, path: str, method: str) -> Way:
        """An HTTP request; returns what `went` is to be given."""
        way = self._ways.get((path, method)) or self._way(path, method)
        way.requests.add()
        way.active.add()
        return way

    def went(self, way: Way, status: int) -> None:
        """The end of an HTTP request, with the status of its answer."""
        way.active.add(-1)
        cell = way.answered.get(status)
        if cell is None:
            endpoint, method = next(names for names, one in self._ways.items() if one is way)
            labels = {"endpoint": endpoint, "method": method, "status_code": str(status or LEFT)}
            cell = way.answered[status] = self._counters.counter("http_responses_total", **labels)
        cell.add()

    def _way(self, path: str, method: str) -> Way:
        endpoint = path if path in self._endpoints else OTHER
        method = method if method in METHODS else OTHER
        way = self._ways.get((endpoint, method))
        if way is None:
            labels = {"endpoint": endpoint, "method": method}
            requests = self._counters.counter("http_requests_total", **labels)
            way = self._ways[endpoint, method] = Way(requests, self._counters.gauge("http_requests_active", **labels))
        return way

    # ---------------------------------------------------------------- calls
    def call_began(self, call: Call) -> None:
        """A call was handed to the tokenizer."""
        if not call.plan.log_metrics:
            self._pace.unmeasured += 1
            return
        keys = _routing_keys(call)
        if keys:
            self._keys.update(keys)
            self._active_keys.set(len(self._keys))

    def call_ended(self, call: Call) -> None:
        """A call has ended, in whatever way. Called exactly once for each call that began."""
        if not call.plan.log_metrics:
            self._pace.unmeasured -= 1
            return
        keys = _routing_keys(call)
        if keys:
            self._keys.subtract(keys)
            self._keys = +self._keys
            self._active_keys.set(len(self._keys))
        if len(call.choices) == 1:
            self._prompt(call, call.choices)
            return
        prompts: dict[int, list[Choice]] = {}
        for choice in call.choices:
            prompts.setdefault(choice.prompt, []).append(choice)
        for choices in prompts.values():
            self._prompt(call, choices)

    def _prompt(self, call: Call, choices: list[Choice]) -> None:
        streaming = "true" if call.plan.stream else "false"
        self._cell("num_requests_total", streaming).add()
        if _is_structured(choices[0]):
            self._cell("num_so_requests_total").add()
        reasons = [_reason(call, choice) for choice in choices]
        for reason in reasons:
            self._cell("finished_samples_total", reason).add()
        aborted = "abort" in reasons
        if aborted:
            self._cell("num_aborted_requests_total").add()
        ends = [call.ends[choice.index] for choice in choices if choice.index in call.ends]
        if ends:
            self._tokens(ends)
            if not aborted and "error" not in reasons:
                self._times(call, choices, ends, streaming)

    def _tokens(self, ends: list[End]) -> None:
        self._cell("prompt_tokens_total").add(ends[0].prompt_tokens)
        self._cell("cached_tokens_total", "device").add(ends[0].cached_tokens)
        self._cell("generation_tokens_total").add(sum(end.completion_tokens for end in ends))

    def _times(self, call: Call, choices: list[Choice], ends: list[End], streaming: str) -> None:
        """One value in each histogram, for a request that came to its own end."""
        first, last = _span(choices)
        tokens = [end.completion_tokens for end in ends]
        streams = call.plan.stream
        if streams:
            self._histogram("time_to_first_token_seconds", streaming).observe(first - call.began)
        self._histogram("e2e_request_latency_seconds", streaming).observe(last - call.began)
        longest = max(tokens)
        if longest > 1:
            since = first if streams else call.began
            self._histogram("request_time_per_output_token_seconds", streaming).observe((last - since) / (longest - 1))
        self._histogram("prompt_tokens_histogram").observe(ends[0].prompt_tokens)
        self._histogram("uncached_prompt_tokens_histogram").observe(ends[0].prompt_tokens - ends[0].cached_tokens)
        self._histogram("generation_tokens_histogram").observe(sum(tokens))

    def _cell(self, name: str, value: str = "") -> Cell:
        cell = self._cells.get((name, value))
        if cell is None:
            labels = dict(zip(METRICS[name].labels, [value] if value else [], strict=True))
            cell = self._cells[name, value] = self._counters.counter(name, **labels)
        return cell

    def _histogram(self, name: str, value: str = "") -> Histogram:
        found = self._histograms.get((name, value))
        if found is None:
            labels = dict(zip(METRICS[name].labels, [value] if value else [], strict=True))
            found = self._counters.histogram(name, METRICS[name].bounds, **labels)
            self._histograms[name, value] = found
        return found


def _span(choices: list[Choice]) -> tuple[float, float]:
    """When the first token of any sample came, and when the last sample ended."""
    # A stream whose only step is its last one has no first token but its end.
    if len(choices) == 1:
        return choices[0].first_at or choices[0].ended_at, choices[0].ended_at
    return min(choice.first_at or choice.ended_at for choice in choices), max(choice.ended_at for choice in choices)


def _reason(call: Call, choice: Choice) -> str:
    """How a sample ended. What neither ended nor failed was given up: its client left, or it was too slow to read."""
    end = call.ends.get(choice.index)
    if end is not None:
        kind = end.reason.get("type")
        return kind if kind in REASONS else OTHER
    return "error" if choice.index in call.faults and not call.expired else "abort"


def _is_structured(choice: Choice) -> bool:
    sampling = choice.item.head.sampling
    return bool(sampling.json_schema or sampling.regex or sampling.ebnf or sampling.structural_tag)


def _routing_keys(call: Call) -> list[str]:
    found = [item.head.extra.get("routing_key") for item in call.plan.items if item.head.extra]
    return [key for key in found if isinstance(key, str)]
