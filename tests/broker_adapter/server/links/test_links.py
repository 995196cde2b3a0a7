"""Which links are attached, and what becomes of one that the engine refuses."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteOpen
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.links import Links


class Peer:
    """Has these links, and notes which of them are refused."""

    def __init__(self, *links: int) -> None:
        self.links = set(links)
        self.refused: list[tuple[int, AmqpError]] = []

    def has_link(self, link: int) -> bool:
        return link in self.links

    def refuse_link(self, link: int, error: AmqpError) -> None:
        self.refused.append((link, error))


def attach(link: int, session: int = 1) -> LinkRemoteOpen:
    return LinkRemoteOpen(link, session, "name", True, True, None, None, False, None, {})


def test_links_belong_to_their_session_and_end_with_it() -> None:
    peer: Any = Peer(1, 2, 3)
    links = Links(peer, Client())
    links.begin(1)
    assert all(links.add(attach(link, session)) for link, session in ((1, 1), (2, 1), (3, 2)))
    assert not links.add(attach(4))
    links.remove(2)
    assert (len(links), repr(links)) == (3, "<Links sessions=2 links=3>")
    assert links.end(1) == {1, 4}
    assert links.end(1) == set()
    links.clear()
    assert len(links) == 0


@pytest.mark.parametrize("gone", ["", "detached", "closed by the server", "with its connection"])
def test_an_error_of_the_engine_refuses_a_link_that_is_still_there(gone: str) -> None:
    peer: Any = Peer(1)
    client = Client()
    links = Links(peer, client)
    links.add(attach(1))
    assert not links.refused(attach(1), None)
    if gone == "detached":
        links.remove(1)
    elif gone == "closed by the server":
        peer.links.clear()
    client.has_ended = gone == "with its connection"
    assert links.refused(attach(1), InvalidDestinationException("no such queue"))
    assert [link for link, _ in peer.refused] == ([] if gone else [1])
    assert links.refused(attach(1), None) is bool(gone)
