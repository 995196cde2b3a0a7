"""Continuous queries over the engine in the process: results, events, states, durable ones."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sdk import (
    Connection,
    ConnectionFactory,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    OperationTimedOutException,
    QueryListener,
    QueryState,
    Region,
    RegionEvent,
    RegionListener,
)
from tests.sdk.region_connections import WAIT, region

CHEAP = "price < 10"


class Followed(QueryListener):
    """A listener that remembers what it was told, in words, and can be waited for."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._told = threading.Condition()

    def on_event(self, event: RegionEvent) -> None:
        assert event.query_operation is not None
        replayed = "replayed " if event.replayed else ""
        of_key = event.operation.name.lower()
        self._note(f"{replayed}{event.query_operation.name.lower()} {event.key} by {of_key}")

    def on_close(self, query: str) -> None:
        self._note(f"close {query}")

    def _note(self, word: str) -> None:
        with self._told:
            self.words.append(word)
            self._told.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._told:
            assert self._told.wait_for(lambda: len(self.words) >= count, WAIT), self.words
            return list(self.words)


@pytest.fixture
def factory(tmp_path: Path) -> ConnectionFactory:
    return ConnectionFactory(f"embedded:{tmp_path / 'data'}")


@pytest.fixture
def quotes(factory: ConnectionFactory) -> Any:
    """The region, as a connection without interest has it."""
    with factory.create_connection() as connection:
        yield connection.create_session().create_region("quotes")


@pytest.fixture
def desk(factory: ConnectionFactory, quotes: Region) -> Any:
    with factory.create_connection() as connection:
        yield connection


def query(connection: Connection, selector: str = CHEAP, name: str = "cheap", **fields: Any) -> Any:
    made, _ = region(connection)
    found = made.create_query(name, selector, **fields)
    followed = Followed()
    found.add_listener(followed)
    return found, followed


def price(number: float) -> dict[str, Any]:
    return {"price": number}


def test_old_and_new_value_say_what_an_event_is_to_a_query(desk: Connection, quotes: Region) -> None:
    cheap, followed = query(desk)
    cheap.execute()
    quotes.put("a", price(20))  # no, no
    quotes.put("a", price(5))  # no, yes
    quotes.put("a", price(6))  # yes, yes
    quotes.put("a", price(30))  # yes, no
    quotes.put("b", price(1))
    quotes.invalidate("b")
    quotes.put("b", price(2))
    quotes.destroy("b")
    assert followed.wait_for(7) == [
        *("create a by update", "update a by update", "destroy a by update", "create b by create"),
        *("destroy b by invalidate", "create b by update", "destroy b by destroy"),
    ]


def test_initial_results_and_events_leave_no_gap_and_no_double(desk: Connection, quotes: Region) -> None:
    quotes.put_all({"a": price(1), "b": price(50), "c": price(3)})
    cheap, followed = query(desk)
    going = threading.Event()

    def feed() -> None:
        for number in range(300):
            quotes.put(f"k{number:03}", price(number % 20))
            going.set()

    thread = threading.Thread(target=feed)
    thread.start()
    going.wait(WAIT)
    results = cheap.execute_with_initial_results()
    thread.join()
    quotes.put("end", price(0))
    while "create end by create" not in followed.words:
        followed.wait_for(len(followed.words) + 1)
    told = [word.split()[1] for word in followed.words if word.startswith("create k")]
    from_results = [key for key in results if key.startswith("k")]
    assert sorted(told + from_results) == [f"k{number:03}" for number in range(300) if number % 20 < 10]
    assert {"a", "c"} <= set(results)
    assert "b" not in results
    assert results["a"] == price(1)


def test_a_listener_uses_a_query_while_another_thread_asks_for_its_results(desk: Connection, quotes: Region) -> None:
    cheap, followed = query(desk)
    is_told, is_asked = threading.Event(), threading.Event()

    class Slow(RegionListener):
        def after_create(self, event: RegionEvent) -> None:
            is_told.set()
            is_asked.wait(0.5)  # is not set: by then the other thread waits for this listener
            cheap.add_listener(followed)
            cheap.remove_listener(Followed())

    made = desk.create_session().create_region("quotes")
    made.add_listener(Slow())
    made.register_interest(all_keys=True)
    quotes.put("a", price(1))
    assert is_told.wait(WAIT)
    found: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: found.append(cheap.execute_with_initial_results()), daemon=True)
    asking.start()
    asking.join(WAIT)
    assert found == [{"a": price(1)}]


