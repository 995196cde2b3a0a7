"""Gateways whose other end is a broker that is not ours, while the connection to it is cut at each frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgpack
import pytest

from broker_adapter.connect import transport_for, transport_to_site
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope, Identity, pack
from broker_adapter.gateways.bridge import Bridge
from broker_adapter.gateways.sender import columns_of
from broker_adapter.transport import Credentials, SenderSpec
from sdk import AcknowledgeMode, Connection, ConnectionFactory
from tests.faults.proxy import Cut, Direction, Proxy
from tests.faults.scenarios import wait_for
from tests.faults.sites import Site, numbered
from tests.interop.brokers.brokers import STARTS, Broker
from tests.interop.conftest import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ARTEMIS = "ActiveMQ Artemis"


@pytest.fixture(scope="module", params=[ARTEMIS, "Qpid Broker-J", "RabbitMQ 4"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    start = STARTS[request.param]
    found = installed(lambda: start(tmp_path_factory.mktemp("broker")))
    yield found
    found.process.stop()


@pytest.fixture(scope="module")
def connection(broker: Broker) -> Iterator[Connection]:
    with ConnectionFactory(broker.url, broker.username, broker.password).create_connection() as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(1, tmp_path_factory.mktemp("site") / "data")
    yield made
    made.close()


@pytest.fixture
def way(broker: Broker) -> Iterator[Proxy]:
    with Proxy(int(broker.url.partition("?")[0].rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def name() -> str:
    """Of a queue, and of the gateway."""
    return f"queue-{uuid4().hex}"


def url_of(broker: Broker, way: Proxy) -> str:
    options = broker.url.partition("?")[2]
    return f"amqp://{broker.username}:{broker.password}@127.0.0.1:{way.port}?{options}"


def received(connection: Connection, name: str) -> list[str]:
    """What a queue of the broker has; takes it."""
    found = []
    with connection.create_session(AcknowledgeMode.AUTO) as session:
        consumer = session.create_consumer(session.create_queue(name))
        while (message := consumer.receive(2)) is not None:
            found.append(str(message.body))
    return found


def check(broker: Broker, found: list[str], sent: int) -> None:
    """Nothing is lost; where the broker can tell, nothing is there twice, and all is in order."""
    if broker.name == ARTEMIS:
        assert found == numbered(0, sent)
    else:
        assert {*found} == {*numbered(0, sent)}, Counter(found)


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
def test_what_is_sent_to_a_broker_is_there_wherever_the_connection_is_cut(
    broker: Broker, connection: Connection, site: Site, way: Proxy, name: str, direction: Direction
) -> None:
    site.gateway(name, url_of(broker, way), f"queue:{name}")
    sent = cuts = after = 0
    while True:
        site.ask("change_gateway", name=name, state="paused")
        assert wait_for(lambda: way.open == 0)
        site.send(name, numbered(sent, sent + 3))
        sent += 3
        way.plan(Cut(direction, frames=after, into_next=5 * (after % 2)))
        site.ask("change_gateway", name=name, state="running")
        site.drained(name)
        if way.cuts == cuts:
            break  # that is more frames than there are
        cuts = way.cuts
        after += 1
    assert after >= 10
    site.ask("destroy_gateway", name=name)
    check(broker, received(connection, name), sent)


def batch(name: str, first: int, last: int) -> dict[str, Any]:
    """A batch that is one transaction."""
    kind = msgpack.packb({"to": f"queue:{name}"})
    entries = [
        (number + 1, kind, 0, 0, pack(Envelope(queue(name), BodyKind.TEXT, str(number))))
        for number in range(first, last)
    ]
    return {"site": 1, "sender": name, "joined": [*range(first + 2, last + 1)], **columns_of(entries)}


def connected(broker: Broker, way: Proxy) -> Bridge:
    bridge = transport_to_site(url_of(broker, way))
    bridge.open(Credentials(), lambda _event: None, None)
    return bridge


def test_a_transaction_that_is_sent_again_is_as_a_message_that_is(
    broker: Broker, connection: Connection, way: Proxy, name: str
) -> None:
    for _ in range(2):
        bridge = connected(broker, way)
        for batches in range(2):
            answer = bridge.request("apply_batch", batch(name, 3 * batches, 3 * batches + 3), None)
            assert (answer["through"], answer["refused"]) == (3 * batches + 3, [])
        bridge.close(5)
    found = received(connection, name)
    check(broker, found, 6)
    assert len(found) == (6 if broker.name == ARTEMIS else 12)


def send(broker: Broker, name: str, first: int, last: int) -> None:
    """Send messages as our SDK does, and then as other clients do: without an identity."""
    transport, _ = transport_for(broker.url)
    transport.open(Credentials(broker.username, broker.password), lambda _event: None, None)
    link = transport.attach(SenderSpec(1, queue(name)), None, None)
    for number in range(first, last):
        envelope = Envelope(queue(name), BodyKind.TEXT, str(number))
        transport.send(link, envelope._replace(identity=Identity(name, 0, number)), None, None)
        transport.send(link, envelope._replace(body=f"other {number}"), None, None)
    transport.close(5)


@pytest.mark.parametrize("direction", Direction, ids=lambda each: each.name)
def test_what_a_broker_has_is_fetched_wherever_the_connection_is_cut(
    broker: Broker, connection: Connection, site: Site, way: Proxy, name: str, direction: Direction
) -> None:
    with connection.create_session() as session:
        session.create_consumer(session.create_queue(name)).close()  # makes it, where a consumer does
    site.gateway(name, url_of(broker, way), f"queue:{name}", fetches=True)
    sent = cuts = after = 0
    while True:
        site.ask("change_gateway", name=name, state="paused")
        assert wait_for(lambda: way.open == 0)
        send(broker, name, sent, sent + 2)
        sent += 2
        way.plan(Cut(direction, frames=after, into_next=5 * (after % 2)))
        site.ask("change_gateway", name=name, state="running")
        everything = {*numbered(0, sent), *(f"other {number}" for number in range(sent))}
        assert wait_for(lambda expected=everything: {*site.bodies(name)} >= expected)
        if way.cuts == cuts:
            break  # that is more frames than there are
        cuts = way.cuts
        after += 1
    assert after >= 10
    assert wait_for(lambda: site.gateways(name)["trouble"] == "")
    site.ask("destroy_gateway", name=name)
    assert wait_for(lambda: way.open == 0)
    found = Counter(site.bodies(name))
    assert {*found} == everything
    assert {found[each] for each in numbered(0, sent)} == {1}
    assert received(connection, name) == []


def test_a_topic_is_fetched_where_the_broker_keeps_subscriptions(broker: Broker, site: Site, way: Proxy) -> None:
    name = f"topic-{uuid4().hex}"
    topic = site.session.create_topic(name)
    consumer = site.session.create_consumer(topic)
    site.gateway(name, url_of(broker, way), f"topic:{name}", fetches=True)
    if "durable_subscriptions" in broker.cannot:
        assert wait_for(lambda: "was not seen to keep subscriptions" in site.gateways(name)["trouble"])
        site.ask("destroy_gateway", name=name)
        return
    assert wait_for(lambda: site.gateways(name)["is_sending"])
    with ConnectionFactory(broker.url, broker.username, broker.password).create_connection() as far:
        session = far.create_session()
        producer = session.create_producer(session.create_topic(name))
        for number in range(5):
            site.ask("change_gateway", name=name, state="paused")
            assert wait_for(lambda: way.open == 0)
            producer.send(str(number))
            site.ask("change_gateway", name=name, state="running")
            message = consumer.receive(60)
            assert message is not None
            assert (message.body, message.delivery_count) == (str(number), 1)
    site.ask("destroy_gateway", name=name)
