"""What the loop asks of an engine, and how the engine that the settings name is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from forebay import AbortRequest, EmbeddingBatch, GenerateRequest, GenerationBatch, SettingsError
from forebay.settings import Settings
from forebay_engine.cache import Progress, default_cache_dir


class Engine(Protocol):
    """Takes requests between steps, and computes in steps. One thread calls it."""

    def add(self, request: GenerateRequest) -> None:
        """Take a request; raises `RequestError` for one that cannot be served."""

    def abort(self, abort: AbortRequest) -> None:
        """End one request or all; after the reason `user` a last row must follow with a step."""

    def step(self) -> GenerationBatch | None:
        """Compute one step; the rows of the requests that have something to say, None when there are none."""

    def embeddings(self) -> EmbeddingBatch | None:
        """The vectors that the steps since the last call have finished; None when there are none."""

    def pause(self, mode: str) -> None:
        """Compute nothing until `resume`. `retract`: give back what running requests hold; `in_place`: keep it."""

    def resume(self) -> None:
        """Go on."""

    def patience(self) -> float | None:
        """Seconds until the next step is due: 0 for at once, None when there is nothing to do."""

    def flush(self) -> tuple[bool, str]:
        """Empty the caches unless requests are pending: success, and a sentence about it."""

    def state(self) -> dict[str, Any]:
        """Facts about the moment."""


class OpenEngine(NamedTuple):
    """An engine that is ready, and its launch facts for `Front`."""

    engine: Engine
    facts: dict[str, Any]


def open_engine(settings: Settings, environ: Mapping[str, str], progress: Progress) -> OpenEngine:
    """Open the engine that `settings.engine` names; the default one fetches and converts its model if need be.

    Raises `StartError` with what to do, and `SettingsError` for an engine that does not run here.
    """
    if settings.engine == "echo":
        from forebay_engine.echo import open_echo

        return OpenEngine(*open_echo(settings))
    if settings.engine != "default":
        raise SettingsError(f"engine is {settings.engine!r}: this process runs default or echo")
    return _open_default(settings, default_cache_dir(environ), progress)


def _open_default(settings: Settings, cache_dir: Path, progress: Progress) -> OpenEngine:
    from forebay_engine.backend import Backend, best_precision
    from forebay_engine.model_facts import model_facts
    from forebay_engine.model_store import prepare
    from forebay_engine.scheduler import Limits, Scheduler

    folder = prepare(settings.model_path, cache_dir, settings, progress)
    facts = model_facts(folder, settings)
    precision = best_precision() if settings.engine_precision == "auto" else settings.engine_precision
    backend = Backend(
        folder.path, threads=settings.engine_threads, precision=precision, cache_tokens=settings.engine_cache_tokens
    )
    backend.warm_up()
    facts |= {"precision": precision, "weights": settings.engine_weights, "vocab_size": backend.vocab_size}
    limits = Limits(
        context=facts["context_length"],
        running=settings.engine_max_running,
        prefill=settings.engine_prefill_tokens,
        eos=frozenset(facts["eos_token_ids"]),
    )
    return OpenEngine(Scheduler(backend, limits, _decoder(settings, facts)), facts)


def _decoder(settings: Settings, facts: dict[str, Any]) -> Any:
    """Ids to text for an engine that looks for stop strings itself, else None."""
    if settings.stop_match != "engine":
        return None
    from tokenizers import Tokenizer

    path = facts["tokenizer_path"]
    if path is None:
        raise SettingsError("stop_match is engine, which needs a tokenizer: set tokenizer_path")
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)
