"""Regions over the engine in the process: keys, interest, the cache, listeners, durable clients."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sdk import (
    Connection,
    ConnectionFactory,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MapMessage,
    MessageFormatException,
    Region,
    RegionEvent,
    RegionListener,
    ResourceAllocationException,
    ResultPolicy,
    TextMessage,
)
from tests.sdk.regions import Told, cached, region
from tests.server_process import ServerProcess

Connect = Callable[..., Connection]


@pytest.fixture(params=["embedded", "amqp"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Connects to one engine: options of the client, and of the engine, are those of the first connection."""
    made: list[Connection] = []
    with contextlib.ExitStack() as servers:
        url = f"embedded:{tmp_path / 'data'}"
        options = ""

        def connect(client_id: str | None = None, client: str = "", engine: str = "", **arguments: Any) -> Connection:
            nonlocal url, options
            if not made:
                if request.param == "amqp":
                    of_engine = ("--option", engine) if engine else ()
                    url = servers.enter_context(ServerProcess(tmp_path / "data", *of_engine)).url
                    engine = ""
                options = "&".join(each for each in (client, engine) if each)
            whole = f"{url}?{options}".rstrip("?")
            made.append(ConnectionFactory(whole).create_connection(client_id=client_id, **arguments))
            return made[-1]

        yield connect
        for each in made:
            each.close()


@pytest.fixture
def quotes(connect: Connect) -> Region:
    """The region, as a connection without interest has it."""
    return connect().create_session().create_region("quotes")


# Keys.


@pytest.mark.parametrize("value", ["text", "", b"\0bytes", {"price": 92.5, "n": 3, "x": None}, ["a", 1, 2.5, b"b"]])
def test_a_value_is_read_as_it_was_put(quotes: Region, value: Any) -> None:
    quotes.put("k", value)
    assert quotes.get("k") == value


def test_a_message_is_put_with_its_properties_and_not_kept(quotes: Region) -> None:
    message = TextMessage("one")
    message.properties["desk"] = "FX"
    quotes.put("k", message, properties={"rank": 3})
    message.body = "two"
    message.properties["desk"] = "none"
    found = quotes.get_message("k")
    assert found is not None
    assert found.body == "one"
    assert dict(found.properties) == {"desk": "FX", "rank": 3}
    assert found.message_id is not None
    assert found.message_id.startswith("ID:")
    assert abs(found.sent_at_ms - time.time() * 1000) < 3_600_000


def test_versions_only_grow_whatever_is_done(quotes: Region) -> None:
    versions = [quotes.put("a", "1"), quotes.put("b", "1"), quotes.put("a", "2")]
    assert quotes.destroy("a")
    versions.append(quotes.put("a", "3"))
    assert versions == sorted(set(versions))


def test_destroy_and_invalidate_say_whether_there_was_something(quotes: Region) -> None:
    quotes.put("k", "1")
    assert [quotes.invalidate("k"), quotes.invalidate("k"), "k" in quotes, quotes.get("k", "none")] == [
        *(True, False, True, "none")
    ]
    assert [quotes.destroy("k"), quotes.destroy("k"), "k" in quotes, quotes.get("k")] == [True, False, False, None]
    assert not quotes.invalidate("k")


def test_many_keys_are_put_and_read_at_once(quotes: Region) -> None:
    values = {f"k{number:05}": str(number) for number in range(3_500)}
    versions = quotes.put_all(values)
    assert list(versions) == list(values)
    assert list(versions.values()) == sorted(versions.values())
    assert quotes.keys() == list(values)
    assert list(quotes)[-1] == "k03499"
    assert quotes.get_all() == values
    assert quotes.get_all(["k00001", "none", "k02000"]) == {"k00001": "1", "k02000": "2000"}
    some = list(values)[::2]
    assert quotes.get_all(some) == {key: values[key] for key in some}
    assert quotes.get_all("k00001") == {"k00001": "1"}
    assert quotes.put_all({}) == {}


