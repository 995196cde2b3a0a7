"""What sources and targets ask for, at the protocol in memory: refusals, filters, subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    Terminus,
)
from broker_adapter.amqp.messages.values import Described, Symbol, ULong
from broker_adapter.amqp.wire import (
    DESTINATION_CAPABILITIES,
    FORMER_NAME,
    NO_LOCAL_CODE,
    SELECTOR_CODE,
)
from broker_adapter.destination import Destination, DestinationKind, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import InvalidDestinationException
from broker_adapter.server.links.termini import (
    browses,
    destination_of,
    former_name,
    temporary_kind,
    temporary_terminus,
)
from tests.broker_adapter.engine.driving import WAIT
from tests.broker_adapter.server.protocol_client import (
    JMS_CLIENT,
    TOPIC,
    Client,
    durable,
)


def test_a_receiver_without_a_usable_source_is_refused(client: Client) -> None:
    for number, address in enumerate((None, "", "x" * 5000)):
        link = client.peer.attach_receiver(client.session, f"r{number}", Terminus(address), Terminus())
        assert client.refusal(link).condition == "amqp:not-found"


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ({Symbol("jms-selector"): Described(ULong(SELECTOR_CODE), "a = ")}, "holdfast:invalid-selector"),
        ({Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "1")}, "holdfast:invalid-selector"),
        ({Symbol("jms-selector"): Described(ULong(SELECTOR_CODE), 1)}, "holdfast:invalid-selector"),
        ({Symbol("other"): Described(ULong(99), "x")}, "amqp:not-implemented"),
        ({Symbol("other"): "x"}, "amqp:not-implemented"),
        ({Symbol("other"): Described("a string", "x")}, "amqp:not-implemented"),
    ],
)
def test_a_filter_that_would_not_be_applied_is_refused(client: Client, filters: Any, condition: str) -> None:
    link = client.peer.attach_receiver(client.session, "r", Terminus("q", filters=filters), Terminus())
    assert client.refusal(link).condition == condition
    assert client.send(client.sender("q"), "the connection goes on") == [ACCEPTED_STATE]


def test_no_local_is_confirmed(client: Client) -> None:
    filters = {Symbol("no-local"): Described(ULong(NO_LOCAL_CODE), "NoLocalFilter{}")}
    link = client.receiver(Terminus("t", filters=filters, capabilities=TOPIC), name="r")
    source = client.opened(link).source
    assert source is not None
    assert list(source.filters or {}) == ["no-local"]


def test_a_durable_subscription_is_kept_by_a_detach_and_ended_by_a_close(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    producer = client.sender(Terminus("news", capabilities=TOPIC))
    link = client.receiver(durable(), 1, name="reader")
    client.send(producer, "first")
    client.settle(link, client.receive(link, 1))
    answer = client.close_link(link, closed=False)
    assert not answer.closed
    client.send(producer, "meanwhile")
    again = client.receiver(durable(), 9, name="reader")
    client.receive(again, 1)
    assert client.bodies(again) == ["meanwhile"]
    client.settle(again, client.messages(again))
    assert client.close_link(again, closed=True).closed
    client.rest()
    client.send(producer, "without a consumer")
    again = client.receiver(durable(), 9, name="reader")
    client.drained(again)
    assert client.messages(again) == []


@pytest.mark.parametrize("closed", [True, False])
def test_a_subscription_with_link_detach_ends_with_its_link_and_the_answer_says_so(
    broker: Broker, closed: bool
) -> None:
    client = Client(broker).open("me")
    source = Terminus("news", durable=2, expiry="link-detach", capabilities=TOPIC)
    link = client.receiver(source, 1, name="reader")

    answer = client.opened(link).source
    assert answer is not None
    assert (answer.durable, answer.expiry, answer.timeout) == (0, "link-detach", 0)
    assert subscriptions(broker) == 1
    client.close_link(link, closed=closed)
    client.rest()
    assert subscriptions(broker) == 0


def test_a_subscription_that_never_expires_has_no_timeout_and_the_answer_says_so(broker: Broker) -> None:
    """AMQP 1.0 part 3, 3.5.3: the timeout is of an expiring source."""
    client = Client(broker).open("me")
    source = Terminus("news", durable=2, expiry="never", timeout=60, capabilities=TOPIC)
    answer = client.opened(client.receiver(source, name="reader")).source
    assert answer is not None
    assert (answer.durable, answer.expiry, answer.timeout) == (2, "never", 0)


@pytest.mark.parametrize("timeout", [0, 60])
@pytest.mark.parametrize("expiry", [None, "session-end", "connection-close", "link-detach"])
def test_a_durable_subscription_that_would_not_be_kept_as_it_asks_is_refused(
    broker: Broker, expiry: str | None, timeout: int
) -> None:
    if (expiry, timeout) == ("link-detach", 0):
        return
    client = Client(broker).open("me")
    source = Terminus("news", durable=2, expiry=expiry, timeout=timeout, capabilities=TOPIC)
    error = client.refusal(client.peer.attach_receiver(client.session, "reader", source, Terminus()))

    assert error.condition == "amqp:not-implemented"
    assert error.description is not None
    assert f"expiry-policy {expiry or 'session-end'} and a timeout of {timeout} s" in error.description
    assert "ask for never" in error.description
    assert subscriptions(broker) == 0


@pytest.mark.parametrize("expiry", [None, "session-end", "connection-close"])
def test_what_is_not_durable_ends_with_its_link_and_the_answer_says_so(client: Client, expiry: str | None) -> None:
    link = client.receiver(Terminus("news", expiry=expiry, timeout=60, capabilities=TOPIC), name="reader")
    answer = client.opened(link).source
    assert answer is not None
    assert (answer.durable, answer.expiry, answer.timeout) == (0, "link-detach", 0)


def subscriptions(broker: Broker) -> int:
    return sum(each.kind == "subscription" for each in broker.call(c.Statistics(), WAIT).queues)


def test_a_durable_subscription_outlives_its_connection(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    client.receiver(durable(), 1, name="reader")
    client.peer.close()
    client.rest()
    other = Client(broker).open("other", JMS_CLIENT)
    other.send(other.sender(Terminus("news", capabilities=TOPIC)), "x")
    back = Client(broker).open("me", JMS_CLIENT)
    link = back.receiver(durable(), 1, name="reader")
    back.receive(link, 1)
    assert back.bodies(link) == ["x"]


def test_a_durable_subscription_in_use_or_without_a_client_id_is_refused(broker: Broker) -> None:
    invented = Client(broker).open(properties={"product": "Holdfast"})
    link = invented.peer.attach_receiver(invented.session, "reader", durable(), Terminus())
    assert invented.refusal(link).condition == "amqp:illegal-state"
    named = Client(broker).open("me", JMS_CLIENT)
    named.receiver(durable(), name="reader")
    other = named.peer.begin_session()
    second = named.peer.attach_receiver(other, "reader", durable(), Terminus())
    assert named.refusal(second).condition == "amqp:illegal-state"


def test_the_container_id_of_another_client_names_its_subscriptions_though_others_may_have_it(broker: Broker) -> None:
    client, twin = Client(broker).open("app"), Client(broker).open("app")
    client.close_link(client.receiver(durable(), name="reader"), closed=False)
    twin.send(twin.sender(Terminus("news", capabilities=TOPIC)), "x")
    link = twin.receiver(durable(), 1, name="reader")
    twin.receive(link, 1)
    assert twin.bodies(link) == ["x"]
    second = client.peer.attach_receiver(client.session, "reader", durable(), Terminus())
    assert client.refusal(second).condition == "amqp:illegal-state"


def test_a_global_subscription_is_shared_by_clients_of_any_id(broker: Broker) -> None:
    clients = [Client(broker).open(name, JMS_CLIENT) for name in ("a", "b")]
    links = [each.receiver(durable("news", "shared", "global"), 9, name="reader|global") for each in clients]
    for client in clients:
        client.rest()  # both have credit now
    clients[0].send(clients[0].sender(Terminus("news", capabilities=TOPIC)), 0, 1)
    for client, link in zip(clients, links, strict=True):
        client.receive(link, 1)
    assert sorted(clients[0].bodies(links[0]) + clients[1].bodies(links[1])) == [0, 1]
    for client, link in zip(clients, links, strict=True):
        client.settle(link, client.messages(link))
        client.close_link(link, closed=False)
    own = clients[0].peer.attach_receiver(clients[0].session, "reader", None, Terminus())
    assert clients[0].refusal(own).condition == "amqp:not-found"
    found = clients[0].peer.attach_receiver(clients[0].session, "reader|global", None, Terminus())
    assert clients[0].opened(found).source is not None


def test_a_shared_subscription_is_named_ahead_of_the_bar(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    links = [client.receiver(durable("news", "shared"), 2, name=f"reader|{number}") for number in (1, 2)]
    client.send(client.sender(Terminus("news", capabilities=TOPIC)), *range(4))
    client.rest()
    assert sorted(client.bodies(links[0]) + client.bodies(links[1])) == [0, 1, 2, 3]
    assert [len(client.messages(link)) for link in links] == [2, 2]


def test_a_null_source_finds_a_subscription_to_end_it(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    client.close_link(client.receiver(durable(), name="reader"), closed=False)
    link = client.peer.attach_receiver(client.session, "reader", None, Terminus())
    source = client.opened(link).source
    assert source is not None
    assert source.address == "reader"
    assert client.close_link(link).error is None
    client.send(client.sender(Terminus("news", capabilities=TOPIC)), "without a consumer")
    assert [each.name for each in broker.call(c.Statistics(), WAIT).queues if each.kind != "topic"] == ["DLQ"]
    missing = client.peer.attach_receiver(client.session, "unknown", None, Terminus())
    assert client.refusal(missing).condition == "amqp:not-found"


def test_a_subscription_in_use_is_not_ended(broker: Broker) -> None:
    client = Client(broker).open("me", JMS_CLIENT)
    client.receiver(durable(), name="reader")
    other = client.peer.begin_session()
    link = client.peer.attach_receiver(other, "reader", None, Terminus())
    assert client.refusal(link).condition == "amqp:illegal-state"


def test_every_subscriber_of_a_topic_gets_a_copy(client: Client) -> None:
    links = [client.receiver(Terminus("news", capabilities=TOPIC), 5, name=f"r{number}") for number in range(3)]
    client.send(client.sender(Terminus("news", capabilities=TOPIC)), "x")
    for link in links:
        client.receive(link, 1)
        assert client.bodies(link) == ["x"]


@pytest.mark.parametrize("target", [None, Terminus(""), Terminus("x" * 5000)])
def test_a_sender_without_a_usable_target_is_refused(client: Client, target: Terminus | None) -> None:
    link = client.peer.attach_sender(client.session, "s", Terminus("s"), target)
    assert client.refusal(link).condition == "amqp:not-found"


KINDS = list(DestinationKind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_a_destination_is_told_by_a_capability(kind: DestinationKind) -> None:
    terminus = Terminus("name", capabilities=("something else", DESTINATION_CAPABILITIES[kind]))
    assert destination_of(terminus) == Destination("name", kind)


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("q", DestinationKind.QUEUE),
        ("temporary-queue/1", DestinationKind.TEMPORARY_QUEUE),
        ("temporary-topic/1", DestinationKind.TEMPORARY_TOPIC),
    ],
)
def test_the_kind_of_a_destination_is_told_by_the_prefix_of_its_name_where_the_client_says_none(
    address: str, kind: DestinationKind
) -> None:
    assert destination_of(Terminus(address)) == Destination(address, kind)


def test_copies_of_a_queue_are_for_a_browser_and_those_of_a_topic_for_a_subscriber() -> None:
    assert browses(Terminus("q", copies=True), Destination("q"))
    assert not browses(Terminus("q"), Destination("q"))
    assert not browses(Terminus("news", copies=True), topic("news"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dynamic_terminus_asks_for_a_temporary_queue_unless_it_says_topic(kind: DestinationKind) -> None:
    asked = Terminus(None, dynamic=True, capabilities=(DESTINATION_CAPABILITIES[kind],))
    is_topic = kind in (DestinationKind.TOPIC, DestinationKind.TEMPORARY_TOPIC)
    assert temporary_kind(asked) is (DestinationKind.TEMPORARY_TOPIC if is_topic else DestinationKind.TEMPORARY_QUEUE)
    assert temporary_kind(Terminus(None, dynamic=True)) is DestinationKind.TEMPORARY_QUEUE


def test_a_temporary_destination_may_have_had_a_name_of_its_own_kind_only() -> None:
    kind = DestinationKind.TEMPORARY_QUEUE
    assert former_name(Terminus(None, dynamic=True), kind) is None
    before = Terminus(None, dynamic=True, dynamic_properties={FORMER_NAME: "temporary-queue/7"})
    assert former_name(before, kind) == "temporary-queue/7"
    for wrong in ("q", "temporary-topic/7", 7):
        with pytest.raises(InvalidDestinationException, match="is not the name of a temporary destination of this"):
            former_name(before._replace(dynamic_properties={FORMER_NAME: wrong}), kind)


def test_the_answer_names_a_temporary_destination_that_ends_with_its_link() -> None:
    made = Destination("temporary-topic/7", DestinationKind.TEMPORARY_TOPIC)
    terminus = temporary_terminus(made)
    assert (terminus.address, terminus.dynamic, terminus.expiry) == ("temporary-topic/7", True, "link-detach")
    assert destination_of(terminus) == made
