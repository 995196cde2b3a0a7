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
from broker_adapter.engine.lmdb_errors import commit_failed
from broker_adapter.engine.lmdb_writes import Writes
from broker_adapter.engine.store import MESSAGE_BYTES, PLACE_BYTES
from broker_adapter.envelope import Envelope, pack
from broker_adapter.errors import (
    ConnectionLostException,
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
    Engines,
    attach,
    come_to_rest,
    connect,
    day_ms,
    depth,
    drained,
    eventually,
    full_up,
    message,
    payloads,
    send,
    settle,
)


class FullDisk:
    """An engine whose store has not a page left, not even for a settlement, and a consumer with its one message."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        client = connect(broker)
        send(broker, client, "q", "a")
        self.consumer, inbox = attach(broker, client, "q", credit=1)
        self.handouts = inbox.wait_for(1)
        env = broker.store._env
        self._size = env.info()["map_size"]
        with broker._runner:
            env.set_mapsize((env.info()["last_pgno"] + 20) * env.stat()["psize"])
            full_up(broker.store)
        self.answers: list[Any] = []

    def settle(self) -> None:
        """Settle it, until that waits for the disk."""
        numbers = [each.number for each in self.handouts]
        self.broker.submit(c.Settle(self.consumer, numbers, Outcome.ACCEPTED, reply=self.answers.append))
        eventually(lambda: self.broker._unwritten is not None)

    def make_room(self) -> None:
        with self.broker._runner:
            self.broker.store._env.set_mapsize(self._size)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[FullDisk]:
    broker = Broker(EngineSettings(), str(tmp_path))
    yield FullDisk(broker)
    broker.close()


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
    """Its client comes back and wants it again, and finds no other client's in its place."""

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


def test_what_was_delivered_before_a_restart_is_marked_as_redelivered(disk: Engines) -> None:
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


def test_expiry_and_delay_hold_over_a_restart(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker)
    # Far enough ahead that the engine has ended by then.
    send(broker, client, "q", "short", expires_at_ms=day_ms() + 2000)
    send(broker, client, "q", "late", deliver_at_ms=day_ms() + 2000)
    broker = disk.start()
    _, inbox = attach(broker, connect(broker), "other", credit=1)
    eventually(lambda: broker.call(c.Statistics(), WAIT).expired == 1)
    eventually(lambda: payloads(drained(broker, connect(broker), "q")) == [b"late"])
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
        raise commit_failed(broker.store.path, lmdb.CorruptedError("page 7"), 0)

    monkeypatch.setattr(broker._stores.disk, "commit", fails)
    with pytest.raises(StoreException, match=r"page 7; .* run: holdfast check"):
        send(broker, client, "q", "a")


def test_a_failing_engine_calls_all_listeners_though_callbacks_send_again(disk: Engines) -> None:
    """Else the listeners of its failure, which would end that, wait for the end of it."""
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


def test_a_call_of_a_failed_engine_ends_in_time_where_another_thread_has_it(disk: Engines) -> None:
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


def test_closing_answers_the_sends_that_are_blocked(engines: Engines) -> None:
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
    eventually(lambda: depth(broker, "q") == 1)


def test_a_store_has_one_owner(disk: Engines) -> None:
    disk.start()
    with pytest.raises(StoreLockedException, match=r"in use by process \d+"):
        Broker(EngineSettings(), str(disk.path))


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


def test_an_engine_that_does_nothing_by_itself_uses_no_time(tmp_path: Path) -> None:
    """What is staged, idle or due is left to the server, and is not checked again and again."""
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
        time.sleep(1.3)  # staged transactions are checked each second
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


