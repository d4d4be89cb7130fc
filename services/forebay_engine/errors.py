"""What can go wrong with a model before the engine runs. The texts are for the operator."""

from __future__ import annotations

from forebay.errors import StartError


class ModelError(StartError):
    """A model cannot be fetched, read or converted; the text says what to do."""
