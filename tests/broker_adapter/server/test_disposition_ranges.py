"""Dispositions of ranges that come in one read: what was settled before is not what a later range is about."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from broker_adapter.amqp.messages.values import Described, Symbol, UInt, ULong, encode
from broker_adapter.amqp.proton_engine.outgoing import OutgoingTransfers
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.amqp.wire import DISCHARGE_CODE
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.server.links.engine_calls import MOST_SETTLING
from broker_adapter.server.listener import Listener
from broker_adapter.server.protocol import _SETTLED_AT_ONCE
from broker_adapter.settings import ServerSettings
from tests.broker_adapter.amqp.frames import (
    ATTACH,
    BEGIN,
    CLOSE,
    DISPOSITION,
    TRANSFER,
    attach,
    begin,
    disposition,
    flow,
    frame,
)
from tests.broker_adapter.engine.driving import WAIT, connect, depth, drained
from tests.broker_adapter.server.protocol_client import JMS_CLIENT, Client, decoded, encoded, in_transaction
from tests.broker_adapter.server.raw_client import RawClient

ACCEPTED, REJECTED, RELEASED = 0x24, 0x25, 0x26


@pytest.fixture
def port(broker: Broker) -> Iterator[int]:
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    yield listener.start()[1]
    listener.stop()


def left(broker: Broker, port: int, count: int, *ranges: tuple[int, int, int]) -> list[int]:
    """Messages 0 to ``count`` - 1 go to a client, which writes these dispositions at once: (state, first, last)."""
    client = connect(broker)
    messages = [c.NewMessage(0, encoded(number)) for number in range(count)]
    assert broker.call(c.Enqueue(client, queue("q"), messages), WAIT) is None
    with RawClient(port, envelopes=False) as raw:
        raw.send(begin(0), attach(0, 0, "r", "q", receives=True), flow(0, 0, count))
        raw.until(lambda: raw.count(TRANSFER) == count)
        raw.send(b"".join(disposition(0, True, first, last, state) for state, first, last in ranges))
        raw.send(attach(0, 5, "last", "other"))
        raw.until(lambda: raw.count(ATTACH) == 2)
    while any(each.in_hand for each in broker.call(c.Statistics(), WAIT).queues):
        time.sleep(0.01)  # until the server has heard that the client is gone
    found = sorted(decoded(each.payload).body for each in drained(broker, client, "q", presettled=True))
    broker.call(c.Disconnect(client), WAIT)
    return found


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (((ACCEPTED, 2, 2), (RELEASED, 0, 4)), [0, 1, 3, 4]),
        (((RELEASED, 2, 2), (ACCEPTED, 0, 4)), [2]),
        (((ACCEPTED, 0, 4), (RELEASED, 2, 2)), []),
        (((RELEASED, 1, 3), (ACCEPTED, 3, 4), (ACCEPTED, 0, 4)), [1, 2, 3]),
        (((ACCEPTED, 0, 0), (ACCEPTED, 1, 1), (RELEASED, 2, 4)), [2, 3, 4]),
    ],
)
def test_the_first_disposition_that_settles_a_delivery_counts(
    broker: Broker, port: int, ranges: tuple[tuple[int, int, int], ...], expected: list[int]
) -> None:
    assert left(broker, port, 5, *ranges) == expected


def test_the_first_of_random_ranges_decides_about_each_delivery(broker: Broker, port: int) -> None:
    chance = random.Random(20261122)
    for _ in range(40):
        ranges, states = [], {}
        for _ in range(chance.randint(1, 8)):
            first = chance.randrange(300)
            last, state = chance.randint(first, 299), chance.choice((ACCEPTED, RELEASED))
            ranges.append((state, first, last))
            for number in range(first, last + 1):
                states.setdefault(number, state)
        expected = [number for number in range(300) if states.get(number) != ACCEPTED]
        assert left(broker, port, 300, *ranges) == expected


@pytest.mark.parametrize(
    "fields",
    [b"\x41\x52", b"\x56", b"\x41\x70\x00\x00", b"\x41\x43\x52", b"\x41\x43\xa1\x01x", b"\x41\x40", b"\x42", b"\x41"],
    ids=lambda fields: fields.hex(),
)
def test_a_disposition_that_ends_early_or_holds_something_else_ends_its_connection_in_words(
    port: int, fields: bytes
) -> None:
    body = b"\x00\x53\x15\xc0" + bytes((len(fields) + 1, 2)) + fields
    with RawClient(port) as raw:
        raw.send(begin(0))
        raw.until(lambda: raw.count(BEGIN) == 1)
        raw.send((len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body)
        raw.until_closed()
        ((error,),) = raw.fields(CLOSE)
    assert error.value[0] in ("amqp:decode-error", "amqp:illegal-state", "amqp:invalid-field")


def held(broker: Broker, count: int) -> Client:
    """A client that has so many messages in hand."""
    sender = connect(broker)
    assert broker.call(c.Enqueue(sender, queue("q"), [c.NewMessage(0, encoded("x"))] * count), WAIT) is None
    client = Client(broker).open(capabilities=JMS_CLIENT)
    link = client.receiver("q", count, name="r")
    client.receive(link, count)
    return client


def submitted_sizes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the settlements that the engine is given from now on."""
    sizes: list[int] = []
    submit_all = broker.submit_all

    def submitted(commands: list[c.Command]) -> None:
        sizes.extend([len(each.numbers) for each in commands if isinstance(each, c.Settle)])
        submit_all(commands)

    monkeypatch.setattr(broker, "submit_all", submitted)
    return sizes