@pytest.mark.damages
def test_what_is_decided_waits_for_room_on_the_disk_and_is_written_then(
    full: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    broker = full.broker
    full.settle()
    later: list[Any] = []
    broker.submit(c.Statistics(reply=later.append))
    with pytest.raises(ResourceAllocationException, match=r"is full.*, and ask again"):
        broker.request("bounds", {"destination": "q"}, WAIT)
    with pytest.raises(ResourceAllocationException, match="is full"):
        broker.check()
    assert (full.answers, later, broker.failed) == ([], [], None)
    assert caplog.text.count("the engine waits for that, and goes on then") == 1
    full.make_room()
    eventually(lambda: full.answers and later)
    assert full.answers == [None]
    assert depth(broker, "q") == 0


def test_an_engine_stops_where_the_note_of_its_start_meets_a_failed_disk(
    disk: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker := disk.start(), connect(broker), "q", "a")
    broker = disk.start()
    told: list[JMSException] = []

    def hear(error: JMSException) -> None:
        told.append(error)
        with pytest.raises(IllegalStateException, match="callback"):
            broker.call(c.Statistics(), WAIT)

    broker.on_failure(hear)

    def fails(_writes: Writes, _change: Any) -> None:
        raise StoreException("the store failed: Input/output error")

    monkeypatch.setattr(Writes, "carry_out", fails)
    with pytest.raises(StoreException, match="Input/output error"):
        broker.request("bounds", {"destination": "q"}, WAIT)
    assert [str(each) for each in told] == ["the store failed: Input/output error"]
    with pytest.raises(StoreException, match="Input/output error"):
        broker.call(c.Statistics(), WAIT)


@pytest.mark.damages
def test_while_the_engine_waits_for_room_sends_and_connections_are_refused_and_the_rest_waits(
    tmp_path: Path,
) -> None:
    broker = Broker(EngineSettings(hold_timeout_seconds=0), str(tmp_path))
    full = FullDisk(broker)
    client = connect(broker)
    full.settle()
    later: list[Any] = []
    broker.submit(c.Statistics(reply=later.append))
    for _ in range(2):
        with pytest.raises(
            ResourceAllocationException, match=r"is full.* the engine waits for that, and takes nothing"
        ):
            send(broker, client, "q", "b")
        with pytest.raises(ResourceAllocationException, match="the engine waits for that"):
            connect(broker)
    assert (full.answers, later, broker.failed) == ([], [], None)
    full.make_room()
    eventually(lambda: full.answers and later)
    assert send(broker, connect(broker), "q", "c") is None
    assert [each.payload for each in drained(broker, client, "q", presettled=True)] == [b"c"]
    broker.close()


@pytest.mark.damages
def test_what_finds_no_room_on_the_disk_until_the_engine_is_closed_is_not_confirmed(full: FullDisk) -> None:
    broker = full.broker
    full.settle()
    later: list[Any] = []
    broker.submit(c.Statistics(reply=later.append))
    broker.close()
    assert [type(error) for error in full.answers + later] == [IllegalStateException] * 2
    assert "the engine is closed" in str(full.answers[0])
    broker = Broker(EngineSettings(), str(broker.store.path))
    assert depth(broker, "q") == 1
    broker.close()


def test_a_command_that_cannot_be_supplied_is_answered_and_the_others_go_on(
    disk: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = disk.start()
    client = connect(broker)
    supply = broker._supply

    def fails(command: c.Command) -> c.Command:
        if isinstance(command, c.ResolveCommit):
            raise ZeroDivisionError("a fault")
        return supply(command)

    monkeypatch.setattr(broker, "_supply", fails)
    with pytest.raises(JMSException, match=r"could not carry out ResolveCommit: ZeroDivisionError\('a fault'\)"):
        broker.call(c.ResolveCommit(c.CommitId("session", 1), 0), WAIT)
    assert "ResolveCommit failed unexpectedly" in caplog.text
    assert send(broker, client, "q", "x") is None


def test_a_selector_that_fails_unexpectedly_selects_nothing_and_the_log_says_so(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = engines.start()

    def fails(*_: object) -> bool:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("broker_adapter.engine.matching.selects", fails)
    client = connect(broker)
    send(broker, client, "q", pack(Envelope(queue("q"))))
    assert drained(broker, client, "q", selector="n = 1") == []
    assert "the selector 'n = 1' failed unexpectedly" in caplog.text
    assert len(drained(broker, client, "q")) == 1


def test_an_error_that_is_none_of_the_stores_stops_the_engine_too(
    disk: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = disk.start()
    client = connect(broker)

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(broker._state, "decide", fails)
    with pytest.raises(StoreException, match=r"the engine stopped: ZeroDivisionError\('a fault'\)"):
        send(broker, client, "q", "x")


def test_an_engine_in_memory_has_no_store_to_check() -> None:
    broker = Broker(EngineSettings())
    with pytest.raises(IllegalStateException, match="the engine has no store on disk"):
        broker.request("check", {}, WAIT)
    broker.close()


def test_a_check_ends_when_no_call_waits_for_it_any_more(disk: Engines) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", "x")
    assert broker.request("check", {}, WAIT)["problems"] == {}
    with pytest.raises(ConnectionLostException, match="the check was cancelled"):
        broker.request("check", {}, WAIT, is_cancelled=lambda: True)


def test_a_request_of_another_run_of_the_engine_is_refused(disk: Engines) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", "x")
    asked = {"destination": "q", "request_id": "once", "request_run": broker.run}
    assert [broker.request("purge", asked, WAIT) for _ in range(2)] == [1, 1]
    broker = disk.start()
    with pytest.raises(IllegalStateException, match="the engine was started again while the request 'purge' was under"):
        broker.request("purge", asked, WAIT)


def test_a_removed_listener_is_not_called_for_a_failure(disk: Engines) -> None:
    broker = disk.start()
    told: list[Any] = []
    remove = broker.on_failure(told.append)
    broker.on_failure(lambda error: told.append("other"))
    remove()
    remove()
    broker.store._env.close()
    with pytest.raises(StoreException):
        send(broker, connect(broker), "q", "x")
    assert told == ["other"]