def test_a_selector_names_key_properties_and_fields(desk: Connection, quotes: Region) -> None:
    cheap, _ = query(desk, "key LIKE 'I%' AND desk = 'FX' AND price BETWEEN 1 AND 2")
    quotes.put("IBM", price(1.5), properties={"desk": "FX"})
    quotes.put("INTC", price(1.5), properties={"desk": "EQ"})
    quotes.put("ABB", price(1.5), properties={"desk": "FX"})
    quotes.put("INFY", "no map", properties={"desk": "FX", "price": 1.1})
    assert list(cheap.execute_with_initial_results()) == ["IBM", "INFY"]


def test_a_query_is_stopped_executed_again_and_closed(desk: Connection, quotes: Region) -> None:
    cheap, followed = query(desk)
    with pytest.raises(IllegalStateException, match="does not run"):
        cheap.stop()
    cheap.execute()
    with pytest.raises(IllegalStateException, match="runs already"):
        cheap.execute()
    quotes.put("a", price(1))
    followed.wait_for(1)
    cheap.stop()
    quotes.put("b", price(1))
    assert list(cheap.execute_with_initial_results()) == ["a", "b"]
    quotes.put("c", price(1))
    assert followed.wait_for(2) == ["create a by create", "create c by create"]
    cheap.close()
    cheap.close()
    assert followed.wait_for(3)[2:] == ["close cheap"]
    for call in (cheap.execute, cheap.stop):
        with pytest.raises(IllegalStateException, match="is closed"):
            call()


def test_a_durable_query_of_an_earlier_connection_is_closed_first(factory: ConnectionFactory) -> None:
    with factory.create_connection(client_id="desk", durable_timeout=60) as first:
        region(first)[0].create_query("cheap", CHEAP, durable=True).execute()
        first.close(keep_alive=True)
    with factory.create_connection(client_id="desk", durable_timeout=60) as second:
        made = second.create_session().create_region("quotes")
        made.create_query("cheap", CHEAP, durable=True).close()
        made.create_query("cheap", "price < 5", durable=True).execute()


def test_what_has_no_events_yet_ends_interest_and_queries(factory: ConnectionFactory) -> None:
    with factory.create_connection() as connection:
        made = connection.create_session().create_region("quotes")
        made.unregister_interest(all_keys=True)
        made.create_query("cheap", CHEAP).close()
    with factory.create_connection(client_id="desk") as connection:
        made = connection.create_session().create_region("quotes")
        made.unregister_interest(all_keys=True)
        made.create_query("cheap", CHEAP, durable=True).close()


def test_queries_are_listed_until_they_are_closed(desk: Connection) -> None:
    made, _ = region(desk)
    one, two = made.create_query("one", CHEAP), made.create_query("two", CHEAP)
    with pytest.raises(IllegalStateException, match="there is a query 'one'"):
        made.create_query("one", CHEAP)
    assert made.queries == [one, two]
    one.close()
    assert made.queries == [two]
    assert [each.name for each in made.queries] == ["two"]
    assert made.create_query("one", CHEAP).state.name == "STOPPED"


@pytest.mark.parametrize("name", ["", "x" * 101, "\ud800"])
def test_what_cannot_be_the_name_of_a_query_is_refused(desk: Connection, name: str) -> None:
    with pytest.raises(InvalidDestinationException):
        region(desk)[0].create_query(name, CHEAP)


def test_a_selector_that_cannot_be_parsed_is_refused(desk: Connection) -> None:
    with pytest.raises(InvalidSelectorException):
        region(desk)[0].create_query("q", "price <")


def test_a_name_and_a_selector_in_each_others_place_are_refused(desk: Connection) -> None:
    made, _ = region(desk)
    with pytest.raises(InvalidSelectorException, match=r"the name comes first: create_query\('cheap', 'price < 10'\)"):
        made.create_query(CHEAP, "cheap")
    assert made.queries == []
    names = ("active", "cheap-us", "of price < 10", "10", "'a'")  # that are no selectors, or could be meant as names
    assert [made.create_query(name, "active").name for name in names] == list(names)
    assert made.create_query("price < 5", CHEAP).selector == CHEAP


def test_a_durable_query_of_a_client_that_is_not_durable_is_not_created(desk: Connection) -> None:
    made, _ = region(desk)
    with pytest.raises(IllegalStateException, match="durable client: give create_connection"):
        made.create_query("q", CHEAP, durable=True)
    with pytest.raises(TypeError, match="durable='no' is neither True nor False"):
        made.create_query("q", CHEAP, durable="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name=5 is not a string"):
        made.create_query(5, CHEAP)  # type: ignore[arg-type]
    assert made.queries == []


