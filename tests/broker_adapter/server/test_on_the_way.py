"""Messages that the engine has handed out, and that the connection's thread has not processed yet."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.events import Terminus
from broker_adapter.amqp.wire import EXCLUSIVE_CAPABILITY
from broker_adapter.engine.broker import Broker
from tests.broker_adapter.server.protocol_client import Client, encoded, put
from tests.broker_adapter.server.test_unfinished_messages import FOREIGN, OWN


def bodies(*numbers: int) -> list[bytes]:
    return [encoded(number) for number in numbers]


@pytest.mark.parametrize("product", [OWN, FOREIGN])
@pytest.mark.parametrize("ends", ["link", "session", "link that gets too large a message"])
def test_an_exclusive_heir_gets_them_in_their_order(broker: Broker, product: str, ends: str) -> None:
    client = Client(broker)
    client.open(properties={"product": product})
    peer = client.peer

    def exclusive(name: str) -> tuple[int, int]:
        session = peer.begin_session()
        source = Terminus("q", capabilities=(EXCLUSIVE_CAPABILITY,))
        link = peer.attach_receiver(session, name, source, Terminus(name))
        client.opened(link)
        peer.credit(link, 50)
        client.rest()
        return session, link

    is_too_large = ends == "link that gets too large a message"
    session, link = exclusive("first")
    if is_too_large:
        next(iter(client.server._consumers._consumers.values())).max_message_bytes = 1000
    _, heir = exclusive("second")
    put(broker, "q", *bodies(*range(5)))
    client.rest()
    if is_too_large:
        put(broker, "q", encoded("x" * 2000))
    put(broker, "q", *bodies(*range(5, 10)))
    if ends == "link":
        peer.close_link(link)
    elif ends == "session":
        peer.end_session(session)
    client.to_server()
    put(broker, "q", *bodies(*range(10, 15)))
    client.rest()
    seen = client.bodies(link)
    assert seen == list(range(5))
    # What was sent to our own client may still be acknowledged, unless its session has ended.
    keeps = product == OWN and ends != "session"
    heirs = [body for body in client.bodies(heir) if isinstance(body, int)]
    assert heirs == list(range(5 if keeps or is_too_large else 0, 15))


def test_nothing_passes_what_went_back_because_the_client_took_credit_back(broker: Broker) -> None:
    client = Client(broker).open()
    link = client.receiver("q", 20, name="r")
    client.rest()
    put(broker, "q", *bodies(*range(5)))
    tell = client.server.calls.add_callback
    late: list[Any] = []
    client.server.calls.add_callback = lambda *news: late.append(news)  # type: ignore[method-assign]
    put(broker, "q", *bodies(*range(5, 10)))
    client.peer.credit(link, -18)
    client.to_server()
    client.pump()
    client.peer.credit(link, 18)
    client.to_server()
    client.server.calls.add_callback = tell  # type: ignore[method-assign]
    for news in late:
        tell(*news)
    client.rest()
    assert client.bodies(link) == list(range(10))
