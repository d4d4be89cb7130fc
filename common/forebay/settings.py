"""Every setting of forebay: its type and default in `Settings`, its section, sentence and limits in `TABLE`.

This is the only table of settings. The command line, the environment, `deploy/forebay.toml` and the error texts are
all made from it (`forebay.config`); nothing here reads a file or the environment. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from forebay.backlog import LINK_BYTES

MIB = 1024 * 1024


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """All settings with their defaults; `forebay.config.load` makes one from file, environment and flags."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    tls_certfile: str | None = None
    tls_keyfile: str | None = None
    cors_origins: str = "*"
    keep_alive_timeout: float = 75.0
    header_timeout: float = 30.0
    body_timeout: float = 60.0
    max_connections: int | None = None
    max_header_bytes: int = 64 * 1024
    max_body_bytes: int = 64 * MIB
    max_bodies_bytes: int = 1024 * MIB

    api_key: str | None = None
    admin_api_key: str | None = None

    model_path: str | None = None
    tokenizer_path: str | None = None
    fast_tokenizer: Literal["auto", "off"] = "auto"
    chat_template: str | None = None
    served_model_name: str | None = None
    context_length: int | None = None

    engine: Literal["default", "echo", "none"] = "default"
    apis: int = 1
    tokenizers: int = 1
    detokenizers: int = 1
    tokenizer_threads: int = 2
    cores: str | None = None
    run_dir: str | None = None
    endpoints: dict[str, Any] | None = None
    keys_dir: str | None = None
    start_timeout: float = 600.0
    drain_timeout: float = 30.0
    restart_limit: int = 5
    restart_window: float = 60.0

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    log_requests: bool = False
    log_request_text: bool = False
    metrics_names: Literal["forebay", "sglang", "vllm"] = "forebay"
    metrics_need_key: bool = False

    health_generation: bool = True
    health_timeout: float = 20.0
    warmup: bool = True
    warmup_timeout: float = 600.0
    control_timeout: float = 30.0

    max_inflight: int = 16384
    max_tokenizer_queue: int = 4096
    max_states: int = 65536
    max_link_bytes: int = LINK_BYTES
    max_stream_backlog_bytes: int = 8 * MIB
    max_batch_items: int = 4096
    max_n: int = 128
    max_top_logprobs: int = 1024
    open_wait: float = 5.0
    dispatch_wait: float = 30.0
    resume_timeout: float = 5.0
    resume_kept_bytes: int = 64 * MIB

    default_max_new_tokens: int | None = 128
    allow_auto_truncate: bool = False
    strict_model_name: bool = False
    strict_abort: bool = True
    batch_error_mode: Literal["item", "all"] = "item"
    prefix_warmup: bool | None = None
    preferred_sampling_params: dict[str, Any] | None = None
    sampling_defaults: Literal["model", "forebay"] = "model"
    stop_match: Literal["front", "engine"] = "front"
    stream_interval: int = 1
    sse_ping_interval: float | None = None
    incremental_streaming_output: bool = False
    stream_response_default_include_usage: bool = False
    enable_cache_report: bool = False
    error_format: Literal["both", "openai", "sglang"] = "both"
    owned_by: str = "forebay"
    trust_request_chat_template: bool = False
    default_chat_template_kwargs: dict[str, Any] | None = None

    engine_threads: int = 1
    engine_precision: Literal["auto", "f32", "bf16"] = "auto"
    engine_weights: Literal["f16", "q8_0"] = "f16"
    engine_max_running: int = 32
    engine_prefill_tokens: int = 512
    engine_cache_tokens: int = 65536
    echo_text: str | None = None
    echo_step_ms: float = 0.0
    echo_tokens_per_step: int = 1


class Row(NamedTuple):
    """What the operator is told of one setting, and the numbers it may have (`ge`, `gt`, `le`: as in msgspec)."""

    sentence: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    secret: bool = False
    """Never shown, logged or answered."""


