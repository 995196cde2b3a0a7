"""Scripted brokers behind real sockets, and clients whose connections are restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.failover.inner import Identification
from broker_adapter.failover.transport import FailoverTransport
from broker_adapter.transport import Credentials, Peer
from broker_adapter.urls.url import AmqpURL, FailoverURL, parse_url
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.failover.restored import Client, MakeClient


@pytest.fixture
def servers() -> Iterator[Callable[..., BrokerServer]]:
    made: list[BrokerServer] = []

    def make(*arguments: Any) -> BrokerServer:
        made.append(BrokerServer(*arguments))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def client() -> Iterator[MakeClient]:
    made: list[FailoverTransport] = []

    def make(url: str, **arguments: Any) -> Client:
        parsed = parse_url(url)
        assert isinstance(parsed, FailoverURL)
        seen: list[Credentials] = []

        def inner(address: AmqpURL, epoch: int, identification: Identification) -> AmqpTransport:
            transport = AmqpTransport(address, epoch=epoch, commit_prefix=identification.commit_prefix)
            really_open = transport.open

            def open_it(credentials: Credentials, *rest: Any) -> Peer:
                seen.append(credentials)
                return really_open(credentials, *rest)

            transport.open = open_it  # type: ignore[assignment,method-assign]
            return transport

        transport = FailoverTransport(parsed, inner, random=lambda: 0.5, **arguments)
        made.append(transport)
        return Client(transport, [], seen)

    yield make
    for transport in made:
        transport.close(1)
