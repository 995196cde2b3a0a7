"""Regions: keys, interest, events and their marker, with each transport to an engine of ours."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from broker_adapter.destination import topic
from broker_adapter.envelope import BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    MessageFormatException,
)
from broker_adapter.transport import EventDelivery, EventsSpec
from tests.contracts.transports import WAIT, Client, Engine

ALL_KEYS = (1, "", "")


class Events:
    """What a client gets on its link for events."""

    def __init__(self, client: Client, *, timeout_ms: int | None = None, window: int = 100) -> None:
        self.got: list[EventDelivery] = []
        self._arrived = threading.Condition()
        self.link = client.transport.attach(EventsSpec(1, timeout_ms, window), self, WAIT)

    def __call__(self, events: Sequence[EventDelivery]) -> None:
        with self._arrived:
            self.got += events
            self._arrived.notify_all()

    def wait_for(self, count: int) -> list[str]:
        """What has come, once there are so many: the marker, or operation, key and value."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.got) >= count, WAIT), self.got
        return [shown(each) for each in self.got]


def shown(event: EventDelivery) -> str:
    if event.region is None:
        return "marker"
    history = "history " if event.is_history else ""
    return f"{history}{event.region} {event.operation} {event.key}={event.envelope.body}"


def ask(client: Client, operation: str, **arguments: Any) -> Any:
    return client.transport.request(operation, arguments, WAIT)


def change(client: Client, *changes: tuple[str, int, str | None], sequence: int | None = None) -> Any:
    def packed(body: str | None, number: int) -> bytes:
        identity = None if sequence is None else Identity("p", 0, sequence + number)
        return pack(Envelope(topic("r"), BodyKind.TEXT, body, identity=identity))

    rows = [(key, wanted, packed(body, number)) for number, (key, wanted, body) in enumerate(changes)]
    return ask(client, "change_keys", region="r", changes=rows)


def entries(client: Client, **arguments: Any) -> list[tuple[str, int, Any]]:
    answer = ask(client, "read_keys", region="r", **{"envelope_version": 2, **arguments})
    return [(key, state, payload and unpack(payload).body) for key, _, state, _, payload in answer["entries"]]


@pytest.fixture
def ours(engine: Engine) -> Client:
    """A connection to an engine with region r."""
    client = engine.open("desk")
    ask(client, "create_region", region="r")
    return client


def test_keys_are_put_read_invalidated_and_destroyed(ours: Client) -> None:
    created = change(ours, ("a", 0, "1"), ("b", 0, "2"), ("a", 0, "3"), ("b", 1, None), ("c", 0, "4"), ("c", 2, None))
    assert [operation for operation, _ in created] == [0, 0, 1, 2, 0, 3]
    versions = [version for _, version in created]
    assert versions == sorted(set(versions))
    assert entries(ours) == [("a", 0, "3"), ("b", 1, None)]
    assert entries(ours, values=False) == [("a", 0, None), ("b", 1, None)]
    assert entries(ours, keys=["c", "b", "x", "a"]) == [("b", 1, None), ("a", 0, "3")]
    assert change(ours, ("x", 2, None)) == [[None, 0]] or change(ours, ("x", 2, None)) == [(None, 0)]


def test_a_change_that_is_asked_for_again_is_done_once(ours: Client) -> None:
    ((_, version),) = change(ours, ("a", 0, "1"), sequence=7)
    ((operation, again),) = change(ours, ("a", 0, "1"), sequence=7)
    assert (operation, again) == (None, version)


def of_snapshot(client: Client, token: str, begin: str | None = None, **arguments: Any) -> list[tuple[str, int, Any]]:
    found: list[tuple[str, int, Any]] = []
    after = begin
    while True:
        wanted = {"snapshot": token, "after": after, "max_bytes": 2000, "envelope_version": 2, **arguments}
        answer = ask(client, "read_keys", region="r", **wanted)
        found += [(key, state, payload and unpack(payload).body) for key, _, state, _, payload in answer["entries"]]
        after = answer["next"]
        if after is None:
            return found


def test_a_snapshot_stays_as_it_is_whatever_is_put(ours: Client) -> None:
    names = [f"k{number:03}" for number in range(100)]
    change(ours, *[(name, 0, "old") for name in names], ("gone", 0, "x"), ("gone", 2, None), ("k050", 1, None))
    opened = ask(ours, "open_snapshot", region="r", keys_per_part=30)
    token = opened["snapshot"]
    assert opened["position"] == 103
    was = [(name, 0, "old") if name != "k050" else (name, 1, None) for name in names]
    change(ours, *[(name, 0, "new") for name in names[:60]], ("k070", 2, None), ("k0700", 0, "new"))
    assert of_snapshot(ours, token) == was
    # The parts meet, and none has a key of another.
    edges = [None, *opened["splits"], None]
    assert len(edges) == 5
    parts = [of_snapshot(ours, token, begin=first, through=last) for first, last in itertools.pairwise(edges)]
    assert [each for part in parts for each in part] == was
    assert ask(ours, "read_keys", region="r", snapshot=token, keys=["k070"], envelope_version=2)["position"] == 103
    assert [each for each in entries(ours) if each[2] == "new"] != []
    assert ask(ours, "close_snapshot", region="x", snapshot=token) is False
    assert ask(ours, "close_snapshot", region="r", snapshot=token) is True
    assert ask(ours, "close_snapshot", region="r", snapshot=token) is False
    with pytest.raises(InvalidDestinationException, match="there were events since"):
        of_snapshot(ours, token)


