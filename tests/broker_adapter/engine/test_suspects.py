"""Messages that may have ended the process of the engine: a delivery to an application is counted first."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import BodyKind, Envelope, pack
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, Inbox, attach, connect, drained, payloads, send, settle

Q = queue("q")
MOST = 4
Crash = Callable[[], Broker]


@pytest.fixture
def crash(tmp_path: Path) -> Iterator[Crash]:
    """Opens an engine each time: with what the one before had stored when it crashed."""
    opened: list[Broker] = []

    def start() -> Broker:
        before, after = (tmp_path / str(number) for number in (len(opened), len(opened) + 1))
        if opened:
            shutil.copytree(before, after, ignore=shutil.ignore_patterns("lock.mdb"))
        opened.append(Broker(EngineSettings(max_deliveries=MOST), str(after)))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def prefetched(broker: Broker, count: int, **options: object) -> tuple[int, Inbox]:
    consumer, inbox = attach(broker, connect(broker), Q, 100, **options)
    inbox.wait_for(count)
    return consumer, inbox


def take(broker: Broker, consumer: int, handout: c.Handout) -> bool:
    return bool(broker.call(c.TakeInHand(consumer, handout.number), WAIT))


def leave_unseen(broker: Broker, consumer: int) -> None:
    broker.call(c.Detach(consumer, give_back=True, failed=False), WAIT)


@pytest.mark.parametrize("selector", [None, "JMSPriority = 4"])
def test_a_message_that_ends_the_process_each_time_becomes_a_dead_letter_and_no_other_does(
    crash: Crash, selector: str | None
) -> None:
    broker = crash()
    messages = [pack(Envelope(Q, BodyKind.TEXT, str(number))) for number in range(5)]
    send(broker, connect(broker), Q, *messages)
    counts = []
    for _ in range(10):
        consumer, inbox = prefetched(broker, 5, selector=selector)
        poison = inbox.handouts[2]
        counts.append(poison.delivery_count)
        if poison.suspect and not take(broker, consumer, poison):
            break
        broker = crash()
    assert counts == [*range(MOST + 1)]
    settle(broker, consumer, [each for each in inbox.handouts if each is not poison])
    (dead,) = drained(broker, connect(broker), "DLQ")
    assert dead.payload == messages[2]
    assert dead.annotations is not None
    assert dead.annotations["JMS_HOLDFAST_DEAD_LETTER_COUNT"] == MOST
    assert not drained(broker, connect(broker), Q)


def test_what_was_prefetched_at_one_crash_is_no_dead_letter_where_one_delivery_is_all(tmp_path: Path) -> None:
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    broker = Broker(EngineSettings(max_deliveries=1), before)
    send(broker, connect(broker), Q, *range(5))
    prefetched(broker, 5)
    shutil.copytree(before, after, ignore=shutil.ignore_patterns("lock.mdb"))
    broker.close()
    broker = Broker(EngineSettings(max_deliveries=1), after)
    consumer, inbox = prefetched(broker, 5)
    assert all(take(broker, consumer, each) for each in inbox.handouts)
    settle(broker, consumer, inbox.handouts)
    assert not drained(broker, connect(broker), "DLQ")
    broker.close()


def test_what_was_released_unseen_after_a_crash_is_no_dead_letter_either(tmp_path: Path) -> None:
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    broker = Broker(EngineSettings(max_deliveries=1), before)
    send(broker, connect(broker), Q, "x")
    prefetched(broker, 1)
    shutil.copytree(before, after, ignore=shutil.ignore_patterns("lock.mdb"))
    broker.close()
    broker = Broker(EngineSettings(max_deliveries=1), after)
    for _ in range(3):
        consumer, inbox = prefetched(broker, 1)
        assert take(broker, consumer, inbox.handouts[0])
        leave_unseen(broker, consumer)  # it was stopped, or closed, before the application got it
    consumer, inbox = prefetched(broker, 1)
    assert take(broker, consumer, inbox.handouts[0])
    settle(broker, consumer, inbox.handouts, Outcome.MODIFIED)
    (dead,) = drained(broker, connect(broker), "DLQ")
    assert dead.payload == b"x"
    broker.close()


def test_what_was_never_in_hand_is_not_counted_however_often_the_process_ends(crash: Crash) -> None:
    broker = crash()
    send(broker, connect(broker), Q, *range(5))
    for _ in range(3 * MOST):
        _, inbox = prefetched(broker, 5)
        broker = crash()
    _, inbox = prefetched(broker, 5)
    assert [(each.delivery_count, each.suspect) for each in inbox.handouts] == [(1, True)] * 5


@pytest.mark.parametrize("outcome", [Outcome.MODIFIED, Outcome.FAILED])
def test_a_delivery_that_was_counted_when_it_began_is_not_counted_again_as_it_fails(
    crash: Crash, outcome: Outcome
) -> None:
    send(broker := crash(), connect(broker), Q, "x")
    prefetched(broker, 1)
    consumer, inbox = prefetched(broker := crash(), 1)
    for number in range(1, MOST):
        handout = inbox.wait_for(number)[-1]
        assert (handout.delivery_count, handout.suspect) == (number, True)
        assert take(broker, consumer, handout)
        assert take(broker, consumer, handout)  # which changes nothing
        settle(broker, consumer, [handout], outcome)
    (dead,) = drained(broker, connect(broker), "DLQ")
    assert dead.payload == b"x"


def test_a_delivery_that_no_application_has_seen_after_all_does_not_count(crash: Crash) -> None:
    send(broker := crash(), connect(broker), Q, "x")
    prefetched(broker, 1)
    broker = crash()
    for _ in range(2 * MOST):
        consumer, inbox = prefetched(broker, 1)
        assert inbox.handouts[0].delivery_count == 1
        assert take(broker, consumer, inbox.handouts[0])
        leave_unseen(broker, consumer)


def test_what_came_after_the_crash_is_no_suspect_and_one_that_is_processed_is_forgotten(crash: Crash) -> None:
    send(broker := crash(), connect(broker), Q, "a")
    prefetched(broker, 1)
    consumer, inbox = prefetched(broker := crash(), 1)
    send(broker, connect(broker), Q, "b")
    assert [each.suspect for each in inbox.wait_for(2)] == [True, False]
    assert take(broker, consumer, inbox.handouts[1])
    assert take(broker, consumer, inbox.handouts[0])
    settle(broker, consumer, inbox.handouts)
    assert not broker._state.directory.queues[1].suspects
    assert not payloads(drained(broker, connect(broker), Q))


def test_an_answer_that_comes_late_does_no_harm(crash: Crash) -> None:
    broker = crash()
    assert broker.call(c.TakeInHand(77, 1), WAIT)
    consumer, _ = attach(broker, connect(broker), Q, 1)
    assert broker.call(c.TakeInHand(consumer, 1), WAIT)


def test_suspects_of_a_window_that_is_dropped_are_suspects_again(crash: Crash) -> None:
    send(broker := crash(), connect(broker), Q, *range(5))
    prefetched(broker, 5)
    broker = crash()
    client = connect(broker)
    for _ in range(2):
        consumer, inbox = attach(broker, client, Q, 3)
        assert all(each.suspect for each in inbox.wait_for(3))
        leave_unseen(broker, consumer)
