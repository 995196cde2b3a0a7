"""What an engine has in memory against its stores: each thing that does not fit is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.cycle.check_state import findings
from broker_adapter.engine.queues.entries import Entry
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import FLAG_PERSISTENT, encode_entry, entry_key
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, attach, connect, day_ms, send

pytestmark = pytest.mark.damages


class Engine:
    """A queue with positions 1 and 2 in the hands of a consumer, 3 and 4 ready, and a delayed message."""

    def __init__(self, path: Path) -> None:
        self.broker = Broker(EngineSettings(), str(path))
        client = connect(self.broker)
        send(self.broker, client, "q", *"abcd")
        send(self.broker, client, "q", "late", deliver_at_ms=day_ms() + 3_600_000)
        number, inbox = attach(self.broker, client, "q", credit=2)
        inbox.wait_for(2)
        self.other, _ = attach(self.broker, client, "q")
        self.broker.call(c.Statistics(), WAIT)
        directory = self.broker._state.directory
        self.queue: QueueState = directory.by_destination[queue("q")]
        self.consumer = directory.consumers[number]
        (self.lane,) = self.queue.lanes
        self.held: Entry = next(iter(self.consumer.unsettled.values()))
        self.ready: Entry = self.queue.ready[3]

    def findings(self) -> list[str]:
        """What is found, read as the engine reads it for a check."""
        with self.broker._runner:
            stores = self.broker._stores
            assert self.broker.store is stores.disk
            with self.broker.store.snapshot() as tables:
                return [each.text for each in findings(self.broker._directory, (tables, stores.memory.snapshot()))]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.broker.failed = OSError("its memory is wrong by now")  # nothing of it is to be written
    engine.broker.close()


def test_an_engine_whose_memory_fits_its_stores_is_sound(engine: Engine) -> None:
    assert engine.findings() == []


def add(target: object, name: str, number: int) -> None:
    setattr(target, name, getattr(target, name) + number)


def stranger(engine: Engine) -> Entry:
    return Entry(entry_key(engine.queue.id, 5, 99), engine.lane, 99, 99, 0, FLAG_PERSISTENT, 0, 1)


def put_elsewhere(engine: Engine) -> None:
    """A message that need not survive a restart is on the disk."""
    key = entry_key(engine.queue.id, 5, 50)
    engine.broker.store.apply([("entries", key, encode_entry(key, 50, 0, 0, 0, 1, 0))])


def damage(engine: Engine) -> None:
    engine.broker.store.apply([("entries", engine.ready.key, b"damaged")])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda each: add(each.queue, "depth", 1), "5 messages are there, and 6 are counted"),
        (lambda each: add(each.queue, "bytes", 3), "8 bytes are there, and 11 are counted"),
        (lambda each: add(each.queue, "stored_bytes", -3), "8 bytes are stored, and 5 are counted"),
        (lambda each: add(each.queue.delayed, "behind", 1), "1 messages are delayed, and 2 are counted"),
        (lambda each: add(each.lane, "stored", 2), "lane 5 has 4 stored entries, and 6 are counted"),
        (lambda each: add(each.lane, "behind", 1), "lane 5 has 0 entries behind its window, and 1 are counted"),
        (
            lambda each: each.queue.kept_for.setdefault(3, each.consumer),
            "0 messages are kept in groups or for consumers that failed, not 1",
        ),
        (lambda each: add(each.queue.memory, "in_hand", 1), "consumers hold 2 messages, and 3 are counted"),
        (
            lambda each: each.broker._directory.queues.pop(each.queue.id),
            "the stores have 5 entries of queue 2, which does not exist",
        ),
        (lambda each: each.queue.lanes.clear(), "lane 5 has entries, and is not known"),
        (
            lambda each: each.queue.ready.pop(3),
            "position 3 is neither in memory nor behind the window: no consumer gets it",
        ),
        (
            lambda each: each.queue.ready.setdefault(each.held.position, each.held),
            "positions [1] are ready and in a consumer's hands",
        ),
        (
            lambda each: each.queue.ready.setdefault(99, stranger(each)),
            "positions [99] are in memory, and not in the store",
        ),
        (lambda each: each.lane.heap.clear(), "position 3 is ready, and has no turn"),
        (lambda each: setattr(each.ready, "number", 77), "position 3 is message 77 of lane 5 in memory"),
        (lambda each: setattr(each.lane, "number", 12), "position 3 is in memory as of lane 12"),
        (lambda each: setattr(each.lane, "loaded_through", 3), "position 4 is in memory, and would be loaded again"),
        (
            lambda each: each.broker._directory.consumers[each.other].unsettled.setdefault(9, each.held),
            "two consumers hold position 1",
        ),
        (
            lambda each: setattr(each.broker._directory.consumers[each.other], "credit", 1),
            "may take messages, and has no turn",
        ),
        (put_elsewhere, "is in the wrong store"),
        (damage, "positions [3] are in memory, and not in the store"),
    ],
)
def test_what_does_not_fit_is_named(engine: Engine, change: Callable[[Engine], object], text: str) -> None:
    with engine.broker._runner:
        change(engine)
    found = engine.findings()
    assert any(text in each for each in found), found
