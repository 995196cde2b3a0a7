"""What is left out of the queues of durable clients, what is counted of them, and what the engine tells of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.clients import durable_clients
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.cycle import event_reads
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.errors import IllegalStateException, ResourceAllocationException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import Desk, change, make, put
from tests.broker_adapter.engine.driving import WAIT, Engines, come_to_rest, connect, eventually, message
from tests.broker_adapter.engine.test_continuous_queries import DEAR, query, quotes

KEY_A = Interest(InterestKind.KEY, "a")


def regions(broker: Broker) -> list[Any]:
    return list(broker.call(e.DescribeRegions(), WAIT))


def told(desk: Desk) -> list[str]:
    return [each for each in desk.events() if each != "marker"]


# Draining.


def test_a_query_of_a_client_that_is_away_is_closed_with_what_is_queued_for_it_only(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", DEAR, query("high", "price > 7"), KEY_A)
    desk.lose()
    quotes(broker, "IBM", 4, 5, 9)
    quotes(broker, "a", 4)
    assert broker.call(e.CloseQuery("desk", "dear"), WAIT) == 2
    quotes(broker, "HP", 5)
    found = desk.described()
    assert (found.size, found.queued, found.counters.drained, found.state) == (2, 4, 2, "paused")
    if engines.path is not None:
        broker = engines.start()
        desk.broker = broker
        again = desk.described()
        assert again == found._replace(away_ms=again.away_ms)
    assert broker.call(e.CloseQuery("desk", "high"), WAIT) == 1
    desk = Desk(broker)
    assert desk.pending == 1
    desk.ready()
    assert [(each.key, list(each.interests)) for each in desk.handouts()] == [("a", [KEY_A])]
    desk.acknowledge(desk.handouts()[-1].position)
    found = desk.described()
    assert (found.size, found.queued, found.counters.drained, found.counters.removed) == (0, 4, 3, 1)
    assert found.is_exact


def test_what_cannot_be_closed_is_refused(broker: Broker) -> None:
    make(broker, "quotes")
    with pytest.raises(IllegalStateException, match="there is no durable client 'nobody'"):
        broker.call(e.CloseQuery("nobody", "dear"), WAIT)
    desk = Desk(broker)
    desk.want("quotes", DEAR)
    with pytest.raises(IllegalStateException, match="is connected"):
        broker.call(e.CloseQuery("desk", "dear"), WAIT)
    desk.lose()
    with pytest.raises(IllegalStateException, match="no query 'cheap'"):
        broker.call(e.CloseQuery("desk", "cheap"), WAIT)
    assert desk.described().state == "paused"
    assert broker.call(e.CloseQuery("desk", "dear"), WAIT) == 0
    with pytest.raises(IllegalStateException, match="no query 'dear'"):
        broker.call(e.CloseQuery("desk", "dear"), WAIT)


def _draining(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> tuple[Desk, list[Any]]:
    """A client whose queue is being drained of 9 events; one step is done."""
    monkeypatch.setattr(event_reads, "WALKED_AT_ONCE", 1)
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", DEAR, KEY_A)
    desk.lose()
    quotes(broker, "IBM", *range(1, 13))
    answers: list[Any] = []
    return desk, answers


def test_nobody_connects_while_a_queue_is_drained(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    _, answers = _draining(broker, monkeypatch)
    connection = connect(broker)
    refused: list[Any] = []
    with broker.reading():
        broker.submit(e.CloseQuery("desk", "dear", answers.append))
        broker.submit(e.CloseQuery("desk", "dear", refused.append))
        broker.submit(e.ConnectDurable(connection, "desk", None, 1, list, refused.append))
        broker.submit(e.CloseDurable("desk", refused.append))
    eventually(lambda: answers == [9])
    assert [str(each).count("having the events of a closed query removed") for each in refused] == [1, 1, 1]
    assert Desk(broker).pending == 0


def test_a_drain_goes_on_behind_a_restart(disk: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = disk.start()
    _, answers = _draining(broker, monkeypatch)
    with broker.reading():
        broker.submit(e.CloseQuery("desk", "dear", answers.append))
    broker.close()  # whatever had been done by then
    assert len(answers) == 1
    broker = disk.start()
    come_to_rest(broker)
    desk = Desk(broker)
    assert desk.pending == 0
    assert desk.described().counters.drained == 9
    desk.ready()
    assert told(desk) == []


def test_so_many_queries_are_closed_with_their_events_and_no_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_clients, "MOST_CLOSED", 2)
    make(broker, "quotes")
    desk = Desk(broker)
    queries = [query(f"q{number}", "price > 3") for number in range(4)]
    desk.want("quotes", KEY_A, *queries)
    quotes(broker, "a", 5)
    for each in queries[:2]:
        assert desk.drop("quotes", each, queued=True) == 0
    with pytest.raises(ResourceAllocationException, match="of 2 queries already: let the client process"):
        desk.drop("quotes", queries[2], queued=True)
    assert desk.described().interest_count == 3
    desk.drop("quotes", queries[2])  # its events stay
    desk.lose()
    with pytest.raises(ResourceAllocationException, match="of 2 queries already"):
        broker.call(e.CloseQuery("desk", "q3"), WAIT)
    desk = Desk(broker)
    desk.ready()
    desk.acknowledge(desk.handouts()[-1].position)
    assert desk.drop("quotes", queries[3], queued=True) == 0


def test_a_queue_that_is_dropped_while_it_is_drained_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    _draining(broker, monkeypatch)
    desk = Desk(broker)
    answers: list[Any] = []
    with broker.reading():
        broker.submit(e.UnregisterInterest(desk.connection, "quotes", [DEAR], answers.append, drop_queued=True))
        broker.submit(e.LeaveDurable(desk.connection, False))
    eventually(lambda: bool(answers))
    assert isinstance(answers[0], IllegalStateException)


def test_a_client_that_is_here_closes_a_query_and_keeps_what_is_under_way(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker, window=2)
    desk.want("quotes", DEAR, KEY_A)
    quotes(broker, "IBM", 4, 5, 6, 7)
    quotes(broker, "a", 1)
    quotes(broker, "IBM", 8)
    desk.ready()
    assert len(desk.handouts()) == 2
    assert desk.drop("quotes", DEAR, queued=True) == 3
    quotes(broker, "IBM", 9)
    desk.acknowledge(desk.handouts()[-1].position)
    assert [each.key for each in desk.handouts()] == ["IBM", "IBM", "a"]
    desk.acknowledge(desk.handouts()[-1].position)
    found = desk.described()
    assert (found.queued, found.size, found.counters.drained, found.counters.removed) == (6, 0, 3, 3)
    assert desk.drop("quotes", KEY_A, DEAR, queued=True) == 0


def test_a_drain_counts_what_comes_again_as_its_client_is_lost_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reads, "WALKED_AT_ONCE", 1)
    make(broker, "quotes")
    desk = Desk(broker, window=3)
    desk.want("quotes", DEAR, KEY_A)
    quotes(broker, "IBM", 4, 5, 6, 7, 8)
    desk.ready()
    assert len(desk.handouts()) == 3
    answers: list[Any] = []
    with broker.reading():
        broker.submit(e.UnregisterInterest(desk.connection, "quotes", [DEAR], answers.append, drop_queued=True))
        broker.submit(c.Disconnect(desk.connection))
    eventually(lambda: bool(answers))
    assert answers == [5]
    found = desk.described()
    assert (found.size, found.queued, found.counters.drained) == (0, 5, 5)
    desk = Desk(broker)
    assert desk.pending == 0
    desk.ready()
    assert told(desk) == []
    found = desk.described()
    assert (found.size, found.queued, found.counters.drained) == (0, 5, 5)


# Conflation.


def test_the_newest_update_stays_at_its_own_place(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker, conflation="true")
    desk.want("quotes")
    desk.lose()
    for number in range(4):
        put(broker, "quotes", "a", number)
        put(broker, "quotes", "b", number)
    change(broker, "quotes", "a", Wanted.DESTROY)
    for number in range(4, 7):
        put(broker, "quotes", "a", number)
    if engines.path is not None:
        broker = engines.start()
    desk = Desk(broker, conflation="true")
    assert desk.pending == 7
    desk.ready()
    assert told(desk) == ["a=0", "b=0", "a=3", "b=3", "a=", "a=4", "a=6"]
    desk.acknowledge(desk.handouts()[-1].position)
    found = desk.described()
    assert (found.queued, found.counters.conflated, found.counters.removed, found.size) == (12, 5, 7, 0)


@pytest.mark.parametrize(
    ("of_region", "word", "expected"),
    [
        (True, "server", ["a=0", "a=3"]),
        (False, "server", ["a=0", "a=1", "a=2", "a=3"]),
        (False, "true", ["a=0", "a=3"]),
        (True, "false", ["a=0", "a=1", "a=2", "a=3"]),
    ],
)
def test_a_client_asks_for_it_or_leaves_it_to_the_region(
    engines: Engines, of_region: bool, word: str, expected: list[str]
) -> None:
    broker = engines.start()
    broker.call(e.MakeRegion("quotes", of_region), WAIT)
    broker.call(e.MakeRegion("quotes"), WAIT)
    desk = Desk(broker, conflation=word)
    desk.want("quotes")
    if engines.path is not None:
        broker = engines.start()
        desk = Desk(broker, conflation=word)
    assert [each.conflates for each in regions(broker)] == [of_region]
    for number in range(4):
        put(broker, "quotes", "a", number)
    desk.ready()
    assert told(desk) == expected


def test_what_is_under_way_is_not_conflated(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker, window=3, conflation="true")
    desk.want("quotes")
    desk.ready()
    for number in range(8):
        put(broker, "quotes", "a", number)
    assert told(desk) == ["a=0", "a=1", "a=2"]
    desk.acknowledge(desk.handouts()[0].position)
    assert told(desk) == ["a=0", "a=1", "a=2", "a=7"]


def test_an_update_that_is_not_for_the_client_supersedes_none(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker, conflation="true")
    desk.want("quotes", Interest(InterestKind.SELECTOR, "price > 3"))
    quotes(broker, "IBM", 1, 7, 8, 2, 1)
    desk.ready()
    assert len(desk.handouts()) == 1
    assert desk.described().counters.conflated == 1


def test_for_a_query_only_an_update_supersedes_an_update(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker, conflation="true")
    desk.want("quotes", DEAR)
    quotes(broker, "IBM", 1, 7, 8, 9, 2, 1, 6, 7, 8)
    desk.ready()
    operations = [operation for each in desk.handouts() for _, operation in each.queries]
    assert operations == [*(Operation.CREATE, Operation.UPDATE, Operation.DESTROY, Operation.CREATE, Operation.UPDATE)]


def test_places_in_runs_are_written_only_for_clients_that_need_them(broker: Broker) -> None:
    make(broker, "quotes", "orders")
    Desk(broker, "plain").want("quotes")
    put(broker, "quotes", "a", 1)
    put(broker, "quotes", "a", 2)
    desk = Desk(broker, conflation="true")
    desk.want("orders")
    put(broker, "quotes", "a", 3)

    def runs() -> int:
        with broker.reading(), broker._stores.records() as records:
            return len(list(records.items_from("runs", b"\0")))

    assert runs() == 0
    desk.want("quotes")
    put(broker, "quotes", "a", 4)
    put(broker, "quotes", "a", 5)
    assert runs() == 2
    desk.ready()
    assert told(desk) == ["a=5"]
    desk.leave(keep=False)
    put(broker, "quotes", "a", 6)
    assert runs() == 2


def test_a_queue_that_is_short_once_it_is_conflated_is_not_dropped(engines: Engines) -> None:
    broker = engines.start(max_client_queue_events=10)
    make(broker, "quotes")
    for word in ("true", "false"):
        desk = Desk(broker, word, conflation=word)
        desk.want("quotes", ALL_KEYS, Interest(InterestKind.KEY, word))
        desk.lose()
    for number in range(40):
        put(broker, "quotes", "a", number)
        come_to_rest(broker)
    states = {each.client_id: each.state for each in broker.call(e.DescribeClients(), WAIT)}
    assert states == {"true": "paused", "false": "timed_out"}
    for number in range(20):
        put(broker, "quotes", f"k{number}", number)
        come_to_rest(broker)
    statistics = broker.call(e.EventTotals(), WAIT)
    assert (statistics.dropped_by_overflow, statistics.dropped_by_timeout) == (2, 0)
    assert statistics.clients == {"timed_out": 2}


def test_a_queue_that_is_counted_as_its_client_is_lost_is_counted_again(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reads, "WALKED_AT_ONCE", 1)
    broker = engines.start(max_client_queue_events=10)
    make(broker, "quotes")
    desk = Desk(broker, window=4, conflation="true")
    desk.want("quotes", ALL_KEYS)
    desk.ready()
    for key in "aaaabbbb":  # the first four are under way, and conflated once they come again
        put(broker, "quotes", key)
    come_to_rest(broker)
    with broker.reading():
        for key in "cdefgh":
            broker.submit(e.ChangeKeys("quotes", [e.KeyChange(key, Wanted.PUT, message(b""))]))
    with broker.reading():
        broker.submit(c.Disconnect(desk.connection))
    come_to_rest(broker)
    assert desk.described().state == "paused"
    assert Desk(broker, conflation="true").pending == 10  # of a and b the first and the last one


def test_a_word_that_says_nothing_and_a_window_without_room_are_refused(broker: Broker) -> None:
    connection = connect(broker)
    for window, word in ((1, "yes"), (0, "true"), (-5, "true")):
        with pytest.raises(IllegalStateException, match="and not"):
            broker.call(e.ConnectDurable(connection, "desk", None, window, list, conflation=word), WAIT)
    assert broker.call(e.DescribeClients(), WAIT) == []


# What is counted and told.


def test_clients_and_regions_are_described_in_pages(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes", "orders", "trades")
    for name in ("c", "a", "b"):
        desk = Desk(broker, name, 5000)
        desk.want("quotes", ALL_KEYS, durable=False)
        desk.want("orders", DEAR)
        desk.lose()
    for key in ("x", "y", "z"):
        put(broker, "quotes", key)
        put(broker, "orders", key)
    change(broker, "quotes", "x", Wanted.DESTROY)
    change(broker, "quotes", "y", Wanted.INVALIDATE)
    if engines.path is not None:
        broker = engines.start()
    first = broker.call(e.DescribeClients(limit=2), WAIT)
    rest = broker.call(e.DescribeClients(after=first[-1].client_id), WAIT)
    assert [each.client_id for each in (*first, *rest)] == ["a", "b", "c"]
    assert list(rest[0].interests) == [e.InterestDescription("orders", DEAR, True)]
    assert (rest[0].state, rest[0].timeout_ms, rest[0].interest_count) == ("paused", 5000, 1)
    assert rest[0].away_ms >= 0
    assert [each.client_id for each in broker.call(e.DescribeClients("b"), WAIT)] == ["b"]
    assert broker.call(e.DescribeClients("d"), WAIT) == []
    assert [each[:4] for each in regions(broker)] == [
        ("orders", False, 3, 3),
        ("quotes", False, 2, 0),
        ("trades", False, 0, 0),
    ]
    assert [each.name for each in broker.call(e.DescribeRegions("orders", 1), WAIT)] == ["quotes"]
    for command in (e.DescribeClients(limit=0), e.DescribeRegions(limit=1001)):
        with pytest.raises(IllegalStateException, match="1 to 1000"):
            broker.call(command, WAIT)


def test_counters_go_on_over_connections_and_starts(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes")
    desk.ready()
    for number in range(3):
        put(broker, "quotes", "a", number)
    desk.acknowledge(desk.handouts()[0].position)
    desk.lose()
    for number in range(4):
        put(broker, "quotes", "a", number)
    if engines.path is not None:
        broker = engines.start()
    assert desk.broker is not broker or desk.described().counters.while_away == 4
    desk = Desk(broker)
    desk.ready()
    assert len(desk.handouts()) == 6
    found = desk.described()
    assert (found.queued, found.size, found.in_hand) == (7, 6, 6)
    counters = found.counters
    assert (counters.removed, counters.again, counters.reconnections, counters.while_away) == (1, 2, 1, 4)
    assert counters.dispatched == 9
    eventually(lambda: broker.call(e.EventTotals(), WAIT).events == 6)
    totals = broker.call(e.EventTotals(), WAIT)
    assert totals.clients == {"live": 1}
    assert totals.markers >= 1


def test_what_is_dropped_with_a_queue_is_counted_and_stays_counted(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker, timeout_ms=1)
    desk.want("quotes")
    desk.lose()
    put(broker, "quotes", "a", 1)
    eventually(lambda: broker.call(e.EventTotals(), WAIT).dropped_by_timeout == 1)
    dropped = desk.described().counters.dropped
    assert (desk.described().state, desk.described().size) == ("timed_out", 0)
    if engines.path is not None:
        broker = engines.start()
    desk = Desk(broker)
    assert desk.pending == -1
    assert desk.described().counters.dropped == dropped
    assert desk.described().queued == dropped


def test_a_client_that_comes_back_in_time_is_not_over_when_it_would_have_been(broker: Broker) -> None:
    make(broker, "quotes")
    clients = broker._state.events.clients
    for timeout_ms in (3_600_000, 60_000, None, 7_200_000):
        desk = Desk(broker, timeout_ms=timeout_ms)
        desk.want("quotes")
        desk.lose()
    with broker.reading():
        due_ms = clients.next_expiry_ms()
        assert due_ms is not None
        assert due_ms > broker._state.time.age_ms + 3_600_000, "that of the last time counts"
        clients.expire(due_ms - 1)
    assert desk.described().state == "paused"
    assert len(clients._expiries._due) == 1


def test_a_crash_ends_interest_that_is_not_durable(tmp_path: Path) -> None:

    broker = Broker(EngineSettings(), str(tmp_path / "one"))
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", KEY_A, durable=False)
    desk.want("quotes", DEAR)
    put(broker, "quotes", "a", 1)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    broker.close()
    broker = Broker(EngineSettings(), str(tmp_path / "two"))
    put(broker, "quotes", "a", 2)
    desk = Desk(broker)
    assert desk.pending == 1
    assert [each.interest for each in desk.described().interests] == [DEAR]
    assert desk.described().counters.while_away == 0
    broker.call(c.Statistics(), WAIT)
    broker.close()
