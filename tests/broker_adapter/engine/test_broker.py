"""The driver over real stores: what is on disk before what leaves, restarts, limits, alarms, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.engine import commands as c
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.browsing import Browsing
from broker_adapter.engine.inbox import CYCLE_MESSAGES
from broker_adapter.engine.lmdb_store import LmdbStore
from broker_adapter.engine.matching import Matching
from broker_adapter.engine.records import entry_key
from broker_adapter.engine.store import MESSAGE_BYTES, PLACE_BYTES
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreException,
    StoreLockedException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import (
    WAIT,
    Inbox,
    attach,
    come_to_rest,
    connect,
    depth,
    drained,
    message,
    payloads,
    send,
    settle,
)


class Engines:
    """Brokers over one directory (or memory), one at a time, all closed at the end."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.broker: Broker | None = None

    def start(self, **settings: Any) -> Broker:
        """Start, or start again."""
        if self.broker is not None:
            self.broker.close()
        self.broker = Broker(EngineSettings(**settings), str(self.path) if self.path else None)
        return self.broker


@pytest.fixture(params=["disk", "memory"])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engines]:
    engines = Engines(tmp_path / "data" if request.param == "disk" else None)
    yield engines
    if engines.broker is not None:
        engines.broker.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Engines]:
    engines = Engines(tmp_path / "data")
    yield engines
    if engines.broker is not None:
        engines.broker.close()