def test_a_listener_that_raises_does_not_stop_the_others(desk: Connection, quotes: Region) -> None:
    class Broken(QueryListener):
        def on_event(self, event: RegionEvent) -> None:
            raise (ValueError if event.query_operation == 0 else SystemExit)("mine")

        def on_close(self, query: str) -> None:
            raise ValueError("mine too")

    cheap, followed = query(desk)
    cheap.remove_listener(followed)
    cheap.add_listener(Broken())
    cheap.add_listener(followed)
    cheap.execute()
    quotes.put("a", price(1))
    quotes.put("a", price(2))
    followed.wait_for(2)
    cheap.close()
    assert followed.words[2:] == ["close cheap"]
    with pytest.raises(TypeError, match="not a QueryListener"):
        cheap.add_listener(print)  # type: ignore[arg-type]


def test_a_query_and_an_interest_are_told_of_the_same_event(desk: Connection, quotes: Region) -> None:
    cheap, followed = query(desk)
    _, told = region(desk, all_keys=True)
    cheap.execute()
    quotes.put("a", price(1))
    quotes.put("b", price(100))
    assert told.wait_for(3)[1:] == ["create a={'price': 1}", "create b={'price': 100}"]
    assert followed.words == ["create a by create"]


def test_a_durable_query_goes_on_by_its_name(factory: ConnectionFactory, quotes: Region) -> None:
    desk = factory.create_connection(client_id="desk")
    cheap, followed = query(desk, durable=True)
    assert cheap.execute_with_initial_results() == {}
    desk.ready_for_events()
    quotes.put("a", price(1))
    followed.wait_for(1)
    desk.close(keep_alive=True)
    quotes.put("a", price(2))
    quotes.put("b", price(200))
    quotes.put("a", price(200))
    with factory.create_connection(client_id="desk") as desk:
        assert desk.pending_event_count() == 2
        cheap, followed = query(desk, durable=True)
        cheap.execute()
        desk.ready_for_events()
        assert followed.wait_for(2) == ["replayed update a by update", "replayed destroy a by update"]
        quotes.put("c", price(3))
        assert followed.wait_for(3)[2:] == ["create c by create"]


def away(factory: ConnectionFactory, quotes: Region) -> None:
    """Leave a durable query running; while its client is away, 4 events come for it."""
    quotes.put("PNY", price(5))
    desk = factory.create_connection(client_id="desk")
    query(desk, durable=True)[0].execute()
    desk.close(keep_alive=True)
    quotes.put("PNY", price(12))
    quotes.put("PNY", price(6))
    quotes.put("NEW", price(4))
    quotes.destroy("NEW")


STORED = [
    *("replayed destroy PNY by update", "replayed create PNY by update"),
    *("replayed create NEW by create", "replayed destroy NEW by destroy"),
]


def test_what_was_queued_for_a_durable_query_is_told_though_its_results_are_newer(
    factory: ConnectionFactory, quotes: Region
) -> None:
    away(factory, quotes)
    with factory.create_connection(client_id="desk") as desk:
        cheap, followed = query(desk, durable=True)
        assert cheap.execute_with_initial_results() == {"PNY": price(6)}
        quotes.put("PNY", price(7))  # behind the results
        desk.ready_for_events()
        assert followed.wait_for(5) == [*STORED, "replayed update PNY by update"]
        quotes.put("PNY", price(20))
        assert followed.wait_for(6)[5:] == ["destroy PNY by update"]