def test_keys_are_read_put_and_taken_away_with_brackets(connect: Connect, quotes: Region) -> None:
    for each in (quotes, region(connect(), all_keys=True)[0]):  # one that asks the engine, and one with a cache
        each["k"] = {"price": 1.0}
        each["invalid"] = "1"
        each.invalidate("invalid")
        assert each["k"] == {"price": 1.0}
        assert each["invalid"] is None
        assert dict(each) == {"invalid": None, "k": {"price": 1.0}}
        del each["k"]
        with pytest.raises(KeyError, match="k"):
            each["k"]
        with pytest.raises(KeyError, match="k"):
            del each["k"]
        with pytest.raises(InvalidDestinationException, match="a key is a string"):
            each[7]  # type: ignore[index]


@pytest.mark.parametrize("key", ["", "x" * 401, "\ud800", "é" * 201, 7, None])
def test_what_cannot_be_a_key_is_refused(quotes: Region, key: Any) -> None:
    for call in (lambda: quotes.put(key, "x"), lambda: quotes.get(key), lambda: quotes.destroy(key)):
        with pytest.raises(InvalidDestinationException):
            call()
    with pytest.raises((InvalidDestinationException, TypeError)):
        quotes.register_interest(key if key is not None else 7)
    quotes.put("é" * 200, "fits")


def test_what_cannot_be_a_value_is_refused_and_changes_nothing(quotes: Region) -> None:
    quotes.put("k", "1")
    for value in (None, 7, object(), {"a": object()}, {7: "x"}):
        with pytest.raises(MessageFormatException):
            quotes.put("k", value)  # type: ignore[arg-type]
    with pytest.raises(JMSException):
        quotes.put("k", "x", properties={"not a name": 1})
    with pytest.raises(TypeError, match="properties='desk' is not a dict, or another mapping"):
        quotes.put("k", "x", properties="desk")  # type: ignore[arg-type]
    assert quotes.get("k") == "1"


@pytest.mark.parametrize("name", ["", "x" * 500, "\ud800", 7, None])
def test_what_cannot_be_a_region_is_refused(connect: Connect, name: Any) -> None:
    with pytest.raises((InvalidDestinationException, TypeError)):
        connect().create_session().create_region(name)


def test_two_regions_share_a_cache_where_they_have_one_name(connect: Connect) -> None:
    connection = connect()
    one, _ = region(connection, all_keys=True)
    two = connection.create_session().create_region("quotes")
    one.put("k", "1")
    assert cached(two) == {"k": "1"}
    assert two.interests == ["all keys"]


def test_a_region_works_when_the_session_that_made_it_is_closed(connect: Connect) -> None:
    connection = connect()
    session = connection.create_session()
    made = session.create_region("quotes")
    session.close()
    made.put("k", "1")
    assert made.get("k") == "1"
    with pytest.raises(IllegalStateException):
        session.create_region("quotes")
    connection.close()
    with pytest.raises(IllegalStateException):
        made.put("k", "2")


# Interest and the cache.


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (ResultPolicy.NONE, {}),
        (ResultPolicy.KEYS, {"a1": "-", "a2": None, "b1": "-"}),
        (ResultPolicy.KEYS_VALUES, {"a1": "1", "a2": None, "b1": "3"}),
    ],
)
def test_a_policy_says_what_is_read_at_once(
    connect: Connect, quotes: Region, policy: ResultPolicy, found: dict[str, Any]
) -> None:
    quotes.put_all({"a1": "1", "a2": "2", "b1": "3", "c1": "gone"})
    quotes.invalidate("a2")
    quotes.destroy("c1")
    made, told = region(connect(), all_keys=True, result_policy=policy)
    assert cached(made) == found
    assert made.get("a1") == "1"
    assert made.get("a2", "none") == "none"
    told.wait_for(1)
    assert told.words == ["live quotes"]


