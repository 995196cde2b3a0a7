"""Consumers with selectors: how far they search, what they leave in memory, what a restart knows of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ack_modes import Outcome
from broker_adapter.destination import Destination
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.search import LaneSearch
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack, unpack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, Inbox, attach, connect, drained, settle

Q = Destination("q")
RED = "colour = 'red'"
LANE = 5  #: of the usual priority


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(window_messages=10), str(tmp_path))
    yield broker
    broker.close()


def send(broker: Broker, client: int, *colours: str, group: str | None = None) -> None:
    messages = []
    for number, colour in enumerate(colours):
        envelope = Envelope(Q, BodyKind.TEXT, f"{colour} {number}", {"colour": colour}, group_id=group)
        messages.append(c.NewMessage(ENVELOPE_FORMAT, pack(envelope), group=c.group_number(group)))
    broker.call(c.Enqueue(client, Q, messages), WAIT)


def bodies(handouts: list[c.Handout]) -> list[str]:
    return [unpack(each.payload).body for each in handouts]


def queue_of(broker: Broker) -> QueueState:
    return broker._state.directory.by_destination[Q]


def take(broker: Broker, client: int, selector: str | None, count: int) -> tuple[int, Inbox]:
    consumer, inbox = attach(broker, client, Q, count, selector=selector)
    inbox.wait_for(count)
    return consumer, inbox


def test_what_is_left_for_a_scan_begins_behind_what_was_examined() -> None:
    search = LaneSearch()
    search.complete = True
    assert search.look(1, most=1)
    search.found.append(1)
    assert not search.look(2, most=1)  # enough is found: a scan will come to it
    assert (search.complete, search.through) == (False, 1)
    assert not search.look(3, most=1)
    assert search.look(1, most=1)  # what comes back is examined in any case


def test_no_more_is_found_than_may_be_kept(broker: Broker) -> None:
    client = connect(broker)
    consumer, inbox = attach(broker, client, Q, 1, selector=RED)
    send(broker, client, *["red"] * 5)
    inbox.wait_for(1)
    for _ in range(10):
        send(broker, client, *["red"] * 5)
    search = broker._state.directory.consumers[consumer].search
    assert search is not None
    assert len(search.lane(LANE).found) <= 10
    broker.call(c.Credit(consumer, 100), WAIT)
    assert len(inbox.wait_for(55)) == 55


def test_what_came_into_memory_early_leaves_it_with_the_last_search(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, *["blue"] * 50, *["red"] * 50)
    first, inbox = take(broker, client, RED, 1)
    second, _ = attach(broker, client, Q, selector=RED)
    assert len(queue_of(broker).ready) > 5
    broker.call(c.Detach(first, give_back=True), WAIT)
    assert len(queue_of(broker).ready) > 5
    broker.call(c.Detach(second), WAIT)
    assert len(queue_of(broker).ready) <= 10
    assert bodies(inbox.handouts) == ["red 50"]
    assert len(drained(broker, client, Q)) == 100


def test_a_message_that_ended_early_is_not_loaded_again_with_its_window(broker: Broker) -> None:
    client = connect(broker)
    send(broker, client, *["blue"] * 15, "red", *["blue"] * 15)
    selective, found = take(broker, client, RED, 1)
    plain, inbox = take(broker, client, None, 10)
    # In one cycle: the one that was found ends, and the window goes on over its place.
    broker.submit_all(
        [
            c.Settle(selective, [found.handouts[0].number], Outcome.ACCEPTED),
            c.Settle(plain, [each.number for each in inbox.handouts], Outcome.ACCEPTED),
            c.Credit(plain, 100),
        ]
    )
    handouts = inbox.wait_for(30)
    broker.call(c.Drain(plain), WAIT)
    assert len(inbox.handouts) == 30
    assert "red 15" not in bodies(handouts)
    settle(broker, plain, handouts[10:])
    assert queue_of(broker).depth == 0


def test_a_consumer_of_one_selector_takes_over_the_groups_of_another(broker: Broker) -> None:
    client = connect(broker)
    owner, first = attach(broker, client, Q, 1, selector=RED)
    _, second = attach(broker, client, Q, 100, selector=RED)
    send(broker, client, "red", "red", "red", group="g")
    first.wait_for(1)
    assert second.handouts == []
    broker.call(c.Detach(owner, give_back=True), WAIT)
    assert bodies(second.wait_for(3)) == ["red 0", "red 1", "red 2"]


def test_after_a_restart_only_what_was_handed_out_is_marked(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(window_messages=10), str(tmp_path))
    client = connect(broker)
    send(broker, client, *["blue"] * 20, "red", "blue")
    take(broker, client, RED, 1)
    broker.close()
    broker = Broker(EngineSettings(window_messages=10), str(tmp_path))
    try:
        found = drained(broker, connect(broker), Q)
        assert [body for body, each in zip(bodies(found), found, strict=True) if each.delivery_count] == ["red 20"]
    finally:
        broker.close()
