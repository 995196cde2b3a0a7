"""What a broker does otherwise than another, known once it has opened the connection.  Pure.

This is the only file of the client that tests for a product's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from typing import Any, Final

import attrs

from ack_modes import Outcome
from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.events import ACCEPTED_STATE, FAILED_STATE, REJECTED, RELEASED_STATE, RemoteOpen, State
from broker_adapter.amqp.wire import (
    BACK_OFF,
    BATCHES_CAPABILITY,
    MAX_SERVERS,
    REDUNDANCY,
    RUN,
    SERVER_LIST,
    STORE,
    envelope_version,
)
from broker_adapter.errors import (
    InvalidSelectorException,
    InvalidURLException,
    JMSException,
    UnsupportedOperationException,
)
from broker_adapter.transport import BrokerAnnounced, Peer, ReceiverSpec, Server
from broker_adapter.version import PRODUCT

#: What ActiveMQ Artemis, ActiveMQ Classic, Qpid Broker-J and RabbitMQ call themselves in ``open``.
ARTEMIS: Final = "apache-activemq-artemis"
CLASSIC: Final = "ActiveMQ"
BROKER_J: Final = "Apache Qpid Broker-J Core"
RABBITMQ: Final = "RabbitMQ"


class Applied(Flag):
    """What an attach may ask for, and a broker may confirm without applying it."""

    NOTHING = 0
    SELECTORS = auto()
    NO_LOCAL = auto()
    BROWSING = auto()
    DURABLE_SUBSCRIPTIONS = auto()
    SHARED_SUBSCRIPTIONS = auto()


_ALL: Final = ~Applied.NOTHING
#: What each product was seen to apply (``make interop``; ``docs/brokers.md`` has the versions).  RabbitMQ 3 and 4 send
#: the source of an attach back as it was asked for, so what they confirm tells nothing; other versions count as these.
_APPLIED: Final = {
    PRODUCT: _ALL,
    ARTEMIS: _ALL,
    CLASSIC: _ALL & ~Applied.SHARED_SUBSCRIPTIONS,
    BROKER_J: _ALL & ~Applied.NO_LOCAL,
    RABBITMQ: Applied.NOTHING,
}

#: How RabbitMQ's addresses of version 2 begin.
_RABBITMQ_2: Final = ("/queues/", "/exchanges/")

#: How a settlement's outcome is written.
STATES: Final = {
    Outcome.ACCEPTED: ACCEPTED_STATE,
    Outcome.REJECTED: State(REJECTED),
    Outcome.RELEASED: RELEASED_STATE,
    Outcome.MODIFIED: FAILED_STATE,
    Outcome.FAILED: FAILED_STATE,
    Outcome.UNDELIVERABLE: FAILED_STATE._replace(undeliverable=True),
}
_BACK_OFF_STATE: Final = FAILED_STATE._replace(annotations={BACK_OFF: True})
_STATES_OF_HOLDFAST: Final = {
    **STATES,
    Outcome.MODIFIED: FAILED_STATE._replace(annotations={BACK_OFF: False}),
    Outcome.FAILED: _BACK_OFF_STATE,
    Outcome.UNDELIVERABLE: _BACK_OFF_STATE,
}
#: RabbitMQ 3 ends the session of a client that tells it that a delivery was modified.  What is rejected it makes a dead
#: letter, as it does with what has expired.
_STATES_OF_RABBITMQ_3: Final = {
    **STATES,
    Outcome.MODIFIED: RELEASED_STATE,
    Outcome.FAILED: RELEASED_STATE,
    Outcome.UNDELIVERABLE: State(REJECTED),
}


@attrs.frozen(kw_only=True)
class BrokerTraits:
    """What is known of a broker.  The default is one that has not opened the connection yet.

    Attributes:
        product: what the broker calls itself.
        version: its version, as it says.
        capabilities: what it offers.
        store: names the store of our engine.
        run: names our engine until it is started again.
        servers: where else the broker says that it can be reached.
        redundancy: how many further nodes of its group have what our server confirms.
        is_group: whether it is a node of a group.
        envelope_version: the version of packed envelopes in which messages are sent; 0: standard AMQP.
        queue_prefix: what it puts before the names of queues in addresses; None: it does not say.
        topic_prefix: the same for topics.
        is_holdfast: whether it is our own server.
        answers_requests: whether it has the management node of our own server.
        takes_batches: whether it takes several messages as one transfer.
        rejects_duplicates: whether a message that is sent again is never a second one.
        needs_duplicate_ids: whether it recognises a message that is sent again by a property alone.
        has_transactions: False: it is known to have none; RabbitMQ ends the session of a client that asks for one.
        refuses_discharges: whether it refuses a discharge by itself where it refused a message of the transaction.
        ends_links_at_once: whether a link may be detached though a delivery of it is not settled or a drain is not
            answered; elsewhere what comes later means nothing, or harm.
        answers_drains: whether a drain has an answer; RabbitMQ 3 answers it with the end of the session.
        loses_begins: whether it may lose the begin of a session on a channel whose session has just ended, as RabbitMQ
            4 does: a round trip is made between the two.
        finds_subscriptions: whether it finds a shared subscription of no client by the name of its link alone.
        applies: what it was seen to apply when an attach asks for it.  The rest is not asked for: a broker that
            confirms it all the same sends everything, or hands out for good what is only browsed.
        states: how the outcome of a settlement is written.
        idle_seconds: the idle time-out that it announces; 0: none.
    """

    product: str = "unknown"
    version: str = "unknown"
    capabilities: frozenset[str] = frozenset()
    store: str | None = None
    run: str | None = None
    servers: tuple[Server, ...] = ()
    redundancy: int = 0
    is_group: bool = False
    envelope_version: int = 0
    queue_prefix: str | None = None
    topic_prefix: str | None = None
    is_holdfast: bool = False
    answers_requests: bool = False
    takes_batches: bool = False
    rejects_duplicates: bool = False
    needs_duplicate_ids: bool = False
    has_transactions: bool = True
    refuses_discharges: bool = False
    ends_links_at_once: bool = False
    answers_drains: bool = True
    loses_begins: bool = False
    finds_subscriptions: bool = False
    applies: Applied = Applied.NOTHING
    states: Mapping[Outcome, State] = attrs.field(default=STATES, repr=False)
    idle_seconds: float = 0.0

    @property
    def delays_deliveries(self) -> bool:
        """Whether a message may ask for a delivery delay."""
        return "DELAYED_DELIVERY" in self.capabilities

    def relays_messages(self, addresses: Addresses) -> bool:
        """Return whether a producer's link without an address may be attached (the anonymous relay).

        Args:
            addresses: how destinations are addressed; RabbitMQ 4 relays to addresses of its version 2 only.
        """
        prefixes = addresses.queue_prefix, addresses.topic_prefix
        is_refused = self.product == RABBITMQ and not all(each.startswith(_RABBITMQ_2) for each in prefixes)
        return "ANONYMOUS-RELAY" in self.capabilities and not is_refused

    def peer(self, client_id: str) -> Peer:
        """Return what the transport port tells of the broker.

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
            has_transactions=self.has_transactions,
            store=self.store,
            run=self.run,
            servers=self.servers,
            redundancy=self.redundancy,
            is_group=self.is_group,
            idle_seconds=self.idle_seconds,
        )

    def addresses(self, queue_prefix: str | None, topic_prefix: str | None) -> Addresses:
        """Return how destinations are addressed.

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
        subscription, applies = spec.subscription, self.applies
        if spec.selector is not None and Applied.SELECTORS not in applies:
            return InvalidSelectorException(
                self._not_seen(f"apply selectors, such as {spec.selector!r}", "it may send every message")
            )
        if spec.no_local and Applied.NO_LOCAL not in applies:
            return self._unsupported("apply no_local", "it may send what this connection has sent")
        if spec.browse and Applied.BROWSING not in applies:
            return self._unsupported("let queues be browsed", "it may deliver the messages, and not only show them")
        if subscription is not None and subscription.durable:
            refusal = self.refusal_of_durable(subscription.name)
            if refusal is not None:
                return refusal
        if subscription is not None and subscription.shared:
            if "SHARED-SUBS" not in self.capabilities:
                return UnsupportedOperationException(f"{self._title} does not offer shared subscriptions")
            if Applied.SHARED_SUBSCRIPTIONS not in applies:
                return self._unsupported("share subscriptions", "each consumer may get every message")
        if spec.exclusive and not self.is_holdfast:
            return UnsupportedOperationException(
                f"exclusive consumers need a Holdfast server; this broker is {self._title}"
            )
        return None

    def refusal_of_durable(self, name: str) -> JMSException | None:
        """Why the broker can neither have nor delete a durable subscription; None where it can.

        Args:
            name: of the subscription.
        """
        if Applied.DURABLE_SUBSCRIPTIONS in self.applies:
            return None
        return self._unsupported(
            f"keep subscriptions, such as {name!r}, while they have no consumer",
            "what is sent meanwhile may be lost, so consume from a queue that is bound to the topic",
        )

    @property
    def _title(self) -> str:
        return f"{self.product} {self.version}"

    def _unsupported(self, what: str, danger: str) -> UnsupportedOperationException:
        return UnsupportedOperationException(self._not_seen(what, danger))

    def _not_seen(self, what: str, danger: str) -> str:
        remedy = "" if self.product in _APPLIED else "; if it does, connect with trust_broker=true"
        return f"{self._title} was not seen to {what}: {danger}{remedy}"


def traits_of(opened: RemoteOpen, *, envelope: bool, trust: bool = False) -> BrokerTraits:
    """Return what is known of the broker that has opened a connection.

    Args:
        opened: what it said.
        envelope: whether our own message format is used where the broker offers it.
        trust: whether a broker of which nothing was seen is taken to apply what it confirms.
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
        capabilities=opened.offered_capabilities,
        store=_text(properties.get(STORE)) if is_holdfast else None,
        run=_text(properties.get(RUN)) if is_holdfast else None,
        servers=servers_of(properties.get(SERVER_LIST)),
        redundancy=_number(properties.get(REDUNDANCY)) if is_holdfast else 0,
        is_group=is_holdfast and REDUNDANCY in properties,
        envelope_version=version_spoken,
        queue_prefix=_text(properties.get("queue-prefix")),
        topic_prefix=_text(properties.get("topic-prefix")),
        is_holdfast=is_holdfast,
        answers_requests=is_holdfast,
        takes_batches=is_holdfast and version_spoken > 0 and BATCHES_CAPABILITY in opened.offered_capabilities,
        rejects_duplicates=is_holdfast or is_artemis,
        needs_duplicate_ids=is_artemis,
        has_transactions=product != RABBITMQ,
        refuses_discharges=is_holdfast,
        ends_links_at_once=is_holdfast,
        answers_drains=not is_rabbitmq_3,
        loses_begins=product == RABBITMQ and not is_rabbitmq_3,
        finds_subscriptions=is_holdfast,
        applies=_APPLIED.get(product, _ALL if trust else Applied.NOTHING),
        states=states,
        idle_seconds=opened.idle_seconds,
    )


def announced_by(answer: Any) -> BrokerAnnounced:
    """What our own server announces in an answer, without what it cannot mean."""
    fields = answer if isinstance(answer, dict) else {}
    return BrokerAnnounced(servers_of(fields.get(SERVER_LIST)), _number(fields.get(REDUNDANCY)))


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


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int) else 0


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) else None