@pytest.mark.parametrize(
    ("interest", "found"),
    [
        ({"keys": "a1"}, ["a1"]),
        ({"keys": ["a1", "none", "a1"]}, ["a1"]),
        ({"regex": "a[0-9]"}, ["a1", "a2"]),
        ({"all_keys": True}, ["a1", "a2", "b1"]),
        ({"selector": "key LIKE 'a%'"}, []),
    ],
)
def test_an_interest_says_which_keys(
    connect: Connect, quotes: Region, interest: dict[str, Any], found: list[str]
) -> None:
    quotes.put_all({"a1": "1", "a2": "2", "b1": "3"})
    made, told = region(connect(), **interest)
    assert sorted(cached(made)) == found
    quotes.put_all({"a1": "11", "a2": "22", "b1": "33"})
    words = {"a1": "update a1=11", "a2": "update a2=22", "b1": "update b1=33"}
    wanted = ["a1", "a2"] if "selector" in interest else found
    assert told.wait_for(1 + len(wanted)) == ["live quotes", *[words[key] for key in wanted]]
    assert made.get_all(["a1", "b1"]) == {"a1": "11", "b1": "33"}
    made.unregister_interest(**interest)
    assert cached(made) == {}
    assert made.interests == []


def test_an_interest_is_one_of_four(quotes: Region) -> None:
    for wrong in ({}, {"keys": "a", "all_keys": True}, {"keys": []}, {"regex": "a", "selector": "a = 1"}):
        with pytest.raises(ValueError, match="all_keys"):
            quotes.register_interest(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidDestinationException, match="RE2"):
        quotes.register_interest(regex="(")
    with pytest.raises(InvalidSelectorException):
        quotes.register_interest(selector="a =")
    with pytest.raises(TypeError, match="ResultPolicy"):
        quotes.register_interest("a", result_policy="keys")  # type: ignore[arg-type]
    with pytest.raises(IllegalStateException, match="durable client"):
        quotes.register_interest("a", durable=True)
    assert quotes.interests == []


