"""The names by which brokers know subscriptions, and what is remembered of them."""

from __future__ import annotations

import pytest

from broker_adapter.amqp.client.subscriptions import MAX_SOURCES, Subscriptions
from broker_adapter.amqp.events import Terminus
from broker_adapter.destination import topic
from broker_adapter.transport import Subscription
from tests.broker_adapter.amqp.client.conversations import attached, receiver
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker, Wired


@pytest.mark.parametrize(
    ("has_client_id", "durable", "shared", "names", "capabilities"),
    [
        (True, True, False, ["sub"], ("topic",)),
        (True, True, True, ["sub", "sub|2", "sub|3"], ("topic", "shared")),
        (False, True, True, ["sub|global", "sub|global2"], ("topic", "shared", "global")),
        (True, False, True, ["sub|volatile1", "sub|volatile2"], ("topic", "shared")),
        (False, False, True, ["sub|global-volatile1", "sub|global-volatile2"], ("topic", "shared", "global")),
    ],
)
def test_subscriptions_have_the_link_names_that_brokers_know(
    has_client_id: bool, durable: bool, shared: bool, names: list[str], capabilities: tuple[str, ...]
) -> None:
    wired = Wired(has_client_id=has_client_id).opened()
    for name in names:
        receiver(wired, destination=topic("t"), subscription=Subscription("sub", durable, shared))
        opened = attached(wired)
        assert opened.name == name
        assert opened.source is not None
        assert opened.source.capabilities == capabilities
        assert (opened.source.durable, opened.source.expiry) == ((2, "never") if durable else (0, "link-detach"))


def test_a_durable_subscription_and_another_one_of_the_same_name_are_counted_apart() -> None:
    used = Subscriptions(has_client_id=True)
    durable, volatile = Subscription("sub", True, True), Subscription("sub", False, True)
    names = []
    for link, each in enumerate((volatile, durable, volatile, durable)):
        names.append(used.link_name(each))
        used.add(each, link, Terminus("t"))
    assert names == ["sub|volatile1", "sub", "sub|volatile2", "sub|2"]
    assert used.used("sub") == durable
    for link in (1, 3):
        used.remove(durable, link)
    assert used.used("sub") is None
    assert used.link_name(durable) == "sub"
    assert used.link_name(volatile) == "sub|volatile3"


def test_only_so_many_sources_of_subscriptions_are_remembered() -> None:
    wired = Wired(ScriptedBroker(holdfast=False), has_client_id=False).opened()
    for number in range(MAX_SOURCES + 1):
        subscription = Subscription(str(number), durable=True, shared=True)
        link = receiver(wired, destination=topic("t"), subscription=subscription)
        wired.ask(wired.client.detach, link)
    for name, source in (("1", "t"), ("0", None)):
        wired.ask(wired.client.unsubscribe, name)
        found = attached(wired).source
        assert (None if found is None else found.address) == source
