"""Plain consumers of the topic that has a region's name get its events as messages."""

from __future__ import annotations

from broker_adapter.destination import topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.desks import change, make, put
from tests.broker_adapter.engine.driving import WAIT, Engines, attach, connect, drained, payloads, subscribe


def test_a_consumer_of_the_topic_of_that_name_gets_the_events(broker: Broker) -> None:
    make(broker, "quotes")
    client = connect(broker, "me")
    subscribe(broker, client, "quotes", "plain")
    put(broker, "quotes", "IBM", 1)
    put(broker, "quotes", "IBM", 2)
    change(broker, "quotes", "IBM", Wanted.DESTROY, "gone")
    found = drained(broker, client, topic("quotes"), subscription=Subscription("plain", durable=True, shared=False))
    assert payloads(found) == [b"1", b"2", b"gone"]


def test_a_plain_consumer_is_told_what_happened_to_which_key(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    client = connect(broker, "me")
    mine = Subscription("plain", durable=True, shared=False)
    destroyed = Subscription("destroyed", durable=True, shared=False)
    for subscription, selector in (
        (mine, "JMS_Holdfast_Region = 'quotes' AND JMS_Holdfast_Key LIKE 'I%'"),
        (destroyed, "JMS_Holdfast_Operation = 'destroy'"),
    ):
        consumer, _ = attach(broker, client, topic("quotes"), subscription=subscription, selector=selector)
        broker.call(c.Detach(consumer), WAIT)
    for name in ("IBM", "HP", "IBM"):
        put(broker, "quotes", name, name)
    if engines.path is not None:
        broker = engines.start()
        client = connect(broker, "me")
    _, inbox = attach(
        broker,
        client,
        topic("quotes"),
        10,
        subscription=mine,
        selector="JMS_Holdfast_Region = 'quotes' AND JMS_Holdfast_Key LIKE 'I%'",
    )
    change(broker, "quotes", "IBM", Wanted.INVALIDATE)
    change(broker, "quotes", "IBM", Wanted.DESTROY)
    told = [each.annotations for each in inbox.wait_for(4)]
    assert [
        tuple((each or {})[f"JMS_Holdfast_{name}"] for name in ("Region", "Key", "Operation", "Replayed"))
        for each in told
    ] == [
        ("quotes", "IBM", "create", True),
        ("quotes", "IBM", "update", True),
        ("quotes", "IBM", "invalidate", False),
        ("quotes", "IBM", "destroy", False),
    ]
    found = drained(
        broker, client, topic("quotes"), subscription=destroyed, selector="JMS_Holdfast_Operation = 'destroy'"
    )
    assert len(found) == 1


def test_a_consumer_without_a_subscription_of_its_own_is_told_as_well(broker: Broker) -> None:
    make(broker, "quotes")
    client = connect(broker, "me")
    _, inbox = attach(broker, client, topic("quotes"), 10, selector="JMS_Holdfast_Key = 'IBM'", presettled=True)
    put(broker, "quotes", "HP", 1)
    put(broker, "quotes", "IBM", 2)
    (told,) = inbox.wait_for(1)
    assert told.payload == b"2"
    told_of = dict(told.annotations or {})
    assert told_of.pop("JMS_Holdfast_Stamp") == broker._state.events.last_stamp
    assert told_of == {
        "JMS_Holdfast_Region": "quotes",
        "JMS_Holdfast_Key": "IBM",
        "JMS_Holdfast_Operation": "create",
        "JMS_Holdfast_Replayed": False,
        "JMS_Holdfast_Site": 0,
        "JMS_Holdfast_Version": 2,
    }
