"""Clients whose connections are restored, and scripted brokers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.messages.payloads import decode_payload
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope, Identity
from broker_adapter.failover.transport import FailoverTransport
from broker_adapter.failover.unanswered import RESENT_PROPERTY
from broker_adapter.transport import Credentials, Delivery, Peer, ReceiverSpec, SenderSpec, TransportEvent
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.faults.scenarios import wait_for

WAIT = 120.0
QUEUE = queue("q")
FAST = "reconnect_delay_seconds=0.01&stable_seconds=0"


def message(number: int) -> Envelope:
    return Envelope(QUEUE, BodyKind.TEXT, str(number), identity=Identity("producer", 1, number))


@attrs.define
class Client:
    transport: FailoverTransport
    events: list[TransportEvent]
    credentials: list[Credentials]  #: of each attempt
    deliveries: list[Delivery] = attrs.field(factory=list)

    def open(self, timeout: float | None = WAIT) -> Peer:
        return self.transport.open(Credentials(), self.events.append, timeout)

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.events]

    def wait_for(self, *kinds: type) -> None:
        """Until exactly these have come, in this order, leaving out what tells of a restore under way."""
        names = [kind.__name__ for kind in kinds]

        def told() -> list[str]:
            return [name for name in self.kinds() if name != "Restoring"]

        assert wait_for(lambda: len(told()) >= len(names)), self.events
        assert told() == names

    def sender(self) -> int:
        return self.transport.attach(SenderSpec(1, QUEUE), None, WAIT)

    def receiver(self, **fields: Any) -> int:
        return self.transport.attach(ReceiverSpec(1, QUEUE, **fields), self.deliveries.extend, WAIT)


MakeClient = Callable[..., Client]


def url_of(*servers: BrokerServer, options: str = FAST) -> str:
    inner = ",".join(f"amqp://127.0.0.1:{server.port}" for server in servers)
    return f"failover:({inner})?{options}"


def silent(*, holdfast: bool = True) -> ScriptedBroker:
    """A broker that answers no message."""
    broker = ScriptedBroker(holdfast=holdfast)
    broker.accepts = False
    return broker


def refusing(error: AmqpError) -> Callable[[], ScriptedBroker]:
    """Brokers that close each connection as they open it."""

    def make() -> ScriptedBroker:
        broker = ScriptedBroker()
        broker.open_error = error
        return broker

    return make


def sent_bodies(broker: ScriptedBroker) -> list[tuple[Any, Any]]:
    """(body, mark of a message that is sent again) of what a silent broker holds."""
    found = []
    for _, delivery in broker.held:
        envelope = decode_payload(delivery.payload)
        found.append((envelope.body, (envelope.properties or {}).get(RESENT_PROPERTY)))
    return found


GONE = AmqpError("amqp:link:detach-forced", "idle for too long")