@pytest.mark.parametrize("size", [15_000, 100])
def test_a_long_range_and_many_short_ones_are_settled_in_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    client = held(broker, 15_000)
    sizes = submitted_sizes(broker, monkeypatch)
    ranges = [
        disposition(0, True, first, first + size - 1, (ACCEPTED, REJECTED)[first // size % 2])
        for first in range(0, 15_000, size)
    ]
    with broker._runner:  # the engine does nothing meanwhile
        client.server.receive(b"".join(ranges), 1)
        for _ in range(20):
            client.server.pending_output()
        waiting = sum(sizes)
        assert not client.server.wants_input
    assert max(sizes) <= _SETTLED_AT_ONCE
    assert waiting < MOST_SETTLING + _SETTLED_AT_ONCE
    client.until(lambda: client.server.wants_input)
    client.rest()
    assert sum(sizes) == 15_000
    assert depth(broker, "q") == 0


def test_neither_time_nor_bytes_make_the_turns_more(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = held(broker, 15_000)
    sizes = submitted_sizes(broker, monkeypatch)
    heartbeat = b"\x00\x00\x00\x08\x02\x00\x00\x00"
    with broker._runner:
        client.server.receive(disposition(0, True, 0, 14_999), 1)
        assert sum(sizes) <= _SETTLED_AT_ONCE
        for now in range(20):
            client.server.tick(now)
            client.server.receive(heartbeat, 1)
        assert sum(sizes) <= _SETTLED_AT_ONCE
    client.until(lambda: client.server.wants_input)
    client.rest()
    assert depth(broker, "q") == 0


@pytest.mark.parametrize("is_back", [False, True])
def test_what_a_client_settles_before_it_is_gone_counts_unless_it_is_back(broker: Broker, is_back: bool) -> None:
    client = held(broker, 15_000)
    client.server.receive(disposition(0, True, 0, 14_999), 1)
    if is_back:
        client.server.end()  # the client takes what has had no answer for lost
    else:
        client.server.receive_end()
    assert client.server.has_ended
    assert not any(each.in_hand for each in broker.call(c.Statistics(), WAIT).queues)
    assert (depth(broker, "q") == 0) is not is_back


@pytest.mark.parametrize("settles", [True, False])
def test_the_end_of_a_connection_takes_time_for_what_is_settled_and_not_for_how_often(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, settles: bool
) -> None:
    told: list[int] = []
    on_disposition = OutgoingTransfers.on_disposition

    def counted(*arguments: Any) -> int:
        told.append(1)
        return on_disposition(*arguments)

    monkeypatch.setattr(OutgoingTransfers, "on_disposition", counted)
    client = held(broker, 5_000)
    if settles:
        ranges = disposition(0, True, 0, (1 << 31) - 1)
    else:
        ranges = frame(0, DISPOSITION, True, UInt(0), UInt(4_999), False, None)  # which says nothing
    client.server.receive(ranges * 100, 1)  # its socket takes nothing meanwhile
    client.server.receive_end()
    assert client.server.has_ended
    assert not any(each.in_hand for each in broker.call(c.Statistics(), WAIT).queues)
    assert (depth(broker, "q") == 0) is settles
    assert len(told) < 30_000


def test_a_connection_ends_though_what_it_settled_meets_a_fault(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = held(broker, 5_000)
    client.server.receive(disposition(0, True, 0, 4_999), 1)
    monkeypatch.setattr(client.server._consumers, "on_dispositions", Mock(side_effect=RuntimeError("a fault")))
    with pytest.raises(RuntimeError, match="a fault"):
        client.server.receive_end()
    assert client.server.has_ended
    assert not any(each.in_hand for each in broker.call(c.Statistics(), WAIT).queues)


def test_a_client_that_has_gone_in_the_middle_of_its_turns_may_reconnect_at_once(broker: Broker) -> None:
    client = held(broker, 15_000)
    client.server.receive(disposition(0, True, 0, 9_999), 1)
    client.server.receive_end()
    again = Client(broker).open(capabilities=JMS_CLIENT)  # its client id is in use until the first one has ended
    link = again.receiver("q", 5_000, name="r")
    assert decoded(again.receive(link, 5_000)[0].payload).delivery_count == 1


def test_a_discharge_behind_a_long_range_is_carried_out_before_its_connection_is_gone(broker: Broker) -> None:
    """Who has lost the connection asks whether the commit was done, and must not be told so too early."""
    client = held(broker, 15_000)
    producer, coordinator = client.sender("out"), client.coordinator()
    txn_id = client.declare(coordinator)
    client.send(producer, "x", state=in_transaction(txn_id))
    client.server.receive(disposition(0, True, 0, 14_999), 1)
    discharge = encode(Described(ULong(DISCHARGE_CODE), [txn_id, False]))
    name = b"\x00\x53\x72" + encode({Symbol("x-opt-holdfast-commit-id"): ["a session", 1]})
    client.peer.send(coordinator, name + b"\x00\x53\x77" + discharge)
    client.to_server()
    client.server.receive_end()
    assert broker.request("resolve_commit", {"session": "a session", "number": 1}, WAIT) is True
    assert depth(broker, "out") == 1
