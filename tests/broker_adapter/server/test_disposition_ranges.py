"""Dispositions of ranges that come in one read: what was settled before is not what a later range is about."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.destination import queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.server.engine_calls import MOST_SETTLING
from broker_adapter.server.listener import Listener
from broker_adapter.server.protocol import _SETTLED_AT_ONCE
from broker_adapter.settings import ServerSettings
from tests.broker_adapter.amqp.frames import ATTACH, BEGIN, CLOSE, TRANSFER, attach, begin, disposition, flow
from tests.broker_adapter.engine.driving import WAIT, connect, depth, drained
from tests.broker_adapter.server.protocol_client import Client, decoded, encoded
from tests.broker_adapter.server.raw_client import RawClient

ACCEPTED, RELEASED = 0x24, 0x26


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


def test_ranges_at_random(broker: Broker, port: int) -> None:
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
    client = Client(broker).open()
    link = client.receiver("q", count, name="r")
    client.receive(link, count)
    return client


def test_a_long_range_is_settled_in_turns_of_the_connection(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = held(broker, 15_000)
    sizes: list[int] = []
    submit_all = broker.submit_all

    def submitted(commands: list[c.Command]) -> None:
        sizes.extend([len(each.numbers) for each in commands if isinstance(each, c.Settle)])
        submit_all(commands)

    monkeypatch.setattr(broker, "submit_all", submitted)
    with broker._runner:  # the engine does nothing meanwhile
        client.server.receive(disposition(0, True, 0, 14_999), 1)
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


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_a_client_settles_before_it_goes_counts(broker: Broker, goes_on: bool) -> None:
    client = held(broker, 15_000)
    client.server.receive(disposition(0, True, 0, 14_999), 1)
    if goes_on:
        client.server.receive_end()
        while not client.server.has_ended:
            client.server.pending_output()
    else:
        client.server.end()  # its client has reconnected already, and waits
        assert client.server.has_ended
    assert not any(each.in_hand for each in broker.call(c.Statistics(), WAIT).queues)
    assert (depth(broker, "q") == 0) is goes_on
