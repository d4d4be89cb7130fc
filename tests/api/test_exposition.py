"""The text of /metrics: sums over processes, names of other servers, gauges of the living alone."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from forebay.counters import Counters, counts_path
from forebay.metric_table import METRICS, TTFT
from forebay.topology import Peer
from forebay_api.exposition import Front, read_all, render, summed

PEERS = [Peer("api", 0), Peer("api", 1)]
MODEL = {"model_name": "m", "engine_type": "unified"}


def text_of(folder: Path, up: dict[Peer, bool] | None = None, names: str = "forebay") -> str:
    counts = read_all(folder, PEERS)
    front = Front(summed(counts, up or dict.fromkeys(PEERS, True)), names, MODEL)
    return render(front, "")[0].decode()


def values(text: str) -> dict[str, float]:
    """Every sample by name and labels, without the labels of the model."""
    out = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k not in MODEL)
            out[f"{sample.name}{{{labels}}}"] = sample.value
    return out


def both(folder: Path) -> list[Counters]:
    return [Counters(counts_path(folder, peer)) for peer in PEERS]


def test_counters_of_all_processes_are_added_up(tmp_path: Path) -> None:
    for counters in both(tmp_path):
        counters.counter("prompt_tokens_total").add(5)
    assert values(text_of(tmp_path))["forebay_prompt_tokens_total{}"] == 10


def test_histograms_are_added_up_and_cumulative(tmp_path: Path) -> None:
    for counters in both(tmp_path):
        counters.histogram("time_to_first_token_seconds", TTFT, is_streaming="true").observe(0.3)
    found = values(text_of(tmp_path))
    name = "forebay_time_to_first_token_seconds"
    assert found[f"{name}_bucket{{is_streaming=true,le=0.2}}"] == 0
    assert found[f"{name}_bucket{{is_streaming=true,le=0.4}}"] == 2
    assert found[f"{name}_bucket{{is_streaming=true,le=+Inf}}"] == 2
    assert found[f"{name}_count{{is_streaming=true}}"] == 2
    assert found[f"{name}_sum{{is_streaming=true}}"] == 0.6


def test_a_dead_process_keeps_its_counts_and_loses_its_queue(tmp_path: Path) -> None:
    for counters in both(tmp_path):
        counters.counter("prompt_tokens_total").add(5)
        counters.gauge("queue_depth", stage="api").set(3)
    found = values(text_of(tmp_path, {PEERS[0]: True, PEERS[1]: False}))
    assert found["forebay_prompt_tokens_total{}"] == 10
    assert found["forebay_queue_depth{stage=api}"] == 3
    assert found["forebay_process_up{name=api-1}"] == 0


def test_the_names_of_another_server_keep_ours_where_it_has_none(tmp_path: Path) -> None:
    for counters in both(tmp_path):
        counters.counter("prompt_tokens_total").add()
        counters.counter("engine_steps_total").add()
    for names in ("sglang", "vllm"):
        found = values(text_of(tmp_path, names=names))
        assert found[f"{names}:prompt_tokens_total{{}}"] == 2
        assert found["forebay_engine_steps_total{}"] == 2


def test_numbers_of_an_earlier_version_are_left_out(tmp_path: Path) -> None:
    counters = both(tmp_path)[0]
    counters.counter("gone_total").add()
    counters.histogram("tokenize_seconds", (1.0,)).observe(1)
    counters.counter("prompt_tokens_total", old_label="x").add()
    assert [line for line in text_of(tmp_path).splitlines() if not line.startswith(("#", "forebay_process_up"))] == []


def test_every_name_is_one_that_prometheus_takes() -> None:
    front = Front({}, "forebay", MODEL)
    families = list(text_string_to_metric_families(render(front, "")[0].decode()))
    assert len(families) == len(METRICS)


def test_labels_are_written_in_the_order_of_the_files() -> None:
    assert [metric.name for metric in METRICS.values() if list(metric.labels) != sorted(metric.labels)] == []
