"""Messages with their bodies and annotations, and those that cannot be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects, Outgoing
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.cycle.inbox import Inbox
from broker_adapter.engine.cycle.message_reads import MessageReads
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import (
    FLAG_ANNOTATED,
    FLAG_PERSISTENT,
    RawEntry,
    encode_annotations,
    entry_key,
)
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.stores import Stores
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    change,
    come_to_rest,
    connect,
    depth,
    full_up,
    message,
    payloads,
    send,
    settle,
)


@pytest.mark.damages
@pytest.mark.parametrize("presettled", [False, True])
def test_many_damaged_messages_are_put_aside_together(
    disk: Engines, presettled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write for each of them would block all other clients."""
    broker = disk.start()
    send(broker, connect(broker), "q", *range(1000))
    broker.close()
    disk.broker = None
    assert disk.path is not None
    with lmdb.open(str(disk.path), max_dbs=20, map_size=1 << 28) as env, env.begin(write=True) as txn:
        messages = env.open_db(b"messages", txn)
        for number in range(1, 1001, 2):
            key = number.to_bytes(8, "big")
            txn.put(key, bytes(txn.get(key, db=messages))[:-1] + b"?", db=messages)
    writes: list[int] = []
    quarantine_all = LmdbStore.quarantine_all

    def counted(store: LmdbStore, records: Any) -> bool:
        if records:  # else nothing is written
            writes.append(len(records))
        return quarantine_all(store, records)

    monkeypatch.setattr(LmdbStore, "quarantine_all", counted)
    broker = disk.start()
    _, inbox = attach(broker, connect(broker), "q", credit=1000, presettled=presettled)
    assert payloads(inbox.wait_for(500)) == [str(number).encode() for number in range(1, 1000, 2)]
    come_to_rest(broker)
    assert sum(writes) == 1000, "500 messages, and their entries"
    assert len(writes) <= 10
    assert broker.call(c.Statistics(), WAIT).quarantined == 500


