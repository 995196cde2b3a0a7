"""An engine whose store has copies: what leaves waits until they have what it depends on, and nothing overtakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.cycle import release_queue
from broker_adapter.engine.cycle.releases import Releases
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import Desk, make
from tests.broker_adapter.engine.driving import WAIT, Inbox, attach, connect, depth, eventually, message, send
from tests.broker_adapter.engine.releasing import Copies, LateCopies, released_late

DEPOSED = ConnectionLostException("another node is the primary now; whether it was done is not known")


class Group:
    """An engine, its copies, and a client of it."""

    def __init__(self, store: str | None, **settings: Any) -> None:
        self.copies = Copies()
        self.broker = Broker(EngineSettings(**settings), store, replication=self.copies)
        self.copies.number_commits_of(self.broker)
        self.client = self.released(c.Connect(None))

    def submit(self, command: Any) -> SimpleQueue[Any]:
        """Hand over a command; returns what gets its answer."""
        answers: SimpleQueue[Any] = SimpleQueue()
        self.broker.submit(command._replace(reply=answers.put))
        return answers

    def send(self, *bodies: bytes, to: str = "q", **fields: Any) -> SimpleQueue[Any]:
        return self.submit(c.Enqueue(self.client, queue(to), [message(body, **fields) for body in bodies]))

    def comes_to_rest(self) -> None:
        """Wait until all that was handed over is decided."""
        passed = threading.Event()

        def take() -> tuple[()]:
            passed.set()
            return ()

        self.broker.submit(c.DeferredCommands(take))
        assert passed.wait(WAIT)
        with self.broker.reading(is_shown=False):
            pass

    def fill(self) -> None:
        """Make two commits."""
        for body in (b"a", b"b"):
            lsn = self.copies.lsn
            self.send(body)
            eventually(lambda lsn=lsn: self.copies.lsn > lsn)

    def released(self, command: Any) -> Any:
        """Carry out a command and release it."""
        answers = self.submit(command)
        self.comes_to_rest()
        self.copies.release()
        return answers.get(timeout=WAIT)

    def consumer(self, credit: int, **fields: Any) -> tuple[int, Inbox]:
        inbox = Inbox()
        consumer = self.released(c.Attach(self.client, queue("q"), inbox, **fields))
        self.released(c.Credit(consumer, credit))
        return consumer, inbox


@pytest.fixture(params=["disk", "memory"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Group]:
    group = Group(str(tmp_path) if request.param == "disk" else None)
    yield group
    group.copies.release()
    group.broker.close()


def in_thread(act: Callable[[], Any]) -> SimpleQueue[Any]:
    """Call this in a thread of its own; returns what gets its result or error."""
    results: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            results.put(act())
        except JMSException as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    return results


def stays_empty(results: SimpleQueue[Any]) -> bool:
    time.sleep(0.05)
    return results.empty()


# What waits.


def test_no_answer_leaves_before_its_commit_is_released(group: Group) -> None:
    answers = group.send(b"a")
    group.comes_to_rest()
    assert answers.empty()
    group.copies.release(group.copies.lsn - 1)
    assert answers.empty()
    group.copies.release()
    assert answers.get(timeout=WAIT) is None


def test_no_delivery_leaves_before_its_commit_is_released(group: Group) -> None:
    _, inbox = group.consumer(10)
    group.send(b"a")
    group.comes_to_rest()
    assert inbox.handouts == []
    group.copies.release()
    assert [each.payload for each in inbox.wait_for(1)] == [b"a"]


def test_what_was_delivered_has_its_body_though_it_is_gone_by_its_release(group: Group) -> None:
    _, inbox = group.consumer(10, presettled=True)
    group.send(b"a")
    group.comes_to_rest()
    group.copies.release()
    assert [each.payload for each in inbox.wait_for(1)] == [b"a"]
    assert group.broker.check() == []


def test_a_browser_sees_no_message_before_its_commit_is_released(group: Group) -> None:
    group.send(b"a")
    inbox = Inbox()
    group.comes_to_rest()
    answers = group.submit(c.Attach(group.client, queue("q"), inbox, browse=True))
    group.comes_to_rest()
    assert answers.empty()
    group.copies.release()
    browser = answers.get(timeout=WAIT)
    group.send(b"b")
    group.comes_to_rest()
    drained = group.submit(c.Credit(browser, 10)), group.submit(c.Drain(browser))
    group.comes_to_rest()
    assert inbox.handouts == []
    assert drained[1].empty()
    group.copies.release()
    assert inbox.wait_for(1)[0].payload == b"a"
    assert drained[1].get(timeout=WAIT) is not None


def test_no_event_leaves_before_its_commit_is_released(group: Group) -> None:
    group.copies.are_late = False
    make(group.broker, "prices")
    desk = Desk(group.broker)
    desk.want("prices")
    desk.ready()
    assert desk.events() == ["marker"]
    group.copies.are_late = True
    group.submit(e.ChangeKeys("prices", [e.KeyChange("key", Wanted.PUT, message(b"1"))]))
    group.comes_to_rest()
    assert len(desk.got) == 1
    group.copies.release()
    assert desk.events() == ["marker", "key=1"]


def test_an_answer_without_a_commit_leaves_behind_the_commit_before(group: Group) -> None:
    group.send(b"a")
    answers = group.submit(c.Statistics())
    group.comes_to_rest()
    assert answers.empty()
    group.copies.release()
    assert answers.get(timeout=WAIT).enqueued == 1
    assert group.broker.call(c.Statistics(), WAIT).enqueued == 1, "at once, where nothing waits"


def test_what_is_read_by_a_request_is_answered_when_its_commit_is_released(group: Group) -> None:
    group.send(b"a")
    group.comes_to_rest()
    found = in_thread(lambda: group.broker.request("bounds", {"destination": "q"}, WAIT))
    assert stays_empty(found)
    group.copies.release()
    assert found.get(timeout=WAIT)


def test_what_is_read_is_not_answered_for_the_commits_behind_it(group: Group) -> None:
    group.send(b"a")
    group.comes_to_rest()
    read = group.copies.lsn
    found = in_thread(lambda: group.broker.request("bounds", {"destination": "q"}, WAIT))
    assert stays_empty(found)
    group.send(b"b")
    group.comes_to_rest()
    group.copies.release(read)
    assert found.get(timeout=WAIT)


def test_nothing_is_read_for_others_while_the_node_does_not_serve(group: Group) -> None:
    group.send(b"a")
    group.comes_to_rest()
    group.copies.release()
    group.copies.serves = False
    with pytest.raises(OperationTimedOutException, match="this node does not serve now"):
        group.broker.request("bounds", {"destination": "q"}, WAIT)
    group.copies.serves = True
    assert group.broker.request("bounds", {"destination": "q"}, WAIT)


def test_an_error_of_a_request_waits_as_its_answer_does(group: Group) -> None:
    group.send(b"a")
    group.comes_to_rest()
    found = in_thread(lambda: group.broker.request("bounds", {"destination": "none"}, WAIT))
    assert stays_empty(found)
    group.copies.release()
    assert isinstance(found.get(timeout=WAIT), JMSException)


def test_a_request_whose_commit_is_not_released_in_time_says_so(group: Group) -> None:
    group.send(b"a")
    group.comes_to_rest()
    with pytest.raises(OperationTimedOutException, match=r"other nodes of the group did not confirm commit \d+ within"):
        group.broker.request("bounds", {"destination": "q"}, 0.05)


def test_a_call_whose_commit_is_not_released_in_time_says_so(group: Group) -> None:
    with pytest.raises(OperationTimedOutException, match=r"Enqueue within .*: the other nodes of the group have not"):
        group.broker.call(c.Enqueue(group.client, queue("q"), [message(b"a")]), 0.05)


def test_what_leaves_nobody_is_read_without_a_release(group: Group) -> None:
    group.send(b"a")
    group.comes_to_rest()
    assert group.broker.check() == []


# Order.


def test_order_is_kept_when_threads_release_and_cycles_end_at_once(group: Group) -> None:
    told: list[int] = []
    is_over = threading.Event()

    def release() -> None:
        while not is_over.is_set():
            group.copies.release()

    threads = [threading.Thread(target=release) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(500):
            enqueue = c.Enqueue(group.client, queue("q"), [message(b"")], lambda _, number=number: told.append(number))
            group.broker.submit(enqueue)
            if number % 10 == 0:
                group.broker.call(c.Statistics(), WAIT)
        eventually(lambda: len(told) == 500)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert told == list(range(500))


def test_a_release_beside_a_callback_that_takes_long_does_not_overtake_it(group: Group) -> None:
    told: list[str] = []
    begun, goes_on = threading.Event(), threading.Event()

    def first(_result: Any) -> None:
        begun.set()
        assert goes_on.wait(WAIT)
        told.append("first")

    group.broker.submit(c.Enqueue(group.client, queue("q"), [message(b"a")], first))
    group.comes_to_rest()
    slow = threading.Thread(target=group.copies.release)
    slow.start()
    assert begun.wait(WAIT)
    group.broker.submit(c.Enqueue(group.client, queue("q"), [message(b"b")], lambda _result: told.append("second")))
    group.comes_to_rest()  # no cycle waits for a callback that a release has called
    group.copies.release()  # nor does another release
    assert told == []
    goes_on.set()
    slow.join()
    assert told == ["first", "second"]


@pytest.mark.parametrize("wait", ["call", "read"])
def test_a_callback_in_the_releasing_thread_may_not_wait(group: Group, wait: str) -> None:
    caught: SimpleQueue[Any] = SimpleQueue()

    def reply(_result: Any) -> None:
        try:
            if wait == "call":
                group.broker.call(c.Statistics(), WAIT)
            else:
                with group.broker.reading():
                    pass
        except IllegalStateException as error:
            caught.put(error)

    group.broker.submit(c.Enqueue(group.client, queue("q"), [message(b"a")], reply))
    group.comes_to_rest()
    group.copies.release()
    assert "cannot be made from a callback" in str(caught.get(timeout=WAIT))
    group.comes_to_rest()
    group.copies.release()
    assert group.broker.call(c.Statistics(), WAIT).enqueued == 1, "this thread may wait again"


# The bound.


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, group: Group) -> Group:
    """A group in which the effects of two commits may wait."""
    assert group.broker._releases is not None
    monkeypatch.setattr(group.broker._releases, "_releases", Releases(most_commits=2))
    return group


def test_at_the_bound_no_new_command_is_taken(narrow: Group) -> None:
    narrow.fill()
    lsn = narrow.copies.lsn
    answers = narrow.send(b"c")
    with pytest.raises(OperationTimedOutException, match="the other nodes of the group have not"):
        narrow.broker.call(c.Statistics(), 0.05)
    assert narrow.copies.lsn == lsn
    assert len(narrow.broker._commands) == 2
    narrow.copies.release(lsn - 1)
    eventually(lambda: narrow.copies.lsn == lsn + 1)
    assert answers.empty()
    narrow.copies.release()
    assert answers.get(timeout=WAIT) is None


def test_at_the_bound_the_engine_does_not_spin_though_commands_wait_and_something_is_due(narrow: Group) -> None:
    narrow.send(b"a", expires_at_ms=time.time_ns() // 1_000_000 + 20)
    narrow.comes_to_rest()
    narrow.send(b"b")
    time.sleep(0.05)
    narrow.send(b"c")
    cycles = 0
    cycle = narrow.broker._cycle

    def counted() -> None:
        nonlocal cycles
        cycles += 1
        cycle()

    narrow.broker._cycle = counted  # type: ignore[method-assign]
    time.sleep(0.2)
    assert cycles <= 2
    narrow.copies.release()
    eventually(lambda: narrow.copies.lsn > narrow.copies.released)  # what is due happens again


def test_a_refusal_without_room_on_the_disk_does_not_overtake_what_waits(group: Group) -> None:
    """Else two threads would call callbacks at once."""
    answers = group.send(b"a")
    group.comes_to_rest()

    def fails(_effects: Any) -> bool:
        raise ResourceAllocationException("the disk is full")

    persist, group.broker._persist = group.broker._persist, fails  # type: ignore[method-assign]
    group.broker._room_wait_ms = 0
    unwritten = group.send(b"b")
    eventually(lambda: group.broker._unwritten is not None)
    refused = group.send(b"c")
    eventually(lambda: not group.broker._commands)
    assert stays_empty(refused)
    group.copies.release()
    assert answers.get(timeout=WAIT) is None
    assert isinstance(refused.get(timeout=WAIT), ResourceAllocationException)
    group.broker._persist = persist  # type: ignore[method-assign]
    eventually(lambda: group.copies.lsn > group.copies.released)
    group.copies.release()
    assert unwritten.get(timeout=WAIT) is None


# The end.


def test_a_close_lets_leave_what_is_released_meanwhile(group: Group) -> None:
    answers = group.send(b"a")
    group.comes_to_rest()
    closed = in_thread(group.broker.close)
    assert stays_empty(answers)
    group.copies.release()
    assert answers.get(timeout=WAIT) is None
    while closed.empty():
        group.copies.release()  # the end of the run
    assert group.copies.listeners == []


def test_a_close_at_the_bound_carries_out_what_was_handed_over(narrow: Group) -> None:
    narrow.fill()
    answers = narrow.send(b"c")
    closed = in_thread(narrow.broker.close)
    assert stays_empty(answers)
    while closed.empty():
        narrow.copies.release()
    assert answers.get(timeout=WAIT) is None


def test_a_close_answers_what_is_never_released(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_adapter.engine.broker._CLOSE_SECONDS", 0.05)
    _, inbox = group.consumer(1)
    answers = group.send(b"a")
    group.comes_to_rest()
    group.broker.close()
    assert isinstance(answers.get(timeout=WAIT), IllegalStateException)
    group.copies.release()
    assert answers.empty()
    assert inbox.handouts == []


def test_all_that_waits_gets_the_error_of_an_engine_that_fails(tmp_path: Path) -> None:
    group = Group(str(tmp_path))
    answers = group.send(b"a")
    group.comes_to_rest()
    read = in_thread(lambda: group.broker.request("bounds", {"destination": "q"}, WAIT))
    assert stays_empty(read)
    group.broker.store._env.close()
    failed = group.send(b"b")
    assert [type(each.get(timeout=WAIT)) for each in (answers, failed, read)] == [StoreException] * 3
    group.broker.close()


def test_abandon_answers_all_that_waits(group: Group) -> None:
    told: list[Any] = []
    group.broker.on_failure(told.append)
    consumer, inbox = group.consumer(1)
    waiting = [group.send(b"a")]
    group.comes_to_rest()
    waiting.append(in_thread(lambda: group.broker.request("bounds", {"destination": "q"}, WAIT)))
    assert stays_empty(waiting[-1])
    group.broker.abandon(DEPOSED)
    assert [str(each.get(timeout=WAIT)) for each in waiting] == [str(DEPOSED)] * 2
    assert told == [DEPOSED]
    assert inbox.handouts == []
    with pytest.raises(ConnectionLostException, match="another node"):
        group.broker.call(c.Settle(consumer, [1], Outcome.ACCEPTED), WAIT)
    with pytest.raises(ConnectionLostException, match="another node"), group.broker.reading():
        pass
    group.broker.close()
    group.broker.abandon(DEPOSED)
    assert told == [DEPOSED]


def test_abandon_lets_leave_what_is_released(group: Group) -> None:
    answers = group.send(b"a")
    group.comes_to_rest()
    group.copies.released = group.copies.lsn  # and nobody was told yet
    group.broker.abandon(DEPOSED)
    assert answers.get(timeout=WAIT) is None


def test_abandon_answers_what_waits_at_the_bound(narrow: Group) -> None:
    narrow.fill()
    answers = narrow.send(b"c")
    narrow.broker.abandon(DEPOSED)
    assert answers.get(timeout=WAIT) is DEPOSED


def test_abandon_writes_nothing_and_gives_nothing_back(tmp_path: Path) -> None:
    group = Group(str(tmp_path))
    _, inbox = group.consumer(1)
    group.released(c.Enqueue(group.client, queue("q"), [message(b"a")]))
    inbox.wait_for(1)
    lsn = group.copies.lsn
    group.broker.abandon(DEPOSED)
    assert group.copies.lsn == lsn
    broker = Broker(EngineSettings(), str(tmp_path))
    assert depth(broker, "q") == 1
    broker.close()


def test_an_abandoned_engine_does_not_wake_senders_with_the_error(tmp_path: Path) -> None:
    group = Group(str(tmp_path), site=1)
    told: list[Any] = []
    group.broker.on_gateways(told.append)
    gateway = {"name": "east", "url": "amqp://east", "destinations": ["queue:q"]}
    created = in_thread(lambda: group.broker.request("create_gateway", gateway, WAIT))
    assert stays_empty(created)
    group.broker.abandon(DEPOSED)
    assert str(created.get(timeout=WAIT)) == str(DEPOSED)
    assert told == []


def test_a_callback_may_not_abandon_the_engine_that_calls_it(group: Group) -> None:
    caught: SimpleQueue[Any] = SimpleQueue()

    def reply(_result: Any) -> None:
        try:
            group.broker.abandon(DEPOSED)
        except IllegalStateException as error:
            caught.put(error)

    group.broker.submit(c.Enqueue(group.client, queue("q"), [message(b"a")], reply))
    group.comes_to_rest()
    group.copies.release()
    assert caught.get(timeout=WAIT)


def test_an_engine_takes_a_store_that_is_open_and_closes_it(tmp_path: Path) -> None:
    settings = EngineSettings()
    store = LmdbStore(tmp_path, settings)
    broker = Broker(settings, store)
    assert broker.store is store
    send(broker, connect(broker), "q", "a")
    broker.close()
    broker = Broker(settings, str(tmp_path))
    assert depth(broker, "q") == 1
    broker.close()


# What the other tests rest on.


def history(broker: Broker, copies: LateCopies) -> bool:
    """Send and consume; returns whether something left ahead of its release."""
    is_early = False

    def told(_value: Any) -> None:
        nonlocal is_early
        is_early |= copies.released < made[0]

    made = [0]
    client = connect(broker)
    _, inbox = attach(broker, client, "q", 1000)
    for _ in range(20):
        persist = broker._persist

        def noted(effects: Any, persist: Any = persist) -> bool:
            done: bool = persist(effects)
            made[0] = copies.lsn
            return done

        broker._persist = noted  # type: ignore[method-assign]
        broker.submit(c.Enqueue(client, queue("q"), [message(b"")], told))
        broker.call(c.Statistics(), WAIT)
    inbox.wait_for(20)
    return is_early


def test_nothing_leaves_early_where_copies_are_late() -> None:
    with released_late() as every:
        broker = Broker(EngineSettings())
        assert not history(broker, every[0])
        broker.close()


def test_a_queue_that_does_not_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_cycle(queue: Any) -> None:
        made, queue._made = queue._made, []
        for callback, value, _ in made:
            callback(value)

    monkeypatch.setattr(release_queue.ReleaseQueue, "end_cycle", end_cycle)
    with released_late() as every:
        broker = Broker(EngineSettings())
        assert history(broker, every[0])
        broker.close()
