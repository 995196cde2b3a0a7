"""What each broker's product does otherwise than another: a table, without connections."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.client.brokers import BROKER_J, CLASSIC, STATES, Applied, BrokerTraits, traits_of
from broker_adapter.amqp.events import FAILED_STATE, REJECTED, RELEASED_STATE, RemoteOpen, State
from broker_adapter.amqp.wire import BACK_OFF, envelope_capabilities
from broker_adapter.destination import queue, topic
from broker_adapter.envelope import ENVELOPE_VERSION
from broker_adapter.errors import (
    InvalidSelectorException,
    InvalidURLException,
    JMSException,
    UnsupportedOperationException,
)
from broker_adapter.transport import Peer, ReceiverSpec, Server, Subscription

ARTEMIS = ("apache-activemq-artemis", "2.44.0")
HOLDFAST = ("Holdfast", "1")
QPID = ("qpid-cpp", "1.39.0")
CLASSIC_6 = (CLASSIC, "6.1.6")
JAVA_QPID = (BROKER_J, "10.1.0")
RABBITMQ_3 = ("RabbitMQ", "3.13.7")
RABBITMQ_4 = ("RabbitMQ", "4.0.5")
RABBITMQ_5 = ("RabbitMQ", "5.0.0")  # no version of it was seen
EVERYTHING = ~Applied.NOTHING
BACK_OFF_STATE = FAILED_STATE._replace(annotations={BACK_OFF: True})


def opened(product: tuple[str, str] | None, *offered: str, **properties: Any) -> RemoteOpen:
    """What a broker says as it opens a connection."""
    said = {} if product is None else {"product": product[0], "version": product[1]}
    return RemoteOpen("broker", None, frozenset(offered), frozenset(), {**said, **properties})


def traits(product: tuple[str, str] | None, *offered: str, **properties: Any) -> BrokerTraits:
    """What is known of it."""
    return traits_of(opened(product, *offered, **properties), envelope=True)


@pytest.mark.parametrize(
    ("product", "different"),
    [
        (
            HOLDFAST,
            {
                "is_holdfast": True,
                "answers_requests": True,
                "rejects_duplicates": True,
                "refuses_discharges": True,
                "ends_links_at_once": True,
                "finds_subscriptions": True,
                "applies": EVERYTHING,
                "states": {
                    **STATES,
                    Outcome.MODIFIED: FAILED_STATE._replace(annotations={BACK_OFF: False}),
                    Outcome.FAILED: BACK_OFF_STATE,
                    Outcome.UNDELIVERABLE: BACK_OFF_STATE,
                },
            },
        ),
        (
            ARTEMIS,
            {"applies": EVERYTHING, "rejects_duplicates": True, "needs_duplicate_ids": True},
        ),
        (JAVA_QPID, {"applies": EVERYTHING & ~Applied.NO_LOCAL}),
        (
            RABBITMQ_3,
            {
                "answers_drains": False,
                "has_transactions": False,
                "states": {
                    **STATES,
                    Outcome.MODIFIED: RELEASED_STATE,
                    Outcome.FAILED: RELEASED_STATE,
                    Outcome.UNDELIVERABLE: State(REJECTED),
                },
            },
        ),
        (RABBITMQ_4, {"loses_begins": True, "has_transactions": False}),
        (RABBITMQ_5, {"loses_begins": True, "has_transactions": False}),
        (QPID, {}),
    ],
)
def test_each_product_differs_from_an_unknown_one_in_this(product: tuple[str, str], different: dict[str, Any]) -> None:
    name, version = product
    assert traits(product) == BrokerTraits(product=name, version=version, **different)


def test_a_broker_that_says_nothing_is_unknown() -> None:
    assert traits(None) == BrokerTraits()


def test_only_our_own_server_is_asked_for_its_store() -> None:
    said = {"holdfast-store": "s", "holdfast-run": "r"}
    assert (traits(HOLDFAST, **said).store, traits(HOLDFAST, **said).run) == ("s", "r")
    assert (traits(ARTEMIS, **said).store, traits(ARTEMIS, **said).run) == (None, None)
    assert traits(HOLDFAST, **{"holdfast-store": 5}).store is None


def test_prefixes_are_taken_where_they_are_texts() -> None:
    found = traits(ARTEMIS, **{"queue-prefix": "queue://", "topic-prefix": 5})
    assert (found.queue_prefix, found.topic_prefix) == ("queue://", None)


@pytest.mark.parametrize(
    ("wanted", "offered"), [("q/", None), (None, "q/"), ("q/", "other/")], ids=["option", "broker", "option first"]
)
def test_names_have_the_prefix_that_the_user_or_the_broker_wants(wanted: str | None, offered: str | None) -> None:
    found = traits(ARTEMIS) if offered is None else traits(ARTEMIS, **{"queue-prefix": offered})
    assert found.addresses(wanted, None) == Addresses("q/", "")
    assert found.addresses(wanted, "t/") == Addresses("q/", "t/")


@pytest.mark.parametrize("options", [("p/", None), (None, "p/"), ("p/", "p/")])
def test_our_own_server_takes_no_prefix(options: tuple[str | None, str | None]) -> None:
    """It was sent to p/name, and asked for lost acknowledgements of name: the messages were redelivered."""
    with pytest.raises(InvalidURLException, match=r"_prefix='p/' is for brokers that .* a Holdfast server"):
        traits(HOLDFAST).addresses(*options)
    for none in (None, ""):
        assert traits(HOLDFAST).addresses(none, none) == Addresses("", "")


def test_capabilities_tell_what_a_broker_offers() -> None:
    none, some = traits(QPID), traits(QPID, "ANONYMOUS-RELAY", "DELAYED_DELIVERY")
    assert (none.relays_messages(Addresses()), none.delays_deliveries) == (False, False)
    assert (some.relays_messages(Addresses()), some.delays_deliveries) == (True, True)


@pytest.mark.parametrize(
    ("prefixes", "relays"),
    [
        (("", ""), False),
        (("/queue/", "/topic/"), False),
        (("/queues/", "/topic/"), False),
        (("/queues/", "/exchanges/amq.topic/"), True),
    ],
)
def test_rabbitmq_relays_to_addresses_of_its_version_2_only(prefixes: tuple[str, str], relays: bool) -> None:
    """To any other it answers "bad 'to' address string", and ends the session."""
    assert traits(RABBITMQ_4, "ANONYMOUS-RELAY").relays_messages(Addresses(*prefixes)) is relays


def test_our_own_format_is_spoken_where_both_ends_want_it() -> None:
    said = opened(HOLDFAST, *envelope_capabilities(ENVELOPE_VERSION))
    assert traits_of(said, envelope=True).envelope_version == ENVELOPE_VERSION
    assert traits_of(said, envelope=False).envelope_version == 0


def test_the_port_is_told_what_the_traits_say() -> None:
    announced = [{"network-host": "h", "port": 1}]
    found = traits(HOLDFAST, "SHARED-SUBS", **{"failover-server-list": announced, "holdfast-store": "s"})
    assert found.peer("me") == Peer(
        product="Holdfast",
        version="1",
        client_id="me",
        is_holdfast=True,
        capabilities=frozenset(("SHARED-SUBS",)),
        rejects_duplicates=True,
        store="s",
        servers=(Server("h", 1),),
    )


SELECTIVE = ReceiverSpec(1, queue("q"), selector="a = 1")
WITHOUT_OWN = ReceiverSpec(1, topic("t"), no_local=True)
BROWSING = ReceiverSpec(1, queue("q"), browse=True)
DURABLE = ReceiverSpec(1, topic("t"), subscription=Subscription("s", durable=True, shared=False))
SHARED = ReceiverSpec(1, topic("t"), subscription=Subscription("s", durable=False, shared=True))
EXCLUSIVE = ReceiverSpec(1, queue("q"), exclusive=True)
PLAIN = ReceiverSpec(1, queue("q"))


@pytest.mark.parametrize(
    ("product", "refused"),
    [
        (HOLDFAST, []),
        (ARTEMIS, [EXCLUSIVE]),
        (CLASSIC_6, [SHARED, EXCLUSIVE]),
        (JAVA_QPID, [WITHOUT_OWN, EXCLUSIVE]),
        (QPID, [SELECTIVE, WITHOUT_OWN, BROWSING, DURABLE, SHARED, EXCLUSIVE]),
        (RABBITMQ_3, [SELECTIVE, WITHOUT_OWN, BROWSING, DURABLE, SHARED, EXCLUSIVE]),
        (RABBITMQ_4, [SELECTIVE, WITHOUT_OWN, BROWSING, DURABLE, SHARED, EXCLUSIVE]),
        (RABBITMQ_5, [SELECTIVE, WITHOUT_OWN, BROWSING, DURABLE, SHARED, EXCLUSIVE]),
        (None, [SELECTIVE, WITHOUT_OWN, BROWSING, DURABLE, SHARED, EXCLUSIVE]),
    ],
)
def test_what_a_product_was_not_seen_to_apply_is_refused(
    product: tuple[str, str] | None, refused: list[ReceiverSpec]
) -> None:
    """RabbitMQ 4 confirmed a selector, no-local and a browser, and sent everything for good."""
    found = traits(product, "SHARED-SUBS")
    every = (SELECTIVE, WITHOUT_OWN, BROWSING, DURABLE, SHARED, EXCLUSIVE, PLAIN)
    assert [spec for spec in every if found.refusal_of(spec) is not None] == refused
    assert (found.refusal_of_durable("s") is not None) is (DURABLE in refused)
    assert traits(product).refusal_of(SHARED) is not None


def test_an_unknown_broker_is_trusted_where_the_user_says_so_and_a_known_one_is_not() -> None:
    every = (SELECTIVE, WITHOUT_OWN, BROWSING, DURABLE, SHARED)
    for product, refused in ((QPID, []), (RABBITMQ_4, list(every))):
        found = traits_of(opened(product, "SHARED-SUBS"), envelope=True, trust=True)
        assert [spec for spec in every if found.refusal_of(spec) is not None] == refused


@pytest.mark.parametrize(
    ("spec", "cls", "reason"),
    [
        (
            SELECTIVE,
            InvalidSelectorException,
            "RabbitMQ 4.0.5 was not seen to apply selectors, such as 'a = 1': it may send every message",
        ),
        (
            WITHOUT_OWN,
            UnsupportedOperationException,
            "RabbitMQ 4.0.5 was not seen to apply no_local: it may send what this connection has sent",
        ),
        (
            BROWSING,
            UnsupportedOperationException,
            (
                "RabbitMQ 4.0.5 was not seen to let queues be browsed: it may deliver the messages, and not only show"
                " them"
            ),
        ),
        (
            DURABLE,
            UnsupportedOperationException,
            (
                "RabbitMQ 4.0.5 was not seen to keep subscriptions, such as 's', while they have no consumer: what is"
                " sent meanwhile may be lost, so consume from a queue that is bound to the topic"
            ),
        ),
        (SHARED, UnsupportedOperationException, "RabbitMQ 4.0.5 does not offer shared subscriptions"),
        (
            EXCLUSIVE,
            UnsupportedOperationException,
            "exclusive consumers need a Holdfast server; this broker is RabbitMQ 4.0.5",
        ),
    ],
)
def test_a_refusal_names_the_product_and_what_it_lacks(
    spec: ReceiverSpec, cls: type[JMSException], reason: str
) -> None:
    refusal = traits(RABBITMQ_4).refusal_of(spec)
    assert type(refusal) is cls
    assert refusal.reason == reason


def test_a_refusal_of_an_unknown_product_names_the_option() -> None:
    refusal = traits(QPID).refusal_of(BROWSING)
    assert refusal is not None
    assert refusal.reason.endswith("; if it does, connect with trust_broker=true")
