"""What a broker does otherwise than another, known once it has opened the connection.  Pure.

This is the only file of the client that tests for a product's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from ack_modes import Outcome
from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.events import ACCEPTED_STATE, FAILED_STATE, REJECTED, RELEASED_STATE, RemoteOpen, State
from broker_adapter.amqp.wire import (
    BACK_OFF,
    BATCHES_CAPABILITY,
    MAX_SERVERS,
    REGIONS_CAPABILITY,
    RUN,
    SERVER_LIST,
    STORE,
    envelope_version,
)
from broker_adapter.errors import InvalidSelectorException, InvalidURLException, JMSException
from broker_adapter.transport import Peer, ReceiverSpec, Server
from broker_adapter.version import PRODUCT

#: What ActiveMQ Artemis and RabbitMQ call themselves in ``open``.
ARTEMIS: Final = "apache-activemq-artemis"
RABBITMQ: Final = "RabbitMQ"

#: How a settlement's outcome is written.
STATES: Final = {
    Outcome.ACCEPTED: ACCEPTED_STATE,
    Outcome.REJECTED: State(REJECTED),
    Outcome.RELEASED: RELEASED_STATE,
    Outcome.MODIFIED: FAILED_STATE,
    Outcome.FAILED: FAILED_STATE,
}
_STATES_OF_HOLDFAST: Final = {**STATES, Outcome.FAILED: FAILED_STATE._replace(annotations={BACK_OFF: True})}
#: RabbitMQ 3 ends the session of a client that tells it that a delivery was modified.
_STATES_OF_RABBITMQ_3: Final = {**STATES, Outcome.MODIFIED: RELEASED_STATE, Outcome.FAILED: RELEASED_STATE}


@attrs.frozen(kw_only=True)
class BrokerTraits:
    """What is known of a broker.  The default is one that has not opened the connection yet.

    Attributes:
        product: what the broker calls itself.
        version: its version, as it says.
        title: what error texts call a broker that only pretends to do something.
        capabilities: what it offers.
        store: names the store of our engine.
        run: names our engine until it is started again.
        servers: where else the broker says that it can be reached.
        envelope_version: the version of packed envelopes in which messages are sent; 0: standard AMQP.
        queue_prefix: what it puts before the names of queues in addresses; None: it does not say.
        topic_prefix: the same for topics.
        is_holdfast: whether it is our own server.
        answers_requests: whether it has the management node of our own server.
        has_regions: whether it has regions, and sends their events.
        takes_batches: whether it takes several messages as one transfer.
        rejects_duplicates: whether a message that is sent again is never a second one.
        needs_duplicate_ids: whether it recognises a message that is sent again by a property alone.
        refuses_discharges: whether it refuses a discharge by itself where it refused a message of the transaction.
        ends_links_at_once: whether a link may be detached though a delivery of it is not settled or a drain is not
            answered; elsewhere what comes later means nothing, or harm.
        answers_drains: whether a drain has an answer; RabbitMQ 3 answers it with the end of the session.
        finds_subscriptions: whether it finds a shared subscription of no client by the name of its link alone.
        honours_sources: whether it applies what the source of an attach asks for, or refuses it; otherwise it confirms
            whatever it is asked for, and then sends everything, or hands out for good what is only browsed.
        states: how the outcome of a settlement is written.
    """

    product: str = "unknown"
    version: str = "unknown"
    title: str = "unknown"
    capabilities: frozenset[str] = frozenset()
    store: str | None = None
    run: str | None = None
    servers: tuple[Server, ...] = ()
    envelope_version: int = 0
    queue_prefix: str | None = None
    topic_prefix: str | None = None
    is_holdfast: bool = False
    answers_requests: bool = False
    has_regions: bool = False
    takes_batches: bool = False
    rejects_duplicates: bool = False
    needs_duplicate_ids: bool = False
    refuses_discharges: bool = False
    ends_links_at_once: bool = False
    answers_drains: bool = True
    finds_subscriptions: bool = False
    honours_sources: bool = True
    states: Mapping[Outcome, State] = attrs.field(default=STATES, repr=False)

    @property
    def delays_deliveries(self) -> bool:
        """Whether a message may ask for a delivery delay."""
        return "DELAYED_DELIVERY" in self.capabilities

    @property
    def relays_messages(self) -> bool:
        """Whether a producer's link without an address may be attached (the anonymous relay)."""
        return "ANONYMOUS-RELAY" in self.capabilities

    @property
    def shares_subscriptions(self) -> bool:
        """Whether several consumers may share a subscription."""
        return "SHARED-SUBS" in self.capabilities

    def peer(self, client_id: str) -> Peer:
        """What the transport port tells of the broker.

        Args:
            client_id: the one in use on this connection.
        """
        return Peer(
            product=self.product,
            version=self.version,
            client_id=client_id,
            is_holdfast=self.is_holdfast,
            capabilities=self.capabilities,
            rejects_duplicates=self.rejects_duplicates,
            store=self.store,
            run=self.run,
            servers=self.servers,
            envelope_version=self.envelope_version,
        )

    def addresses(self, queue_prefix: str | None, topic_prefix: str | None) -> Addresses:
        """How destinations are addressed.

        Args:
            queue_prefix: what the user wants before the names of queues; None: what the broker asks for, if anything.
            topic_prefix: the same for topics.

        Raises:
            InvalidURLException: a prefix at our own server.  What is asked of that names destinations as well, and so
                does what it answers: with a prefix they would have two names.
        """
        if self.is_holdfast:
            for option, prefix in (("queue_prefix", queue_prefix), ("topic_prefix", topic_prefix)):
                if prefix:
                    raise InvalidURLException(
                        f"{option}={prefix!r} is for brokers that tell queues from topics by a prefix, and this is a"
                        " Holdfast server; leave the option out, and write the prefix into the names if they are to"
                        " have it"
                    )
        return Addresses(
            queue_prefix if queue_prefix is not None else self.queue_prefix or "",
            topic_prefix if topic_prefix is not None else self.topic_prefix or "",
        )

    def refusal_of(self, spec: ReceiverSpec) -> JMSException | None:
        """Why the broker cannot have such a consumer; None where it can, or will refuse it by itself."""
        subscription = spec.subscription
        if not self.honours_sources:
            if spec.selector is not None:
                return InvalidSelectorException(f"{self.title} applies no selectors, such as {spec.selector!r}")
            if spec.no_local:
                return JMSException(f"{self.title} cannot leave out what a connection sends itself (no_local)")
            if spec.browse:
                return JMSException(
                    f"{self.title} cannot be browsed: it would deliver the messages, and not only show them"
                )
            if subscription is not None and subscription.durable:
                return JMSException(
                    f"{self.title} does not keep the subscription {subscription.name!r} while it has no consumer;"
                    " consume from a queue that is bound to the exchange"
                )
        if spec.exclusive and not self.is_holdfast:
            return JMSException(f"exclusive consumers need a Holdfast server; this broker is {self.product!r}")
        if subscription is not None and subscription.shared and not self.shares_subscriptions:
            return JMSException(f"this broker ({self.product!r}) does not offer shared subscriptions")
        return None


