"""Gateways whose other end is a broker that is not ours, while the connection to it is cut at each frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgpack
import pytest

from broker_adapter.connect import transport_to_site
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.gateways.bridge import Bridge
from broker_adapter.transport import Credentials
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
    messages = [
        msgpack.packb(
            {
                "to": f"queue:{name}",
                "payload": pack(Envelope(queue(name), BodyKind.TEXT, str(number))),
                "joined": number > first,
            }
        )
        for number in range(first, last)
    ]
    return {"site": 1, "sender": name, "positions": [*range(first + 1, last + 1)], "messages": messages}


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
