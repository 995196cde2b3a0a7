"""Conversions of messages for a client, which are spread over turns."""

from __future__ import annotations

from functools import partial

import pytest

from broker_adapter.amqp.messages.payloads import as_amqp, decode_received
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.server.links import consumers
from broker_adapter.server.protocol import ServerProtocol
from tests.broker_adapter.engine.driving import WAIT, connect, drained
from tests.broker_adapter.server import protocol_client
from tests.broker_adapter.server.protocol_client import Client, put


class Conversions:
    """Counts conversions of messages, and is a clock that goes on with each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 0.0
        self.count = 0

        def convert(form: int, payload: bytes) -> bytes:
            self.now += seconds
            self.count += 1
            return as_amqp(form, payload)

        monkeypatch.setattr(consumers, "as_amqp", convert)
        paced = partial(ServerProtocol, clock=lambda: self.now)
        monkeypatch.setattr(protocol_client, "ServerProtocol", paced)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Conversions:
    """Each conversion takes four milliseconds."""
    return Conversions(monkeypatch, 0.004)


def to_convert(broker: Broker, count: int, name: str = "q") -> None:
    put(
        broker,
        name,
        *[pack(Envelope(queue(name), BodyKind.TEXT, f"{n}" + "x" * 20_000)) for n in range(count)],
        format=ENVELOPE_FORMAT,
    )


def handed_out(client: Client, broker: Broker) -> None:
    """Have the engine hand out what it may, while the connection's thread does nothing."""
    client.to_server()
    broker.call(c.Statistics(), WAIT)
    broker.call(c.Statistics(), WAIT)


def test_conversions_for_a_client_are_spread_over_turns(slow: Conversions, broker: Broker) -> None:
    to_convert(broker, 10)
    client = Client(broker).open()
    link = client.receiver("q", 10, name="r")
    handed_out(client, broker)
    counts = []
    for _ in range(4):
        client._woken.clear()
        client.peer.receive(client.server.pending_output())
        counts.append(slow.count)
        assert client._woken.is_set() is (slow.count < 10)  # it asks for its next turn
    assert counts == [3, 6, 9, 10]
    client.receive(link, 10)
    assert [body[0] for body in client.bodies(link)] == list("0123456789")


def test_credit_that_a_client_takes_back_does_not_count_twice_where_conversions_wait(
    slow: Conversions, broker: Broker
) -> None:
    to_convert(broker, 20)
    client = Client(broker).open()
    link = client.receiver("q", 10, name="r")
    handed_out(client, broker)
    client.peer.credit(link, -4)
    client.receive(link, 6)
    client.rest()
    assert [body[0] for body in client.bodies(link)] == list("012345")
    client.peer.credit(link, 4)
    client.receive(link, 10)
    client.rest()
    assert (len(client.messages(link)), client.peer.remaining_credit(link)) == (10, 0)


def test_all_links_of_a_connection_share_the_time_of_a_turn(slow: Conversions, broker: Broker) -> None:
    client = Client(broker).open()
    for name in ("a", "b", "c"):
        to_convert(broker, 3, name)
    for link in [client.receiver(name, name=name) for name in ("a", "b", "c")]:
        client.peer.credit(link, 3)
    handed_out(client, broker)
    client.server.pending_output()
    assert slow.count == 3
    client.until(lambda: slow.count == 9)


def test_a_drain_is_answered_behind_the_conversions_of_later_turns(slow: Conversions, broker: Broker) -> None:
    to_convert(broker, 10)
    client = Client(broker).open()
    link = client.receiver("q", name="r")
    client.peer.credit(link, 20)
    client.peer.drain(link)
    client.until(lambda: client.peer.remaining_credit(link) == 0)
    assert [body[0] for body in client.bodies(link)] == list("0123456789")


@pytest.mark.parametrize("end", ["link", "session", "connection", "loss"])
def test_what_waits_for_its_conversion_goes_back_untouched(slow: Conversions, broker: Broker, end: str) -> None:
    to_convert(broker, 10)
    client = Client(broker).open()
    link = client.receiver("q", 10, name="r")
    handed_out(client, broker)
    client.peer.receive(client.server.pending_output())
    assert slow.count == 3
    if end == "link":
        client.peer.close_link(link)
    elif end == "session":
        client.peer.end_session(client.session)
    elif end == "connection":
        client.peer.close()
    else:
        client.server.receive_end()
    client.rest()
    assert slow.count == 3
    other = connect(broker)
    left = drained(broker, other, "q")
    assert [decode_received(each.payload).body[0] for each in left] == list("0123456789")  # type: ignore[index]
    assert [each.delivery_count for each in left][3:] == [0] * 7
