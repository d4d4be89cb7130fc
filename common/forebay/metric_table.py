"""Every number that forebay publishes at `/metrics`: its name, what it counts, its labels and buckets.

`metrics_names` chooses between forebay's own names and those of two other servers, whose dashboards then work; a number
that such a server does not have keeps our name. Units: seconds, tokens, bytes. "Requests" are prompts: a batch of three
counts three, the `n` samples of one prompt count once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E = (*TTFT, 600, 1200, 1800, 2400)
# fmt: off
STEP = (
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080, 0.1, 0.2, 0.4, 0.6, 0.8,
    1, 2, 4, 6, 8,
)
TOKENS = (
    100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12000, 15000, 20000, 22000,
    25000, 30000, 35000, 40000, 66000, 99000, 132000, 300000, 600000, 900000, 1100000,
)
WORK = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5,
)
# fmt: on
Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One number. `sglang` and `vllm`: its name with those servers, "" where they have none."""

    name: str
    """Without the prefix `forebay_`; counters end with `_total`."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    sglang: str = ""
    vllm: str = ""
    own: bool = False
    """About forebay's processes, not about the model: it has no label `model_name`."""

    def shown(self, names: str) -> str:
        """The full name under a setting of `metrics_names`."""
        if names == "sglang" and self.sglang:
            return f"sglang:{self.sglang}"
        if names == "vllm" and self.vllm:
            return f"vllm:{self.vllm}"
        return f"forebay_{self.name}"


def _same(name: str, kind: Kind, help: str, *, vllm: str = "", **more: tuple[str, ...] | tuple[float, ...]) -> Metric:
    """A number that SGLang has under the same name."""
    return Metric(name, kind, help, sglang=name, vllm=vllm, **more)  # type: ignore[arg-type]


STREAMING = ("is_streaming",)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _same("prompt_tokens_total", "counter", "Prompt tokens of ended requests.", vllm="prompt_tokens_total"),
        _same("generation_tokens_total", "counter", "Output tokens of ended requests.", vllm="generation_tokens_total"),
        _same(
            "cached_tokens_total",
            "counter",
            "Prompt tokens that the engine had in its cache.",
            labels=("cache_source",),
            vllm="prefix_cache_hits_total",
        ),
        _same("num_requests_total", "counter", "Requests (prompts) that have ended.", labels=STREAMING),
        _same("num_so_requests_total", "counter", "Of these, requests with structured output."),
        _same("num_aborted_requests_total", "counter", "Of these, requests that were aborted before their own end."),
        Metric(
            "finished_samples_total",
            "counter",
            "Samples by the way they ended: stop, length, abort, error, other.",
            ("finished_reason",),
            vllm="request_success_total",
        ),
        _same(
            "time_to_first_token_seconds",
            "histogram",
            "From the request's arrival to its first token, of streaming requests.",
            labels=STREAMING,
            bounds=TTFT,
            vllm="time_to_first_token_seconds",
        ),
        _same(
            "inter_token_latency_seconds",
            "histogram",
            "Between two tokens of a stream, taken once a step for all rows of the step.",
            bounds=STEP,
            vllm="inter_token_latency_seconds",
        ),
        _same(
            "request_time_per_output_token_seconds",
            "histogram",
            "Mean time of a token after the first, one value a request.",
            labels=STREAMING,
            bounds=STEP,
            vllm="request_time_per_output_token_seconds",
        ),
        _same(
            "e2e_request_latency_seconds",
            "histogram",
            "From a request's arrival to its end.",
            labels=STREAMING,
            bounds=E2E,
            vllm="e2e_request_latency_seconds",
        ),
        _same(
            "prompt_tokens_histogram",
            "histogram",
            "Prompt tokens of a request.",
            bounds=TOKENS,
            vllm="request_prompt_tokens",
        ),
        _same("uncached_prompt_tokens_histogram", "histogram", "Of these, tokens not in the cache.", bounds=TOKENS),
        _same(
            "generation_tokens_histogram",
            "histogram",
            "Output tokens of a request, all its samples together.",
            bounds=TOKENS,
            vllm="request_generation_tokens",
        ),
        _same("http_requests_total", "counter", "HTTP requests.", labels=("endpoint", "method")),
        _same("http_responses_total", "counter", "HTTP answers.", labels=("endpoint", "method", "status_code")),
        _same("http_requests_active", "gauge", "HTTP requests being answered.", labels=("endpoint", "method")),
        _same("routing_keys_active", "gauge", "Different routing keys of running requests (summed over processes)."),
        Metric("queue_depth", "gauge", "What waits or runs at a stage.", ("stage",), own=True),
        Metric("frames_total", "counter", "Frames on the links.", ("direction", "link"), own=True),
        Metric("frame_bytes_total", "counter", "Bytes of these frames.", ("direction", "link"), own=True),
        Metric("dropped_frames_total", "counter", "Frames that did not do their work.", ("reason",), own=True),
        Metric("refused_connections_total", "counter", "Client connections over max_connections.", own=True),
        Metric("engine_steps_total", "counter", "Steps of the engine that a detokenizer has read.", own=True),
        Metric("tokenize_seconds", "histogram", "Rendering and encoding of one prompt.", (), WORK, own=True),
        Metric("detokenize_seconds", "histogram", "One step of the engine, ids to text.", (), WORK, own=True),
        Metric("ingress_wait_seconds", "histogram", "A prompt's wait for an encoding thread.", (), WORK, own=True),
        Metric("kept_bytes", "gauge", "Steps that the engine's link keeps for a detokenizer that dies.", own=True),
        Metric("resumed_requests_total", "counter", "Requests taken up again after a detokenizer died.", own=True),
        Metric("process_up", "gauge", "Whether a process of the front is there.", ("name",), own=True),
    )
}
