"""What operators ask of durable clients, regions and queries, with each transport to an engine of ours."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from broker_adapter.errors import IllegalStateException, MessageFormatException
from tests.contracts.test_transport_regions import ALL_KEYS, Events, acknowledged, ask, change
from tests.contracts.transports import WAIT, Client, Engine, eventually

QUERY = (4, "n > 5", "high")


@pytest.fixture
def operator(engine: Engine) -> Client:
    """A connection that is no durable client, to an engine with region r."""
    client = engine.open()
    ask(client, "create_region", region="r")
    return client


def paused(engine: Engine, operator: Client, client_id: str, *interests: tuple[int, str, str]) -> None:
    """A durable client that is away and wants this."""
    client = engine.open(client_id)
    Events(client)
    ask(client, "register_interest", region="r", interests=list(interests or [ALL_KEYS]), durable=True)
    client.close()
    eventually(lambda: ask(operator, "queue_size", client_id=client_id)["state"] == "paused")


def one(operator: Client, client_id: str) -> dict[str, Any]:
    answer = ask(operator, "clients", client_id=client_id)
    assert answer["next"] is None
    (found,) = answer["clients"]
    gone = found["removed"] + found["conflated"] + found["drained"] + found["dropped"]
    assert found["queued"] == gone + found["size"]
    return dict(found)


def test_a_client_is_described_with_what_was_counted_of_it(engine: Engine, operator: Client) -> None:
    desk = engine.open("desk")
    events = Events(desk, timeout_ms=60_000)
    ask(desk, "register_interest", region="r", interests=[ALL_KEYS], durable=True)
    ask(desk, "register_interest", region="r", interests=[QUERY])
    ask(desk, "ready_for_events")
    change(operator, ("a", 0, "1"), ("b", 0, "2"))
    events.wait_for(3)
    assert (one(operator, "desk")["size"], one(operator, "desk")["in_hand"]) == (2, 2)
    ask(desk, "acknowledge_events", through=events.got[-1].position)
    found = one(operator, "desk")
    assert (found["state"], found["away_ms"], found["timeout_ms"], found["conflation"]) == (
        "live",
        None,
        60_000,
        "server",
    )
    assert (found["queued"], found["dispatched"], found["removed"], found["size"]) == (2, 2, 2, 0)
    assert found["interests"] == [
        {"region": "r", "kind": "all_keys", "text": "", "name": "", "durable": True},
        {"region": "r", "kind": "query", "text": "n > 5", "name": "high", "durable": False},
    ]
    desk.close()
    eventually(lambda: one(operator, "desk")["state"] == "paused")
    change(operator, ("a", 0, "3"))
    found = one(operator, "desk")
    assert (found["queued"], found["size"], found["while_away"], found["interest_count"]) == (3, 1, 1, 1)
    assert ask(operator, "queue_size", client_id="desk") == {
        "state": "paused",
        "size": 1,
        "in_hand": 0,
        "is_exact": True,
    }
    again = engine.open("desk")
    Events(again)
    assert one(operator, "desk")["reconnections"] == 1


def test_clients_regions_and_queries_come_in_pages(engine: Engine, operator: Client) -> None:
    ask(operator, "create_region", region="s", conflates=True)
    for name in ("ann", "bob", "cid"):
        paused(engine, operator, name, QUERY, (4, "n > 6", "higher"), ALL_KEYS)
    change(operator, ("a", 0, "1"))
    first = ask(operator, "clients", limit=2)
    rest = ask(operator, "clients", after=first["next"], limit=2)
    assert [each["client_id"] for each in (*first["clients"], *rest["clients"])] == ["ann", "bob", "cid"]
    assert (first["next"], rest["next"]) == ("bob", None)
    assert "interests" not in first["clients"][0]
    assert [each["interest_count"] for each in rest["clients"]] == [3]
    assert ask(operator, "regions") == {
        "regions": [
            {"name": "r", "conflates": False, "keys": 1, "clients": 3, "events": 1},
            {"name": "s", "conflates": True, "keys": 0, "clients": 0, "events": 0},
        ],
        "next": None,
    }
    assert ask(operator, "regions", limit=1)["next"] == "r"
    found: list[tuple[str, str]] = []
    after: Any = None
    while True:
        answer = ask(operator, "queries", after=after, limit=1)
        found += [(each["client_id"], each["name"]) for each in answer["queries"]]
        after = answer["next"]
        if after is None:
            break
    assert found == [(name, query) for name in ("ann", "bob", "cid") for query in ("high", "higher")]
    of_one = ask(operator, "queries", client_id="bob")["queries"]
    assert of_one[0] == {
        "client_id": "bob",
        "name": "high",
        "region": "r",
        "selector": "n > 5",
        "durable": True,
        "state": "paused",
    }
    assert len(of_one) == 2


def test_a_client_is_closed_once_and_only_while_it_is_away(engine: Engine, operator: Client) -> None:
    desk = engine.open("desk")
    Events(desk)
    ask(desk, "register_interest", region="r", interests=[ALL_KEYS], durable=True)
    with pytest.raises(IllegalStateException, match=r"'desk' is connected"):
        ask(operator, "close_client", client_id="desk")
    desk.close()
    eventually(lambda: one(operator, "desk")["state"] == "paused")
    change(operator, ("a", 0, "1"), ("b", 0, "2"))
    named = {"client_id": "desk", "request_id": "once"}
    for _ in range(2):  # the second time, the answer was lost
        assert ask(operator, "close_client", **named) == {"dropped": 2, "is_exact": True}
    with pytest.raises(IllegalStateException, match=r"there is no durable client 'desk'.*holdfast clients"):
        ask(operator, "close_client", client_id="desk")
    again = engine.open("desk")
    Events(again)
    assert ask(again, "pending_events") == -2


def test_of_those_that_close_a_client_at_once_one_is_told_what_was_dropped(engine: Engine, operator: Client) -> None:
    paused(engine, operator, "desk")
    change(operator, ("a", 0, "1"))
    answers: list[Any] = []

    def close(client: Client) -> None:
        try:
            answers.append(ask(client, "close_client", client_id="desk")["dropped"])
        except IllegalStateException as error:
            answers.append(error.reason[:32])

    threads = [threading.Thread(target=close, args=(engine.open(),)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert sorted(answers, key=str) == [1, *["there is no durable client 'desk"] * 3]


def test_a_query_is_closed_with_what_is_queued_for_it(engine: Engine, operator: Client) -> None:
    paused(engine, operator, "desk", (4, "key = 'a'", "first"), (0, "b", ""))
    change(operator, ("a", 0, "1"), ("b", 0, "2"), ("a", 0, "3"))
    with pytest.raises(IllegalStateException, match=r"no query 'other'"):
        ask(operator, "close_query", client_id="desk", name="other")
    for _ in range(2):
        assert ask(operator, "close_query", client_id="desk", name="first", request_id="once") == {"dropped": 2}
    found = one(operator, "desk")
    assert (found["drained"], found["size"], found["interest_count"]) == (2, 1, 1)
    assert ask(operator, "queries") == {"queries": [], "next": None}


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("clients", {}),
        ("queue_size", {}),
        ("queries", {}),
        ("close_client", {}),
        ("close_query", {"name": "q"}),
    ],
)
def test_an_unknown_client_is_an_error_that_says_what_to_do(
    operator: Client, operation: str, arguments: dict[str, str]
) -> None:
    with pytest.raises(IllegalStateException, match=r"there is no durable client 'nobody'.*'holdfast clients'"):
        ask(operator, operation, client_id="nobody", **arguments)


def test_a_page_has_its_limits(operator: Client) -> None:
    for operation in ("clients", "regions", "queries"):
        for limit in (0, 1001):
            with pytest.raises(MessageFormatException, match=r"'limit' of operation .* is not from 1 to 1000"):
                ask(operator, operation, limit=limit)
    for after in ([], ["a"]):
        with pytest.raises(MessageFormatException, match=r"a client id and the name of a query"):
            ask(operator, "queries", after=after)


def test_the_statistics_tell_of_durable_clients(engine: Engine, operator: Client) -> None:
    assert ask(operator, "statistics")["durable_clients"] == {}
    for name in ("ann", "bob"):
        paused(engine, operator, name)
    cid = engine.open("cid")
    events = Events(cid)
    ask(cid, "register_interest", region="r", interests=[ALL_KEYS])
    ask(cid, "ready_for_events")
    change(operator, ("a", 0, "1"))
    acknowledged(cid, events, 2)
    found = ask(operator, "statistics")
    assert found["durable_clients"] == {"live": 1, "paused": 2}
    assert (found["stored_events"], found["markers"]) == (1, 1)
    assert (found["queues_timed_out"], found["queues_overflowed"]) == (0, 0)


def test_a_client_that_timed_out_is_listed_and_there_is_nothing_to_close(engine: Engine, operator: Client) -> None:
    client = engine.open("late")
    Events(client, timeout_ms=1)
    ask(client, "register_interest", region="r", interests=[QUERY], durable=True)
    client.close()
    eventually(lambda: one(operator, "late")["state"] == "timed_out")
    assert ask(operator, "statistics")["queues_timed_out"] == 1
    assert ask(operator, "queries", client_id="late")["queries"] == []
    for operation, arguments in (("close_client", {}), ("close_query", {"name": "high"})):
        with pytest.raises(IllegalStateException, match=r"'late' has timed out.*nothing to close"):
            ask(operator, operation, client_id="late", **arguments)
