"""Packages with the names of the services that only run `fake_role.py`: for tests of what starts them."""

from __future__ import annotations

from pathlib import Path

FAKE_ROLE = Path(__file__).parent / "fake_role.py"
MAIN = """
import runpy, sys
if sys.argv[1:2] == ["prepare"]:
    print("fetching", file=sys.stderr)
    print({answer!r})
    sys.exit({code})
number = sys.argv[sys.argv.index("--index") + 1]
sys.argv = [{script!r}, {events!r}, "{role}-" + number, *{words!r}]
runpy.run_path({script!r}, run_name="__main__")
"""
PREPARED = '{"model_dir": "/models/tiny", "tokenizer_path": "/models/tiny", "served_model_name": "tiny"}'


def write_services(folder: Path, *, answer: str = PREPARED, code: int = 0, **words: str) -> Path:
    """Fill `folder` (to be put on PYTHONPATH) with the four packages; returns the file of events.

    `words` are the arguments of `fake_role.py` by role (`ready` unless given); `answer` and `code` are what
    `forebay_engine prepare` prints and exits with.
    """
    events = folder / "events"
    for role in ("api", "tokenizer", "detokenizer", "engine"):
        package = folder / f"forebay_{role}"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        text = MAIN.format(
            answer=answer,
            code=code,
            script=str(FAKE_ROLE),
            events=str(events),
            role=role,
            words=words.get(role, "ready").split(),
        )
        (package / "__main__.py").write_text(text)
    return events


def told_pids(events: Path) -> list[int]:
    """The pids that the fake services wrote down."""
    lines = events.read_text().splitlines() if events.exists() else []
    return [int(line.split()[2]) for line in lines if line.split()[1] == "started"]
