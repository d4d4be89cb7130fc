"""Fixtures of the api's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from forebay_api.plan import Plan
from tests.api.conversation import Conversation, Talk


@pytest.fixture
def talk() -> Iterator[Talk]:
    """Makes the conversation of a plan."""
    loop = asyncio.new_event_loop()

    def start(plan: Plan) -> Conversation:
        return Conversation(plan, loop)

    yield start
    loop.close()
