"""The request of a health probe."""

from __future__ import annotations

import uuid

from forebay.wire.messages import RequestHead, SamplingParams


def probe_head(rid: str) -> RequestHead:
    """The smallest request there is: one prompt token, one new token, greedy."""
    return RequestHead(rid=rid, sampling=SamplingParams(max_new_tokens=1, top_k=1))


def probe_rid() -> str:
    """A request id that engines know as a health probe."""
    return f"HEALTH_CHECK_{uuid.uuid4().hex}"
