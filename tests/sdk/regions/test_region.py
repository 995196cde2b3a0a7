"""Regions over the engine in the process: keys, interest, the cache, listeners, durable clients."""

from __future__ import annotations

import gc
import logging
import re
import threading
import time
import warnings
import weakref
from typing import Any

import pytest

from sdk import (
    ConnectionFactory,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MapMessage,
    MessageFormatException,
    Region,
    RegionEvent,
    RegionListener,
    ResultPolicy,
    TextMessage,
)
from tests.sdk.region_connections import Connect, Told, cached, region

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
        with pytest.raises(TypeError, match="a key is a string"):
            each[7]  # type: ignore[index]


@pytest.mark.parametrize("key", ["", "x" * 401, "\ud800", "é" * 201])
def test_what_cannot_be_a_key_is_refused(quotes: Region, key: Any) -> None:
    for call in (quotes.get, quotes.destroy, quotes.register_interest, lambda _: quotes.put(key, "x")):
        with pytest.raises(InvalidDestinationException):
            call(key)
    quotes.put("é" * 200, "fits")


@pytest.mark.parametrize("key", [7, None, b"k", ("k",)])
def test_a_key_of_another_type_is_refused_as_other_arguments_are(quotes: Region, key: Any) -> None:
    for call in (
        *(quotes.get, quotes.get_message, quotes.destroy, quotes.invalidate, quotes.__getitem__, quotes.__contains__),
        *(lambda key: quotes.put(key, "x"), lambda key: quotes.put_all({key: "x"}), lambda key: quotes.get_all([key])),
        *(lambda key: quotes.register_interest([key]), lambda key: quotes.unregister_interest([key])),
    ):
        with pytest.raises(TypeError, match=rf"^a key is a string, not {re.escape(repr(key))}$"):
            call(key)
    assert quotes.keys() == quotes.interests == []


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


def test_the_end_of_an_interest_that_was_not_registered_is_ignored(connect: Connect, quotes: Region) -> None:
    quotes.put("a", "1")
    made, _ = region(connect(), keys="a")
    for other in ({"all_keys": True}, {"keys": "b"}, {"regex": "a"}, {"selector": "key = 'a'"}):
        made.unregister_interest(**other)  # type: ignore[arg-type]
    assert made.interests == ["key 'a'"]
    assert cached(made) == {"a": "1"}


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


def test_a_region_of_a_closed_connection_does_not_answer_from_its_cache(connect: Connect) -> None:
    connection = connect()
    made, _ = region(connection, all_keys=True)
    made.put("a", "1")
    connection.close()
    for read in (lambda: made.get("a"), lambda: "a" in made, made.keys, made.get_all):
        with pytest.raises(IllegalStateException, match="closed"):
            read()


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
