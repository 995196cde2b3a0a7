"""Operations on regions, as they are asked for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.regions import audience, interests, routing
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.errors import ResourceAllocationException
from tests.broker_adapter.engine.desks import Desk, make, put
from tests.broker_adapter.engine.driving import WAIT


def test_what_a_client_asks_for_is_compiled_in_the_thread_that_asks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()
    parse, compile_one = interests.parse_selector, interests.expression

    def parsed(text: str) -> Any:
        threads.add(threading.current_thread())
        return parse(text)

    def expression(text: str) -> Any:
        threads.add(threading.current_thread())
        return compile_one(text)

    monkeypatch.setattr(interests, "parse_selector", parsed)
    for module in (interests, audience):
        monkeypatch.setattr(module, "expression", expression)
    make(broker, "quotes")
    desk = Desk(broker)
    wanted = [(2, "a.*", ""), (3, "price > 3", ""), (4, "price > 5", "dear")]
    arguments = {"region": "quotes", "interests": wanted, "durable": True}
    broker.request("register_interest", arguments, WAIT, client=desk.connection)
    put(broker, "quotes", "a")
    desk.ready()
    assert desk.events() == ["a=", "marker"]
    assert threads == {threading.current_thread()}


def test_one_client_leaves_half_of_what_a_region_may_be_asked_to_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "MOST_EXPRESSIONS", 6)
    monkeypatch.setattr(routing, "MOST_SELECTORS", 4)
    make(broker, "quotes", "orders")

    def asking(kind: InterestKind, count: int, first: int = 0) -> list[Interest]:
        return [Interest(kind, f"price{number}") for number in range(first, first + count)]

    hog, other, third = Desk(broker, "hog"), Desk(broker, "other"), Desk(broker, "third")
    hog.want("quotes", *asking(InterestKind.EXPRESSION, 2), *(Interest(InterestKind.KEY, each) for each in "abcd"))
    hog.want("quotes", *asking(InterestKind.EXPRESSION, 3), *asking(InterestKind.SELECTOR, 2))
    with pytest.raises(
        ResourceAllocationException, match="one client has, in a region, no more than 3 different regular"
    ):
        hog.want("quotes", *asking(InterestKind.EXPRESSION, 1, 3))
    with pytest.raises(
        ResourceAllocationException, match="one client has, in a region, no more than 2 different selec"
    ):
        hog.want("quotes", Interest(InterestKind.QUERY, "price9", "query"))
    hog.want("quotes", *asking(InterestKind.EXPRESSION, 3), Interest(InterestKind.KEY, "e"))
    hog.want("orders", *asking(InterestKind.EXPRESSION, 3))
    other.want("quotes", *asking(InterestKind.EXPRESSION, 3, 3), *asking(InterestKind.SELECTOR, 2, 2))
    third.want("quotes", *asking(InterestKind.EXPRESSION, 3, 1))  # that others have as well
    with pytest.raises(ResourceAllocationException, match="all clients of a region together have no more than 6"):
        third.want("quotes", *asking(InterestKind.EXPRESSION, 1, 6))


def test_more_selectors_than_a_region_may_have_are_not_compiled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "MOST_SELECTORS", 2)
    monkeypatch.setattr(interests, "parse_selector", None)
    make(broker, "quotes")
    wanted = [(3, f"price > {number}", "") for number in range(3)]
    arguments = {"region": "quotes", "interests": wanted, "durable": True}
    with pytest.raises(ResourceAllocationException, match="no more than 2 different selectors"):
        broker.request("register_interest", arguments, WAIT, client=Desk(broker).connection)
