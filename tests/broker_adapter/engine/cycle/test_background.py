"""What happens without a command: what is due, the checks at intervals, and the parts of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.cycle.background import Background
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import (
    JMSException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.desks import Desk
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    Inbox,
    attach,
    connect,
    day_ms,
    depth,
    drained,
    eventually,
    message,
    payloads,
    send,
)


def test_an_ended_queue_leaves_nothing_in_the_store(disk: Engines) -> None:
    broker = disk.start()
    client = connect(broker, "me")
    subscription = Subscription("sub", durable=True, shared=False)
    consumer, _ = attach(broker, client, topic("t"), subscription=subscription)
    broker.call(c.Detach(consumer), WAIT)
    send(broker, client, topic("t"), *range(2000), expires_at_ms=day_ms() + 3_600_000)
    send(broker, client, topic("t"), "later", deliver_at_ms=day_ms() + 150)
    broker.call(c.Unsubscribe(client, "sub"), WAIT)
    assert broker._stores.disk is not None

    def left() -> dict[str, int]:
        assert broker._stores.disk is not None
        with broker._stores.disk._env.begin() as txn:
            counts = {table: txn.stat(db=handle)["entries"] for table, handle in broker._stores.disk._db.items()}
        return {table: count for table, count in counts.items() if count and table != "meta"}

    dead_letters = {"catalog": 1}
    eventually(lambda: not broker._jobs and left() == dead_letters)  # the schedule of a delayed one goes when it is due


def test_a_queue_that_ended_just_before_a_crash_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    settings = EngineSettings()
    store = LmdbStore(tmp_path, settings)
    state = BrokerState(settings, durable=True, secret=b"s")
    attach_it = c.Attach(1, topic("t"), Inbox(), Subscription("s", durable=True, shared=False))
    commands = [c.Connect("me"), attach_it, c.Detach(1), c.Enqueue(1, topic("t"), [message("x")])]
    effects = state.decide([*commands, c.Unsubscribe(1, "s")], day_ms())
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
    store.commit(state.decide(commands, day_ms()).durable)
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


def test_a_staged_transaction_that_is_not_published_is_dropped(engines: Engines) -> None:
    broker = engines.start(staged_timeout_seconds=1.0)
    broker.call(c.Stage("t", queue("target"), 0, [message("x")]), WAIT)
    eventually(lambda: not broker._state.directory.staged and not broker._jobs)
    assert depth(broker, "t") == 0
    with pytest.raises(JMSException, match="staged_timeout_seconds"):
        broker.call(c.Publish("group", 1, ["t"]), WAIT)


def test_a_delayed_message_comes_when_its_time_has_come(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    _, inbox = attach(broker, client, "q", credit=10)
    send(broker, client, "q", "tomorrow", deliver_at_ms=day_ms() + 86_400_000)
    send(broker, client, "q", "soon")
    assert payloads(inbox.wait_for(1)) == [b"soon"]
    due_ms = day_ms() + 200
    send(broker, client, "q", "late", deliver_at_ms=due_ms)
    assert payloads(inbox.wait_for(2)) == [b"soon", b"late"]
    assert day_ms() >= due_ms


def test_an_expired_message_is_removed_without_a_command(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", "long", expires_at_ms=day_ms() + 3_600_000)
    send(broker, client, "q", "short", expires_at_ms=day_ms() + 300)
    eventually(lambda: broker.call(c.Statistics(), WAIT).expired == 1)
    assert depth(broker, "q") == 1
    assert payloads(drained(broker, client, "q")) == [b"long"]
    assert broker.call(c.Statistics(), WAIT).expired == 1


def test_names_that_were_not_used_for_long_are_swept_away(disk: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = disk.start()
    broker.call(c.Stage("g/3/a", queue("q"), 0, [message("a")]), WAIT)
    assert broker.call(c.Publish("g", 3, ["g/3/a"]), WAIT)
    commands: list[c.Command] = []
    with broker.reading():
        swept = broker._background
        later_ms = 1000 * int(broker.settings.publish_memory_seconds + 1)
        elapsed_ms = broker._state.time.elapsed_ms
        swept.add_due(day_ms() + later_ms, elapsed_ms + 100_000, commands)
        assert not [each for each in commands if isinstance(each, c.RemoveNames)], "the clock was set"
        swept.add_due(day_ms(), elapsed_ms + later_ms, commands)
    assert [each for each in commands if isinstance(each, c.RemoveNames)]
    assert [each for each in commands if isinstance(each, c.NoteAge)]


def test_the_age_of_a_store_is_noted_while_something_goes_by_it_and_goes_on_from_there(disk: Engines) -> None:
    broker = disk.start()
    assert broker._stores.disk is not None
    noted_ms = broker._stores.disk.age_ms()
    assert noted_ms is not None, "a new store begins with the time of the day"

    def later(by_ms: int) -> int:
        """The age that is noted once the engine has run for so long, and has looked whether it has to note it."""
        with broker.reading():
            broker._state.time.begin(noted_ms + by_ms, broker._state.time.elapsed_ms)
            broker._background._note_age_ms = 0
        broker.call(c.Statistics(), WAIT)
        broker.call(c.Statistics(), WAIT)
        found = broker._stores.disk.age_ms()
        assert found is not None
        return found - noted_ms

    assert later(1000) == 0, "nothing goes by it"
    broker.call(c.Publish("g", 3, ()), WAIT)
    assert 1000 <= later(1000) < 600_000
    desk = Desk(broker, "desk", timeout_ms=3_600_000)
    assert later(700_000) < 600_000, "it is connected"
    desk.lose()
    assert 700_000 <= later(700_000) < 1_000_000
    Desk(broker, "desk", timeout_ms=3_600_000)
    assert later(1_000_000) < 1_000_000, "it is here again"
    broker = disk.start()  # the end notes it in any case
    assert broker._state.time.age_ms >= noted_ms + 1_000_000


def test_a_restart_forgets_nothing_of_the_time_that_a_client_was_away(disk: Engines) -> None:
    broker = disk.start()
    Desk(broker, timeout_ms=3_600_000).lose()
    age_ms = broker._state.time.age_ms
    with broker.reading():
        broker._state.time.begin(age_ms + 3_000_000, broker._state.time.elapsed_ms)
    broker = disk.start()
    away_ms = broker.call(e.DescribeClients("desk"), WAIT)[0].away_ms
    assert away_ms is not None
    assert 3_000_000 <= away_ms < 3_500_000


def test_the_engine_wakes_up_to_note_the_time_of_a_client_that_is_away(disk: Engines) -> None:
    broker = disk.start()
    Desk(broker, "desk", timeout_ms=3_600_000).lose()
    with broker.reading():
        due_ms = broker._background.next_event_check_ms()
        assert due_ms is not None
        assert due_ms <= broker._state.time.elapsed_ms + 10_000


def test_idle_queues_are_checked_only_where_an_option_deletes_them(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    broker = engines.start()
    assert broker._background.next_check_ms() is None
    broker = engines.start(delete_idle_queues_seconds=2.0)
    commands: list[c.Command] = []
    with broker.reading(), caplog.at_level("INFO"):
        due_ms = broker._background.next_check_ms()
        assert due_ms is not None
        broker._background.add_due(1, due_ms, commands)
        (command,) = [each for each in commands if isinstance(each, c.DeleteIdle)]
        assert command.reply is not None
        command.reply([("queue", "q", 1, "2 s (option delete_idle_queues_seconds)")])
    assert (
        "queue q was deleted, with 1 message: it was not used for 2 s (option delete_idle_queues_seconds)"
        in caplog.text
    )
    command.reply(JMSException("the engine stopped"))


def test_an_engine_that_does_nothing_by_itself_checks_nothing(engines: Engines) -> None:
    broker = engines.start()
    background = Background(broker.settings, broker._stores, broker._state, broker._reads, by_itself=False)
    commands: list[c.Command] = []
    with broker.reading():
        background.add_due(1 << 40, 1 << 40, commands)
        assert commands == []
        background.trim(1 << 20)
        background.add_due(1 << 40, 1 << 40, commands)
    assert commands == [c.Drop(1 << 20)]
    assert background.next_check_ms() is None
