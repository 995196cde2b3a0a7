"""Continuous queries: what an event is for a query follows from the old and the new value."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.errors import IllegalStateException, InvalidDestinationException, InvalidSelectorException
from tests.broker_adapter.engine.desks import Desk, change, make
from tests.broker_adapter.engine.driving import WAIT, Engines, come_to_rest

CREATE, UPDATE, DESTROY = Operation.CREATE, Operation.UPDATE, Operation.DESTROY


def query(name: str, text: str) -> Interest:
    return Interest(InterestKind.QUERY, text, name)


DEAR = query("dear", "price > 3")


def quote(key: str, price: int) -> e.KeyChange:
    """A put of a map with a price."""
    payload = pack(Envelope(topic("quotes"), BodyKind.MAP, {"price": price}))
    return e.KeyChange(key, Wanted.PUT, c.NewMessage(ENVELOPE_FORMAT, payload))


def quotes(broker: Broker, key: str, *prices: int) -> None:
    for price in prices:
        broker.call(e.ChangeKeys("quotes", [quote(key, price)]), WAIT)


def told(desk: Desk) -> list[Any]:
    """Key, operation and queries of each event."""
    return [(each.key, each.operation, list(each.queries)) for each in desk.handouts()]


def test_a_key_appears_changes_and_disappears_for_a_query(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", DEAR)
    desk.ready()
    quotes(broker, "IBM", 1, 2, 4, 5, 3, 3, 9)
    change(broker, "quotes", "IBM", Wanted.INVALIDATE)
    change(broker, "quotes", "IBM", Wanted.DESTROY)
    quotes(broker, "IBM", 8)
    change(broker, "quotes", "IBM", Wanted.DESTROY)
    quotes(broker, "HP", 1)
    change(broker, "quotes", "HP", Wanted.DESTROY)
    assert told(desk) == [
        ("IBM", UPDATE, [("dear", CREATE)]),
        ("IBM", UPDATE, [("dear", UPDATE)]),
        ("IBM", UPDATE, [("dear", DESTROY)]),
        ("IBM", UPDATE, [("dear", CREATE)]),
        ("IBM", Operation.INVALIDATE, [("dear", DESTROY)]),
        ("IBM", CREATE, [("dear", CREATE)]),
        ("IBM", DESTROY, [("dear", DESTROY)]),
    ]
    assert all(not each.interests for each in desk.handouts())


def test_what_an_event_was_for_a_query_survives_until_it_is_dispatched(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", DEAR, query("cheap", "price <= 3"), Interest(InterestKind.KEY, "HP"))
    desk.lose()
    quotes(broker, "IBM", 1, 5)
    quotes(broker, "HP", 2)
    if engines.path is not None:
        broker = engines.start()
    desk = Desk(broker)
    assert desk.pending == 3
    desk.ready()
    assert told(desk) == [
        ("IBM", CREATE, [("cheap", CREATE)]),
        ("IBM", UPDATE, [("cheap", DESTROY), ("dear", CREATE)]),
        ("HP", CREATE, [("cheap", CREATE)]),
    ]
    assert [list(each.interests) for each in desk.handouts()] == [[], [], [Interest(InterestKind.KEY, "HP")]]


def test_the_old_value_may_be_of_the_same_request_or_of_the_same_cycle(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", DEAR)
    desk.ready()
    quotes(broker, "IBM", 9)
    with broker.reading():
        broker.submit(e.ChangeKeys("quotes", [quote("IBM", 1), quote("IBM", 5), quote("IBM", 6)]))
        for price in (*range(20), 1):
            broker.submit(e.ChangeKeys("quotes", [quote("IBM", price)]))
    assert [operation for *_, [(_, operation)] in told(desk)] == [
        *(CREATE, DESTROY, CREATE, UPDATE, DESTROY, CREATE, *[UPDATE] * 15, DESTROY)
    ]


def test_the_first_query_of_a_region_knows_the_values_of_its_cycle(broker: Broker) -> None:
    make(broker, "quotes")
    quotes(broker, "IBM", 9)
    quotes(broker, "HP", 9)
    desk = Desk(broker)
    desk.ready()
    with broker.reading():
        broker.submit(e.ChangeKeys("quotes", [quote("HP", 1)]))
        broker.submit(e.RegisterInterest(desk.connection, "quotes", [DEAR], True))
        broker.submit(e.ChangeKeys("quotes", [quote("IBM", 8), quote("HP", 7)]))
    assert told(desk) == [("IBM", UPDATE, [("dear", UPDATE)]), ("HP", UPDATE, [("dear", CREATE)])]


def test_a_text_is_asked_once_whatever_the_number_of_clients(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    make(broker, "quotes")
    desks = [Desk(broker, f"desk {number}") for number in range(20)]
    for number, desk in enumerate(desks):
        desk.want("quotes", query(f"query {number}", "price > 3"), query("same", "price > 3"))
        desk.ready()
    quotes(broker, "IBM", 1)
    asked = []
    matching = broker._state.matching
    is_selected = type(matching).is_selected
    monkeypatch.setattr(type(matching), "is_selected", lambda *arguments: asked.append(1) or is_selected(*arguments))
    quotes(broker, "IBM", 4)
    assert len(asked) == 2
    for number, desk in enumerate(desks):
        assert told(desk) == [("IBM", UPDATE, [(f"query {number}", CREATE), ("same", CREATE)])]


def test_clients_with_the_same_queries_are_one_audience(broker: Broker) -> None:
    make(broker, "quotes")
    for number in range(3):
        Desk(broker, f"desk {number}").want("quotes", DEAR)
    assert len(broker._state.events.by_number[broker._state.events.regions["quotes"].id].routing.audiences) == 1


def test_a_name_is_given_once_in_a_client(broker: Broker) -> None:
    make(broker, "quotes", "orders")
    desk = Desk(broker)
    desk.want("quotes", DEAR)
    desk.want("quotes", DEAR)
    for region, text in (("quotes", "price > 4"), ("orders", "price > 3")):
        with pytest.raises(IllegalStateException, match="another query 'dear'"):
            desk.want(region, query("dear", text))
    with pytest.raises(IllegalStateException, match="another query 'x'"):
        desk.want("quotes", query("x", "price > 4"), query("x", "price > 5"))
    Desk(broker, "other").want("quotes", query("dear", "price > 4"))
    desk.drop("quotes", DEAR)
    desk.want("orders", query("dear", "price > 9"))


def test_an_interest_that_cannot_be_one_changes_nothing(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    for wrong, error in (
        (query("", "price > 3"), InvalidDestinationException),
        (query("n" * 101, "price > 3"), InvalidDestinationException),
        (query("dear", "price >"), InvalidSelectorException),
        (Interest(InterestKind.EXPRESSION, "("), InvalidDestinationException),
    ):
        with pytest.raises(error):
            desk.want("quotes", ALL_KEYS, wrong)
    quotes(broker, "IBM", 1)
    desk.ready()
    assert told(desk) == []


def test_what_is_queued_of_a_query_that_has_ended_keeps_its_name(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", DEAR)
    quotes(broker, "IBM", 9)
    desk.drop("quotes", DEAR)
    quotes(broker, "IBM", 8)
    desk.ready()
    assert told(desk) == [("IBM", CREATE, [("dear", CREATE)])]


def test_a_value_that_cannot_be_decoded_matches_no_query(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", DEAR, query("all", "key = 'IBM' OR price > 0"))
    desk.ready()
    quotes(broker, "IBM", 9)
    change(broker, "quotes", "IBM", Wanted.PUT, b"\x48nothing")
    quotes(broker, "IBM", 9)
    assert [queries for *_, queries in told(desk)] == [
        [("all", CREATE), ("dear", CREATE)],
        [("all", UPDATE), ("dear", DESTROY)],
        [("all", UPDATE), ("dear", CREATE)],
    ]


def test_a_selector_names_the_key_and_the_fields_of_the_value(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    wish = Interest(InterestKind.SELECTOR, "key LIKE 'I%' AND price > 3")
    desk.want("quotes", wish)
    for key, price in (("IBM", 2), ("HP", 9), ("IBM", 4)):
        quotes(broker, key, price)
    desk.lose()
    desk = Desk(broker)
    desk.ready()
    assert [(each.key, each.interests) for each in desk.handouts()] == [("IBM", [wish])]


def test_a_query_may_want_what_is_broad(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    for number in range(12):
        desk = Desk(broker, f"desk {number}")
        desk.want("quotes", query(f"query {number}", "price > 3"))
        desk.lose()
    quotes(broker, "IBM", 4)
    if engines.path is not None:
        broker = engines.start()
    desk = Desk(broker, "desk 7")
    desk.ready()
    assert told(desk) == [("IBM", CREATE, [("query 7", CREATE)])]


@pytest.mark.parametrize("calls", [1, 3])
def test_many_selectors_are_asked_in_slices_and_changes_stay_in_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Nobody else waits for a request of which many selectors are asked."""
    make(broker, "quotes", "orders")
    quotes(broker, "IBM", 1)
    desk = Desk(broker)
    desk.want("quotes", *(query(f"q{number}", f"price > {number}") for number in range(300)), DEAR)
    desk.ready()
    matching = broker._state.matching
    slices = []

    def new_slice() -> Any:
        asked = iter(range(calls))
        slices.append(1)
        return lambda: next(asked, None) is None

    answers: list[Any] = []
    with broker.reading():
        matching.new_slice = new_slice
        broker.submit(e.ChangeKeys("quotes", [quote("IBM", 4), quote("IBM", 300)], lambda _: answers.append("first")))
        broker.submit(e.ChangeKeys("quotes", [quote("IBM", 2)], lambda _: answers.append("second")))
        broker.submit(e.ChangeKeys("orders", [quote("IBM", 2)], lambda _: answers.append("other")))
    come_to_rest(broker)
    assert answers == ["other", "first", "second"]
    assert len(slices) > 10 / calls
    found = [dict(queries) for *_, queries in told(desk)]
    assert [(len(each), each["dear"]) for each in found] == [(5, CREATE), (301, UPDATE), (301, DESTROY)]
    assert found[2]["q1"] is UPDATE
    assert found[2]["q2"] is DESTROY


def test_a_request_whose_selectors_are_asked_is_answered_where_the_engine_is_closed(disk: Engines) -> None:
    broker = disk.start()
    make(broker, "quotes")
    Desk(broker).want("quotes", DEAR)
    answers: list[Any] = []
    with broker.reading():
        broker._state.matching.new_slice = lambda: lambda: True
        broker.submit(e.ChangeKeys("quotes", [quote("IBM", 4)], answers.append))
    broker.close()
    assert [type(each) for each in answers] == [IllegalStateException]
    broker = disk.start()
    assert broker.call(e.DescribeRegions(), WAIT)[0].keys == 0
