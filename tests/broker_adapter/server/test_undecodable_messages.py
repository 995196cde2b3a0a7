"""Stored messages that cannot be decoded, and how consumers get them."""

from __future__ import annotations

from functools import partial

import pytest

from ack_modes import Outcome
from broker_adapter.amqp.events import FAILED_STATE, Terminus
from broker_adapter.amqp.messages.payloads import decode_received, format_of
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policies, policy
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.server.protocol import ServerProtocol
from tests.broker_adapter.engine.driving import WAIT, connect, depth
from tests.broker_adapter.server import protocol_client
from tests.broker_adapter.server.protocol_client import Client, decoded, encoded, put
from tests.contracts.transports import eventually


def test_a_stored_message_that_cannot_be_read_is_a_dead_letter_and_uses_no_credit(
    client: Client, broker: Broker
) -> None:
    put(broker, "q", b"nonsense", format=ENVELOPE_FORMAT)
    put(broker, "q", encoded("good"))
    link = client.receiver("q", 1, name="r")
    client.receive(link, 1)
    assert client.bodies(link) == ["good"]
    client.rest()
    assert depth(broker, "DLQ") == 1


def test_what_cannot_be_read_goes_to_the_dead_letter_queue_of_its_own_queue_and_stays_there(broker: Broker) -> None:
    broker.call(c.UsePolicies(Policies(broker.settings, [policy("q.*", {"dead_letter_queue": "q.dead"})])), WAIT)
    client = Client(broker).open()
    for name, presettled in (("held", False), ("settled", True)):
        put(broker, f"q.{name}", b"nonsense", format=ENVELOPE_FORMAT)
        put(broker, f"q.{name}", encoded(name))
        client.receive(client.receiver(f"q.{name}", 1, name=name, presettled=presettled), 1)
        client.rest()
    assert (depth(broker, "q.dead"), depth(broker, "DLQ")) == (2, 0)
    link = client.receiver("q.dead", 2, name="dead")
    assert len(client.receive(link, 2)) == 2


def broken(broker: Broker, count: int, good: bytes) -> None:
    """So many dead letters that cannot be read, ahead of a good one."""
    put(broker, "q", *[b"nonsense"] * count, format=ENVELOPE_FORMAT)
    put(broker, "q", good, format=format_of(good))
    client = connect(broker)
    for _ in range(count + 1):  # rejected one by one, in their order
        got: list[c.Handout] = []
        number = broker.call(c.Attach(client, queue("q"), got.extend), WAIT)
        broker.call(c.Credit(number, 1), WAIT)
        eventually(lambda got=got: len(got) == 1)
        broker.call(c.Settle(number, (got[0].number,), Outcome.REJECTED), WAIT)
        broker.call(c.Detach(number), WAIT)
    broker.call(c.Disconnect(client), WAIT)
    assert depth(broker, "DLQ") == count + 1


@pytest.mark.parametrize("presettled", [False, True])
def test_a_dead_letter_that_cannot_be_decoded_is_delivered_as_bytes(
    client: Client, broker: Broker, presettled: bool
) -> None:
    broken(broker, 12, encoded("good"))
    link = client.receiver("DLQ", 10, presettled=presettled, name="r")
    client.settle(link, client.receive(link, 10))
    client.peer.credit(link, 3)
    first, *_, last = client.receive(link, 13)
    client.settle(link, client.messages(link)[10:])
    message = decoded(first.payload)
    assert (message.body, message.content_type) == (b"nonsense", "application/octet-stream")
    assert "nonsense" not in message.annotations["x-opt-holdfast-undecodable"]
    assert message.properties == {
        "JMS_HOLDFAST_DEAD_LETTER_REASON": "rejected by a consumer",
        "JMS_HOLDFAST_DEAD_LETTER_QUEUE": "q",
        "JMS_HOLDFAST_DEAD_LETTER_COUNT": 0,
    }
    assert decoded(last.payload).body == "good"
    assert depth(broker, "DLQ") == 0


def test_a_dead_letter_that_cannot_be_decoded_says_how_often_it_was_delivered(client: Client, broker: Broker) -> None:
    broken(broker, 1, encoded("good"))
    link = client.receiver("DLQ", 1, name="r")
    client.settle(link, client.receive(link, 1), FAILED_STATE)
    client.peer.credit(link, 1)
    assert [decoded(each.payload).delivery_count for each in client.receive(link, 2)] == [0, 1]


def test_a_client_of_an_older_version_gets_a_broken_dead_letter_as_bytes(broker: Broker) -> None:
    broken(broker, 2, pack(Envelope(queue("q"), BodyKind.TEXT, "good")))
    client = Client(broker).open(capabilities=("HOLDFAST-ENVELOPE",))
    link = client.receiver("DLQ", 3, name="r")
    envelopes = [decode_received(each.payload, queue("DLQ")) for each in client.receive(link, 3)]
    assert [each.body for each in envelopes] == [b"nonsense", b"nonsense", "good"]
    assert (envelopes[0].properties or {})["JMS_HOLDFAST_DEAD_LETTER_QUEUE"] == "q"


def test_a_browser_of_the_dead_letters_sees_those_that_cannot_be_decoded(client: Client, broker: Broker) -> None:
    broken(broker, 1, encoded("good"))
    link = client.receiver(Terminus("DLQ", copies=True), 2, name="r")
    envelopes = [decode_received(each.payload, queue("DLQ")) for each in client.receive(link, 2)]
    assert [each.body for each in envelopes] == [b"nonsense", "good"]
    assert depth(broker, "DLQ") == 2


def test_a_message_that_cannot_be_decoded_does_not_vanish_on_a_presettled_link(
    monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    logged: list[str] = []
    log = partial(ServerProtocol, log=lambda kind, text, *arguments: logged.append(text % arguments))
    monkeypatch.setattr(protocol_client, "ServerProtocol", log)
    put(broker, "q", b"nonsense", format=ENVELOPE_FORMAT)
    put(broker, "q", encoded("good"))
    client = Client(broker).open()
    browser = client.receiver(Terminus("q", copies=True), 2, name="b")
    client.receive(browser, 1)
    client.rest()
    assert depth(broker, "DLQ") == 0
    link = client.receiver("q", 1, presettled=True, name="r")
    client.receive(link, 1)
    client.rest()
    assert client.bodies(link) == ["good"]
    assert depth(broker, "DLQ") == 1
    assert ["browser" in each for each in logged] == [True, False]
    dead = client.receiver("DLQ", 1, name="d")
    assert decode_received(client.receive(dead, 1)[0].payload, queue("DLQ")).body == b"nonsense"
