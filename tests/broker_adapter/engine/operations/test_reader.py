"""What operations read between two cycles."""

from __future__ import annotations

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from tests.broker_adapter.engine.driving import WAIT, Engines, connect, message, send


def test_entries_come_by_position_with_their_messages(engines: Engines) -> None:
    broker = engines.start()
    client = connect(broker)
    send(broker, client, "q", "low", priority=1)
    send(broker, client, "q", "high", priority=9, persistent=False)
    with broker.reading() as reader:
        number = reader.state.directory.by_destination[queue("q")].id
        found = reader.entries(number, 1, 9, 10)
        assert [each.position for each in found.entries] == [1, 2]
        assert [body and body[1] for body, _ in reader.messages(found.entries)] == [b"low", b"high"]
        assert reader.first_position(number) == 1
        assert reader.first_position(number + 1) is None


@pytest.mark.parametrize("persistent", [True, False])
def test_the_first_position_is_the_lowest_whatever_the_priorities(engines: Engines, persistent: bool) -> None:
    broker = engines.start()
    client = connect(broker)
    broker.call(c.Declare(queue("q")), WAIT)
    number = broker._state.directory.by_destination[queue("q")].id
    found = []
    for priority in (1, 9, 0):
        send(broker, client, "q", "x", priority=priority, persistent=persistent)
        with broker.reading() as reader:
            found.append(reader.first_position(number))
    assert found == [1, 1, 1]
    broker.request("settle_through", {"destination": "q", "position": 1}, WAIT)
    with broker.reading() as reader:
        assert reader.first_position(number) == 2


@pytest.mark.damages
def test_the_first_position_is_also_that_of_a_damaged_entry(disk: Engines) -> None:
    broker = disk.start()
    send(broker, connect(broker), "q", "a", "b")
    number = broker._state.directory.by_destination[queue("q")].id
    with broker.reading() as reader:
        key = bytes.fromhex(f"{number:08x}05{1:016x}")
        broker.store.apply([("entries", key, b"damaged")])
        assert reader.first_position(number) == 1


def test_a_queue_that_is_read_is_in_use(engines: Engines) -> None:
    broker = engines.start()
    send(broker, connect(broker), "q", "a")
    found = broker._state.directory.by_destination[queue("q")]
    found.used_ms = 0
    with broker.reading() as reader:
        reader.note_use(found)
    assert found.used_ms > 0


def test_a_name_that_was_published_is_known(engines: Engines) -> None:
    broker = engines.start()
    broker.call(c.Stage("g/3/a", queue("q"), 0, [message("a")]), WAIT)
    assert broker.call(c.Publish("g", 3, ["g/3/a"]), WAIT)
    with broker.reading() as reader:
        assert (reader.last_published("g"), reader.last_published("h")) == (3, None)
        added, done = reader.moves
        assert 0 <= done <= added <= 1  # few messages move in the commit that publishes them
        assert reader.in_quarantine == 0
        q = broker._state.directory.by_destination[queue("q")]
        assert reader.kept(q, reader.run(q)) == reader.kept(q, None) == q.next_position
        assert reader.kept(q, "of another store") == 1
