"""The text of `/metrics`: the counters of all processes of the front, summed, whichever api process is asked.

Counters and histograms of a process that has died stay in the sum; what waits in it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from forebay.counters import Sample, counts_path, read_counts
from forebay.metric_table import METRICS, Metric
from forebay.tally import INTRODUCTION
from forebay.topology import Peer

Labels = tuple[tuple[str, str], ...]
STALE = 5.0
"""Seconds without a sign of life after which a process that we have no link to counts as down."""


class ProcessCounts(msgspec.Struct):
    """The counters of one process; `alive_at` is its last sign of life (seconds since 1970)."""

    peer: Peer
    alive_at: float
    samples: list[Sample]

    def introduction(self) -> dict[str, str]:
        """What the process says of itself: `pid`, `cores`, `version`; empty before it does."""
        return next((dict(s.labels) for s in self.samples if s.name == INTRODUCTION and s.values[0]), {})

    def total(self, name: str) -> float:
        """The sum of a counter over its labels."""
        return sum(s.values[0] for s in self.samples if s.name == name)


def read_all(run_dir: Path, peers: Iterable[Peer]) -> list[ProcessCounts]:
    """The counters of these processes, as they stand."""
    return [ProcessCounts(peer, *read_counts(counts_path(run_dir, peer))) for peer in peers]


def summed(processes: Iterable[ProcessCounts], up: Mapping[Peer, bool]) -> dict[str, dict[Labels, list[float]]]:
    """By metric and labels: the sum over the processes; gauges of those alone that are up."""
    out: dict[str, dict[Labels, list[float]]] = {}
    for process in processes:
        for kind, name, labels, values in process.samples:
            metric = METRICS.get(name)
            if metric is None or metric.kind != kind or (kind == "gauge" and not up.get(process.peer)):
                continue
            size = len(metric.bounds) + 2 if kind == "histogram" else 1
            if len(values) != size or tuple(label for label, _ in labels) != metric.labels:
                continue  # an earlier version of forebay wrote it
            before = out.setdefault(name, {}).get(labels)
            out[name][labels] = values if before is None else [a + b for a, b in zip(before, values, strict=True)]
    out["process_up"] = {(("name", str(peer)),): [float(alive)] for peer, alive in up.items()}
    return out


class Front(Collector):
    """Turns sums into the families of prometheus_client."""

    def __init__(self, sums: Mapping[str, Mapping[Labels, list[float]]], names: str, model: Mapping[str, str]) -> None:
        """`names`: the setting `metrics_names`; `model`: labels of every number about the model."""
        self._sums, self._names, self._model = sums, names, model

    def collect(self) -> Iterator[Family]:
        """One family for each metric of the table, also for those that nothing has counted yet."""
        for metric in METRICS.values():
            yield self._family(metric, self._sums.get(metric.name, {}))

    def _family(self, metric: Metric, rows: Mapping[Labels, list[float]]) -> Family:
        name = metric.shown(self._names)
        extra = {} if metric.own else dict(self._model)
        names = [*extra, *metric.labels]
        if metric.kind == "histogram":
            family = HistogramMetricFamily(name, metric.help, labels=names)
            for labels, values in rows.items():
                counts = list(accumulate(values[:-1]))
                buckets = list(zip([*map(str, map(float, metric.bounds)), "+Inf"], counts, strict=True))
                family.add_metric([*extra.values(), *dict(labels).values()], buckets, values[-1])
            return family
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        plain = kind(name, metric.help, labels=names)
        for labels, values in rows.items():
            plain.add_metric([*extra.values(), *dict(labels).values()], values[0])
        return plain


def render(front: Front, accept: str) -> tuple[bytes, str]:
    """The text and its content type, in the form that the scraper asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(front)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
