"""Keys of regions change, and durable clients come, want, get, acknowledge and go."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import pytest

from broker_adapter.destination import topic
from broker_adapter.engine import broker as broker_module
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.clients import client_queue, durable_clients
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.cycle import background, event_reads
from broker_adapter.engine.cycle.inbox import CYCLE_MESSAGES
from broker_adapter.engine.records.layout import LAST_STAMP
from broker_adapter.engine.regions.event_records import FEW, Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted, decode_key_record
from broker_adapter.engine.regions.stamps import Stamp
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, Identity, pack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    MessageFormatException,
    ResourceAllocationException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.desks import Desk, change, make, put
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    come_to_rest,
    connect,
    day_ms,
    drained,
    eventually,
    message,
    payloads,
    subscribe,
)
from tests.broker_adapter.engine.regions.values import values_of


def key(text: str) -> Interest:
    return Interest(InterestKind.KEY, text)


def records_of(broker: Broker, table: str) -> list[tuple[bytes, bytes]]:
    come_to_rest(broker)
    with broker.reading(), broker._stores.records() as records:
        return list(records.items_from(table, b"\0"))


# Regions.


def test_the_last_value_of_each_key_is_kept(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes", "orders")
    put(broker, "quotes", "IBM", 1)
    put(broker, "quotes", "IBM", 2)
    put(broker, "quotes", "HP", 3)
    put(broker, "orders", "IBM", 4)
    assert change(broker, "quotes", "HP", Wanted.DESTROY)[0] is Operation.DESTROY
    if engines.path is not None:
        broker = engines.start()
    assert values_of(broker) == {("quotes", "IBM"): b"2", ("orders", "IBM"): b"4"}


def test_a_region_is_made_once(engines: Engines) -> None:
    broker = engines.start()
    first = broker.call(e.MakeRegion("quotes"), WAIT)
    assert broker.call(e.MakeRegion("quotes"), WAIT) == first
    with pytest.raises(InvalidDestinationException, match="create it first"):
        put(broker, "trades", "IBM")


def test_a_region_counts_as_a_destination(engines: Engines) -> None:
    broker = engines.start(max_destinations=2)
    make(broker, "quotes")
    with pytest.raises(ResourceAllocationException, match="max_destinations"):
        make(broker, "orders")
    put(broker, "quotes", "IBM")


def test_versions_grow_also_where_nobody_wants_the_events(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    versions = [put(broker, "quotes", "IBM"), put(broker, "quotes", "HP")]
    if engines.path is not None:
        broker = engines.start()
    versions += [put(broker, "quotes", "IBM"), change(broker, "quotes", "IBM", Wanted.INVALIDATE)[1]]
    assert versions == sorted(set(versions))
    assert change(broker, "quotes", "IBM", Wanted.INVALIDATE) == (None, versions[-1])


def test_changes_of_one_request_are_made_in_order(broker: Broker) -> None:
    make(broker, "quotes")
    wanted = [Wanted.PUT, Wanted.PUT, Wanted.DESTROY, Wanted.DESTROY, Wanted.PUT]
    changes = [e.KeyChange("IBM", each, message(number)) for number, each in enumerate(wanted)]
    answers = broker.call(e.ChangeKeys("quotes", changes), WAIT)
    assert [operation for operation, _ in answers] == [
        *(Operation.CREATE, Operation.UPDATE, Operation.DESTROY, None, Operation.CREATE)
    ]
    assert values_of(broker) == {("quotes", "IBM"): b"4"}


def test_a_request_with_one_wrong_change_makes_none(engines: Engines) -> None:
    broker = engines.start(max_message_bytes=100)
    make(broker, "quotes")
    keys = [e.KeyChange(each, Wanted.PUT, message(b"x")) for each in ("", "k" * 401, "\ud800")]
    for wrong in (*keys, e.KeyChange("IBM", Wanted.PUT, message(b"x" * 101))):
        with pytest.raises((InvalidDestinationException, MessageFormatException)):
            broker.call(e.ChangeKeys("quotes", [e.KeyChange("HP", Wanted.PUT, message(b"x")), wrong]), WAIT)
    assert values_of(broker) == {}
    put(broker, "quotes", "k" * 400, b"x")


def test_a_memory_that_is_full_refuses_changes_of_keys() -> None:
    with closing(Broker(EngineSettings(max_volatile_bytes=100_000))) as broker:
        make(broker, "quotes")
        puts = (put(broker, "quotes", f"k{number}", b"x" * 1000) for number in range(1000))
        with pytest.raises(ResourceAllocationException, match="max_volatile_bytes"):
            list(puts)
        assert 30 < len(values_of(broker)) < 100
        for number in range(10):
            assert change(broker, "quotes", f"k{number}", Wanted.DESTROY)[0] is Operation.DESTROY
        assert put(broker, "quotes", "k0", b"x" * 1000)


def test_a_change_that_is_asked_for_again_is_made_once(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes")
    first = put(broker, "quotes", "IBM", 1, identity=Identity("p", 1, 7))
    put(broker, "quotes", "HP", 2, identity=Identity("p", 1, 8))
    if engines.path is not None:
        broker = engines.start()
        desk = Desk(broker)
    assert change(broker, "quotes", "IBM", Wanted.PUT, 1, identity=Identity("p", 1, 7)) == (Operation.CREATE, first)
    desk.ready()
    assert desk.events() == ["IBM=1", "HP=2", "marker"]


def test_a_change_that_is_asked_for_again_has_its_answer_again(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    wishes = [Wanted.PUT, Wanted.PUT, Wanted.INVALIDATE, Wanted.INVALIDATE, Wanted.PUT, Wanted.DESTROY, Wanted.DESTROY]
    operations = []
    for number, wanted in enumerate(wishes):
        answer = change(broker, "quotes", "k", wanted, number, identity=Identity("p", 1, number))
        if engines.path is not None:
            broker = engines.start()
        assert change(broker, "quotes", "k", wanted, number, identity=Identity("p", 1, number)) == answer
        operations.append(answer[0])
    assert operations == [
        *(Operation.CREATE, Operation.UPDATE, Operation.INVALIDATE, None, Operation.UPDATE, Operation.DESTROY, None)
    ]


def test_a_change_that_is_asked_for_again_behind_another_one_has_the_version_of_the_key(broker: Broker) -> None:
    make(broker, "quotes")
    put(broker, "quotes", "k", 1, identity=Identity("p", 1, 7))
    last = put(broker, "quotes", "k", 2, identity=Identity("q", 1, 7))
    assert change(broker, "quotes", "k", Wanted.PUT, 1, identity=Identity("p", 1, 7)) == (None, last)
    assert change(broker, "quotes", "k", Wanted.PUT, 2, identity=Identity("q", 1, 7)) == (Operation.UPDATE, last)


def test_that_a_key_was_destroyed_is_forgotten_after_a_while(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reads, "TOMBSTONES_AT_ONCE", 2)
    broker = engines.start(tombstone_seconds=0)
    make(broker, "quotes")
    for name in ("a", "b", "c", "d", "e"):
        put(broker, "quotes", name)
    for name in ("a", "b", "c", "d"):
        change(broker, "quotes", name, Wanted.DESTROY)
    eventually(lambda: [name[4:] for name, _ in records_of(broker, "keys")] == [b"e"])
    assert records_of(broker, "tombstones") == []
    assert broker._state.events.next_tombstone_ms is None
    assert change(broker, "quotes", "a", Wanted.PUT)[0] is Operation.CREATE


def test_a_key_that_is_there_again_is_not_forgotten(engines: Engines) -> None:
    broker = engines.start(tombstone_seconds=0.3)
    make(broker, "quotes")
    steps = (Wanted.PUT, Wanted.DESTROY, Wanted.PUT, Wanted.DESTROY, Wanted.PUT)
    versions = [change(broker, "quotes", "a", wanted, "value")[1] for wanted in steps]
    if engines.path is not None:
        broker = engines.start(tombstone_seconds=0.3)
    eventually(lambda: records_of(broker, "tombstones") == [])
    assert values_of(broker) == {("quotes", "a"): b"value"}
    assert change(broker, "quotes", "a", Wanted.PUT)[0] is Operation.UPDATE
    assert versions == sorted(set(versions))


def stamps_of(broker: Broker) -> list[Stamp]:
    """The stamps of all keys, those that are gone included, in the order of their last changes."""
    found = sorted(decode_key_record(name, value) for name, value in records_of(broker, "keys"))
    return [each.stamp for each in found]


def test_each_change_has_a_stamp_that_the_key_keeps_also_when_it_is_gone(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    for name, wanted in (("a", Wanted.PUT), ("b", Wanted.PUT), ("a", Wanted.PUT), ("b", Wanted.DESTROY)):
        change(broker, "quotes", name, wanted)
        last = stamps_of(broker)[-1]
        assert (last.time, last.site) == (broker._state.events.last_stamp, 0)
    before = stamps_of(broker)
    assert before == sorted(set(before))
    change(broker, "quotes", "b", Wanted.DESTROY)
    put(broker, "quotes", "c", identity=Identity("p", 1, 1))
    again = stamps_of(broker)
    put(broker, "quotes", "c", identity=Identity("p", 1, 1))
    assert again[:-1] == before, "what changes nothing has no stamp"
    assert stamps_of(broker) == again, "what is asked for again neither"


def test_an_invalidation_leaves_the_stamp_since_it_is_a_matter_of_this_site(broker: Broker) -> None:
    make(broker, "quotes")
    change(broker, "quotes", "a", Wanted.PUT)
    before = stamps_of(broker)
    change(broker, "quotes", "a", Wanted.INVALIDATE)
    assert stamps_of(broker) == before


def test_changes_of_one_request_and_one_moment_have_stamps_in_their_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "_now_ms", lambda: 1_800_000_000_000)
    make(broker, "quotes")
    for _ in range(2):
        broker.call(e.ChangeKeys("quotes", [e.KeyChange(name, Wanted.PUT, message(1)) for name in "abcab"]), WAIT)
    stamps = [each.time - (1_800_000_000_000 << 16) for each in stamps_of(broker)]
    assert stamps == [7, 8, 9], "of c, a and b, behind five of the first request"


HOUR_MS = 3_600_000


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
def test_a_later_change_has_a_greater_stamp_whatever_was_done_to_the_clock_and_the_engine(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, by_ms: int
) -> None:
    broker = engines.start()
    make(broker, "quotes")
    stamps = []
    for number, ahead_ms in enumerate((0, by_ms, 0, -by_ms, by_ms)):
        monkeypatch.setattr(broker_module, "_now_ms", lambda: day_ms() + ahead_ms)  # noqa: B023
        put(broker, "quotes", f"k{number}")
        stamps += stamps_of(broker)[-1:]
        if engines.path is not None:
            broker = engines.start()
        put(broker, "quotes", f"l{number}")
        stamps += stamps_of(broker)[-1:]
    assert stamps == sorted(set(stamps))
    assert len(stamps) == 10


@pytest.mark.damages
@pytest.mark.parametrize("value", [None, b"damaged"])
def test_where_the_last_stamp_is_lost_it_follows_from_the_keys(
    disk: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: bytes | None
) -> None:
    broker = disk.start()
    make(broker, "quotes")
    put(broker, "quotes", "a")
    change(broker, "quotes", "a", Wanted.DESTROY)
    put(broker, "quotes", "b")
    last = broker._state.events.last_stamp
    broker.store.apply([("meta", LAST_STAMP, value), ("keys", _items(broker, "keys")[0][0], b"damaged")])
    broker = disk.start()
    assert broker._state.events.last_stamp == last
    assert "last stamp" in caplog.text
    monkeypatch.setattr(broker_module, "_now_ms", lambda: day_ms() - HOUR_MS)
    put(broker, "quotes", "b")
    assert broker._state.events.last_stamp == last + 1


def test_a_subscription_that_is_full_takes_no_event_and_the_change_is_refused(engines: Engines) -> None:
    broker = engines.start(max_queue_messages=3)
    make(broker, "quotes")
    subscribe(broker, connect(broker, "me"), "quotes", "plain")
    for number in range(3):
        put(broker, "quotes", "IBM", number)
    for wanted in (Wanted.PUT, Wanted.DESTROY):
        with pytest.raises(ResourceAllocationException, match="max_queue_messages"):
            change(broker, "quotes", "IBM", wanted)
    assert values_of(broker) == {("quotes", "IBM"): b"2"}


@pytest.mark.parametrize("way", ["drop_oldest", "drop_new", "end_subscription"])
def test_a_subscription_that_is_full_and_not_read_gives_way_to_events(engines: Engines, way: str) -> None:
    broker = engines.start(max_queue_messages=3, full_subscription=way, blocked_send_timeout_seconds=0)
    make(broker, "quotes")
    client = connect(broker, "me")
    subscribe(broker, client, "quotes", "plain")
    changes = [e.KeyChange("IBM", Wanted.PUT, message(number)) for number in range(5)]
    broker.call(e.ChangeKeys("quotes", changes[:3]), WAIT)
    assert len(broker.call(e.ChangeKeys("quotes", changes[3:]), WAIT)) == 2
    eventually(lambda: not broker._jobs)
    assert broker.call(c.Statistics(), WAIT).dropped == (5 if way == "end_subscription" else 2)
    left = drained(broker, client, topic("quotes"), subscription=Subscription("plain", durable=True, shared=False))
    expected = {"drop_oldest": [b"2", b"3", b"4"], "drop_new": [b"0", b"1", b"2"], "end_subscription": []}
    assert payloads(left) == expected[way]


# Durable clients.


def test_what_comes_before_the_client_is_ready_is_history(broker: Broker) -> None:
    make(broker, "quotes")
    put(broker, "quotes", "IBM", 0)
    desk = Desk(broker)
    assert desk.pending == -2
    desk.want("quotes")
    put(broker, "quotes", "IBM", 1)
    assert desk.events() == []
    desk.ready()
    desk.ready()
    put(broker, "quotes", "IBM", 2)
    assert desk.events() == ["IBM=1", "marker", "IBM=2"]
    assert [each.is_history for each in desk.handouts()] == [True, False]
    assert [each.interests for each in desk.handouts()] == [[ALL_KEYS], [ALL_KEYS]]


def test_a_client_that_is_new_gets_its_marker_at_once(broker: Broker) -> None:
    desk = Desk(broker)
    desk.ready()
    assert desk.events() == ["marker"]


def test_what_is_queued_survives_the_connection_and_the_engine(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", key("IBM"))
    desk.ready()
    first = put(broker, "quotes", "IBM", 1)
    put(broker, "quotes", "IBM", 2)
    assert desk.acknowledge(first) == 1
    desk.lose()
    put(broker, "quotes", "HP", 3)
    put(broker, "quotes", "IBM", 4)
    if engines.path is not None:
        broker = engines.start()
    put(broker, "quotes", "IBM", 5)
    desk = Desk(broker)
    assert desk.pending == 3
    desk.ready()
    assert desk.events() == ["IBM=2", "IBM=4", "IBM=5", "marker"]


def test_an_acknowledgement_writes_the_cursor_alone(disk: Engines) -> None:
    broker = disk.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", ALL_KEYS, *(key(f"k{number}") for number in range(1000)))
    desk.ready()
    versions = [put(broker, "quotes", "IBM", number) for number in range(3)]
    assert desk.events() == ["marker", "IBM=0", "IBM=1", "IBM=2"]
    before = records_of(broker, "clients")
    assert desk.acknowledge(versions[1]) == 2
    assert records_of(broker, "clients") == before
    ((_, cursor),) = records_of(broker, "cursors")
    assert len(cursor) < 50
    desk.lose()
    desk = Desk(disk.start())
    assert desk.pending == 1
    desk.leave(keep=False)
    assert disk.broker is not None
    assert records_of(disk.broker, "clients") == records_of(disk.broker, "cursors") == []


def test_interest_that_is_not_durable_ends_with_the_connection_and_what_is_queued_by_it_stays(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", key("IBM"))
    desk.want("quotes", key("HP"), durable=False)
    put(broker, "quotes", "HP", 1)
    desk.lose()
    put(broker, "quotes", "HP", 2)
    put(broker, "quotes", "IBM", 3)
    desk = Desk(broker)
    desk.ready()
    assert desk.events() == ["HP=1", "IBM=3", "marker"]
    put(broker, "quotes", "HP", 4)
    put(broker, "quotes", "IBM", 5)
    assert desk.events()[3:] == ["IBM=5"]


def test_a_client_that_closes_is_gone_and_one_that_asks_for_it_is_kept(broker: Broker) -> None:
    make(broker, "quotes")
    for keep, pending in ((True, 1), (False, -2)):
        desk = Desk(broker)
        desk.want("quotes")
        assert desk.leave(keep=keep) is keep
        put(broker, "quotes", "IBM")
        desk = Desk(broker)
        assert desk.pending == pending
        desk.leave(keep=False)


def test_a_client_without_durable_interest_is_not_kept_where_it_closes(broker: Broker) -> None:
    """The seed: "or if there are no durable subscriptions, the servers unregister the client"."""
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", durable=False)
    assert desk.leave(keep=True) is False
    assert Desk(broker).pending == -2


def test_a_second_client_of_an_id_is_refused_and_the_first_one_goes_on(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes")
    desk.ready()
    with pytest.raises(InvalidClientIDException, match="'desk' is connected already"):
        Desk(broker)
    put(broker, "quotes", "IBM", 1)
    assert desk.events() == ["marker", "IBM=1"]


def test_a_connection_is_that_of_one_client(broker: Broker) -> None:
    desk = Desk(broker)
    with pytest.raises(IllegalStateException, match="of durable client 'desk' already"):
        broker.call(e.ConnectDurable(desk.connection, "other", None, 1, list), WAIT)
    desk.lose()
    assert [Desk(broker, name).pending for name in ("desk", "other")] == [0, -2]


def test_a_client_that_is_away_for_too_long_loses_its_queue_and_is_told(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker, timeout_ms=1)
    desk.want("quotes")
    put(broker, "quotes", "IBM")
    with caplog.at_level(logging.WARNING):
        desk.lose()
        eventually(lambda: "durable client 'desk' was away for longer" in caplog.text)
    if engines.path is not None:
        broker = engines.start()
    desk = Desk(broker, timeout_ms=60_000)
    assert desk.pending == -1
    desk.ready()
    put(broker, "quotes", "IBM")
    assert desk.events() == ["marker"]
    desk.lose()
    assert Desk(broker).pending == 0


def test_so_many_clients_that_timed_out_are_remembered(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_clients, "MOST_TIMED_OUT", 2)
    for name in ("one", "two", "three"):
        Desk(broker, name, timeout_ms=1).lose()
        clients = broker._state.events.clients.clients
        eventually(lambda: not any(each.state.has_queue for each in clients.values()))  # noqa: B023
    assert [Desk(broker, name).pending for name in ("one", "two", "three")] == [-2, -1, -1]


def test_an_administrator_closes_only_clients_that_are_away(broker: Broker) -> None:
    desk = Desk(broker)
    with pytest.raises(IllegalStateException, match="'desk' is connected"):
        broker.call(e.CloseDurable("desk"), WAIT)
    desk.lose()
    broker.call(e.CloseDurable("desk"), WAIT)
    with pytest.raises(IllegalStateException, match="there is no durable client 'desk'"):
        broker.call(e.CloseDurable("desk"), WAIT)


def test_a_client_has_so_many_events_under_way_and_no_more(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker, window=3)
    desk.want("quotes")
    desk.ready()
    versions = [put(broker, "quotes", f"k{number}") for number in range(8)]
    assert desk.events() == ["marker", "k0=", "k1=", "k2="]
    assert desk.acknowledge(versions[1]) == 2
    assert desk.events()[4:] == ["k3=", "k4="]
    desk.acknowledge(versions[7])
    assert desk.events()[6:] == ["k5=", "k6=", "k7="]
    assert desk.acknowledge(versions[7]) == 3
    put(broker, "quotes", "k8")
    assert desk.events()[9:] == ["k8="]


def test_the_interests_of_a_client_have_a_limit(engines: Engines) -> None:
    broker = engines.start(max_client_interests=3)
    make(broker, "quotes", "orders")
    desk = Desk(broker)
    desk.want("quotes", key("a"), key("b"))
    desk.want("orders", key("a"))
    desk.want("orders", key("a"))
    with pytest.raises(ResourceAllocationException, match="max_client_interests"):
        desk.want("orders", key("b"))
    desk.drop("quotes", key("a"))
    desk.want("orders", key("b"))


def test_the_clients_have_a_limit(engines: Engines) -> None:
    broker = engines.start(max_durable_clients=2)
    one = Desk(broker, "one")
    Desk(broker, "two")
    with pytest.raises(ResourceAllocationException, match="max_durable_clients"):
        Desk(broker, "three")
    one.leave(keep=False)
    Desk(broker, "three")


def test_a_client_whose_queue_is_too_long_loses_it_and_holds_back_no_other(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    broker = engines.start(max_client_queue_events=5)
    make(broker, "quotes")
    for name in ("away", "slow", "fast"):
        Desk(broker, name).want("quotes", ALL_KEYS, key(name))
    slow, fast = (_back(broker, name) for name in ("slow", "fast"))
    _back(broker, "away").lose()
    slow.ready()
    fast.ready()
    for number in range(8):
        version = put(broker, "quotes", "IBM", number)
        assert fast.events()[-1] == f"IBM={number}"
        fast.acknowledge(version)
    assert slow.events() == ["marker", *(f"IBM={number}" for number in range(6)), "dropped"]
    with pytest.raises(IllegalStateException):
        slow.acknowledge(1)
    slow.lose()
    assert [Desk(broker, name).pending for name in ("away", "slow")] == [-1, -1]
    assert caplog.text.count("more than 5 events (option max_client_queue_events)") == 2
    state = broker._state.events
    eventually(lambda: state.events is not None and state.events.depth == 0)


def _back(broker: Broker, name: str) -> Desk:
    """A client that was here, and comes again."""
    connection = broker._state.events.clients.clients[name].connection
    broker.call(c.Disconnect(connection or 0), WAIT)
    return Desk(broker, name)


def test_the_limit_of_a_queue_holds_over_restarts(disk: Engines) -> None:
    broker = disk.start(max_client_queue_events=5)
    make(broker, "quotes")
    desks = [Desk(broker, f"desk {number}") for number in range(FEW + 2)]
    for number, desk in enumerate(desks):
        desk.want("quotes", ALL_KEYS, key(f"k{number}"))
    for number in range(3):
        put(broker, "quotes", "IBM", number)
        put(broker, "quotes", "k1", number) if number < 2 else None
    broker = disk.start(max_client_queue_events=5)
    assert [Desk(broker, f"desk {number}").pending for number in range(2)] == [5, 5]
    put(broker, "quotes", "IBM", 9)
    assert Desk(broker, "desk 5").pending == -1


def test_what_a_connection_without_a_client_asks_for_is_refused(broker: Broker) -> None:
    make(broker, "quotes")
    connection = connect(broker)
    for command in (
        e.RegisterInterest(connection, "quotes", [ALL_KEYS], True),
        e.UnregisterInterest(connection, "quotes", [ALL_KEYS]),
        e.ReadyForEvents(connection),
        e.AcknowledgeEvents(connection, 1),
    ):
        with pytest.raises(IllegalStateException, match="gets no events"):
            broker.call(command, WAIT)
    with pytest.raises(IllegalStateException, match="not connected"):
        broker.call(e.ConnectDurable(99, "desk", None, 1, list), WAIT)
    broker.call(e.LeaveDurable(connection, True), WAIT)


def test_an_interest_by_a_selector_asks_the_message(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    dear = Interest(InterestKind.SELECTOR, "price > 3")
    desk.want("quotes", dear, key("HP"))

    def quote(name: str, price: int) -> None:
        payload = pack(Envelope(topic("quotes"), BodyKind.TEXT, name, properties={"price": price}))
        change = e.KeyChange(name, Wanted.PUT, c.NewMessage(ENVELOPE_FORMAT, payload))
        broker.call(e.ChangeKeys("quotes", [change]), WAIT)

    quote("IBM", 2)
    quote("IBM", 4)
    quote("HP", 2)
    quote("HP", 5)
    desk.ready()
    quote("IBM", 9)
    come_to_rest(broker)
    assert [(each.key, each.interests) for each in desk.handouts()] == [
        ("IBM", [dear]),
        ("HP", [key("HP")]),
        ("HP", [key("HP"), dear]),
        ("IBM", [dear]),
    ]


def test_an_event_that_all_have_processed_is_gone_and_no_other(broker: Broker) -> None:
    make(broker, "quotes")
    desks = [Desk(broker, f"desk {number}") for number in range(FEW + 2)]
    for number, desk in enumerate(desks):
        desk.want("quotes", ALL_KEYS, key(f"k{number}"))
        desk.ready()
    versions = [put(broker, "quotes", "IBM", number) for number in range(3)]
    come_to_rest(broker)
    state = broker._state.events
    assert state.events is not None
    for desk in desks[:-1]:
        desk.acknowledge(versions[2])
    desks[-1].acknowledge(versions[0])
    eventually(lambda: state.events is not None and state.events.depth == 2)
    desks[-1].leave(keep=False)
    eventually(lambda: state.events is not None and state.events.depth == 0)
    assert values_of(broker) == {("quotes", "IBM"): b"2"}


def test_an_event_ends_where_one_audience_was_done_with_it_before_a_restart(
    disk: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "TRIMMED_STREAMS", 1)
    broker = disk.start()
    make(broker, "quotes")
    first, last = Desk(broker, "first"), Desk(broker, "last")
    first.want("quotes", key("IBM"), key("HP"))
    last.want("quotes", key("IBM"))
    put(broker, "quotes", "IBM", 1)
    last.ready()
    assert last.events() == ["IBM=1", "marker"]
    last.acknowledge(last.handouts()[-1].position)
    eventually(lambda: len(records_of(broker, "postings")) == 1)
    broker = disk.start()
    first = Desk(broker, "first")
    first.ready()
    assert first.events() == ["IBM=1", "marker"]
    first.acknowledge(first.handouts()[-1].position)
    eventually(lambda: not records_of(broker, "postings"))
    assert records_of(broker, "events") == []


@pytest.mark.parametrize("is_away", [False, True])
def test_who_does_not_want_a_broad_event_does_not_hold_it(broker: Broker, is_away: bool) -> None:
    make(broker, "quotes")
    desks = [Desk(broker, f"desk {number}") for number in range(FEW + 1)]
    for number, desk in enumerate(desks):
        desk.want("quotes", key("IBM"), key(f"k{number}"))
        desk.ready()
    other = Desk(broker, "other")
    other.want("quotes", key("HP"))
    if is_away:
        put(broker, "quotes", "HP", 1)
        other.lose()
    put(broker, "quotes", "IBM", 2)
    for desk in desks:
        assert desk.events() == ["marker", "IBM=2"]
        desk.acknowledge(desk.handouts()[-1].position)
    eventually(lambda: len(records_of(broker, "events")) == is_away)
    assert len(records_of(broker, "postings")) == is_away


def test_interests_by_which_nothing_came_leave_nothing_behind(broker: Broker) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.ready()
    for number in range(20):
        desk.want("quotes", key(f"k{number}"))
        put(broker, "quotes", "IBM", number)
        desk.drop("quotes", key(f"k{number}"))
    state = broker._state.events
    assert state.clients.clients["desk"].queue.parts == []
    eventually(lambda: not state.clients.audiences)
    desk.want("quotes", key("HP"))
    desk.lose()
    desk = Desk(broker)
    put(broker, "quotes", "IBM")
    desk.drop("quotes", key("HP"))
    desk.ready()
    assert desk.events() == ["marker"]
    assert state.clients.clients["desk"].queue.parts == []
    eventually(lambda: not state.clients.audiences)


def test_a_store_that_is_full_refuses_changes_of_keys(disk: Engines) -> None:
    broker = disk.start(max_store_bytes=16 << 20, min_free_disk_bytes=0, blocked_send_timeout_seconds=0.1)
    make(broker, "quotes")
    changes = [e.KeyChange("IBM", Wanted.PUT, message(b"x" * 200_000))]
    Desk(broker).want("quotes")
    answers: list[Any] = []
    for _ in range(200):
        broker.submit(e.ChangeKeys("quotes", changes, answers.append))
    eventually(lambda: len(answers) == 200)
    assert isinstance(answers[-1], ResourceAllocationException)
    assert "max_store_bytes" in str(answers[-1])


def test_a_commit_takes_so_many_changes_of_keys_and_no_more(disk: Engines) -> None:
    broker = disk.start()
    make(broker, "quotes")
    changes = [e.KeyChange("IBM", Wanted.DESTROY, message())] * CYCLE_MESSAGES
    replies: list[Any] = []
    with broker._runner:
        broker.submit_all([e.ChangeKeys("quotes", changes, replies.append) for _ in range(3)])
        broker._cycle()
        assert len(replies) == 1
    come_to_rest(broker)
    assert len(replies) == 3


@pytest.mark.parametrize("is_known", [False, True])
def test_a_client_that_comes_is_told_of_what_came_just_before_it(broker: Broker, is_known: bool) -> None:
    make(broker, "quotes")
    first, second = connect(broker), connect(broker)
    answers: list[Any] = []
    if is_known:
        Desk(broker).lose()
    broker.submit_all(
        [
            e.ConnectDurable(first, "desk", None, 10, [].extend),
            e.RegisterInterest(first, "quotes", [ALL_KEYS], True),
            e.ChangeKeys("quotes", [e.KeyChange("IBM", Wanted.PUT, message(1))]),
            c.Disconnect(first),
            e.ConnectDurable(second, "desk", None, 10, [].extend, answers.append),
        ]
    )
    come_to_rest(broker)
    assert answers == [1]


def test_a_client_that_comes_back_is_not_told_of_what_it_acknowledged_just_before(broker: Broker) -> None:
    make(broker, "quotes")
    desk, again = Desk(broker), connect(broker)
    desk.want("quotes")
    desk.ready()
    position = put(broker, "quotes", "IBM")
    answers: list[Any] = []
    broker.submit_all(
        [
            e.AcknowledgeEvents(desk.connection, position),
            c.Disconnect(desk.connection),
            e.ConnectDurable(again, "desk", None, 10, [].extend, answers.append),
        ]
    )
    come_to_rest(broker)
    assert answers == [0]


def test_a_broad_event_reaches_those_that_want_it_only(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_queue, "EXAMINED", 2)
    make(broker, "quotes")
    crowd = [Desk(broker, f"desk {number}") for number in range(FEW + 2)]
    for number, desk in enumerate(crowd):
        desk.want("quotes", key("IBM"), key(f"k{number}"))
    one = Desk(broker, "one")
    one.want("quotes", key("HP"))
    for number in range(5):
        put(broker, "quotes", "IBM", number)
    put(broker, "quotes", "HP")
    one.ready()
    crowd[3].ready()
    assert one.events() == ["HP=", "marker"]
    assert crowd[3].events() == [*(f"IBM={number}" for number in range(5)), "marker"]
    crowd[4].lose()
    assert Desk(broker, "desk 4").pending == 5


@pytest.mark.damages
def test_an_event_that_cannot_be_read_is_passed_over_and_told(disk: Engines, caplog: pytest.LogCaptureFixture) -> None:
    broker = disk.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes")
    versions = [put(broker, "quotes", name, name) for name in ("a", "b", "c")]
    desk.lose()
    broker.store.apply([("events", versions[0].to_bytes(8), b"damaged")])
    desk = Desk(broker)
    desk.ready()
    assert desk.events() == ["b=b", "c=c", "marker"]
    assert "cannot be trusted" in caplog.text


@pytest.mark.damages
def test_a_key_whose_record_is_damaged_counts_as_new(disk: Engines) -> None:
    broker = disk.start()
    make(broker, "quotes")
    put(broker, "quotes", "IBM", 1)
    (found,) = [k for k, _ in _items(broker, "keys")]
    broker.store.apply([("keys", found, b"damaged")])
    assert change(broker, "quotes", "IBM", Wanted.PUT, 2)[0] is Operation.CREATE
    assert broker.store.quarantined() == 1
    assert values_of(broker) == {("quotes", "IBM"): b"2"}


def _items(broker: Broker, table: str) -> list[Any]:
    with broker.store.snapshot() as tables:
        return list(tables.items(table))
