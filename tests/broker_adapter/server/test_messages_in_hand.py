"""How many messages a connection may hold, and what happens where it holds them all."""

from __future__ import annotations

from typing import Any

from broker_adapter.amqp.events import ACCEPTED_STATE
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from tests.broker_adapter.engine.driving import WAIT, connect
from tests.broker_adapter.server.protocol_client import Client, encoded, in_transaction

#: The least budget of a connection, and what it may have in hand then.
_SMALL_BYTES = 1 << 20
_IN_HAND = 1000


def fill(broker: Broker, count: int) -> None:
    sender = connect(broker)
    assert broker.call(c.Enqueue(sender, queue("q"), [c.NewMessage(0, encoded("x"))] * count), WAIT) is None


def test_a_connection_holds_a_bounded_number_of_messages(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    links = [client.receiver("q", 2000, name=f"r{number}") for number in range(3)]
    client.rest()
    counts = [len(client.messages(link)) for link in links]
    assert sum(counts) <= _IN_HAND + len(links) * 16
    assert min(counts) >= 16, "or a consumer would starve beside one that does not settle"
    done: dict[int, int] = dict.fromkeys(links, 0)
    while sum(done.values()) < 3000:
        for link in links:
            got = client.messages(link)[done[link] :]
            done[link] += len(got)
            client.settle(link, got)


def test_consumers_of_empty_queues_are_no_reason_for_a_warning(broker: Broker) -> None:
    logged: list[Any] = []
    client = Client(broker, max_connection_bytes=_SMALL_BYTES)
    client.server._consumers._log = lambda *said: logged.append(said)
    client.open()
    for number in range(_IN_HAND // 100):
        client.receiver(f"empty {number}", 1000, name=f"r{number}")
    client.rest()
    assert client.server._consumers._room == 0
    assert not logged
    fill(broker, 3000)
    client.receiver("q", 3000, name="first")
    client.receiver("q", 3000, name="second")
    client.rest()
    assert not logged, "they have few in hand"


def test_a_client_that_holds_all_that_it_may_is_logged_once(broker: Broker) -> None:
    logged: list[Any] = []
    client = Client(broker, max_connection_bytes=_SMALL_BYTES)
    client.server._consumers._log = lambda *said: logged.append(said)
    client.open()
    fill(broker, 3000)
    for number in range(3):
        client.receiver("q", 2000, name=f"r{number}")
    client.rest()
    ((kind, text, held),) = logged
    assert kind == "in hand"
    assert "unsettled messages gets few more" in text
    assert 2 * held >= _IN_HAND


def test_a_consumer_that_settles_gets_more_beside_others_that_hold_all_that_the_connection_may(broker: Broker) -> None:
    """The server writes after each read, and when it is woken: nothing else happens on the connection, no heartbeat."""
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    for number in range(3):
        client.receiver("q", 2000, name=f"holder {number}")
    client.rest()
    link = client.receiver("q", 100, name="settles")
    client.rest()

    def write() -> None:
        while data := client.server.pending_output():
            client.peer.receive(data)
        client.events += client.peer.events()

    done = 0
    for _ in range(6):
        got = client.messages(link)[done:]
        assert got
        done += len(got)
        client.peer.settle(link, [each.number for each in got], ACCEPTED_STATE)
        client.peer.credit(link, len(got))
        client.to_server()
        write()
        for _ in range(20):
            broker.call(c.Statistics(), WAIT)  # what was asked of the engine before is answered
            if client._woken.is_set():
                client._woken.clear()
                write()


def test_a_drain_ends_where_the_connection_holds_too_much(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    first = client.receiver("q", 2000, name="first")
    client.rest()
    other = client.receiver("q", 50, name="other")
    client.drained(other)
    client.drained(first)
    assert len(client.messages(first)) <= _IN_HAND + 16
    assert len(client.messages(other)) >= 16


def test_settlements_of_an_open_transaction_are_in_hand(broker: Broker) -> None:
    client = Client(broker, max_connection_bytes=_SMALL_BYTES).open()
    fill(broker, 3000)
    coordinator = client.coordinator()
    txn_id = client.declare(coordinator)
    link = client.receiver("q", 3000, name="r")
    client.rest()
    got = client.messages(link)
    client.settle(link, got, in_transaction(txn_id, ACCEPTED_STATE))
    assert len(client.messages(link)) <= len(got) + 16
    assert client.discharge(coordinator, txn_id) == ACCEPTED_STATE
    client.rest()
    assert len(client.messages(link)) > len(got) + 16
