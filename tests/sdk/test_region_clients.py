"""Regions and durable clients, over the engine in the process and over a server."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import pytest

from sdk import (
    IllegalStateException,
    InvalidClientIDException,
    JMSException,
    MessageFormatException,
    Region,
    ResourceAllocationException,
    ResultPolicy,
)
from tests.sdk.region_connections import WAIT, Connect, cached, region

# Durable clients.


def test_history_is_told_before_the_marker_and_changes_no_cache(connect: Connect, quotes: Region) -> None:
    desk = connect("desk")
    region(desk, keys=["a", "b"], durable=True)
    desk.close(keep_alive=True)
    quotes.put_all({"a": "1", "b": "1"})
    quotes.put("a", "2")
    desk = connect("desk")
    made, told = region(desk)
    assert desk.pending_event_count() == 3
    made.register_interest(["a", "b"], durable=True, result_policy=ResultPolicy.NONE)
    quotes.put("b", "2")  # also history: the client has not said that it is ready
    assert told.words == []
    desk.ready_for_events()
    desk.ready_for_events()
    assert told.wait_for(5) == [
        *("replayed create a=1", "replayed create b=1", "replayed update a=2", "replayed update b=2", "live quotes")
    ]
    assert cached(made) == {}  # policy NONE: only what is live comes into it
    quotes.put("a", "3")
    assert told.wait_for(6)[5:] == ["update a=3"]
    assert cached(made) == {"a": "3"}


def test_the_old_value_of_history_is_not_one_that_was_read_since(connect: Connect, quotes: Region) -> None:
    desk = connect("desk")
    region(desk, keys="a", durable=True)
    quotes.put("a", "1")
    desk.close(keep_alive=True)
    quotes.put("a", "2")
    desk = connect("desk")
    _, told = region(desk, keys="a", durable=True)
    desk.ready_for_events()
    told.wait_for(3)
    quotes.put("a", "3")
    told.wait_for(4)
    assert [(each.value, each.old_value) for each in told.events] == [("1", None), ("2", None), ("3", "2")]


def test_the_first_start_has_a_marker_as_well(connect: Connect, quotes: Region) -> None:
    desk = connect("desk")
    made, told = region(desk, all_keys=True)
    assert desk.pending_event_count() == -2
    quotes.put("a", "1")
    desk.ready_for_events()
    assert told.wait_for(2) == ["replayed create a=1", "live quotes"]
    assert cached(made) == {"a": "1"}  # it was read when the marker came


def test_the_cache_is_that_of_the_engine_after_the_marker(connect: Connect, quotes: Region) -> None:
    quotes.put_all({"a": "1", "b": "1", "c": "1", "d": "1"})
    desk = connect("desk")
    made, told = region(desk, all_keys=True, durable=True)
    quotes.put("a", "2")
    quotes.destroy("b")
    quotes.invalidate("c")
    quotes.put("e", "1")
    assert cached(made) == {"a": "1", "b": "1", "c": "1", "d": "1"}
    desk.ready_for_events()
    told.wait_for(5)
    assert told.words[-1] == "live quotes"
    assert cached(made) == {"a": "2", "c": None, "d": "1", "e": "1"}


def test_a_durable_client_is_only_once_there(connect: Connect) -> None:
    desk = connect("desk")
    region(desk, all_keys=True)
    with pytest.raises(InvalidClientIDException):
        connect("desk")
    desk.ready_for_events()


def test_what_only_durable_clients_may_ask_is_refused(connect: Connect) -> None:
    connection = connect()
    quotes = connection.create_session().create_region("quotes")
    for ask in (
        *(connection.ready_for_events, connection.pending_event_count),
        *(lambda: quotes.register_interest("a", durable=True), lambda: quotes.create_query("q", "a = 1", durable=True)),
    ):
        with pytest.raises(IllegalStateException, match=r"client_id, by this name \(the first argument is a user name"):
            ask()
    desk = connect("desk")
    desk.ready_for_events()
    with pytest.raises(IllegalStateException, match="before ready_for_events"):
        desk.pending_event_count()
    desk.close()
    for call in (desk.ready_for_events, desk.pending_event_count):
        with pytest.raises(IllegalStateException, match="CLOSED"):
            call()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "300", True, 1e10])
def test_a_durable_timeout_is_a_number_of_seconds(connect: Connect, timeout: Any) -> None:
    with pytest.raises(ValueError, match="durable_timeout"):
        connect("desk", durable_timeout=timeout)


@pytest.mark.parametrize(
    ("keep_alive", "durable", "pending"), [(True, True, 1), (True, False, -2), (False, True, -2), (False, False, -2)]
)
def test_a_close_keeps_the_queue_only_if_asked_and_durable(
    connect: Connect, quotes: Region, keep_alive: bool, durable: bool, pending: int
) -> None:
    desk = connect("desk")
    region(desk, all_keys=True, durable=durable)
    desk.close(keep_alive=keep_alive)
    quotes.put("a", "1")
    assert connect("desk").pending_event_count() == pending


def test_a_close_that_is_asked_to_keep_what_cannot_be_kept_says_why_in_the_log(
    connect: Connect, quotes: Region, caplog: pytest.LogCaptureFixture
) -> None:
    plain, desk, kept = connect(), connect("desk"), connect("kept")
    region(plain, all_keys=True)
    region(desk, all_keys=True)
    region(kept, all_keys=True, durable=True)
    kept.close(keep_alive=True)
    with contextlib.suppress(KeyError), connect():
        raise KeyError  # it keeps what there is, and nobody has asked for that
    assert "keep_alive" not in caplog.text
    plain.close(keep_alive=True)
    assert "closed with keep_alive=True, and nothing is kept: give create_connection() a client_id" in caplog.text
    desk.close(keep_alive=True)
    assert "closed with keep_alive=True, and nothing is kept: it has no durable interest; register" in caplog.text
    assert caplog.text.count("keep_alive") == 2


def test_a_with_block_that_fails_keeps_the_queue(connect: Connect, quotes: Region) -> None:
    def work() -> None:
        with connect("desk") as desk:
            region(desk, all_keys=True, durable=True)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    quotes.put("a", "1")
    with connect("desk") as desk:
        assert desk.pending_event_count() == 1
    assert connect("desk").pending_event_count() == -2


def test_a_client_that_is_away_for_too_long_is_new(connect: Connect, quotes: Region) -> None:
    quotes.put("a", "1")
    pause = threading.Event()
    for attempt in range(600):
        desk = connect("desk", durable_timeout=0.01)
        pending = desk.pending_event_count()
        assert pending in ((-2,) if not attempt else (1, -1))
        if pending == -1:
            break
        region(desk, all_keys=True, durable=True)
        if not attempt:
            quotes.put("a", "2")
        desk.close(keep_alive=True)
        pause.wait(0.1)
    assert pending == -1


def test_what_was_processed_does_not_come_again(connect: Connect, quotes: Region) -> None:
    desk = connect("desk", client="event_acknowledge_seconds=60&event_window_messages=2")
    _, told = region(desk, all_keys=True, durable=True)
    desk.ready_for_events()
    quotes.put_all({f"k{number}": "x" for number in range(50)})
    assert len(told.wait_for(51)) == 51
    desk.close(keep_alive=True)
    assert connect("desk").pending_event_count() == 0


def test_an_interest_that_is_kept_alive_goes_on_without_the_cache(connect: Connect, quotes: Region) -> None:
    desk = connect("desk")
    made, told = region(desk, all_keys=True, durable=True)
    desk.ready_for_events()
    quotes.put("a", "1")
    told.wait_for(2)
    made.unregister_interest(all_keys=True, keep_alive=True)
    quotes.put("a", "2")
    told.wait_for(3)
    assert cached(made) == {}
    assert made.get("a") == "2"
    desk.close(keep_alive=True)
    quotes.put("a", "3")
    desk = connect("desk")
    assert desk.pending_event_count() == 1


def test_a_queue_that_grows_too_long_is_dropped_and_the_client_can_start_over(connect: Connect) -> None:
    desk = connect("desk", engine="max_client_queue_events=64")
    errors: list[JMSException] = []
    desk.exception_listener = errors.append
    made, told = region(desk, all_keys=True, durable=True)  # and is not ready: all of it stays queued
    feed = connect().create_session().create_region("quotes")
    feed.put_all({f"k{number}": "x" for number in range(200)})
    for _ in range(600):
        if errors:
            break
        threading.Event().wait(0.1)
    assert "max_client_queue_events" in str(errors[0])
    assert cached(made) == {}
    assert made.get("k1") == "x"
    made.register_interest(all_keys=True, durable=True)
    assert len(cached(made)) == 200
    assert desk.pending_event_count() == -1
    desk.ready_for_events()
    feed.put("k1", "y")
    assert told.wait_for(2)[-2:] == ["live quotes", "update k1=y"]
    assert made.get("k1") == "y"


def test_interests_that_are_too_many_leave_none_of_them(connect: Connect) -> None:
    connection = connect(engine="max_client_interests=6000")
    made, told = region(connection, keys="kept")
    with pytest.raises(ResourceAllocationException, match="max_client_interests"):
        made.register_interest([f"k{number}" for number in range(7000)], result_policy=ResultPolicy.NONE)
    assert made.interests == ["key 'kept'"]
    made.register_interest([f"x{number}" for number in range(5000)], result_policy=ResultPolicy.NONE)
    made.put_all({"k1": "1", "kept": "2"})
    assert told.wait_for(2) == ["live quotes", "create kept=2"]


def test_an_answer_that_comes_late_does_not_hide_what_a_registration_reads(
    connect: Connect, quotes: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotes.put("k", "old")
    made, _ = region(connect())
    state = made._state
    read = state.read
    is_read, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        answer = list(read(*arguments, **named))
        is_read.set()
        assert goes_on.wait(60)
        return iter(answer)

    monkeypatch.setattr(state, "read", slow)
    late = threading.Thread(target=made.get, args=("k",))
    late.start()
    assert is_read.wait(60)
    monkeypatch.undo()
    quotes.put("k", "new")  # no interest is registered, so no event comes
    monkeypatch.setattr(made._events, "register", lambda *_, **__: (goes_on.set(), late.join(), None)[-1])
    made.register_interest(all_keys=True)
    assert cached(made) == {"k": "new"}


# Conflation, and plain consumers.


@pytest.mark.parametrize(
    ("of_region", "of_client", "told"),
    [
        (False, "server", ["create a=1", "update a=2", "update a=3"]),
        (True, "server", ["create a=1", "update a=3"]),
        (True, "false", ["create a=1", "update a=2", "update a=3"]),
        (False, "true", ["create a=1", "update a=3"]),
    ],
)
def test_updates_that_wait_are_conflated_as_the_client_or_the_region_says(
    connect: Connect, of_region: bool, of_client: str, told: list[str]
) -> None:
    desk = connect("desk", client=f"event_conflation={of_client}")
    quotes = desk.create_session().create_region("quotes", conflates=of_region)
    quotes.register_interest(all_keys=True, durable=True)
    desk.close(keep_alive=True)
    feed = connect().create_session().create_region("quotes")
    for number in (1, 2, 3):
        feed.put("a", str(number))
    desk = connect("desk")
    _, listener = region(desk)
    assert desk.pending_event_count() == len(told)
    desk.ready_for_events()
    assert listener.wait_for(len(told) + 1) == [*(f"replayed {each}" for each in told), "live quotes"]


def test_a_plain_durable_subscriber_gets_events_as_messages(connect: Connect, quotes: Region) -> None:
    def subscribed() -> list[tuple[Any, ...]]:
        with connect("reader") as connection, connection.create_session() as session:
            connection.start()
            subscriber = session.create_durable_consumer(session.create_topic("quotes"), "s")
            found = []
            while (message := subscriber.receive(timeout=0.5)) is not None:
                names = ("Region", "Key", "Operation", "Replayed")
                found.append((message.body, *(message.properties[f"JMS_Holdfast_{name}"] for name in names)))
            return found

    assert subscribed() == []
    quotes.put("a", "1", properties={"rank": 1})
    quotes.put("a", "2")
    quotes.invalidate("a")
    quotes.destroy("a")
    assert subscribed() == [
        ("1", "quotes", "a", "create", True),
        ("2", "quotes", "a", "update", True),
        (None, "quotes", "a", "invalidate", True),
        (None, "quotes", "a", "destroy", True),
    ]


def test_a_value_above_the_limit_is_one_that_cannot_be_carried(connect: Connect) -> None:
    made = connect(engine="max_message_bytes=1000").create_session().create_region("quotes")
    with pytest.raises(MessageFormatException, match=r"larger than the limit of 1000 bytes \(option max_message_bytes"):
        made.put("a", "x" * 2000)
    made.put("a", "x")


def test_events_of_a_region_that_was_not_created_here_are_noticed(
    connect: Connect, quotes: Region, caplog: pytest.LogCaptureFixture
) -> None:
    desk = connect("desk")
    region(desk, all_keys=True, durable=True)
    desk.close(keep_alive=True)
    quotes.put_all({"a": "1", "b": "2"})
    with caplog.at_level(logging.WARNING):
        desk = connect("desk")
        desk.start()
        desk.ready_for_events()
        other, told = region(desk, "other", all_keys=True)
        other.put("x", "1")
        told.wait_until(lambda: "create x=1" in " ".join(told.words))
    assert caplog.text.count("has not created region 'quotes'") == 1


def test_interests_that_are_refused_end_none_that_an_earlier_connection_has_registered(connect: Connect) -> None:
    first = connect("desk", engine="max_client_interests=2")
    made, _ = region(first, keys="a", durable=True)
    first.close(keep_alive=True)
    again = connect("desk")
    made, told = region(again)
    with pytest.raises(ResourceAllocationException, match="max_client_interests"):
        made.register_interest(["a", "b", "c"], durable=True)
    made.put("a", "1")
    again.ready_for_events()
    assert told.wait_for(2)[0] == "replayed create a=1"


def test_interest_of_an_earlier_connection_is_kept_alive_as_well(connect: Connect, quotes: Region) -> None:
    first = connect("desk")
    region(first, keys="a", durable=True)
    first.close(keep_alive=True)
    again = connect("desk")
    made, told = region(again)
    made.unregister_interest("a", keep_alive=True)
    quotes.put("a", "1")
    again.ready_for_events()
    assert told.wait_for(2) == ["replayed create a=1", "live quotes"]


def test_an_event_is_sent_on_without_what_says_that_it_is_one(connect: Connect, quotes: Region) -> None:
    connection = connect()
    connection.start()
    with connection.create_session() as session:
        audit, out = session.create_consumer(session.create_topic("quotes")), session.create_queue("out")
        quotes.put("a", "1", properties={"desk": "FX"})
        event = audit.receive(timeout=WAIT)
        assert event is not None
        assert event.properties["JMS_Holdfast_Key"] == "a"
        session.create_producer(out).send(event)
        session.create_producer(session.create_topic("quotes")).send(event)
        sent_on, forged = session.create_consumer(out).receive(timeout=WAIT), audit.receive(timeout=WAIT)
        assert sent_on is not None
        assert forged is not None
        assert [(each.body, dict(each.properties)) for each in (sent_on, forged)] == [("1", {"desk": "FX"})] * 2


def test_the_cache_has_of_a_value_what_the_engine_has(connect: Connect) -> None:
    made, _ = region(connect(), all_keys=True)
    made.put("a", "1", properties={"JMS_Holdfast_Key": "z", "desk": "FX"})
    mine, read = made.get_message("a"), connect().create_session().create_region("quotes").get_message("a")
    assert mine is not None
    assert read is not None
    assert dict(mine.properties) == dict(read.properties) == {"desk": "FX"}
