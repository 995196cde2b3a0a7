"""The driver over real stores: what is on disk before what leaves, restarts, limits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination, DestinationKind, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.store.port import MESSAGE_BYTES, PLACE_BYTES
from broker_adapter.envelope import Envelope, pack
from broker_adapter.errors import JMSException, ResourceAllocationException
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
    message,
    payloads,
    send,
    settle,
)


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
    broker = engines.start(max_queue_messages=1, blocked_send_timeout_seconds=0.2)
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
    broker = engines.start(max_volatile_bytes=one + 100, blocked_send_timeout_seconds=0.1)
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
    broker = engines.start(max_volatile_bytes=1024 * 1024, blocked_send_timeout_seconds=0.05)
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
def test_a_message_that_fails_again_and_again_is_passed_by_nothing_where_order_is_kept(selector: str | None) -> None:
    broker = Broker(EngineSettings(redelivery_delay_seconds=0.02, max_deliveries=4))
    client = connect(broker)
    send(broker, client, "q", "bad", "good")
    consumer, inbox = attach(broker, client, "q", credit=1, selector=selector, keep_order=True)
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


def test_dead_letters_and_blocked_producers_are_logged_once_a_minute_for_each_queue(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    broker = engines.start(max_deliveries=1, max_queue_messages=3, blocked_send_timeout_seconds=0)
    client = connect(broker)
    for name in ("a", "b"):
        send(broker, client, name, *range(3))
        for _ in range(2):
            assert send(broker, client, name, "one too many")[0] is not None
        consumer, inbox = attach(broker, client, name, credit=3)
        for handout in inbox.wait_for(3):
            settle(broker, consumer, [handout], Outcome.REJECTED)
    warnings = [each.getMessage() for each in caplog.records if each.name.endswith("engine.broker")]
    assert [each.partition(":")[0] for each in warnings] == [
        "! producers are blocked",
        "! a message of queue 'a' went to the dead-letter queue 'DLQ'",
        "! producers are blocked",
        "! a message of queue 'b' went to the dead-letter queue 'DLQ'",
    ]
    assert "queue 'a' is full: 3 messages, limit 3" in warnings[0]