TABLE: dict[str, dict[str, Row]] = {
    "Where clients connect": {
        "host": Row("Address to listen on; 0.0.0.0 or :: is every interface."),
        "port": Row("TCP port to listen on; 0 takes a free one.", ge=0, le=65535),
        "uds": Row("Path of a unix socket to listen on, in place of host and port."),
        "tls_certfile": Row("Certificate chain (PEM) for HTTPS; needs tls_keyfile."),
        "tls_keyfile": Row("Private key (PEM) of tls_certfile, without a password."),
        "cors_origins": Row("Origins that browsers may call from, separated by commas; * allows all."),
        "keep_alive_timeout": Row("Seconds that an idle client connection is kept open.", ge=0),
        "header_timeout": Row("Seconds for a request's head (and for the TLS handshake); then 408.", gt=0),
        "body_timeout": Row(
            "Seconds that a request's body may pause or stay below 1 KiB/s (408), and that a client may read nothing.",
            gt=0,
        ),
        "max_connections": Row(
            "Client connections of one api process; one more is answered 503. none: what its file descriptors allow.",
            ge=1,
        ),
        "max_header_bytes": Row("Largest request head; a larger one is answered 431.", ge=1024),
        "max_body_bytes": Row("Largest request body; a larger one is answered 413.", ge=1),
        "max_bodies_bytes": Row("Bodies of all requests under way in one api process; one more is answered 503.", ge=1),
    },
    "Keys": {
        "api_key": Row("Key that clients must send (Authorization: Bearer KEY).", secret=True),
        "admin_api_key": Row("Key for the control routes (flush, abort, profile ...).", secret=True),
    },
    "Model and tokenizer": {
        "model_path": Row("Model folder, .gguf file or hub repository (owner/name); none: the packaged SmolLM2-135M."),
        "tokenizer_path": Row("Folder with tokenizer.json, if it is not the model's folder."),
        "fast_tokenizer": Row(
            "auto: encode with fastokens where it is installed and gives the same ids; off: with tokenizers only."
        ),
        "chat_template": Row("Path of a Jinja file, in place of the model's chat template."),
        "served_model_name": Row("Model name in /v1/models and in answers; none: taken from the model."),
        "context_length": Row("Longest prompt plus answer in tokens; none: what the engine says.", ge=1),
    },
    "Processes": {
        "engine": Row("Engine to start: default (the model), echo (no model, for tests), none (it runs elsewhere)."),
        "apis": Row("Number of api processes.", ge=1, le=64),
        "tokenizers": Row("Number of tokenizer processes.", ge=1, le=64),
        "detokenizers": Row("Number of detokenizer processes.", ge=1, le=64),
        "tokenizer_threads": Row(
            "Encoding threads in each tokenizer process; 1 counts as 2: one is kept for small requests.", ge=1, le=64
        ),
        "cores": Row(
            "Cores of each role, as in engine=0-1;api=2;tokenizer-0=3;detokenizer=2,3. A bare list (0-7) is divided by "
            "the automatic rule; off pins nothing; none: the automatic rule over all allowed cores."
        ),
        "run_dir": Row("Private folder (mode 0700) of the process sockets; none: a fresh one, removed at the end."),
        "endpoints": Row(
            "Processes that are reached over TCP, for a front on several hosts: engine-0 = tcp://10.0.0.5:7001 and so "
            "on; needs keys_dir. All others have a socket in run_dir."
        ),
        "keys_dir": Row("Folder of the keys that processes on TCP show each other; `forebay keys DIR` makes it."),
        "start_timeout": Row("Seconds within which every process must be ready.", gt=0),
        "drain_timeout": Row("Seconds that running requests may take to finish after SIGTERM.", ge=0),
        "restart_limit": Row("Restarts of one process within restart_window before everything is stopped.", ge=0),
        "restart_window": Row("Seconds over which restarts are counted.", gt=0),
    },
    "Logs and metrics": {
        "log_level": Row("Least important log lines to show."),
        "log_format": Row("Form of the log lines on stderr."),
        "log_requests": Row(
            "Log one line for each finished request, but for health probes (no prompt, no text, unless "
            "log_request_text is set)."
        ),
        "log_request_text": Row("These lines hold the first 2,000 characters of the prompt, unless no_logs is set."),
        "metrics_names": Row("Names in /metrics: forebay_..., or those of another server, for its dashboards."),
        "metrics_need_key": Row("/metrics needs the api key (or the admin key); false: it is open."),
    },
    "Health and control": {
        "health_generation": Row("/health asks the engine for one token; false: it only looks at the links."),
        "health_timeout": Row("Seconds that /health waits for the engine.", gt=0),
        "warmup": Row("Send one short request through all processes before saying ready."),
        "warmup_timeout": Row("Seconds that the warm-up request may take.", gt=0),
        "control_timeout": Row("Seconds that a control call (flush, server_info ...) waits for its answer.", gt=0),
    },
    "Limits": {
        "max_inflight": Row("Unfinished requests in one api process; one more is answered 429.", ge=1),
        "max_tokenizer_queue": Row("Prompts waiting for one tokenizer; one more is answered 503.", ge=1),
        "max_states": Row("Unfinished requests in one detokenizer; one more is answered 503.", ge=1),
        "max_link_bytes": Row(
            "Bytes on their way from one process to another, or waiting for one tokenizer; more is answered 503.",
            ge=65536,
        ),
        "max_stream_backlog_bytes": Row("Bytes that wait for a slow reader before its stream is aborted.", ge=4096),
        "max_batch_items": Row("Prompts in one request.", ge=1),
        "max_n": Row("Largest n (samples of one prompt).", ge=1),
        "max_top_logprobs": Row("Largest number of top logprobs of a position.", ge=0),
        "open_wait": Row("Seconds that the first tokens of a request wait for its announcement.", gt=0),
        "dispatch_wait": Row(
            "Seconds that a request waits while no tokenizer runs, or not its detokenizer; then 503.", gt=0
        ),
        "resume_timeout": Row(
            "Seconds that requests wait for their detokenizer when it has died, to go on where they were; then 503. 0: "
            "they end at once.",
            ge=0,
        ),
        "resume_kept_bytes": Row(
            "Bytes of steps that the engine's link keeps for that; a request that began before the oldest of them ends "
            "with 503. 0: none are kept.",
            ge=0,
        ),
    },
    "What a request gets when it does not say": {
        "default_max_new_tokens": Row("max_new_tokens of /generate; none: until the model stops.", ge=0),
        "allow_auto_truncate": Row("Cut a prompt that is too long; false: answer 400 with both numbers."),
        "strict_model_name": Row("Answer 404 to an unknown model name; false: any name is served."),
        "strict_abort": Row("Answer 400 to an abort that names nothing; false: 200, and nothing is aborted."),
        "batch_error_mode": Row(
            "A prompt of a /generate batch that fails: item puts its error in its place, all ends the whole batch."
        ),
        "prefix_warmup": Row(
            "With n above 1 the prompt is computed once before its samples start; none: where the engine says that it "
            "has a prefix cache."
        ),
        "preferred_sampling_params": Row("Sampling parameters for requests that do not name them."),
        "sampling_defaults": Row("Chat defaults: from the model's generation_config.json, or forebay's own table."),
        "stop_match": Row("Who looks for stop strings: the front (detokenizer) or the engine."),
        "stream_interval": Row("Tokens in one stream event.", ge=1),
        "sse_ping_interval": Row(
            "Seconds of silence after which a stream gets a comment line (: ping); none: never. The first one sends "
            "the head (200), so a later error comes as an event.",
            gt=0,
        ),
        "incremental_streaming_output": Row("Events of /generate hold only the new text; false: all text so far."),
        "stream_response_default_include_usage": Row("Streams end with a usage event even if nobody asked for it."),
        "enable_cache_report": Row("Usage shows how many prompt tokens were cached."),
        "error_format": Row("Shape of the error bodies of the OpenAI routes."),
        "owned_by": Row("The owned_by of the model cards in /v1/models."),
        "trust_request_chat_template": Row("Requests may bring their own chat template (it runs in a sandbox)."),
        "default_chat_template_kwargs": Row("Template variables for chats that do not set them."),
    },
    "The engines that come with forebay": {
        "engine_threads": Row("Compute threads of the default engine.", ge=1, le=1024),
        "engine_precision": Row("Arithmetic of the default engine; auto: bf16 where the processor has it."),
        "engine_weights": Row("Weights in memory: f16 is exact, q8_0 takes half of it."),
        "engine_max_running": Row("Requests that the default engine decodes at the same time.", ge=1),
        "engine_prefill_tokens": Row("Prompt tokens in one step.", ge=1),
        "engine_cache_tokens": Row("Tokens that the key-value cache holds.", ge=32),
        "echo_text": Row("Text that the echo engine answers; none: the prompt itself."),
        "echo_step_ms": Row("Milliseconds of one step of the echo engine.", ge=0),
        "echo_tokens_per_step": Row("Tokens of each request in one step of the echo engine.", ge=1),
    },
}
"""Section heading -> setting -> what is known of it, in the order of the help and of `deploy/forebay.toml`."""
