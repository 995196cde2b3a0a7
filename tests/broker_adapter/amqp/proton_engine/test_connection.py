"""What two peers say as they open and close a connection."""

from __future__ import annotations

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import RemoteClose, RemoteOpen
from tests.broker_adapter.amqp.pair import Pair, last


def test_open_carries_names_capabilities_and_properties() -> None:
    pair = Pair()
    pair.client.open("me", hostname="host", desired_capabilities=["A", "B"], properties={"product": "x", "n": 1})
    pair.server.open("you", offered_capabilities=["A"])
    pair.pump()

    assert pair.server_events == [
        RemoteOpen("me", "host", frozenset(), frozenset({"A", "B"}), {"product": "x", "n": 1}, idle_seconds=30)
    ]
    # Half of the time-out is announced (AMQP 1.0 section 2.4.5).
    assert pair.client_events == [RemoteOpen("you", None, frozenset({"A"}), frozenset(), {}, idle_seconds=30)]


def test_close_carries_an_error_and_ends_the_output(pair: Pair) -> None:
    pair.client.close(AmqpError("amqp:connection:forced", "bye", {}))
    pair.pump()
    pair.server.close()
    pair.pump()

    assert last(pair.server_events, RemoteClose) == RemoteClose(AmqpError("amqp:connection:forced", "bye", {}))
    assert last(pair.client_events, RemoteClose) == RemoteClose(None)
    assert pair.client.output_closed
    assert pair.server.output_closed
