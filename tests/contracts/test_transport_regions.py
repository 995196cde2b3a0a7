"""Regions: keys, interest, events and their marker, with each transport to an engine of ours."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.destination import queue, topic
from broker_adapter.envelope import BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    MessageFormatException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.transport import (
    EventDelivery,
    EventsSpec,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    RegionChange,
)
from tests.contracts.transports import KINDS, WAIT, Client, Engine, eventually, message
from tests.contracts.transports import engine as opened_engine

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
    answer = ask(client, "read_keys", region="r", **arguments)
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
    answer = change(ours, ("a", 0, "1"), sequence=7)
    assert change(ours, ("a", 0, "1"), sequence=7) == answer
    ((_, version),) = change(ours, ("a", 0, "2"), sequence=8)
    assert [*map(tuple, change(ours, ("a", 0, "1"), sequence=7))] == [(None, version)]


def changed(*changes: tuple[str, int, str | None], region: str = "r") -> list[RegionChange]:
    packed = [pack(Envelope(topic(region), BodyKind.TEXT, body)) for _, _, body in changes]
    return [RegionChange(region, key, wanted, each) for (key, wanted, _), each in zip(changes, packed, strict=True)]


def test_a_commit_has_sends_settlements_and_changes_of_several_regions(ours: Client) -> None:
    ask(ours, "create_region", region="s")
    change(ours, ("old", 0, "0"), ("invalid", 0, "0"))
    ours.send("in", "a")
    settlements = [Settlement(each.tag, Outcome.ACCEPTED) for each in ours.drained("in")]
    link = ours.sender(queue("out"))
    changes = [
        *changed(("a", 0, "1"), ("old", 2, None)),
        *changed(("a", 0, "2"), region="s"),
        *changed(("invalid", 1, None), ("a", 0, "3")),
    ]
    for _ in range(2):  # the second time it is done already
        ours.transport.commit(1, 1, [(link, message(queue("out")))], settlements, WAIT, changes)
    assert entries(ours) == [("a", 0, "3"), ("invalid", 1, None)]
    assert [each[0] for each in ask(ours, "read_keys", region="s")["entries"]] == ["a"]
    assert (ours.bodies("in"), len(ours.bodies("out"))) == ([], 1)


@pytest.mark.parametrize(
    "wrong",
    [changed(("a", 0, "1"), region="none"), changed(("k" * 401, 0, "1")), [RegionChange("r", "a", 3, b"x")]],
    ids=["region", "key", "change"],
)
def test_a_commit_with_a_change_that_cannot_be_does_nothing(ours: Client, wrong: list[RegionChange]) -> None:
    ours.send("in", "a")
    settlements = [Settlement(each.tag, Outcome.ACCEPTED) for each in ours.drained("in")]
    link = ours.sender(queue("out"))
    with pytest.raises(TransactionRolledBackException):
        ours.transport.commit(
            1, 1, [(link, message(queue("out")))], settlements, WAIT, [*changed(("a", 0, "1")), *wrong]
        )
    assert (entries(ours), ours.bodies("out")) == ([], [])
    again = ours.drained("in")
    assert [each.delivery_count for each in again] == [1]
    settlements = [Settlement(each.tag, Outcome.ACCEPTED) for each in again]
    ours.transport.commit(1, 2, [], settlements, WAIT, changed(("a", 0, "1")))
    assert (entries(ours), ours.bodies("in")) == ([("a", 0, "1")], [])


def of_snapshot(client: Client, token: str, begin: str | None = None, **arguments: Any) -> list[tuple[str, int, Any]]:
    found: list[tuple[str, int, Any]] = []
    after = begin
    while True:
        wanted = {"snapshot": token, "after": after, "max_bytes": 2000, **arguments}
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
    assert ask(ours, "read_keys", region="r", snapshot=token, keys=["k070"])["position"] == 103
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
        answer = ask(ours, "read_keys", region="r", after=after, max_bytes=100_000)
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


def test_positions_of_events_are_known_by_the_run_in_which_they_were_seen(ours: Client) -> None:
    change(ours, ("a", 0, "1"), ("b", 0, "2"))
    seen = ask(ours, "event_positions")
    assert seen["kept"] == 3
    change(ours, ("c", 0, "3"))
    assert ask(ours, "event_positions", run=seen["run"]) == {"run": seen["run"], "kept": 4}
    assert ask(ours, "event_positions", run="of another copy")["kept"] == 1


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
    assert ask(ours, "leave", keep=True) is True
    ours.close()
    back = engine.open("desk")
    Events(back)
    assert ask(back, "pending_events") == 1
    assert ask(back, "leave", keep=False) is False
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


def acknowledged(client: Client, events: Events, count: int) -> list[str]:
    """What has come once there are so many, each acknowledged as it comes."""
    done = 0
    while len(events.got) < count:
        events.wait_for(done + 1)
        done = len(events.got)
        ask(client, "acknowledge_events", through=events.got[done - 1].position)
    return events.wait_for(count)


@pytest.mark.parametrize("is_behind", [False, True], ids=["live", "from the store"])
def test_many_events_come_through_a_small_window_in_order(ours: Client, engine: Engine, is_behind: bool) -> None:
    events = Events(ours, window=3)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS])
    names = [f"k{number}" for number in range(500)]
    if not is_behind:
        ask(ours, "ready_for_events")
    change(engine.open(), *[(name, 0, "x") for name in names])
    if is_behind:
        ask(ours, "ready_for_events")
    history = "history " if is_behind else ""
    expected = [f"{history}r 0 {name}=x" for name in names]
    expected.insert(len(names) if is_behind else 0, "marker")
    assert acknowledged(ours, events, 501) == expected


def test_ten_thousand_keys_change_at_once(ours: Client) -> None:
    events = Events(ours, window=10_000)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS])
    ask(ours, "ready_for_events")
    names = [f"k{number:05}" for number in range(10_000)]
    answers = change(ours, *[(name, 0, "x") for name in names])
    assert [operation for operation, _ in answers] == [0] * 10_000
    versions = [version for _, version in answers]
    events.wait_for(10_001)
    assert [each.key for each in events.got[1:]] == names
    assert [each.position for each in events.got[1:]] == versions
    assert ask(ours, "acknowledge_events", through=versions[-1]) == 10_000
    with pytest.raises(MessageFormatException, match="10000 is the limit"):
        change(ours, *[(name, 0, "x") for name in (*names, "one more")])


def test_ten_thousand_interests_are_wanted_at_once_and_one_more_is_refused(ours: Client) -> None:
    events = Events(ours)
    interests = [(0, f"k{number}", "") for number in range(10_000)]
    ask(ours, "register_interest", region="r", interests=interests)
    with pytest.raises(ResourceAllocationException, match="max_client_interests"):
        ask(ours, "register_interest", region="r", interests=[(0, "one more", "")])
    ask(ours, "ready_for_events")
    change(ours, ("k9999", 0, "1"), ("one more", 0, "2"))
    assert events.wait_for(2) == ["marker", "r 0 k9999=1"]


def test_a_link_that_is_detached_keeps_the_queue_for_the_next_one(ours: Client) -> None:
    events = Events(ours)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS], durable=True)
    ask(ours, "ready_for_events")
    events.wait_for(1)
    ours.transport.detach(events.link, WAIT)
    change(ours, ("a", 0, "1"))
    with pytest.raises(IllegalStateException, match="attach a link for them first"):
        ask(ours, "ready_for_events")
    again = Events(ours)
    assert ask(ours, "pending_events") == 1
    ask(ours, "ready_for_events")
    assert again.wait_for(2) == ["history r 0 a=1", "marker"]
    assert len(events.got) == 1
    ours.transport.detach(events.link, WAIT)  # once more: it is ignored
    change(ours, ("b", 0, "2"))
    assert again.wait_for(3)[2:] == ["r 0 b=2"]


def test_a_session_that_ends_keeps_the_queue(ours: Client, engine: Engine) -> None:
    Events(ours)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS], durable=True)
    ours.transport.end_session(1, WAIT)
    change(ours, ("a", 0, "1"))
    other = engine.open("another")
    Events(other)
    assert ask(other, "pending_events") == -2
    again = Events(ours)
    assert ask(ours, "pending_events") == 1
    ask(ours, "ready_for_events")
    assert again.wait_for(2) == ["history r 0 a=1", "marker"]


def test_a_second_link_on_a_connection_is_refused(ours: Client) -> None:
    events = Events(ours)
    with pytest.raises(IllegalStateException, match="is that of durable client 'desk' already"):
        Events(ours)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS])
    ask(ours, "ready_for_events")
    change(ours, ("a", 0, "1"))
    assert events.wait_for(2) == ["marker", "r 0 a=1"]


def test_two_clients_get_what_each_of_them_wants(ours: Client, engine: Engine) -> None:
    other = engine.open("other")
    mine, others = Events(ours), Events(other, window=2)
    ask(ours, "register_interest", region="r", interests=[(2, "a.*", "")])
    ask(other, "register_interest", region="r", interests=[ALL_KEYS, (2, "a.*", "")])
    for client in (ours, other):
        ask(client, "ready_for_events")
    change(ours, *[(f"{'ab'[number % 2]}{number}", 0, "x") for number in range(20)])
    assert mine.wait_for(11)[1:] == [f"r 0 a{number}=x" for number in range(0, 20, 2)]
    acknowledged(other, others, 21)
    assert [each.key for each in others.got[1:]] == [f"{'ab'[number % 2]}{number}" for number in range(20)]
    assert {len(each.interests) for each in others.got[1:]} == {1, 2}


def test_the_threads_of_a_connection_ask_and_acknowledge_at_once(ours: Client) -> None:
    events = Events(ours, window=10)
    ask(ours, "register_interest", region="r", interests=[ALL_KEYS])
    ask(ours, "ready_for_events")
    errors: list[Exception] = []

    def put(number: int) -> None:
        try:
            for each in range(25):
                change(ours, (f"{number}-{each}", 0, "x"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    acknowledged(ours, events, 101)
    for each in threads:
        each.join(WAIT)
    assert errors == []
    for number in range(4):
        own = [event.key for event in events.got[1:] if event.key.startswith(f"{number}-")]
        assert own == [f"{number}-{each}" for each in range(25)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_is_too_long_is_dropped_and_its_link_ends_or_is_attached_again(kind: str, tmp_path: Path) -> None:
    with opened_engine(kind, tmp_path, "max_client_queue_events=64") as made:
        client = made.open("desk")
        ask(client, "create_region", region="r")
        events = Events(client, window=5)
        ask(client, "register_interest", region="r", interests=[ALL_KEYS], durable=True)
        ask(client, "ready_for_events")
        change(made.open(), *[(f"k{number}", 0, "x") for number in range(80)])
        restores = kind == "failover over loopback"
        expected = [LinkInterrupted, LinkRestored] if restores else [LinkLost]
        eventually(lambda: len(client.events) == len(expected))
        assert [type(each) for each in client.events] == expected
        lost = client.events[0]
        assert isinstance(lost, LinkInterrupted | LinkLost)
        assert lost.link == events.link
        assert isinstance(lost.error, ResourceAllocationException)
        assert "max_client_queue_events" in lost.error.reason
        again = events if restores else Events(client)
        assert ask(client, "pending_events") == -1
        ask(client, "register_interest", region="r", interests=[ALL_KEYS])
        ask(client, "ready_for_events")
        change(client, ("new", 0, "x"))
        eventually(lambda: again.got[-1].key == "new")


# What only the engine says.

FORGED = {
    "JMS_Holdfast_Region": "r",
    "JMS_Holdfast_Key": "a",
    "JMS_Holdfast_Operation": "destroy",
    "JMS_Holdfast_Version": 10**6,
    "JMS_Holdfast_Stamp": 10**18,
    "JMS_Holdfast_Site": 7,
    "JMS_Holdfast_Replayed": False,
}


def properties(client: Client, destination: Any) -> list[Any]:
    return [each.envelope.properties for each in client.drained(destination)]


def test_a_message_that_a_client_sends_loses_the_properties_of_an_event(client: Client) -> None:
    client.send("q", "a", properties={**FORGED, "own": 1})
    client.send("q", "b", properties=FORGED)
    client.send("q", "c", properties={"JMS_Holdfast": 1, "JMS_HOLDFAST_x": "JMS_Holdfast_Key"})
    found = client.drained("q")
    assert [each.envelope.properties for each in found] == [
        *({"own": 1}, None, {"JMS_Holdfast": 1, "JMS_HOLDFAST_x": "JMS_Holdfast_Key"})
    ]
    assert [each.envelope.body for each in found] == ["a", "b", "c"]


def test_a_message_of_a_transaction_loses_the_properties_of_an_event(client: Client) -> None:
    link = client.sender(queue("q"))
    forged = [(link, message(queue("q"), properties={**FORGED, "own": number})) for number in range(3)]
    client.transport.commit(1, 1, forged, [], WAIT)
    assert properties(client, "q") == [{"own": number} for number in range(3)]


def test_only_an_event_has_the_properties_of_one_at_the_topic_of_a_region(client: Client) -> None:
    ask(client, "create_region", region="r")
    receiver = client.receiver(topic("r"), 10)
    client.send(topic("r"), "forged", properties=FORGED)
    value = pack(Envelope(topic("r"), BodyKind.TEXT, "value", properties={**FORGED, "JMS_Holdfast_Key": "z", "own": 1}))
    ask(client, "change_keys", region="r", changes=[("a", 0, value), ("a", 1, pack(Envelope(topic("r"))))])
    forged, put, invalidated = [each.envelope.properties for each in receiver.wait_for(3)]
    named = {name.removeprefix("JMS_Holdfast_"): value for name, value in put.items()}
    assert not forged
    stamps = named.pop("Stamp"), invalidated["JMS_Holdfast_Stamp"]
    assert stamps[0] == stamps[1] < 10**18, "of the value that was taken away: that of another site may be newer"
    assert named == {
        **{"Region": "r", "Key": "a", "Operation": "create", "Version": 1, "Site": 0, "Replayed": False, "own": 1}
    }
    assert invalidated["JMS_Holdfast_Operation"] == "invalidate"


def test_a_value_is_kept_without_the_properties_of_an_event(client: Client) -> None:
    ask(client, "create_region", region="r")
    put = Envelope(topic("r"), BodyKind.TEXT, "value", properties={**FORGED, "own": 1})
    ask(client, "change_keys", region="r", changes=[("a", 0, pack(put))])
    ((*_, payload),) = ask(client, "read_keys", region="r")["entries"]
    assert unpack(payload).properties == {"own": 1}


def test_a_staged_message_loses_the_properties_of_an_event(client: Client) -> None:
    staged = pack(message(queue("q"), "x" * 1000, properties={**FORGED, "own": 1}))
    ask(client, "stage", transaction="t", queue="q", first=0, messages=[staged])
    ask(client, "publish", group="g", number=0, transactions=["t"])
    (found,) = client.drained("q")
    assert (found.envelope.body, found.envelope.properties) == ("x" * 1000, {"own": 1})