def test_a_damaged_message_is_kept_aside_and_the_others_are_delivered(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    send(broker, client, "q", "one", "two", "three")
    broker.close()
    disk.broker = None
    assert disk.path is not None
    change(disk.path, "messages", (2).to_bytes(8, "big"), lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    broker = disk.start()
    client = connect(broker)
    consumer, inbox = attach(broker, client, "q", credit=3)
    assert payloads(inbox.wait_for(2)) == [b"one", b"three"]
    broker.call(c.Drain(consumer), WAIT)
    statistics = broker.call(c.Statistics(), WAIT)
    assert (statistics.quarantined, depth(broker, "q")) == (1, 2)
    assert broker._stores.disk is not None
    assert broker._stores.disk.quarantined() == 2  # the message and its entry


def test_a_dead_letter_says_why_also_to_a_consumer_that_settles_nothing(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", "bad")
    _, dead = attach(broker, client, "DLQ", credit=1, presettled=True)
    consumer, inbox = attach(broker, client, "q", credit=1)
    settle(broker, consumer, inbox.wait_for(1), Outcome.REJECTED)
    annotations = dead.wait_for(1)[0].annotations
    assert annotations is not None
    assert annotations["JMS_HOLDFAST_DEAD_LETTER_QUEUE"] == "q"


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_consumer_that_never_settles_gets_what_the_stores_forget(
    engines: Engines, persistent: bool, waits: bool
) -> None:
    broker = engines.start(message_cache_bytes=0)
    client = connect(broker)
    if waits:
        send(broker, client, "q", "a", "b", persistent=persistent)
    consumer, inbox = attach(broker, client, "q", presettled=True)
    broker.submit_all(
        [c.Credit(consumer, 10), *([] if waits else [c.Enqueue(client, queue("q"), [message("a"), message("b")])])]
    )
    assert payloads(inbox.wait_for(2)) == [b"a", b"b"]
    assert depth(broker, "q") == 0
    assert broker.call(c.Statistics(), WAIT).quarantined == 0


class Reads:
    """Messages 1 to 3 of one queue on disk, of which the second is damaged, and what is asked of the engine."""

    def __init__(self, path: Path) -> None:
        settings = EngineSettings()
        self.disk = LmdbStore(path, settings)
        self.stores = Stores(settings, self.disk)
        self.totals = Totals()
        self.inbox = Inbox(Directory(settings, durable=True, secret=b"s", unique="u"))
        self.reads = MessageReads(self.stores, Formats(), self.totals, self.inbox)
        self.entries = [RawEntry(1, 5, number, number, 0, FLAG_PERSISTENT, 0, 1) for number in (1, 2, 3)]
        self.keys = [entry_key(1, 5, entry.position) for entry in self.entries]
        effects = Effects()
        for key, entry in zip(self.keys, self.entries, strict=True):
            envelope = Envelope(queue("q"), BodyKind.TEXT, "x" * 10_000, {"number": entry.number})
            effects.durable.messages[entry.number] = c.NewMessage(ENVELOPE_FORMAT, pack(envelope))
            effects.durable.entries[key] = entry
        self.stores.commit(effects)
        with self.disk.snapshot() as tables:
            _, (damaged, value), _ = tables.items("messages")
        self.disk.apply([("messages", damaged, value[:-1] + b"!")])
        self.stores._cache.clear()

    def handouts(self, consumer: int | None, pending: Effects | None = None) -> list[int]:
        outgoing = [
            Outgoing(10 + entry.number, entry.position, 0, entry.number, entry.flags, key)
            for key, entry in zip(self.keys, self.entries, strict=True)
        ]
        return [each.number - 10 for each in self.reads.handouts(outgoing, consumer, pending)]

    def fill(self) -> None:
        env = self.disk._env
        env.set_mapsize((env.info()["last_pgno"] + 100) * env.stat()["psize"])
        full_up(self.disk)


@pytest.fixture
def reads(tmp_path: Path) -> Iterator[Reads]:
    reads = Reads(tmp_path)
    yield reads
    reads.stores.close()


def test_a_browser_leaves_a_damaged_message_out_and_asks_the_engine_to_put_it_aside(reads: Reads) -> None:
    assert reads.handouts(None) == [1, 3]
    assert list(reads.inbox.commands) == [c.SetAside(c.Range(1, 2, 2, 1, frozenset((2,))))]
    assert (reads.stores.in_quarantine, reads.totals.quarantined) == (0, 0)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_consumer_that_holds_a_damaged_message_gives_it_back_where_there_is_no_room_aside(
    reads: Reads, is_full: bool
) -> None:
    if is_full:
        reads.fill()
    assert reads.handouts(7, Effects()) == [1, 3]
    assert list(reads.inbox.commands) == [c.Quarantined(7, 12, is_full)]
    assert reads.stores.in_quarantine == (0 if is_full else 2)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_damaged_message_without_a_holder_stays_where_quarantine_has_no_room(reads: Reads, is_full: bool) -> None:
    if is_full:
        reads.fill()
    pending = Effects()
    for key, entry in zip(reads.keys, reads.entries, strict=True):
        pending.durable.entries[key] = None
        pending.durable.gone.append(entry.number)
    assert reads.handouts(None, pending) == [1, 3]
    assert not reads.inbox.commands
    assert reads.totals.quarantined == (0 if is_full else 1)
    assert pending.durable.gone == ([1, 3] if is_full else [1, 2, 3])
    assert (reads.keys[1] in pending.durable.entries) is not is_full


def test_selectors_see_headers_properties_and_annotations_of_what_can_be_read(reads: Reads) -> None:
    annotated = reads.entries[2]._replace(flags=FLAG_PERSISTENT | FLAG_ANNOTATED, delivery_count=4)
    effects = Effects()
    effects.durable.put("annotations", reads.keys[2], encode_annotations(reads.keys[2], {"why": "rejected"}))
    reads.stores.commit(effects)
    found = reads.reads.selectables([*reads.entries[:2], annotated], None)
    assert [entry for entry, _ in found] == [reads.entries[0], annotated]
    values = [[message(name) for name in ("number", "JMSXDeliveryCount", "why")] for _, message in found]
    assert values == [[1, 1, None], [3, 5, "rejected"]]
    assert not reads.inbox.commands, "the caller reports it"
