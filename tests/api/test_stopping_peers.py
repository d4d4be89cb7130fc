"""A process that says that it stops gets no new work: the request table looks for another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from forebay.topology import Peer, shard_of
from forebay.wire import control
from forebay.wire.messages import Hello
from forebay_api.mailbox import Mailbox


def hello(peer: Peer, status: str = "up", life: int = 1) -> bytes:
    said = Hello(role=peer.role, index=peer.number, incarnation=life, pid=1, version="v", status=status)
    return control.encode_hello(said)


def fresh() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"r{next(numbers)}"


def with_mailbox(story: Callable[[Mailbox], None], *, detokenizers: int = 2) -> None:
    async def told() -> None:
        loop = asyncio.get_running_loop()
        mailbox = Mailbox(0, detokenizers, lambda peer, frame: True, loop)
        for role in ("tokenizer", "detokenizer"):
            for number in range(2):
                mailbox.link_changed(Peer(role, number), True)
                mailbox.take([hello(Peer(role, number))])
        story(mailbox)

    asyncio.run(told())


def test_tokenizer_that_stops_is_left_out() -> None:
    def story(mailbox: Mailbox) -> None:
        mailbox.take([hello(Peer("tokenizer", 0), "stopping")])
        assert {mailbox.tokenizer() for _ in range(4)} == {Peer("tokenizer", 1)}

    with_mailbox(story)


def test_new_ids_belong_to_a_detokenizer_that_stays() -> None:
    def story(mailbox: Mailbox) -> None:
        mailbox.take([hello(Peer("detokenizer", 1), "stopping")])
        make = fresh()
        assert {shard_of(mailbox.open_rid(make), 2) for _ in range(20)} == {0}

    with_mailbox(story)


def test_new_ids_belong_to_a_detokenizer_that_is_there() -> None:
    def story(mailbox: Mailbox) -> None:
        mailbox.link_changed(Peer("detokenizer", 0), False)
        make = fresh()
        assert {shard_of(mailbox.open_rid(make), 2) for _ in range(20)} == {1}

    with_mailbox(story)


def test_the_next_life_of_a_detokenizer_takes_requests_again() -> None:
    def story(mailbox: Mailbox) -> None:
        peer = Peer("detokenizer", 1)
        mailbox.take([hello(peer, "stopping")])
        mailbox.link_changed(peer, False)
        mailbox.link_changed(peer, True)
        assert mailbox.shut_shards == {1}
        mailbox.take([hello(peer, life=2)])
        assert mailbox.shut_shards == set()

    with_mailbox(story)


def test_without_any_detokenizer_an_id_is_made_all_the_same() -> None:
    def story(mailbox: Mailbox) -> None:
        for number in range(2):
            mailbox.link_changed(Peer("detokenizer", number), False)
        assert mailbox.open_rid(fresh()) == "r0"

    with_mailbox(story)