def test_a_snapshot_that_is_gone_is_the_present_while_nothing_happens(ours: Client) -> None:
    change(ours, ("a", 0, "1"))
    token = ask(ours, "open_snapshot", region="r")["snapshot"]
    ask(ours, "close_snapshot", region="r", snapshot=token)
    assert of_snapshot(ours, token) == [("a", 0, "1")]
    change(ours, ("b", 0, "1"))
    with pytest.raises(InvalidDestinationException, match="there were events since"):
        of_snapshot(ours, token)
    for strange in ("", "x", "1", "1/2", "²/2/3", "-1/a/b", "9" * 30 + "/a/b"):
        with pytest.raises(InvalidDestinationException, match="names no snapshot"):
            of_snapshot(ours, strange)


def test_many_keys_are_read_in_pages(ours: Client) -> None:
    names = [f"k{number:05}" for number in range(2500)]
    change(ours, *[(name, 0, "x" * 100) for name in names])
    found: list[str] = []
    after = None
    pages = 0
    while True:
        answer = ask(ours, "read_keys", region="r", after=after, max_bytes=100_000, envelope_version=2)
        found += [each[0] for each in answer["entries"]]
        assert answer["position"] == 2500
        pages, after = pages + 1, answer["next"]
        if after is None:
            break
    assert found == names
    assert pages > 2


def test_keys_are_chosen_by_a_selector(ours: Client) -> None:
    change(ours, ("a", 0, "1"), ("b", 0, "2"))
    assert entries(ours, selector="key = 'b'") == [("b", 0, "2")]


def test_an_event_is_history_before_the_marker_and_live_behind_it(ours: Client, engine: Engine) -> None:
    events = Events(ours)
    assert ask(ours, "pending_events") == -2
    assert ask(ours, "register_interest", region="r", interests=[ALL_KEYS]) == 0
    change(ours, ("a", 0, "1"))
    ask(ours, "ready_for_events")
    assert events.wait_for(2) == ["history r 0 a=1", "marker"]
    change(engine.open(), ("a", 0, "2"), ("a", 2, None))
    assert events.wait_for(4)[2:] == ["r 1 a=2", "r 3 a=None"]
    assert events.got[2].interests == [(1, "")] or events.got[2].interests == [[1, ""]]


def test_what_was_not_acknowledged_comes_again(ours: Client, engine: Engine) -> None:
    events = Events(ours)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS], durable=True)
    ask(ours, "ready_for_events")
    change(ours, ("a", 0, "1"), ("b", 0, "2"), ("c", 0, "3"))
    events.wait_for(4)
    assert ask(ours, "acknowledge_events", through=events.got[1].position) == 1
    ours.close()
    back = engine.open("desk")
    again = Events(back)
    assert ask(back, "pending_events") == 2
    ask(back, "ready_for_events")
    assert again.wait_for(3) == ["history r 0 b=2", "history r 0 c=3", "marker"]


def test_a_window_stops_events_until_they_are_acknowledged(ours: Client) -> None:
    events = Events(ours, window=2)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS])
    ask(ours, "ready_for_events")
    change(ours, *[(str(number), 0, "x") for number in range(5)])
    events.wait_for(3)
    while len(events.got) < 6:
        before = len(events.got)
        assert ask(ours, "acknowledge_events", through=events.got[-1].position) in (1, 2)
        events.wait_for(before + 1)
    assert [each.key for each in events.got if each.region] == ["0", "1", "2", "3", "4"]


def test_a_client_that_keeps_no_queue_is_new_when_it_comes_back(ours: Client, engine: Engine) -> None:
    Events(ours, timeout_ms=0)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS])
    ours.close()
    back = engine.open("desk")
    Events(back, timeout_ms=0)
    assert ask(back, "pending_events") == -2


def test_two_connections_cannot_be_one_durable_client(ours: Client, engine: Engine) -> None:
    Events(ours)
    with pytest.raises(InvalidClientIDException):
        Events(engine.open("desk"))
    assert ask(ours, "pending_events") == -2


def test_a_client_that_leaves_keeps_its_queue_if_it_asks_to(ours: Client, engine: Engine) -> None:
    Events(ours)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS], durable=True)
    change(ours, ("a", 0, "1"))
    ask(ours, "leave", keep=True)
    ours.close()
    back = engine.open("desk")
    Events(back)
    assert ask(back, "pending_events") == 1
    ask(back, "leave", keep=False)
    Events(back)
    assert ask(back, "pending_events") == -2


def test_requests_of_a_connection_without_events_say_what_to_do(ours: Client) -> None:
    for operation in ("ready_for_events", "pending_events"):
        with pytest.raises(IllegalStateException, match="attach a link for them first"):
            ask(ours, operation)


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("change_keys", {"changes": [("k", 3, b"")]}),
        ("change_keys", {"changes": [("k", 0)]}),
        ("change_keys", {"changes": [("k", True, b"")]}),
        ("change_keys", {"changes": [("k", 0, b"no envelope")]}),
        ("change_keys", {"changes": ["kvp"]}),
        ("register_interest", {"interests": [(1, "")]}),
        ("register_interest", {"interests": [1]}),
    ],
)
def test_what_cannot_be_is_refused(ours: Client, operation: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(MessageFormatException):
        ask(ours, operation, region="r", **arguments)


@pytest.mark.parametrize("operation", ["change_keys", "read_keys", "register_interest"])
def test_a_region_that_was_not_created_is_refused(ours: Client, operation: str) -> None:
    rest: dict[str, Any] = {
        "change_keys": {"changes": [("k", 0, pack(Envelope(topic("r"), BodyKind.TEXT, "x")))]},
        "read_keys": {},
        "register_interest": {"interests": [ALL_KEYS]},
    }
    if operation == "register_interest":
        Events(ours)
    with pytest.raises(InvalidDestinationException, match="region"):
        ask(ours, operation, region="none", **rest[operation])
