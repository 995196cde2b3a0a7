"""Messages with their bodies and annotations, and those that cannot be trusted."""

from __future__ import annotations

from typing import Any

import lmdb
import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine import commands as c
from broker_adapter.engine.lmdb_store import LmdbStore
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    change,
    come_to_rest,
    connect,
    depth,
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
    """A write for each of them would hold everybody up."""
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
