"""A client that reconnects, and takes the place of its old connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_adapter.amqp.events import RemoteClose, RemoteOpen, Terminus, Transfers
from sdk import (
    ConnectionFactory,
)
from tests.broker_adapter.server.served import (
    Served,
    heard,
    opened,
)
from tests.contracts.transports import eventually

pytestmark = pytest.mark.usefixtures("often")


def test_a_client_that_reconnects_takes_the_place_of_its_old_connection(serve: Callable[..., Served]) -> None:
    served = serve()
    first, first_peer = opened(served, "secret")
    assert heard(first, first_peer, RemoteOpen).properties["holdfast-store"] == served.broker.unique
    second, second_peer = opened(served, "secret")
    answer = heard(second, second_peer, RemoteOpen)
    assert "amqp:connection-establishment-failed" not in answer.properties, "its client id is free"
    assert heard(first, first_peer, RemoteClose) is None
    eventually(lambda: len(served.listener.connections) == 1)
    for each in (first, second):
        each.close()


def test_a_client_that_reconnects_needs_no_second_place(serve: Callable[..., Served]) -> None:
    served = serve(max_connections=1)
    first, first_peer = opened(served, "secret")
    heard(first, first_peer, RemoteOpen)
    second, second_peer = opened(served, "secret")
    assert "amqp:connection-establishment-failed" not in heard(second, second_peer, RemoteOpen).properties
    third, third_peer = opened(served, "another", "other")
    assert heard(third, third_peer, RemoteClose).error.condition == "amqp:resource-limit-exceeded"
    for each in (first, second, third):
        each.close()


@pytest.mark.parametrize("token", [None, "", "another", "x" * 101])
def test_a_client_with_another_word_or_none_takes_nobodys_place(
    serve: Callable[..., Served], token: str | None
) -> None:
    served = serve()
    first, first_peer = opened(served, "x" * 101 if token == "x" * 101 else "secret")
    heard(first, first_peer, RemoteOpen)
    second, second_peer = opened(served, token)
    answer = heard(second, second_peer, RemoteOpen)
    assert answer.properties["amqp:connection-establishment-failed"] is True, "the client id is in use"
    assert len(served.listener._tokens) <= 2
    for each in (first, second):
        each.close()
    eventually(lambda: len(served.listener._tokens) == 0)


def test_what_the_old_connection_had_is_there_for_the_new_one(serve: Callable[..., Served]) -> None:
    served = serve()
    with ConnectionFactory(served.url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_queue("q")).send("x")
    first, first_peer = opened(served, "secret")
    heard(first, first_peer, RemoteOpen)
    link = first_peer.attach_receiver(first_peer.begin_session(), "r", Terminus("q"), Terminus())
    first_peer.credit(link, 10)
    first.sendall(first_peer.pending_output())
    assert heard(first, first_peer, Transfers) is not None
    second, second_peer = opened(served, "secret")
    heard(second, second_peer, RemoteOpen)
    link = second_peer.attach_receiver(second_peer.begin_session(), "r", Terminus("q"), Terminus())
    second_peer.credit(link, 10)
    second.sendall(second_peer.pending_output())
    assert heard(second, second_peer, Transfers) is not None
    for each in (first, second):
        each.close()
