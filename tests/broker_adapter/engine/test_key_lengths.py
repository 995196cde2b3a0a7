"""A record whose key has a wrong length is a damaged record, in every table: no traceback, and nothing else is lost."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.clients.client_records import CursorRecord, encode_cursor
from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.engine.records.layout import (
    DELAYED_LANE,
    FIRST_STAGED_QUEUE,
    LAST_POSITION,
    TABLES,
    CatalogRecord,
    decode_entry_key,
    decode_message_key,
    decode_queue_key,
    due_of,
    encode_catalog,
    entry_key,
    last_key,
    position_of,
    queue_key,
)
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store, quarantined, sound_store
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, Identity, pack
from broker_adapter.errors import StoreCorruptException
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import (
    WAIT,
    attach,
    connect,
    depth,
    drained,
    message,
    payloads,
    send,
    settle,
    subscribe,
)
from tests.broker_adapter.engine.storing import SETTINGS, batch_of, entry, reopened

pytestmark = pytest.mark.damages

FAR_MS = 4_102_444_800_000
SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "short": lambda key: key[:-1],
    "long": lambda key: key + b"\0",
    "head": lambda key: key[:5] if len(key) > 5 else key[:2],
    "one byte": lambda key: key[:1],
    "high": lambda key: b"\xff" + key,
}


def filled(path: Path) -> None:
    """A store with something in every table, copied from one that is made once."""
    shutil.copytree(_made().name, path, dirs_exist_ok=True)


@cache
def _made() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory()
    _fill(Path(made.name))
    return made


def _fill(path: Path) -> None:
    broker = Broker(SETTINGS, str(path))
    broker.request("follow", {"node": "copy", "spans": []}, WAIT)
    client = connect(broker, "me")
    subscribe(broker, client, "news", "one", "two")
    send(broker, client, topic("news"), *range(5))
    bodies = [message(f"order {number}", identity=Identity("p", 1, number)) for number in range(10)]
    broker.call(c.Enqueue(client, queue("orders"), bodies), WAIT)
    for due_ms in (FAR_MS, FAR_MS + 1):
        later = pack(Envelope(queue("later"), BodyKind.TEXT, "later", deliver_at_ms=due_ms))
        new = c.NewMessage(ENVELOPE_FORMAT, later, deliver_at_ms=due_ms)
        broker.call(c.Enqueue(client, queue("later"), [new]), WAIT)
    send(broker, client, "mortal", "mortal", expires_at_ms=FAR_MS)
    consumer, inbox = attach(broker, client, "orders", credit=2)
    settle(broker, consumer, inbox.wait_for(2), Outcome.REJECTED)
    broker.call(c.Commit(client, c.CommitId("s", 7), [], []), WAIT)
    broker.call(c.Publish("g", 3, []), WAIT)
    fill_regions(broker)
    for name in ("east", "west"):
        record = GatewayRecord("amqp://localhost", ["queue:orders", "region:quotes"], state="running")
        broker.call(g.CreateGateway(name, record), WAIT)
    send(broker, client, "orders", "for other sites")
    change(broker, "quotes", "d")
    broker.close()
    cursors = [last_key(f"desk {region}") for region in ("quotes", "trades")]
    store = LmdbStore(path, SETTINGS)
    store.apply([("cursors", key, encode_cursor(key, CursorRecord(0, 0, (0, 0, 0, 0)))) for key in cursors])
    store.close()


def fill_regions(broker: Broker) -> None:
    """Keys of two regions, and two durable clients with events."""
    for region in ("quotes", "trades"):
        broker.call(e.MakeRegion(region), WAIT)
        for name in ("desk", "office"):
            client = connect(broker, f"{name} {region}")
            broker.call(e.ConnectDurable(client, f"{name} {region}", None, 10, lambda _: None, conflation="true"), WAIT)
            interest = ALL_KEYS if name == "desk" else Interest(InterestKind.KEY, "a")
            broker.call(e.RegisterInterest(client, region, [interest], True), WAIT)
        change(broker, region, *"abcaa")
        broker.call(e.ChangeKeys(region, [e.KeyChange("b", Wanted.DESTROY, message("gone"))]), WAIT)


def change(broker: Broker, region: str, *keys: str) -> None:
    """Put values for keys."""
    puts = [e.KeyChange(key, Wanted.PUT, message(f"value of {key}")) for key in keys]
    broker.call(e.ChangeKeys(region, puts), WAIT)


def reshape(path: Path, table: str, which: int, shape: Callable[[bytes], bytes]) -> None:
    """Give one record of a table a key of another length."""
    store = LmdbStore(path, SETTINGS)
    with store.snapshot() as tables:
        found = [item for item in tables.items(table) if table != "meta" or item[0] != b"version"]
        key, value = found[min(which, len(found) - 1)] if which >= 0 else found[-1]
    store.apply([(table, key, None), (table, shape(key), value)])
    store.close()


def used(path: Path) -> None:
    """Start an engine, use everything, stop it."""
    broker = Broker(SETTINGS, str(path))
    client = connect(broker, "me")
    for name in ("orders", "later", "mortal", "DLQ", "other"):
        drained(broker, client, name)
        number = broker._state.directory.by_destination[queue(name)].id
        with broker.reading() as reader:
            reader.first_position(number)
            broker._reads.of_range(c.Range(number, 0, LAST_POSITION, 100))
            broker._reads.of_range(c.Range(number, 0, LAST_POSITION, 100, delayed=True))
        with suppress(StoreCorruptException):
            broker.request("read_range", {"destination": name, "first": 1, "last": 20, "skip_damaged": True}, WAIT)
    for name in ("one", "two"):
        drained(broker, client, topic("news"), subscription=Subscription(name, durable=True, shared=False))
    send(broker, client, "orders", "one more", "and one", identity=Identity("p", 1, 100))
    send(broker, client, "mortal", "dead", expires_at_ms=1)
    send(broker, client, topic("news"), "the last")
    broker.call(c.Commit(client, c.CommitId("s", 8), [], []), WAIT)
    broker.call(c.Publish("g", 4, []), WAIT)
    for region in ("quotes", "trades"):
        change(broker, region, *"abcd")
        for name in ("desk", "office"):
            got: list[object] = []
            durable = connect(broker, f"{name} {region}")
            broker.call(e.ConnectDurable(durable, f"{name} {region}", None, 10, got.extend), WAIT)
            broker.call(e.RegisterInterest(durable, region, [ALL_KEYS], True), WAIT)
            broker.call(e.ReadyForEvents(durable), WAIT)
            broker.call(e.AcknowledgeEvents(durable, 1 << 60), WAIT)
            broker.call(c.Disconnect(durable), WAIT)
    assert b"one more" in payloads(drained(broker, client, "orders"))
    broker.check()
    broker.request("check", {}, WAIT)
    assert broker.failed is None
    broker.close()


@pytest.mark.parametrize(("shape", "which"), list(zip(SHAPES, (0, -1, 1, 0, -1), strict=True)))
@pytest.mark.parametrize("table", sorted({*TABLES} - {"quarantine"}))
def test_a_key_of_a_wrong_length_stops_nothing(tmp_path: Path, table: str, shape: str, which: int) -> None:
    """Neither an engine nor a check ends by it, and a repair leaves a sound store with which an engine starts."""
    filled(tmp_path)
    reshape(tmp_path, table, which, SHAPES[shape])
    check_store(tmp_path, SETTINGS)
    if table == "catalog":
        with pytest.raises(StoreCorruptException, match=f"{re.escape(str(tmp_path))}.* run: holdfast check"):
            used(tmp_path)
    else:
        used(tmp_path)
    check_store(tmp_path, SETTINGS)
    check_store(tmp_path, SETTINGS, repair=True)
    assert check_store(tmp_path, SETTINGS).is_sound
    with sound_store(tmp_path, SETTINGS) as store:
        assert all(each.name for each in quarantined(store))
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker, "me")
    send(broker, client, "orders", "after it")
    assert b"after it" in payloads(drained(broker, client, "orders"))
    broker.close()
    assert check_store(tmp_path, SETTINGS).is_sound


def test_an_entry_with_a_key_of_a_wrong_length_is_set_aside_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    send(broker, connect(broker), "q", *range(5))
    broker.close()
    reshape(tmp_path, "entries", 0, SHAPES["short"])
    broker = Broker(SETTINGS, str(tmp_path))
    assert payloads(drained(broker, connect(broker), "q")) == [b"1", b"2", b"3", b"4"]
    assert broker.store.quarantined() == 1
    assert "of table entries is damaged" in caplog.text
    broker.close()


def test_an_entry_with_a_key_of_a_wrong_length_is_set_aside_when_it_is_loaded(tmp_path: Path) -> None:
    broker = Broker(SETTINGS, str(tmp_path))
    send(broker, connect(broker), "q", *range(5))
    broker.close()
    reshape(tmp_path, "entries", 2, SHAPES["long"])
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker)
    assert payloads(drained(broker, client, "q")) == [b"0", b"1", b"3", b"4"]
    assert broker.store.quarantined() == 1
    assert depth(broker, "q") == 4
    broker.close()


@pytest.mark.parametrize("key", [b"\x05" * 9, b"\x05" * 7, b"\x05", b"\x80" + bytes(6) + b"\x02"])
@pytest.mark.parametrize("has_room", [True, False])
def test_no_message_is_lost_behind_a_key_that_no_message_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes, has_room: bool
) -> None:
    """LMDB does not append what stands before the last key, and says nothing."""
    store = reopened(tmp_path)
    store.commit(batch_of(entry(1, 5, 1, 1), entry(1, 5, 2, 2)))
    store.apply([("messages", key, b"damaged")])
    if not has_room:
        monkeypatch.setattr(store, "quarantine", lambda *_: False)
    assert store.next_message() == 3
    assert bool(store.in_quarantine([b"messages\0" + key])) is has_room
    store.commit(batch_of(entry(1, 5, 3, 3), entry(1, 5, 4, 4)))
    assert [*store.read_messages([3, 4])] == [(7, b"x3"), (7, b"x4")]
    store.close()


@pytest.mark.parametrize("key", [b"\x93\xa1p", b"\xa1p", b"\xc1", b"\x92\xa1p\x01\0"])
def test_the_numbers_of_a_producer_under_a_key_that_names_none_are_set_aside(tmp_path: Path, key: bytes) -> None:
    """Those of a store of version 2 have no checksum that would tell."""
    filled(tmp_path)
    store = reopened(tmp_path)
    store.apply([("producers", key, bytes(16))])
    store.close()
    broker = Broker(SETTINGS, str(tmp_path))
    assert broker.store.in_quarantine([b"producers\0" + key])
    broker.close()
    assert check_store(tmp_path, SETTINGS).is_sound


def test_a_message_under_a_number_that_none_can_have_does_not_raise_those_of_the_next(tmp_path: Path) -> None:
    """A check could not count it."""
    broker = Broker(SETTINGS, str(tmp_path))
    send(broker, connect(broker), "q", "one", "two")
    broker.close()
    reshape(tmp_path, "messages", 0, lambda key: bytes((key[0] | 0x80,)) + key[1:])
    check_store(tmp_path, SETTINGS, repair=True)
    broker = Broker(SETTINGS, str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", "three")
    assert payloads(drained(broker, client, "q")) == [b"two", b"three"]
    broker.close()
    assert check_store(tmp_path, SETTINGS).is_sound


def test_a_start_names_entries_of_queues_that_the_catalogue_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = reopened(tmp_path)
    staged = FIRST_STAGED_QUEUE + 7
    of_queues = [entry(number, lane, 1, number * 300 + lane) for number in (1, 2, 5, staged) for lane in (3, 5)]
    batch = batch_of(*of_queues)
    for number in (2, 9):
        key = queue_key(number)
        batch.put("catalog", key, encode_catalog(key, CatalogRecord("queue", f"q{number}")))
    store.commit(batch)
    assert [(each.queue, each.lanes) for each in store.queues()] == [(2, [3, 5]), (9, [])]
    (said,) = [each.getMessage() for each in caplog.records]
    assert "3 queues" in said
    assert "holdfast check" in said
    assert str(tmp_path) in said
    caplog.clear()
    for number in (1, 5, staged):
        key = queue_key(number)
        store.apply([("catalog", key, encode_catalog(key, CatalogRecord("queue", f"q{number}")))])
    assert len(store.queues()) == 5
    assert caplog.records == []
    store.close()


def test_a_key_of_a_wrong_length_is_decoded_to_an_error() -> None:
    key = entry_key(1, DELAYED_LANE, 9)
    assert decode_entry_key(key) == (1, DELAYED_LANE, 9)
    assert decode_queue_key("catalog", key[:4]) == 1
    assert decode_message_key(key[5:]) == 9
    for wrong in (key[:-1], key + b"\0"):
        with pytest.raises(StoreCorruptException, match=r"of table entries has 1[24] bytes, not 13"):
            decode_entry_key(wrong)
        with pytest.raises(StoreCorruptException, match="of table catalog"):
            decode_queue_key("catalog", wrong)
        with pytest.raises(StoreCorruptException, match="of table messages"):
            decode_message_key(wrong)


def test_a_key_of_a_wrong_length_has_the_place_at_which_it_sorts() -> None:
    key = entry_key(1, 5, 0x0102)
    assert position_of(key) == 0x0102
    assert position_of(key + b"\xff") == 0x0102
    assert position_of(key[:-1]) == 0x0100
    assert position_of(key[:4]) == 0
    assert due_of(b"\1" * 30) == due_of(b"\1" * 8)
    assert due_of(b"\1") == 1 << 56