def test_what_happens_as_the_results_are_read_is_told_only_of_keys_with_queued_events(
    factory: ConnectionFactory, quotes: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    away(factory, quotes)
    with factory.create_connection(client_id="desk") as desk:
        cheap, followed = query(desk, durable=True)
        state = cheap._region
        read = state.read

        def late(*arguments: Any, **named: Any) -> Any:
            quotes.put("PNY", price(7))  # in the results as well: else what is told last would be 6
            quotes.put("OTHER", price(8))  # in the results, which tell of it
            return read(*arguments, **named)

        monkeypatch.setattr(state, "read", late)
        assert cheap.execute_with_initial_results() == {"OTHER": price(8), "PNY": price(7)}
        desk.ready_for_events()
        quotes.put("END", price(1))
        assert followed.wait_for(6) == [*STORED, "replayed update PNY by update", "create END by create"]


def test_a_durable_query_whose_results_cannot_be_read_keeps_what_is_queued(
    factory: ConnectionFactory, quotes: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    away(factory, quotes)
    with factory.create_connection(client_id="desk") as desk:
        cheap, followed = query(desk, durable=True)
        with monkeypatch.context() as patch:

            def late(*_: object, **__: object) -> Any:
                raise OperationTimedOutException("no answer")

            patch.setattr(cheap._region, "read", late)
            with pytest.raises(OperationTimedOutException):
                cheap.execute_with_initial_results()
        assert cheap.state is QueryState.STOPPED
        quotes.put("PNY", price(7))
        assert cheap.execute_with_initial_results() == {"PNY": price(7)}
        desk.ready_for_events()
        assert followed.wait_for(5) == [*STORED, "replayed update PNY by update"]


def test_what_was_queued_for_a_query_that_does_not_run_is_noticed(
    factory: ConnectionFactory, quotes: Region, caplog: pytest.LogCaptureFixture
) -> None:
    away(factory, quotes)
    with caplog.at_level(logging.WARNING), factory.create_connection(client_id="desk") as desk:
        _, told = region(desk)
        desk.ready_for_events()
        told.wait_for(1)
    assert caplog.text.count("was queued for durable query 'cheap' reaches no listener") == 1


def test_a_listener_may_use_a_query_that_is_being_executed(desk: Connection, quotes: Region) -> None:
    made, _ = region(desk, all_keys=True)
    found = made.create_query("cheap", CHEAP)
    is_in, is_waiting, is_done = threading.Event(), threading.Event(), threading.Event()

    class Using(RegionListener):
        def after_create(self, event: RegionEvent) -> None:
            is_in.set()
            assert is_waiting.wait(WAIT)
            found.add_listener(Followed())
            is_done.set()

    made.add_listener(Using())
    quotes.put("a", price(5))
    assert is_in.wait(WAIT)
    thread = threading.Thread(target=found.execute_with_initial_results, daemon=True)
    thread.start()
    deadline = time.monotonic() + WAIT
    while not desk._events._pauses:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    is_waiting.set()
    assert is_done.wait(10)
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_closed_query_is_kept_by_nobody(desk: Connection) -> None:
    made, _ = region(desk)
    found = made.create_query("cheap", CHEAP)
    found.close()
    assert not made._state.created
    assert made.create_query("cheap", CHEAP) is not found


def test_a_durable_query_is_closed_that_an_earlier_connection_has_left(
    factory: ConnectionFactory, quotes: Region
) -> None:
    desk = factory.create_connection(client_id="desk")
    found, _ = query(desk, durable=True)
    found.execute()
    desk.close(keep_alive=True)
    with factory.create_connection(client_id="desk") as again:
        found, _ = query(again, durable=True)
        found.close()
        assert again.pending_event_count() == 0
        again.close(keep_alive=True)
    quotes.put("a", price(5))
    with factory.create_connection(client_id="desk") as last:
        assert last.pending_event_count() == -2  # nothing durable was left


def test_a_query_is_stopped_where_the_queue_of_the_client_was_dropped(tmp_path: Path) -> None:
    factory = ConnectionFactory(f"embedded:{tmp_path / 'other'}?max_client_queue_events=64")
    with factory.create_connection() as connection, factory.create_connection(client_id="desk") as desk:
        quotes = connection.create_session().create_region("quotes")
        lost = threading.Event()
        desk.exception_listener = lambda _error: lost.set()
        found, followed = query(desk, durable=True)
        found.execute()
        quotes.put_all({f"k{number}": price(5) for number in range(200)})
        assert lost.wait(WAIT)
        assert found.state is QueryState.STOPPED
        assert len(found.execute_with_initial_results()) == 200
        desk.ready_for_events()
        quotes.put("k1", price(6))
        assert followed.wait_for(1) == ["update k1 by update"]


def test_what_left_before_the_results_were_read_is_not_told(
    desk: Connection, quotes: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotes.put_all({"a": price(1), "b": price(2)})
    cheap, followed = query(desk)
    state = cheap._region
    read = state.read

    def late(*arguments: Any, **named: Any) -> Any:
        quotes.put("a", price(100))  # it is registered by now
        return read(*arguments, **named)

    monkeypatch.setattr(state, "read", late)
    assert cheap.execute_with_initial_results() == {"b": price(2)}
    quotes.destroy("b")
    quotes.put("c", price(3))
    quotes.put("c", price(100))
    assert followed.wait_for(3) == ["destroy b by destroy", "create c by create", "destroy c by update"]
