"""Selectors that take long delay what they are for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ack_modes import Outcome
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import selection
from broker_adapter.engine.commands.selection import (
    LARGE_AT_ONCE,
    SMALL_AT_ONCE,
    SMALL_BYTES,
    Choice,
    Formats,
    Selectable,
)
from broker_adapter.engine.cycle import loading
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, Identity, pack, unpack
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.selectors.language import Selector, parse_selector
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine import test_selective_histories
from tests.broker_adapter.engine.decisions import Rules
from tests.broker_adapter.engine.driving import WAIT, Inbox, come_to_rest, connect

ANNOUNCED = topic("news")
#: Makes a message large, so that the clock is asked often.
LARGE = b" " * SMALL_BYTES


@pytest.fixture(autouse=True)
def clock_is_asked_before_each_selector(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "at_once" not in request.fixturenames:
        monkeypatch.setattr(selection, "LARGE_AT_ONCE", 1)


def message(number: int, **fields: Any) -> c.NewMessage:
    envelope = Envelope(ANNOUNCED, BodyKind.TEXT, f"{number}" + LARGE.decode(), {"n": number})
    return c.NewMessage(ENVELOPE_FORMAT, pack(envelope), identity=Identity("p", 1, number), **fields)


class Newsroom:
    """Subscriptions of a topic, each for messages whose number its own divides.  One decision asks some selectors."""

    def __init__(self, subscriptions: int, asks: int, **limits: Any) -> None:
        self.rules = Rules(**limits)
        self.asks = asks
        self.rules.state.matching.new_slice = self._slice
        self.client = self.rules.connect()
        self.answers: dict[int, Any] = {}
        self.consumers: list[int] = []
        for _ in range(subscriptions):
            self.subscribe()

    def _slice(self) -> Callable[[], bool]:
        left = [self.asks]

        def is_late() -> bool:
            left[0] -= 1
            return left[0] < 0

        return is_late

    def subscribe(self) -> None:
        divisor = len(self.consumers) + 1
        selector = " OR ".join(f"n = {each}" for each in range(divisor, 100, divisor))
        client = self.rules.connect()
        self.consumers.append(self.rules.attach(client, ANNOUNCED, 1000, selector=selector))

    def decide(self, *commands: c.Command) -> None:
        for reply, result in self.rules.state.decide(commands, self.rules.now_ms).replies:
            reply(result)

    def send(self, number: int, **fields: Any) -> None:
        sent = [message(number, **fields)]
        self.decide(c.Enqueue(self.client, ANNOUNCED, sent, partial(self.answers.__setitem__, number)))

    def commit(self, number: int, *sends: tuple[Destination, c.NewMessage]) -> None:
        commit_id = c.CommitId("session", number)
        self.decide(c.Commit(self.client, commit_id, list(sends), [], partial(self.answers.__setitem__, -number)))

    def decisions(self) -> int:
        """Decide until nothing more is due; how often that was."""
        count = 0
        while self.rules.state.has_more:
            self.rules.pass_time(0)
            for reply, result in self.rules.effects.replies:
                reply(result)
            count += 1
            assert count < 1000
        return count

    def arrived(self) -> list[int]:
        statistics = self.rules.do(c.Statistics())
        return [each.messages for each in statistics.queues if each.kind == "subscription"]


def wanted_of(numbers: list[int], subscriptions: int) -> list[int]:
    return sorted(sum(1 for number in numbers if number % divisor == 0) for divisor in range(1, subscriptions + 1))


def test_a_message_whose_selectors_take_long_waits_and_what_others_do_does_not() -> None:
    room = Newsroom(10, asks=3)
    room.send(6)
    assert (room.answers, room.arrived()) == ({}, [0] * 10)
    other = room.rules.connect()
    assert room.rules.send(other, queue("q"), b"at once") is None
    assert room.decisions() <= 3
    assert room.answers == {6: None}
    assert sorted(room.arrived()) == wanted_of([6], 10)


def test_what_a_producer_sends_stays_in_its_order() -> None:
    room = Newsroom(4, asks=1)
    for number in range(1, 6):
        room.send(number)
    room.decisions()
    assert list(room.answers.items()) == [(number, None) for number in range(1, 6)]
    assert room.rules.state.totals.duplicates_rejected == 0
    assert sorted(room.arrived()) == wanted_of([1, 2, 3, 4, 5], 4)


def test_a_new_subscription_gets_what_comes_later_and_one_that_ends_gets_nothing() -> None:
    room = Newsroom(15, asks=1)
    room.send(16)
    room.subscribe()
    room.rules.do(c.Detach(room.consumers[0], give_back=True))  # a subscription that is not durable ends with it
    assert (room.answers, sum(room.arrived())) == ({}, 0)
    room.decisions()
    assert room.answers == {16: None}
    assert sorted(room.arrived()) == [0] * 12 + [1] * 3, "2, 4 and 8"
    room.send(16 * 3)
    room.decisions()
    assert sorted(room.arrived()) == [0] * 8 + [1] * 4 + [2] * 3, "3, 6, 12 and 16 as well"


@pytest.mark.parametrize("what", ["send", "commit"])
def test_subscriptions_that_come_and_go_delay_nothing_for_ever(what: str) -> None:
    room = Newsroom(10, asks=3)
    if what == "send":
        room.send(6)
    else:
        room.commit(1, *((ANNOUNCED, message(6 * number)) for number in range(1, 4)))
    for _ in range(20):
        passer_by = room.rules.connect()
        room.rules.attach(passer_by, ANNOUNCED, 1)
        room.decide(c.Disconnect(passer_by))
    assert list(room.answers.values()) == [None]


@pytest.mark.parametrize("what", ["send", "commit"])
@pytest.mark.parametrize("others", [1, 2, 3, 7])
def test_connections_take_turns_while_subscriptions_choose(what: str, others: int) -> None:
    room = Newsroom(60, asks=3)
    quick = topic("quick")
    for _ in range(10):
        room.rules.attach(room.rules.connect(), quick, 10, selector="n = 1 OR n = 7")
    clients = [room.client, *(room.rules.connect() for _ in range(others))]
    told: list[int] = []
    for number, client in enumerate(clients):
        to, count = (quick, 1) if number else (ANNOUNCED, 20)
        sends = [message(7)._replace(identity=Identity(f"p{number}", 1, each)) for each in range(1, count + 1)]
        answer = partial(lambda number, _: told.append(number), number)
        if what == "send":
            room.decide(c.Enqueue(client, to, sends, answer))
        else:
            room.decide(c.Commit(client, c.CommitId(f"s{number}", 1), [(to, each) for each in sends], [], answer))
    decisions = 0
    passer_by = room.rules.connect()
    while len(told) < others:
        room.decide(c.Enqueue(passer_by, queue("elsewhere"), [c.NewMessage(0, b"x")]))  # wakes another queue
        decisions += 1
        assert decisions <= 4 * (others + 1), told
    assert 0 not in told
    room.decisions()
    assert sorted(told) == list(range(others + 1))


@pytest.mark.parametrize("cost", [2, 3, 4])
def test_a_turn_that_comes_as_the_time_is_over_is_not_lost(cost: int) -> None:
    """A message of A takes as many questions as one slice has, or about: B would find no time left each time."""
    room = Newsroom(cost, asks=3)
    quick = topic("quick")
    for _ in range(4):
        room.rules.attach(room.rules.connect(), quick, 10, selector="n = 1 OR n = 7")
    other = room.rules.connect()
    told: list[str] = []

    def sent(client: int, to: Destination, name: str, number: int) -> c.Enqueue:
        identity = Identity(name, 1, number)
        return c.Enqueue(client, to, [message(7)._replace(identity=identity)], lambda _: told.append(name))

    room.decide(sent(room.client, ANNOUNCED, "a", 1))
    room.decide(*(sent(room.client, ANNOUNCED, "a", number) for number in range(2, 41)), sent(other, quick, "b", 1))
    room.decisions()
    assert told.index("b") <= 5
    assert len(told) == 41


def test_no_send_is_refused_for_the_time_that_selectors_take() -> None:
    room = Newsroom(9, asks=1, blocked_send_timeout_seconds=0)
    room.send(1)
    for _ in range(5):
        room.rules.pass_time(100_000)
    room.decisions()
    assert room.answers == {1: None}


def test_what_then_has_no_room_is_refused_when_its_time_is_over() -> None:
    room = Newsroom(3, asks=1, max_queue_messages=1, blocked_send_timeout_seconds=10)
    room.send(6)
    room.decisions()
    room.send(6 * 2)
    room.decisions()
    assert list(room.answers) == [6]
    room.rules.pass_time(20_000)
    for reply, result in room.rules.effects.replies:
        reply(result)
    room.decisions()
    [error] = room.answers[12]
    assert isinstance(error, ResourceAllocationException)
    assert "is full: 1 message," in str(error)
    assert "held back for 20.0 s" in str(error)
    assert room.rules.state.waiting() == []


def test_a_commit_waits_for_its_selectors_as_a_whole() -> None:
    room = Newsroom(6, asks=4)
    numbers = [2, 3, 6, 30]
    room.commit(1, *((ANNOUNCED, message(number)) for number in numbers), (queue("q"), message(7)))
    assert (room.answers, sum(room.arrived()), room.rules.depth("q")) == ({}, 0, 0)
    room.subscribe()
    room.decisions()
    assert room.answers == {-1: None}
    assert sorted(room.arrived()) == sorted([*wanted_of(numbers, 6), 0]), "a later subscription gets what comes later"
    assert room.rules.depth("q") == 1


def test_a_commit_that_takes_too_many_places_is_refused_while_they_are_counted() -> None:
    room = Newsroom(4, asks=2, max_transaction_entries=5)
    room.commit(1, *((ANNOUNCED, message(12 * number)) for number in range(1, 9)))
    asked = room.decisions()
    assert "more than 5 places" in str(room.answers[-1])
    assert asked < 4, "those of the other messages were not asked"
    assert sum(room.arrived()) == 0


def test_a_session_that_goes_on_does_not_wait_for_its_last_commit() -> None:
    room = Newsroom(6, asks=1)
    room.commit(1, (ANNOUNCED, message(2)))
    room.commit(2, (ANNOUNCED, message(3)))
    room.decisions()
    assert "the session made a further commit" in str(room.answers[-1])
    assert room.answers[-2] is None
    assert sorted(room.arrived()) == wanted_of([3], 6)


def test_a_client_that_leaves_drops_what_its_selectors_have_not_chosen_for() -> None:
    room = Newsroom(6, asks=1)
    room.send(6)
    room.rules.do(c.Disconnect(room.client))
    assert (room.rules.state.waiting(), room.rules.state.has_more) == ([], False)
    assert sum(room.arrived()) == 0


@pytest.mark.parametrize(("size", "at_once"), [(SMALL_BYTES, SMALL_AT_ONCE), (SMALL_BYTES + 1, LARGE_AT_ONCE)])
def test_the_clock_is_asked_more_often_for_a_large_message(size: int, at_once: int) -> None:
    class Other:
        def __init__(self, number: int) -> None:
            self.selector: Selector | None = parse_selector(f"n <> {number}")

    queues = [Other(number) for number in range(200)]
    choice = Choice(None, Selectable(Formats(), ENVELOPE_FORMAT, message(500).payload), size, queues)
    slices = 0
    late = iter([False, *[True, False] * 200])
    while not choice.go_on(lambda: next(late)):
        slices += 1
        assert len(choice.wanting) == slices * at_once
    assert choice.wanting == queues
    assert slices == -(-200 // at_once) - 1


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(test_selective_histories._steps, min_size=5, max_size=40))
def test_a_history_goes_as_the_model_says_where_each_cycle_has_time_for_one_selector(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "SELECT_SECONDS", -1.0)
        test_selective_histories.History(None).run(steps)


def test_consumers_whose_selectors_take_long_get_theirs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SELECT_SECONDS", -1.0)
    broker = Broker(EngineSettings(), tmp_path / "data")
    try:
        client = connect(broker)
        inboxes = [Inbox() for _ in range(5)]
        consumers = []
        for rest, inbox in enumerate(inboxes):
            selector = " OR ".join(f"n = {number}" for number in range(50) if number % 5 == rest)
            consumers.append(broker.call(c.Attach(client, queue("q"), inbox, selector=selector), WAIT))
            broker.call(c.Credit(consumers[-1], 100), WAIT)
        messages = [message(number) for number in range(50)]
        assert broker.call(c.Enqueue(client, queue("q"), messages), WAIT) is None
        come_to_rest(broker)
        for rest, inbox in enumerate(inboxes):
            numbers = [(unpack(each.payload).properties or {})["n"] for each in inbox.handouts]
            assert numbers == list(range(rest, 50, 5))
        taken = [each.number for each in inboxes[0].handouts]
        broker.call(c.Settle(consumers[0], taken[:4], Outcome.RELEASED), WAIT)
        broker.call(c.Credit(consumers[0], 100), WAIT)
        come_to_rest(broker)
        again = inboxes[0].handouts[len(taken) :]
        assert [(unpack(each.payload).properties or {})["n"] for each in again] == [0, 5, 10, 15]
    finally:
        broker.close()


def test_queues_take_turns_when_consumers_search_and_little_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SELECT_SECONDS", -1.0)  # each cycle has time for one selector
    monkeypatch.setattr(loading, "SCAN_BYTES", 3 * SMALL_BYTES)
    broker = Broker(EngineSettings(), tmp_path / "data")
    selectables, looked = broker._loading._selectables, broker._state.matching.match_candidate
    read: list[int] = []
    looks: list[str] = []

    def note_read(entries: Any, pending: Any) -> Any:
        read.append(len(entries))
        return selectables(entries, pending)

    def note_look(look: Any, found: Any) -> bool:
        looks.append(look.queue.record.name)
        return looked(look, found)

    monkeypatch.setattr(broker._loading, "_selectables", note_read)
    monkeypatch.setattr(broker._state.matching, "match_candidate", note_look)
    try:
        client = connect(broker)
        busy, quiet = queue("busy"), queue("quiet")
        for destination, consumers in ((busy, 8), (quiet, 1)):
            for number in range(consumers):
                attached = broker.call(c.Attach(client, destination, Inbox(), selector=f"n <> {-number - 1}"), WAIT)
                broker.call(c.Credit(attached, 100), WAIT)
        come_to_rest(broker)
        read.clear()
        with broker.reading():  # all of it comes in one cycle
            broker.submit(c.Enqueue(client, busy, [message(number) for number in range(20)]))
            broker.submit(c.Enqueue(client, quiet, [message(1)]))
        come_to_rest(broker)
        assert broker._state.totals.delivered == 21
        assert looks.index("quiet") <= 2
        assert max(read) <= 3
    finally:
        broker.close()


@pytest.mark.parametrize("asked", ["of a send", "of a send that waits", "of a consumer"])
def test_a_fault_in_a_selector_is_its_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "SELECT_SECONDS", -1.0)  # each cycle has time for one selector
    broker = Broker(EngineSettings(), tmp_path / "data")
    matches = Selector.matches
    left = [3 if asked == "of a send that waits" else 0]

    def failing(self: Selector, message: Any) -> bool:
        left[0] -= 1
        if left[0] < 0:
            raise RecursionError("a fault of ours")
        return matches(self, message)

    try:
        client = connect(broker)
        destination = queue("q") if asked == "of a consumer" else ANNOUNCED
        for number in range(5):
            consumer = broker.call(c.Attach(client, destination, Inbox(), selector=f"n = {number}"), WAIT)
            broker.call(c.Credit(consumer, 10), WAIT)
        come_to_rest(broker)
        with monkeypatch.context() as patched:
            patched.setattr(Selector, "matches", failing)
            send = c.Enqueue(client, destination, [message(4)])
            assert broker.call(send, WAIT) is None, "the others get it"
            come_to_rest(broker)
        assert broker.failed is None
        assert "failed unexpectedly" in caplog.text
        another = message(4)._replace(identity=Identity("p", 1, 5))
        assert broker.call(c.Enqueue(client, destination, [another]), WAIT) is None
        come_to_rest(broker)
        assert broker._state.totals.delivered == 1
    finally:
        broker.close()


def test_a_commit_is_asked_for_once_whichever_subscriptions_come_and_go() -> None:
    """What was chosen stays chosen: otherwise new subscriptions would keep it from its end."""
    room = Newsroom(6, asks=4)
    room.commit(1, *((ANNOUNCED, message(number)) for number in (2, 3, 6, 30)))
    decisions = 0
    while not room.answers:
        room.decide(c.Disconnect(room.rules.connect()))
        room.subscribe()
        decisions += 1
        assert decisions < 20
    assert decisions <= 8