def traits_of(opened: RemoteOpen, *, envelope: bool) -> BrokerTraits:
    """What is known of the broker that has opened a connection.

    Args:
        opened: what it said.
        envelope: whether our own message format is used where the broker offers it.
    """
    properties = opened.properties
    product, version = str(properties.get("product", "unknown")), str(properties.get("version", "unknown"))
    is_holdfast, is_artemis = product == PRODUCT, product == ARTEMIS
    is_rabbitmq_3 = product == RABBITMQ and version.startswith("3.")
    states: Mapping[Outcome, State] = STATES
    if is_holdfast:
        states = _STATES_OF_HOLDFAST
    elif is_rabbitmq_3:
        states = _STATES_OF_RABBITMQ_3
    version_spoken = envelope_version(opened.offered_capabilities) if envelope else 0
    return BrokerTraits(
        product=product,
        version=version,
        title="RabbitMQ 3" if is_rabbitmq_3 else product,
        capabilities=opened.offered_capabilities,
        store=_text(properties.get(STORE)) if is_holdfast else None,
        run=_text(properties.get(RUN)) if is_holdfast else None,
        servers=servers_of(properties.get(SERVER_LIST)),
        envelope_version=version_spoken,
        queue_prefix=_text(properties.get("queue-prefix")),
        topic_prefix=_text(properties.get("topic-prefix")),
        is_holdfast=is_holdfast,
        answers_requests=is_holdfast,
        has_regions=is_holdfast and REGIONS_CAPABILITY in opened.offered_capabilities,
        takes_batches=is_holdfast and version_spoken > 0 and BATCHES_CAPABILITY in opened.offered_capabilities,
        rejects_duplicates=is_holdfast or is_artemis,
        needs_duplicate_ids=is_artemis,
        refuses_discharges=is_holdfast,
        ends_links_at_once=is_holdfast,
        answers_drains=not is_rabbitmq_3,
        finds_subscriptions=is_holdfast,
        honours_sources=not is_rabbitmq_3,
        states=states,
    )


def servers_of(announced: Any) -> tuple[Server, ...]:
    """The servers of a ``failover-server-list``, without what cannot be one."""
    found = []
    for each in (announced if isinstance(announced, list | tuple) else ())[:MAX_SERVERS]:
        fields = {str(key): value for key, value in each.items()} if isinstance(each, dict) else {}
        host, port = _text(fields.get("network-host")), fields.get("port")
        if host and isinstance(port, int) and 0 < port < 65536:
            scheme = _text(fields.get("scheme"))
            tls = None if scheme is None else scheme in ("amqps", "ssl", "tls")
            found.append(Server(host, int(port), tls, _text(fields.get("hostname"))))
    return tuple(found)


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None