def test_messages_go_in_and_out_in_order(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", *range(100))
    consumer, inbox = attach(broker, client, "q", credit=60)
    broker.call(c.Credit(consumer, 60), WAIT)
    handouts = inbox.wait_for(100)
    assert payloads(handouts) == [str(number).encode() for number in range(100)]
    settle(broker, consumer, handouts)
    assert depth(broker, "q") == 0


def test_no_temporary_destination_is_named_like_one_of_before_a_restart(engines: Engines) -> None:
    """Its client comes back and wants it again, and finds nobody else's in its place."""

    def declare(broker: Broker, client: int) -> Destination:
        destination: Destination = broker.call(c.DeclareTemporary(client, DestinationKind.TEMPORARY_QUEUE), WAIT)
        return destination

    broker = engines.start()
    client = connect(broker)
    before = [declare(broker, client) for _ in range(3)]
    broker = engines.start()
    other, client = connect(broker), connect(broker)
    after = [declare(broker, other) for _ in range(3)]
    for each in before:
        broker.call(c.DeclareTemporary(client, each.kind, each.name), WAIT)
    assert len({*before, *after}) == 6


def test_a_backlog_far_beyond_the_window_keeps_its_order(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    for start in range(0, 1000, 100):
        send(broker, client, "q", *range(start, start + 100), persistent=start % 200 == 0)
    assert payloads(drained(broker, client, "q")) == [str(number).encode() for number in range(1000)]


def test_priorities_hold_over_the_whole_backlog(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    send(broker, client, "q", *["low"] * 50, priority=1)
    send(broker, client, "q", *["high"] * 50, priority=9)
    send(broker, client, "q", *["middle"] * 50, priority=4, persistent=False)
    assert payloads(drained(broker, client, "q")) == [b"high"] * 50 + [b"middle"] * 50 + [b"low"] * 50


def test_what_is_delivered_is_on_disk_before(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    seen: list[bool] = []

    def sink(handouts: Any) -> None:
        assert broker._stores.disk is not None
        for handout in handouts:
            (found,) = broker._stores.disk.load(number, 5, handout.position - 1, 1).entries
            seen.append(found.position == handout.position)

    consumer = broker.call(c.Attach(client, queue("q"), sink), WAIT)
    number = broker._state.directory.by_destination[queue("q")].id
    broker.submit(c.Credit(consumer, 1000))
    sent = threading.Thread(target=lambda: [send(broker, client, "q", body) for body in range(200)])
    sent.start()
    sent.join(WAIT)
    broker.call(c.Drain(consumer), WAIT)
    assert seen == [True] * 200


def test_one_commit_serves_all_that_waited(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    replies: list[Any] = []
    before = broker.call(c.Statistics(), WAIT).commits
    with broker._runner:  # nothing is done while the sends gather
        for number in range(500):
            broker.submit(c.Enqueue(client, queue("q"), [message(number)], replies.append))
    assert depth(broker, "q") == 500
    assert replies == [None] * 500
    assert broker.call(c.Statistics(), WAIT).commits - before == 1


def test_a_commit_takes_no_more_than_its_limit(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    replies: list[Any] = []
    with broker._runner:
        before = broker._state.totals.commits
        for _ in range(3):
            body = [message()] * CYCLE_MESSAGES
            broker.submit(c.Enqueue(client, queue("q"), body, replies.append))
    assert depth(broker, "q") == 3 * CYCLE_MESSAGES
    assert broker.call(c.Statistics(), WAIT).commits - before == 3


def test_many_threads_send_and_nothing_is_lost_or_doubled(engines: Engines) -> None:
    broker = engines.start()

    def work(name: int) -> None:
        client = connect(broker)
        for number in range(100):
            send(broker, client, "q", f"{name} {number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    bodies = payloads(drained(broker, connect(broker), "q"))
    assert sorted(bodies) == sorted(f"{name} {number}".encode() for name in range(8) for number in range(100))
    for name in range(8):
        own = [body for body in bodies if body.startswith(f"{name} ".encode())]
        assert own == [f"{name} {number}".encode() for number in range(100)]


def test_a_restart_finds_everything_persistent_and_nothing_else(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    send(broker, client, "q", "kept 1")
    send(broker, client, "q", "gone", persistent=False)
    send(broker, client, "q", "kept 2", priority=9)
    broker = disk.start()
    handouts = drained(broker, connect(broker), "q")
    assert payloads(handouts) == [b"kept 2", b"kept 1"]
    assert [each.delivery_count for each in handouts] == [0, 0]


def test_what_was_delivered_before_a_restart_comes_again_as_redelivered(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    send(broker, client, "q", *range(10))
    attach(broker, client, "q", credit=4)[1].wait_for(4)
    broker = disk.start()
    handouts = drained(broker, connect(broker), "q")
    assert [each.delivery_count for each in handouts] == [1] * 4 + [0] * 6


def test_positions_are_never_used_again_over_restarts(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    send(broker, client, "q", "a", "b")
    consumer, inbox = attach(broker, client, "q", credit=2)
    settle(broker, consumer, inbox.wait_for(2))
    highest = inbox.handouts[-1].position
    broker = disk.start()
    client = connect(broker)
    send(broker, client, "q", "c")
    assert drained(broker, client, "q")[0].position > highest


def test_a_durable_subscription_outlives_a_restart(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker, "me")
    subscription = Subscription("sub", durable=True, shared=False)
    consumer, _ = attach(broker, client, topic("news"), subscription=subscription)
    broker.call(c.Detach(consumer), WAIT)
    send(broker, client, topic("news"), "one")
    broker = disk.start()
    client = connect(broker, "me")
    send(broker, client, topic("news"), "two")
    assert payloads(drained(broker, client, topic("news"), subscription=subscription)) == [b"one", b"two"]


def test_a_topic_keeps_one_copy_for_all_its_subscribers(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker, "me")
    for name in "abc":
        consumer, _ = attach(broker, client, topic("t"), subscription=Subscription(name, durable=True, shared=True))
        broker.call(c.Detach(consumer), WAIT)
    send(broker, client, topic("t"), "x", "y")
    assert broker._stores.disk is not None
    with broker._stores.disk._env.begin() as txn:
        assert txn.stat(db=broker._stores.disk._db["messages"])["entries"] == 2
    for name in "abc":
        consumer, inbox = attach(
            broker, client, topic("t"), 10, subscription=Subscription(name, durable=True, shared=True)
        )
        settle(broker, consumer, inbox.wait_for(2))
    with broker._stores.disk._env.begin() as txn:
        assert txn.stat(db=broker._stores.disk._db["messages"])["entries"] == 0
        assert txn.stat(db=broker._stores.disk._db["references"])["entries"] == 0


def test_an_ended_queue_leaves_nothing_in_the_store(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker, "me")
    subscription = Subscription("sub", durable=True, shared=False)
    consumer, _ = attach(broker, client, topic("t"), subscription=subscription)
    broker.call(c.Detach(consumer), WAIT)
    send(broker, client, topic("t"), *range(2000), expires_at_ms=_now_ms() + 3_600_000)
    send(broker, client, topic("t"), "later", deliver_at_ms=_now_ms() + 150)
    broker.call(c.Unsubscribe(client, "sub"), WAIT)
    assert broker._stores.disk is not None

    def left() -> dict[str, int]:
        assert broker._stores.disk is not None
        with broker._stores.disk._env.begin() as txn:
            counts = {table: txn.stat(db=handle)["entries"] for table, handle in broker._stores.disk._db.items()}
        return {table: count for table, count in counts.items() if count and table != "meta"}

    dead_letters = {"catalog": 1}
    _eventually(
        lambda: not broker._jobs and left() == dead_letters
    )  # the schedule of a delayed one goes when it is due


def test_a_queue_that_ended_just_before_a_crash_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    settings = EngineSettings()
    store = LmdbStore(tmp_path, settings)
    state = BrokerState(settings, durable=True, secret=b"s")
    attach_it = c.Attach(1, topic("t"), Inbox(), Subscription("s", durable=True, shared=False))
    commands = [c.Connect("me"), attach_it, c.Detach(1), c.Enqueue(1, topic("t"), [message("x")])]
    effects = state.decide([*commands, c.Unsubscribe(1, "s")], _now_ms())
    store.commit(effects.durable)
    store.close()
    broker = Broker(settings, str(tmp_path))
    try:
        while broker._jobs:
            broker.call(c.Statistics(), WAIT)
        assert broker._stores.disk is not None
        assert [each.record.name for each in broker._stores.disk.queues()] == ["DLQ"]
        assert list(broker._stores.disk.read_messages([1])) == [None]
    finally:
        broker.close()


def test_a_published_transaction_is_moved_at_the_next_start(tmp_path: Path) -> None:
    settings = EngineSettings()
    store = LmdbStore(tmp_path, settings)
    state = BrokerState(settings, durable=True, secret=b"s")
    commands = [
        c.Stage("b", queue("target"), 0, [message("3"), message("4")]),
        c.Stage("a", queue("target"), 0, [message("1"), message("2")]),
        c.Publish("group", 7, ["a", "b"]),
    ]
    store.commit(state.decide(commands, _now_ms()).durable)
    store.close()
    broker = Broker(settings, str(tmp_path))
    try:
        while broker._jobs:
            broker.call(c.Statistics(), WAIT)
        client = connect(broker)
        assert payloads(drained(broker, client, "target")) == [b"1", b"2", b"3", b"4"]
        assert broker.call(c.Publish("group", 7, ["a", "b"]), WAIT) is False
    finally:
        broker.close()


def test_a_staged_transaction_that_nobody_publishes_is_dropped(engines: Engines) -> None:
    broker = engines.start(staged_timeout_seconds=1.0)
    broker.call(c.Stage("t", queue("target"), 0, [message("x")]), WAIT)
    _eventually(lambda: not broker._state.directory.staged and not broker._jobs)
    assert depth(broker, "t") == 0
    with pytest.raises(JMSException, match="staged_timeout_seconds"):
        broker.call(c.Publish("group", 1, ["t"]), WAIT)


def test_a_delayed_message_comes_when_its_time_has_come(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    _, inbox = attach(broker, client, "q", credit=10)
    send(broker, client, "q", "tomorrow", deliver_at_ms=_now_ms() + 86_400_000)
    send(broker, client, "q", "soon")
    assert payloads(inbox.wait_for(1)) == [b"soon"]
    due_ms = _now_ms() + 200
    send(broker, client, "q", "late", deliver_at_ms=due_ms)
    assert payloads(inbox.wait_for(2)) == [b"soon", b"late"]
    assert _now_ms() >= due_ms


def test_an_expired_message_goes_without_anybody_asking_for_it(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", "long", expires_at_ms=_now_ms() + 3_600_000)
    send(broker, client, "q", "short", expires_at_ms=_now_ms() + 300)
    _eventually(lambda: broker.call(c.Statistics(), WAIT).expired == 1)
    assert depth(broker, "q") == 1
    assert payloads(drained(broker, client, "q")) == [b"long"]
    assert broker.call(c.Statistics(), WAIT).expired == 1


def test_expiry_and_delay_hold_over_a_restart(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    # Far enough ahead that the engine has ended by then.
    send(broker, client, "q", "short", expires_at_ms=_now_ms() + 2000)
    send(broker, client, "q", "late", deliver_at_ms=_now_ms() + 2000)
    broker = disk.start()
    _, inbox = attach(broker, connect(broker), "other", credit=1)
    _eventually(lambda: broker.call(c.Statistics(), WAIT).expired == 1)
    _eventually(lambda: payloads(drained(broker, connect(broker), "q")) == [b"late"])
    assert inbox.handouts == []


def test_a_full_queue_holds_producers_back_until_there_is_room(engines: Engines) -> None:
    broker = engines.start(max_queue_messages=10)
    client = connect(broker)
    send(broker, client, "q", *range(10))
    replies: list[Any] = []
    for number in (10, 11):
        broker.submit(c.Enqueue(client, queue("q"), [message(number)], replies.append))
    assert depth(broker, "q") == 10
    assert replies == []
    consumer, inbox = attach(broker, client, "q", credit=2)
    settle(broker, consumer, inbox.wait_for(2))
    assert replies == [None, None]
    assert [int(each.payload) for each in drained(broker, client, "q")] == list(range(2, 12))


def test_a_producer_held_back_too_long_gets_an_error_that_names_the_limit(engines: Engines) -> None:
    broker = engines.start(max_queue_messages=1, hold_timeout_seconds=0.2)
    client = connect(broker)
    send(broker, client, "q", "a")
    started = time.monotonic()
    (error,) = send(broker, client, "q", "b")
    assert isinstance(error, ResourceAllocationException)
    assert "max_queue_messages" in str(error)
    assert time.monotonic() - started >= 0.15
    assert depth(broker, "q") == 1


def test_volatile_messages_have_a_limit_of_their_own(engines: Engines) -> None:
    one = 900 + MESSAGE_BYTES + PLACE_BYTES
    broker = engines.start(max_volatile_bytes=one + 100, hold_timeout_seconds=0.1)
    client = connect(broker)
    assert send(broker, client, "q", b"x" * 900, persistent=False) is None
    (error,) = send(broker, client, "q", b"x" * 200, persistent=False)
    assert "max_volatile_bytes" in str(error)
    consumer, inbox = attach(broker, client, "q", credit=1)
    settle(broker, consumer, inbox.wait_for(1))
    assert send(broker, client, "q", b"x" * 900, persistent=False) is None


def test_who_waits_for_memory_goes_on_as_the_last_acknowledgement_frees_it(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.engine.broker._SLEEP_SECONDS", 10 * WAIT)  # so that nothing else happens then
    one = 900 + MESSAGE_BYTES + PLACE_BYTES
    broker = engines.start(max_volatile_bytes=2 * one + 100, hold_timeout_seconds=10 * WAIT)
    client = connect(broker)
    assert send(broker, client, "q", b"x" * 900, b"x" * 900, persistent=False) is None
    consumer, inbox = attach(broker, client, "q", credit=1)
    messages = inbox.wait_for(1)
    answered = threading.Event()
    message = c.NewMessage(0, b"y" * 900, persistent=False)
    broker.submit(c.Enqueue(client, queue("other"), [message], lambda _: answered.set()))
    broker.call(c.Due(()), WAIT)
    assert not answered.is_set()
    broker.submit(c.Settle(consumer, [each.number for each in messages], Outcome.ACCEPTED))
    assert answered.wait(WAIT)


@pytest.mark.parametrize("persistent", [False, True])
def test_places_of_volatile_messages_count_towards_their_limit(engines: Engines, persistent: bool) -> None:
    """A message of one byte to a hundred subscribers takes 24 kB."""
    broker = engines.start(max_volatile_bytes=1024 * 1024, hold_timeout_seconds=0.05)
    client = connect(broker)
    consumers = [attach(broker, client, topic("t"))[0] for _ in range(100)]
    taken = 0
    while send(broker, client, topic("t"), b"x", persistent=persistent) is None:
        taken += 1
    each = 1 + MESSAGE_BYTES + 100 * PLACE_BYTES
    assert taken == 1024 * 1024 // each
    assert broker.call(c.Statistics(), WAIT).volatile_bytes == taken * each
    for consumer in consumers:
        broker.call(c.Detach(consumer), WAIT)
    come_to_rest(broker)
    assert broker._stores.memory.bytes == 0
    assert send(broker, client, topic("t"), b"x", persistent=persistent) is None


def test_a_full_store_holds_producers_back_and_lets_consumers_go_on(disk: Engines) -> None:
    broker = disk.start(max_store_bytes=16 * 1024 * 1024, hold_timeout_seconds=0.1, min_free_disk_bytes=0)
    client = connect(broker)
    body = b"x" * 100_000
    sent = 0
    while True:
        reply = send(broker, client, "q", body)
        if reply is not None:
            break
        sent += 1
        assert sent < 200
    assert "max_store_bytes" in str(reply[0])
    assert sent > 50
    consumer, inbox = attach(broker, client, "q", credit=sent)
    settle(broker, consumer, inbox.wait_for(sent))
    _eventually(lambda: send(broker, client, "q", body) is None)


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
    _change(disk.path, "messages", (2).to_bytes(8, "big"), lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    broker = disk.start()
    client = connect(broker)
    consumer, inbox = attach(broker, client, "q", credit=3)
    assert payloads(inbox.wait_for(2)) == [b"one", b"three"]
    broker.call(c.Drain(consumer), WAIT)
    statistics = broker.call(c.Statistics(), WAIT)
    assert (statistics.quarantined, depth(broker, "q")) == (1, 2)
    assert broker._stores.disk is not None
    assert broker._stores.disk.quarantined() == 2  # the message and its entry


@pytest.mark.damages
def test_a_damaged_entry_is_kept_aside_and_the_others_are_delivered(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    send(broker, client, "q", "one", "two", "three")
    number = broker._state.directory.by_destination[queue("q")].id
    broker.close()
    disk.broker = None
    assert disk.path is not None
    _change(disk.path, "entries", entry_key(number, 5, 2), lambda value: bytes(len(value)))
    broker = disk.start()
    client = connect(broker)
    assert payloads(drained(broker, client, "q")) == [b"one", b"three"]
    assert depth(broker, "q") == 2
    assert broker.call(c.Statistics(), WAIT).quarantined == 1


def test_the_engine_stops_on_an_error_of_the_store(disk: Engines) -> None:
    broker = disk.start(max_queue_messages=1)
    client = connect(broker)
    send(broker, client, "q", "a")
    told: list[Any] = []
    held: list[Any] = []
    broker.on_failure(told.append)
    broker.submit(c.Enqueue(client, queue("q"), [message("held")], held.append))
    assert depth(broker, "q") == 1
    assert broker._stores.disk is not None
    broker._stores.disk._env.close()
    with pytest.raises(StoreException):
        send(broker, client, "other", "b")
    with pytest.raises(StoreException):
        broker.call(c.Statistics(), WAIT)
    assert [type(error) for error in told + held] == [StoreException, StoreException]


def test_what_went_on_in_the_cycle_that_failed_is_answered_too(disk: Engines) -> None:
    broker = disk.start(max_queue_messages=1)
    client = connect(broker)
    send(broker, client, "q", "a")
    consumer, inbox = attach(broker, client, "q", credit=1)
    handouts = inbox.wait_for(1)
    held: list[Any] = []
    broker.submit(c.Enqueue(client, queue("q"), [message("held")], held.append))
    assert depth(broker, "q") == 1
    assert broker._stores.disk is not None
    broker._stores.disk._env.close()
    with pytest.raises(StoreException):
        settle(broker, consumer, handouts)  # makes room for what is held
    assert [type(error) for error in held] == [StoreException]


def test_a_failed_engine_says_what_to_do(disk: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = disk.start()
    client = connect(broker)
    assert broker._stores.disk is not None

    def fails(_batch: object) -> None:
        raise broker._stores.disk._translated(lmdb.CorruptedError("page 7"))

    monkeypatch.setattr(broker._stores.disk, "commit", fails)
    with pytest.raises(StoreException, match=r"page 7; .* run: holdfast check"):
        send(broker, client, "q", "a")


def test_a_failing_engine_tells_everybody_though_those_who_are_answered_send_again(disk: Engines) -> None:
    """Else the listeners of its failure, who would end that, wait for the end of it."""
    broker = disk.start()
    client = connect(broker)
    told = threading.Event()
    broker.on_failure(lambda _error: told.set())

    def again(_answer: Any) -> None:
        if not told.is_set():
            broker.submit(c.Enqueue(client, queue("q"), [message("again")], again))

    assert broker._stores.disk is not None
    broker._stores.disk._env.close()
    broker.submit(c.Enqueue(client, queue("q"), [message("first")], again))
    assert told.wait(WAIT)
    with pytest.raises(StoreException):
        send(broker, client, "q", "x")


def test_a_call_of_a_failed_engine_ends_in_time_where_somebody_else_has_it(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    broker.failed = StoreException("failed")
    with broker._runner, pytest.raises(OperationTimedOutException):
        broker.call(c.Connect(None), 0.05)
    broker.failed = None
    send(broker, client, "q", "x")


def test_a_closed_engine_says_so(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    replies: list[Any] = []
    broker.close()
    broker.close()
    with pytest.raises(IllegalStateException, match="closed"):
        send(broker, client, "q", "x")
    broker.submit(c.Enqueue(client, queue("q"), [message()], replies.append))
    assert replies == [] or isinstance(replies[0], IllegalStateException)


def test_closing_answers_those_who_are_held_back(engines: Engines) -> None:
    broker = engines.start(max_queue_messages=1)
    client = connect(broker)
    send(broker, client, "q", "a")
    replies: list[Any] = []
    broker.submit(c.Enqueue(client, queue("q"), [message()], replies.append))
    broker.close()
    ((error,),) = replies
    assert isinstance(error, IllegalStateException)


def test_a_call_keeps_its_deadline_and_is_carried_out_all_the_same(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    with broker._runner, pytest.raises(OperationTimedOutException, match="no answer to Enqueue within"):
        broker.call(c.Enqueue(client, queue("q"), [message()]), 0.05)
    _eventually(lambda: depth(broker, "q") == 1)


def test_a_callback_that_raises_does_not_stop_the_engine(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    broker = engines.start()
    client = connect(broker)

    def bad(_result: Any) -> None:
        raise RuntimeError("mine")

    broker.submit(c.Enqueue(client, queue("q"), [message()], bad))
    _eventually(lambda: depth(broker, "q") == 1)
    assert "callback of the engine raised" in caplog.text


def test_a_store_has_one_owner(disk: Engines) -> None:
    disk.start()
    with pytest.raises(StoreLockedException, match=r"in use by process \d+"):
        Broker(EngineSettings(), str(disk.path))


def test_a_browser_gets_a_slice_of_bytes_at_a_time(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", *[b"x" * 40] * 5, persistent=False)
    send(broker, client, "q", *[b"x" * 40] * 5)
    browser, inbox = attach(broker, client, "q", credit=1000, browse=True, slice_bytes=100)
    for count in (3, 6, 9):
        assert len(inbox.handouts) == count
        assert broker.call(c.Credit(browser, 0), WAIT) is None
    assert len(inbox.handouts) == 10
    assert broker.call(c.Drain(browser), WAIT) == 990


def lettered(count: int) -> list[bytes]:
    """Packed messages; every third one has the property that :data:`SELECTED` selects."""
    return [
        pack(Envelope(queue("q"), BodyKind.TEXT, str(number), {"third": number % 3 == 0})) for number in range(count)
    ]


SELECTED = "third = TRUE"


@pytest.mark.parametrize("browsers", [1, 3])
def test_a_browser_whose_selector_takes_long_is_served_a_little_in_each_cycle(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, browsers: int
) -> None:
    monkeypatch.setattr("broker_adapter.engine.browsing.BROWSE_SECONDS", -1.0)
    steps: list[int] = []
    browse = Browsing._browse

    def counted(self: Browsing, browser: Any, *arguments: Any) -> None:
        steps.append(id(browser))
        browse(self, browser, *arguments)

    monkeypatch.setattr(Browsing, "_browse", counted)
    broker = engines.start()
    client = connect(broker)
    bodies = lettered(30)
    send(broker, client, "q", *bodies)
    inboxes = []
    for _ in range(browsers):
        browser, inbox = attach(broker, client, "q", credit=1000, browse=True, selector=SELECTED)
        inboxes.append(inbox)
        assert depth(broker, "q") == 30  # others are served meanwhile
    for inbox in inboxes:
        inbox.wait_for(10)
        assert payloads(inbox.handouts) == bodies[::3]
    assert len(steps) > 20 * browsers
    assert broker.call(c.Drain(browser), WAIT) == 990


def test_a_search_whose_selector_takes_long_goes_on_in_the_next_cycle(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_adapter.engine.loading.SCAN_SECONDS", -1.0)
    broker = engines.start()
    client = connect(broker)
    bodies = lettered(60)
    send(broker, client, "q", *bodies)
    scans = 0
    scanned = Matching.scanned

    def counted(self: Matching, *arguments: Any) -> None:
        nonlocal scans
        scans += 1
        scanned(self, *arguments)

    monkeypatch.setattr(Matching, "scanned", counted)
    handouts = drained(broker, client, "q", selector=SELECTED)
    assert payloads(handouts) == bodies[::3]
    assert scans >= 60
    assert depth(broker, "q") == 60


def test_a_browser_sees_what_waits_in_order_and_takes_nothing(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    send(broker, client, "q", *range(50), persistent=False)
    send(broker, client, "q", *range(50, 100))
    send(broker, client, "q", "first", priority=9)
    _, held = attach(broker, client, "q", credit=1)
    held.wait_for(1)
    browser, inbox = attach(broker, client, "q", credit=30, browse=True)
    send(broker, client, "q", "after the snapshot")
    broker.call(c.Drain(browser), WAIT)
    assert payloads(inbox.handouts) == [str(number).encode() for number in range(30)]
    broker.call(c.Credit(browser, 1000), WAIT)
    broker.call(c.Drain(browser), WAIT)
    assert payloads(inbox.handouts) == [str(number).encode() for number in range(100)]
    assert depth(broker, "q") == 102
    broker.call(c.Detach(browser), WAIT)


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


def test_a_consumer_that_never_settles_gets_a_backlog_beyond_the_window_in_order(engines: Engines) -> None:
    broker = engines.start(window_messages=10)
    client = connect(broker)
    send(broker, client, "q", *range(100))
    consumer, inbox = attach(broker, client, "q", presettled=True)
    for _ in range(4):
        broker.call(c.Credit(consumer, 25), WAIT)
    assert payloads(inbox.wait_for(100)) == [str(number).encode() for number in range(100)]


def test_work_for_a_commit_of_sends_and_settlements_is_all_or_nothing(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "in", "a", "b")
    consumer, inbox = attach(broker, client, "in", credit=2)
    first, second = inbox.wait_for(2)
    commit = c.Commit(
        client, c.CommitId("s", 1), [(queue("out"), message("c"))], [(consumer, first.number, Outcome.ACCEPTED)]
    )
    broker.call(commit, WAIT)
    broker.call(commit, WAIT)  # once more is harmless
    with pytest.raises(JMSException, match="not held any more"):
        broker.call(
            c.Commit(
                client,
                c.CommitId("s", 2),
                [(queue("out"), message("d"))],
                [(consumer, second.number, Outcome.ACCEPTED), (consumer, 99, Outcome.ACCEPTED)],
            ),
            WAIT,
        )
    assert (depth(broker, "in"), depth(broker, "out")) == (1, 1)


def test_a_commit_id_is_known_after_a_restart(disk: Engines) -> None:
    broker = disk.start()
    commit = c.Commit(connect(broker), c.CommitId("s", 1), [(queue("out"), message("c"))], [])
    broker.call(commit, WAIT)
    broker = disk.start()
    broker.call(commit._replace(client=connect(broker)), WAIT)
    assert depth(broker, "out") == 1


def _eventually(condition: Any) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _change(path: Path, table: str, key: bytes, change: Any) -> None:
    with lmdb.open(str(path), max_dbs=20, map_size=1 << 28) as env:
        handle = env.open_db(table.encode())
        with env.begin(write=True, db=handle) as txn:
            value = txn.get(key)
            assert value is not None
            txn.put(key, change(value))


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


def test_a_cycle_that_hands_out_no_more_forgets_no_consumer_with_a_selector() -> None:
    broker = Broker(EngineSettings())
    broker._state.directory.memory.cycle_handouts = 1
    client = connect(broker)
    _, taken = attach(broker, client, "q", credit=2)
    _, found = attach(broker, client, "q", credit=5, selector="TRUE")
    send(broker, client, "q", *map(str, range(5)))
    assert sorted(payloads(taken.wait_for(2)) + payloads(found.wait_for(3))) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("selector", [None, "TRUE"])
def test_a_consumer_that_waits_with_a_failed_message_goes_on_when_it_is_purged(selector: str | None) -> None:
    broker = Broker(EngineSettings(redelivery_delay_seconds=600, max_redelivery_delay_seconds=600))
    client = connect(broker)
    consumer, inbox = attach(broker, client, "q", credit=2, selector=selector)
    send(broker, client, "q", "bad")
    for count in (1, 2):
        settle(broker, consumer, inbox.wait_for(count)[-1:], Outcome.FAILED)
    broker.call(c.Credit(consumer, 2), WAIT)
    assert broker.request("purge", {"destination": "q"}, WAIT) == 1
    send(broker, client, "q", "good")
    assert payloads(inbox.wait_for(3)) == [b"bad", b"bad", b"good"]
    broker.close()


@pytest.mark.parametrize("selector", [None, "TRUE"])
def test_a_message_that_fails_again_and_again_is_passed_by_nothing(selector: str | None) -> None:
    broker = Broker(EngineSettings(redelivery_delay_seconds=0.02, max_deliveries=4))
    client = connect(broker)
    send(broker, client, "q", "bad", "good")
    consumer, inbox = attach(broker, client, "q", credit=1, selector=selector)
    for count in range(1, 5):
        settle(broker, consumer, inbox.wait_for(count)[-1:], Outcome.FAILED)
        broker.call(c.Credit(consumer, 1), WAIT)
    assert payloads(inbox.wait_for(5)) == [b"bad"] * 4 + [b"good"]
    broker.close()


def test_a_cycle_loads_a_bounded_number_of_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.loading.CYCLE_LOADS", 20)
    limits = EngineSettings(window_messages=10)
    broker = Broker(limits, str(tmp_path))
    for number in range(10):
        send(broker, connect(broker), f"q{number}", *map(str, range(15)))
    broker.close()
    broker = Broker(limits, str(tmp_path))
    client = connect(broker)
    attached = [attach(broker, client, f"q{number}") for number in range(10)]
    loads = [0]
    read, cycle = broker._loading._read_sound, broker._cycle

    def counted(*arguments: Any) -> Any:
        loads[-1] += 1
        return read(*arguments)

    def begun() -> None:
        loads.append(0)
        cycle()

    monkeypatch.setattr(broker._loading, "_read_sound", counted)
    monkeypatch.setattr(broker, "_cycle", begun)
    broker.submit_all([c.Credit(consumer, 15) for consumer, _ in attached])
    for _, inbox in attached:
        assert payloads(inbox.wait_for(15)) == [str(number).encode() for number in range(15)]
    assert max(loads) <= 5, "two windows are 20 entries, and ends of others may come with them"
    broker.close()


def test_consumers_that_give_much_back_do_so_in_several_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.broker.CYCLE_MESSAGES", 20)
    broker = Broker(EngineSettings())
    client = connect(broker)
    send(broker, client, "q", *[b"x"] * 100)
    attached = [attach(broker, client, "q", credit=10) for _ in range(10)]
    for _, inbox in attached:
        inbox.wait_for(10)
    together: list[int] = []
    decide = broker._state.decide

    def counted(commands: Any, *times: int) -> Any:
        together.append(sum(isinstance(each, c.Detach) for each in commands))
        return decide(commands, *times)

    monkeypatch.setattr(broker._state, "decide", counted)
    broker.submit_all([c.Detach(consumer, give_back=True) for consumer, _ in attached])
    _, inbox = attach(broker, client, "q", credit=100)
    assert len(inbox.wait_for(100)) == 100
    assert (sum(together), max(together)) == (10, 2)
    broker.close()


def test_an_engine_that_does_nothing_by_itself_sleeps(tmp_path: Path) -> None:
    """What is staged, idle or due is left to the server, and is not looked at again and again."""
    broker = Broker(EngineSettings(), tmp_path)
    staged = {"transaction": "g/1/0", "queue": "q", "first": 0, "messages": [pack(Envelope(queue("q")))]}
    assert broker.request("stage", staged, WAIT) is True
    broker.close()
    settings = EngineSettings(staged_timeout_seconds=1)
    broker = Broker(settings, tmp_path, by_itself=False)
    try:
        connect(broker)
        cycles = 0
        cycle = broker._cycle

        def count() -> None:
            nonlocal cycles
            cycles += 1
            cycle()

        broker._cycle = count  # type: ignore[method-assign]
        time.sleep(1.3)  # staged transactions are looked at each second
        assert cycles < 3
        assert broker._state.directory.staged
    finally:
        broker.close()


def test_the_main_thread_leaves_cycles_to_others_since_a_signal_may_interrupt_it(
    disk: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = disk.start()
    ran: list[threading.Thread] = []
    cycle = broker._cycle

    def noted() -> None:
        ran.append(threading.current_thread())
        cycle()

    monkeypatch.setattr(broker, "_cycle", noted)
    monkeypatch.setattr("broker_adapter.engine.broker.may_be_interrupted", lambda: True)
    connect(broker)
    assert ran
    assert threading.current_thread() not in ran
