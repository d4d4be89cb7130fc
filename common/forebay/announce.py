"""What the engine's greeting says of it: launch facts, and whether generation is paused. Changes are greeted anew."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from forebay._version import __version__
from forebay.facts import make_blob
from forebay.topology import Peer
from forebay.wire.control import encode_hello
from forebay.wire.messages import ControlRequest, Hello


class Announcement:
    """Facts and state of one life of an engine. Raises `SettingsError` for facts of a wrong type."""

    def __init__(self, me: Peer, incarnation: int, facts: Mapping[str, Any]) -> None:
        self.paused = False
        self.replays = False
        """Whether a detokenizer that starts is told what it missed."""
        self._me, self._incarnation = me, incarnation
        self._facts = dict(facts)
        self._blob = make_blob(self._facts)

    def update(self, changes: Mapping[str, Any]) -> None:
        """Replace facts; raises `SettingsError` and changes nothing when one has a wrong type."""
        facts = {**self._facts, **changes}
        self._blob = make_blob(facts)
        self._facts = facts

    def greeting(self) -> bytes:
        """The Hello frame."""
        return encode_hello(
            Hello(
                role=self._me.role,
                index=self._me.number,
                incarnation=self._incarnation,
                pid=os.getpid(),
                version=__version__,
                blob=self._blob,
                status="paused" if self.paused else "up",
                replays=self.replays,
            )
        )


def facts_after(call: ControlRequest, output: Any) -> dict[str, Any]:
    """The launch facts that a control call has changed: only where the engine says that it succeeded."""
    if not (isinstance(output, dict) and output.get("success") is True):
        return {}
    fields = call.fields
    out: dict[str, Any] = {}
    version = fields.get("new_version") if call.type == "UpdateWeightVersion" else fields.get("weight_version")
    if isinstance(version, str):
        out["weight_version"] = version
    if call.type == "UpdateWeightsFromDisk":
        out["model_path"] = out["served_model_name"] = fields.get("model_path")
        if fields.get("load_format") is not None:
            out["load_format"] = fields["load_format"]
    if isinstance(output.get("loaded_adapters"), dict):
        out["loaded_adapters"] = output["loaded_adapters"]
    return out