def test_arguments_of_another_type_are_refused_before_anything_is_registered(quotes: Region) -> None:
    for name in ("all_keys", "durable", "receive_values"):
        with pytest.raises(TypeError, match=f"{name}='no' is neither True nor False"):
            quotes.register_interest(**{"keys": "a", name: "no"})  # type: ignore[arg-type]
    for name in ("all_keys", "keep_alive"):
        with pytest.raises(TypeError, match=f"{name}='no' is neither True nor False"):
            quotes.unregister_interest(**{"keys": "a", name: "no"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"regex=re.compile\('a.b'\) is not a string; give its pattern"):
        quotes.register_interest(regex=re.compile("a.b"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="selector=5 is not a string"):
        quotes.register_interest(selector=5)  # type: ignore[arg-type]
    assert quotes.interests == []


def test_values_that_are_not_received_are_read_when_they_are_asked_for(connect: Connect, quotes: Region) -> None:
    made, told = region(connect(), all_keys=True, receive_values=False)
    quotes.put("k", "1")
    quotes.put("k", "2")
    quotes.destroy("k")
    quotes.put("k", "3")
    assert told.wait_for(5) == ["live quotes", "invalidate k", "invalidate k", "destroy k", "invalidate k"]
    assert cached(made) == {"k": "-"}
    assert made.get("k") == "3"
    assert cached(made) == {"k": "3"}


def test_an_event_says_what_the_cache_had_before(connect: Connect, quotes: Region) -> None:
    _, told = region(connect(), all_keys=True)
    version = quotes.put("k", {"price": 1.0})
    quotes.put("k", {"price": 2.0}, properties={"desk": "FX"})
    quotes.invalidate("k")
    told.wait_for(4)
    first, second, third = told.events
    assert (first.region, first.key, first.version, first.replayed) == ("quotes", "k", version, False)
    assert (first.value, first.old_value) == ({"price": 1.0}, None)
    assert (second.value, second.old_value) == ({"price": 2.0}, {"price": 1.0})
    assert isinstance(second.message, MapMessage)
    assert second.message.properties["desk"] == "FX"
    assert (third.value, third.old_value) == (None, {"price": 2.0})


def test_own_changes_are_in_the_cache_at_once_and_told_once(connect: Connect) -> None:
    made, told = region(connect(), all_keys=True)
    made.put("k", "1")
    assert cached(made) == {"k": "1"}
    made.destroy("k")
    assert cached(made) == {}
    made.put("k", "2")
    assert told.wait_for(4) == ["live quotes", "create k=1", "destroy k", "create k=2"]
    assert cached(made) == {"k": "2"}


def test_what_no_interest_covers_is_not_cached(quotes: Region) -> None:
    quotes.put("k", "1")
    assert quotes.get("k") == "1"
    assert cached(quotes) == {}


def test_a_value_of_the_cache_cannot_be_changed_in_place(connect: Connect) -> None:
    made, _ = region(connect(), all_keys=True)
    value = {"price": 1.0}
    made.put("k", value)
    value["price"] = 2.0
    made.get("k")["price"] = 3.0
    assert made.get("k") == {"price": 1.0}
    message = made.get_message("k")
    assert message is not None
    with pytest.raises(JMSException):
        message.body = {}


# Listeners.


def test_a_listener_that_raises_does_not_stop_the_others(
    connect: Connect, quotes: Region, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(RegionListener):
        def after_create(self, event: RegionEvent) -> None:
            raise ValueError("mine")

        def after_update(self, event: RegionEvent) -> None:
            raise SystemExit("not even this ends the thread")

        def after_region_live(self, region: str) -> None:
            raise ValueError("mine too")

    made, _ = region(connect())
    made.add_listener(Broken())
    told = Told()
    made.add_listener(told)
    made.add_listener(told)
    with caplog.at_level(logging.ERROR):
        made.register_interest(all_keys=True)
        quotes.put_all({"a": "1", "b": "2"})
        quotes.put("b", "3")
        assert told.wait_for(4) == ["live quotes", "create a=1", "create b=2", "update b=3"]
    assert caplog.text.count("ValueError: mine") == 3
    assert caplog.text.count("SystemExit: not even this") == 1
    made.remove_listener(told)
    made.remove_listener(told)
    quotes.put("c", "3")
    with pytest.raises(TypeError, match="not a RegionListener"):
        made.add_listener(print)  # type: ignore[arg-type]


def test_a_listener_may_use_the_region_and_register_more(connect: Connect, quotes: Region) -> None:
    connection = connect()
    made, told = region(connection)

    class Chain(RegionListener):
        def after_create(self, event: RegionEvent) -> None:
            if event.key == "a":
                made.put("b", f"{made.get('a')} and more")
                made.register_interest("c")

    made.add_listener(Chain())
    made.register_interest(["a", "b"])
    quotes.put("a", "1")
    told.wait_for(3)
    quotes.put("c", "2")
    assert told.wait_for(4) == ["live quotes", "create a=1", "create b=1 and more", "create c=2"]


def test_a_listener_does_not_close_or_stop_its_connection(connect: Connect, quotes: Region) -> None:
    connection = connect()
    made, told = region(connection)
    refused: list[JMSException] = []

    class Closer(RegionListener):
        def after_create(self, event: RegionEvent) -> None:
            for call in (connection.close, connection.stop):
                try:
                    call()
                except IllegalStateException as error:
                    refused.append(error)

    made.add_listener(Closer())
    made.register_interest(all_keys=True)
    quotes.put("a", "1")
    quotes.put("b", "1")
    told.wait_for(3)
    told.wait_until(lambda: len(refused) >= 2)


def test_a_stopped_connection_tells_nothing_and_a_started_one_goes_on(connect: Connect, quotes: Region) -> None:
    connection = connect()
    made, told = region(connection, all_keys=True)
    told.wait_for(1)
    connection.stop()
    quotes.put("a", "1")
    quotes.put("b", "2")
    assert not threading.Event().wait(0.05)
    assert told.words == ["live quotes"]
    connection.start()
    assert told.wait_for(3)[1:] == ["create a=1", "create b=2"]
    assert cached(made) == {"a": "1", "b": "2"}


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
    for call in (connection.ready_for_events, connection.pending_event_count):
        with pytest.raises(IllegalStateException, match="durable client"):
            call()
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


def test_a_queue_that_grows_too_long_is_dropped_and_the_client_can_begin_anew(connect: Connect) -> None:
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


def test_a_connection_with_a_query_only_is_closed_when_it_is_dropped() -> None:
    connection = ConnectionFactory("embedded:").create_connection()
    made = connection.create_session().create_region("dropped")
    query = made.create_query("q", "x > 1")
    query.execute()
    gone = weakref.ref(connection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del connection, made
        for _ in range(600):
            gc.collect()
            if gone() is None:
                break
            time.sleep(0.1)  # another thread closes it
    assert gone() is None
    assert query.name == "q"
