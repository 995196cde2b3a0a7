"""What many queues, consumers and subscriptions cost a message, and how long one operation blocks the others."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from ack_modes import Outcome
from benchmarks.report import Figure
from broker_adapter.destination import Destination, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, pack
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.server.raw_client import memory

_WAIT = 600.0
_BODY = b"x" * 100
_BATCH = 10
_MESSAGES = 5_000


class _Flow:
    """A producer and a consumer of one queue that is busy."""

    def __init__(self, broker: Broker, client: int, name: str) -> None:
        self.broker = broker
        self.client = client
        self.destination = queue(name)
        self.got: list[c.Handout] = []
        self.consumer = broker.call(c.Attach(client, self.destination, self.got.extend), _WAIT)

    def run(self, messages: int) -> float:
        """Send and acknowledge; the CPU time of the process for one message, in microseconds."""
        broker, got = self.broker, self.got
        broker.call(c.Credit(self.consumer, messages), _WAIT)
        started = time.process_time()
        for _ in range(messages // _BATCH):
            batch = [c.NewMessage(0xFF, _BODY) for _ in range(_BATCH)]
            broker.call(c.Enqueue(self.client, self.destination, batch), _WAIT)
            broker.call(c.Settle(self.consumer, [each.number for each in got], Outcome.ACCEPTED), _WAIT)
            got.clear()
        return (time.process_time() - started) / messages * 1e6


def _opened(directory: Path, **settings: Any) -> tuple[Broker, int]:
    broker = Broker(EngineSettings(max_destinations=100_000, **settings), str(directory))
    return broker, broker.call(c.Connect("me"), _WAIT)


def _all(broker: Broker, commands: list[Any]) -> list[Any]:
    """Carry out many commands; their answers."""
    results: list[Any] = [None] * len(commands)

    def note(index: int) -> Callable[[Any], None]:
        return lambda result: results.__setitem__(index, result)

    broker.submit_all([command._replace(reply=note(index)) for index, command in enumerate(commands)])
    broker.call(c.Due(()), _WAIT)
    return results


def _nothing(_handouts: Any) -> None:
    pass


def _waiting(broker: Broker, client: int, count: int) -> None:
    """Queues with a message, and a consumer without credit."""
    names = [queue(f"idle {number}") for number in range(count)]
    _all(broker, [c.Enqueue(client, name, [c.NewMessage(0xFF, _BODY)]) for name in names])
    _all(broker, [c.Attach(client, name, _nothing) for name in names])


def _held(broker: Broker, client: int, count: int) -> None:
    """Queues that are full, each with a send that waits."""
    for messages in (_BATCH, 1):
        for number in range(count):
            broker.submit(c.Enqueue(client, queue(f"idle {number}"), [c.NewMessage(0xFF, _BODY)] * messages))
    broker.call(c.Due(()), _WAIT)


def _delayed(broker: Broker, client: int, count: int) -> None:
    """Queues with a message that has failed twice and is delayed."""
    names = [queue(f"idle {number}") for number in range(count)]
    _all(broker, [c.Enqueue(client, name, [c.NewMessage(0xFF, _BODY)]) for name in names])
    consumers = _all(broker, [c.Attach(client, name, _nothing) for name in names])
    _all(broker, [c.Credit(number, 10) for number in consumers])
    for delivery in (1, 2):
        _all(broker, [c.Settle(number, [delivery], Outcome.MODIFIED) for number in consumers])


def _consumers(broker: Broker, client: int, count: int) -> None:
    """Consumers of the busy queue without credit."""
    _all(broker, [c.Attach(client, queue("busy"), _nothing) for _ in range(count)])


_CROWDS: dict[str, tuple[Callable[[Broker, int, int], None], dict[str, Any]]] = {
    "queues that wait": (_waiting, {}),
    "queues that are full": (_held, {"max_queue_messages": _BATCH, "blocked_send_timeout_seconds": 600}),
    "queues whose messages are delayed": (
        _delayed,
        {"redelivery_delay_seconds": 600, "max_redelivery_delay_seconds": 600},
    ),
    "consumers without credit": (_consumers, {}),
}


def crowds(directory: Path, sizes: tuple[int, ...]) -> Iterator[Figure]:
    """CPU time of a message of one busy queue beside many others that do nothing."""
    for name, (crowd, settings) in _CROWDS.items():
        alone = 0.0
        for size in sizes:
            broker, client = _opened(directory / f"{name} {size}".replace(" ", "-"), **settings)
            crowd(broker, client, size)
            flow = _Flow(broker, client, "busy")
            flow.run(_MESSAGES // 5)
            cost = min(flow.run(_MESSAGES) for _ in range(3))
            broker.close()
            alone = alone or cost
            yield Figure(
                name=f"engine: a message beside {size:,} {name}",
                value=cost,
                unit="us CPU",
                yardstick=f"beside {sizes[0]}: {alone:.1f} us",
                ratio=cost / alone,
                goal="at most 1.2",
                body_bytes=len(_BODY),
                producers=1,
                consumers=1,
            )


def taking_turns(directory: Path, sizes: tuple[int, ...]) -> Iterator[Figure]:
    """CPU time of a message that one of many consumers with credit gets."""
    few = 0.0
    for size in sizes:
        broker, client = _opened(directory / f"turns-{size}")
        got: list[tuple[int, int]] = []

        def sink(consumer: int, got: list[tuple[int, int]] = got) -> Callable[[Any], None]:
            return lambda handouts: got.extend([(consumer, handout.number) for handout in handouts])

        consumers = []
        for index in range(size):
            number = broker.call(c.Attach(client, queue("q"), sink(index)), _WAIT)
            consumers.append(number)
            broker.call(c.Credit(number, 10_000), _WAIT)
        started = time.process_time()
        for _ in range(_MESSAGES // 100):
            broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(0xFF, _BODY) for _ in range(100)]), _WAIT)
            _all(broker, [c.Settle(consumers[index], (number,), Outcome.ACCEPTED) for index, number in got])
            got.clear()
        cost = (time.process_time() - started) / _MESSAGES * 1e6
        broker.close()
        few = few or cost
        yield Figure(
            name=f"engine: a message for one of {size:,} consumers",
            value=cost,
            unit="us CPU",
            yardstick=f"of {sizes[0]}: {few:.1f} us",
            ratio=cost / few,
            body_bytes=len(_BODY),
            producers=1,
            consumers=size,
        )


def subscriptions(directory: Path, sizes: tuple[int, ...]) -> Iterator[Figure]:
    """CPU time of one place of a message in a durable subscription."""
    few = 0.0
    for size in sizes:
        broker, client = _opened(directory / f"subscriptions-{size}")
        _all(
            broker,
            [
                c.Attach(client, topic("t"), _nothing, Subscription(f"s{number}", durable=True, shared=False))
                for number in range(size)
            ],
        )
        messages = max(20, 20_000 // size)
        started = time.process_time()
        broker.call(c.Enqueue(client, topic("t"), [c.NewMessage(0xFF, _BODY) for _ in range(messages)]), _WAIT)
        cost = (time.process_time() - started) / messages / size * 1e6
        broker.close()
        few = few or cost
        yield Figure(
            name=f"engine: a place in each of {size:,} durable subscriptions",
            value=cost,
            unit="us CPU",
            yardstick=f"in {sizes[0]}: {few:.1f} us",
            ratio=cost / few,
            body_bytes=len(_BODY),
            producers=1,
        )


def backlog(directory: Path, messages: int) -> Iterator[Figure]:
    """CPU time of a send, and of a message sent and acknowledged, as a backlog without consumers grows."""
    broker, client = _opened(directory / "backlog")
    flow = _Flow(broker, client, "busy")
    parts = 10
    costs, through = [], []
    flow.run(_MESSAGES)
    for _ in range(parts):
        started = time.process_time()
        for _ in range(messages // parts // 1000):
            broker.call(c.Enqueue(client, queue("backlog"), [c.NewMessage(0xFF, _BODY) for _ in range(1000)]), _WAIT)
        costs.append((time.process_time() - started) / (messages // parts) * 1e6)
        through.append(min(flow.run(_MESSAGES) for _ in range(2)))
    broker.close()
    for name, values in (("a send onto", costs), ("a message beside", through)):
        yield Figure(
            name=f"engine: {name} a backlog of {messages:,} small messages",
            value=values[-1],
            unit="us CPU",
            yardstick=f"of {messages // parts:,}: {values[0]:.1f} us",
            ratio=values[-1] / values[0],
            goal="at most 1.2",
            body_bytes=len(_BODY),
            producers=1,
        )


@attrs.define
class _Waits:
    """The longest ones, in seconds."""

    answer: float = 0.0
    collector: float = 0.0  #: all threads waited so long while Python's collector examined all objects of the process
    _collecting_since: float = 0.0

    def note_collector(self, phase: str, _info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._collecting_since = now
        else:
            self.collector = max(self.collector, now - self._collecting_since)


@contextmanager
def _pinging(broker: Broker) -> Iterator[_Waits]:
    """Ask the engine again and again."""
    waits = _Waits()
    over = threading.Event()

    def ping() -> None:
        while not over.is_set():
            started = time.perf_counter()
            broker.call(c.Due(()), _WAIT)
            waits.answer = max(waits.answer, time.perf_counter() - started)

    thread = threading.Thread(target=ping)
    thread.start()
    gc.callbacks.append(waits.note_collector)
    yield waits
    gc.callbacks.remove(waits.note_collector)
    over.set()
    thread.join()


def _longest(name: str, waits: _Waits, goal: str, note: str) -> Figure:
    collector = f"Python's collector held up all threads for up to {waits.collector * 1000:.0f} ms"
    return Figure(name=name, value=waits.answer * 1000, unit="ms", goal=goal, note=f"{note}; {collector}")


def statistics(directory: Path, queues: int) -> Iterator[Figure]:
    """How long the statistics of many queues block others."""
    broker, client = _opened(directory / "statistics")
    _waiting(broker, client, queues)
    with _pinging(broker) as waits:
        started = time.perf_counter()
        for _ in range(10):
            broker.request("statistics", {}, _WAIT)
        took = (time.perf_counter() - started) / 10
    broker.close()
    yield _longest(
        f"engine: longest wait beside the statistics of {queues:,} queues",
        waits,
        "at most 30",
        f"the statistics took {took * 1000:.0f} ms",
    )


def storm(directory: Path, clients: int, held: int) -> Iterator[Figure]:
    """Many connections that are lost at once, and reconnect."""
    broker, client = _opened(directory / "storm")
    for _ in range(clients * held // 2000):
        broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(0xFF, _BODY) for _ in range(2000)]), _WAIT)

    def come() -> list[int]:
        numbers = _all(broker, [c.Connect(None) for _ in range(clients)])
        consumers = _all(broker, [c.Attach(number, queue("q"), _nothing) for number in numbers])
        _all(broker, [c.Credit(number, held) for number in consumers])
        return numbers

    numbers = come()
    with _pinging(broker) as waits:
        started = time.perf_counter()
        _all(broker, [c.Disconnect(number) for number in numbers])
        come()
        took = time.perf_counter() - started
    broker.close()
    yield _longest(
        f"engine: longest wait while {clients} consumers of {held} messages each reconnect",
        waits,
        "at most 250",
        f"all were back after {took * 1000:.0f} ms",
    )


def purge(directory: Path, messages: int) -> Iterator[Figure]:
    """How long a large purge blocks others."""
    broker, client = _opened(directory / "purge")
    for _ in range(messages // 5000):
        broker.call(c.Enqueue(client, queue("q"), [c.NewMessage(0xFF, _BODY) for _ in range(5000)]), _WAIT)
    with _pinging(broker) as waits:
        started = time.perf_counter()
        broker.request("purge", {"destination": "q"}, _WAIT)
        took = time.perf_counter() - started
    broker.close()
    yield _longest(
        f"engine: longest wait beside a purge of {messages:,} messages",
        waits,
        "at most 150",
        f"the purge took {took:.1f} s, {messages / took:,.0f}/s",
    )


def windows(directory: Path, queues: int) -> Iterator[Figure]:
    """Memory of many queues with a backlog and a consumer without credit."""
    broker, client = _opened(directory / "windows")
    _waiting(broker, client, queues)
    before = memory(os.getpid(), "RssAnon")
    for _ in range(10):
        _all(
            broker,
            [
                c.Enqueue(client, queue(f"idle {number}"), [c.NewMessage(0xFF, b"") for _ in range(50)])
                for number in range(queues)
            ],
        )
    after = memory(os.getpid(), "RssAnon")
    broker.close()
    yield Figure(
        name=f"engine: memory of 500 messages more in each of {queues:,} queues",
        value=(after - before) / 2**20,
        unit="MiB",
        goal="at most 300",
        note="without the pages of the store's file, which the system keeps while it has room",
    )


def selective(directory: Path, messages: int) -> Iterator[Figure]:
    """Memory after many messages that only a consumer with a selector has taken."""
    broker, client = _opened(directory / "selective")
    destination = Destination("q")
    payload = pack(Envelope(destination, BodyKind.TEXT, "", {"colour": "red"}))
    got: list[c.Handout] = []
    consumer = broker.call(c.Attach(client, destination, got.extend, selector="colour = 'red'"), _WAIT)
    broker.call(c.Credit(consumer, messages), _WAIT)
    for _ in range(messages // 100):
        broker.call(c.Enqueue(client, destination, [c.NewMessage(ENVELOPE_FORMAT, payload)] * 100), _WAIT)
        while not got:
            broker.call(c.Due(()), _WAIT)
        broker.call(c.Settle(consumer, [each.number for each in got], Outcome.ACCEPTED), _WAIT)
        got.clear()
    (lane,) = broker._state.directory.by_destination[destination].lanes
    kept = len(lane.heap)
    broker.close()
    yield Figure(
        name=f"engine: positions kept after {messages:,} messages taken by a selector",
        value=kept,
        unit="positions",
        goal="at most 1000",
    )


def set_aside(directory: Path, messages: int) -> Iterator[Figure]:
    """CPU time of a message beside many that have failed twice and wait alone, and beside as many that only wait."""
    flows = []
    for number, (name, fails) in enumerate((("idle", False), ("idle", True), ("busy", True))):
        settings = {"redelivery_delay_seconds": 600, "max_redelivery_delay_seconds": 600}
        broker, client = _opened(directory / f"set-aside-{number}", **settings)
        for _ in range(messages // _MESSAGES):
            broker.call(c.Enqueue(client, queue(name), [c.NewMessage(0xFF, _BODY) for _ in range(_MESSAGES)]), _WAIT)
            if fails:
                _fail_twice(broker, client, name)
        delayed = sum(each.delayed for each in broker.call(c.Statistics(), _WAIT).queues)
        if delayed != messages * fails:
            raise AssertionError(f"{delayed} messages wait alone, not {messages * fails}")
        flows.append(_Flow(broker, client, "busy"))
        flows[-1].run(_MESSAGES // 5)
    plain, *costs = map(min, zip(*[[flow.run(_MESSAGES) for flow in flows] for _ in range(5)], strict=True))
    for flow in flows:
        flow.broker.close()
    for whose, cost in zip(("another", "the same"), costs, strict=True):
        yield Figure(
            name=f"engine: a message beside {messages:,} messages of {whose} queue that wait alone",
            value=cost,
            unit="us CPU",
            yardstick=f"beside as many that only wait: {plain:.1f} us",
            ratio=cost / plain,
            goal="at most 1.2",
            body_bytes=len(_BODY),
            producers=1,
            consumers=1,
        )


def _fail_twice(broker: Broker, client: int, name: str) -> None:
    """Fail on all messages of a queue that may be had, each time at a new consumer: one that fails often rests."""
    for _ in range(2):
        got: list[c.Handout] = []
        consumer = broker.call(c.Attach(client, queue(name), got.extend), _WAIT)
        broker.call(c.Credit(consumer, _MESSAGES), _WAIT)
        while len(got) < _MESSAGES:
            broker.call(c.Due(()), _WAIT)
        broker.call(c.Settle(consumer, [each.number for each in got], Outcome.FAILED), _WAIT)
        broker.call(c.Detach(consumer), _WAIT)


class _Sharing:
    """Consumers that share a queue of message groups and come and go, each with a buffer of ten messages."""

    def __init__(self, broker: Broker, client: int, groups: int) -> None:
        self._broker = broker
        self._client = client
        self._queue = queue("groups")
        self._groups = groups
        self._sent = 0
        self._held: dict[int, list[int]] = {}  #: consumer → numbers of its deliveries

    def send(self, messages: int) -> None:
        """Send to one group after the other."""
        numbers = range(self._sent, self._sent + messages)
        batch = [c.NewMessage(0xFF, _BODY, group=1 + number % self._groups) for number in numbers]
        self._broker.call(c.Enqueue(self._client, self._queue, batch), _WAIT)
        self._sent += messages

    def join(self) -> None:
        """Attach a consumer."""
        held: list[int] = []

        def sink(handouts: Any) -> None:
            held.extend(each.number for each in handouts)

        consumer = self._broker.call(c.Attach(self._client, self._queue, sink), _WAIT)
        self._held[consumer] = held
        self._broker.call(c.Credit(consumer, _BATCH), _WAIT)

    def leave(self) -> None:
        """Detach the consumer that came first; what it holds goes back."""
        consumer = next(iter(self._held))
        del self._held[consumer]
        self._broker.call(c.Detach(consumer, give_back=True), _WAIT)

    def work(self) -> int:
        """Process a message of each consumer, and send as many; returns how many."""
        commands: list[Any] = []
        for consumer, held in self._held.items():
            if held:
                commands += [c.Settle(consumer, [held.pop(0)], Outcome.ACCEPTED), c.Credit(consumer, 1)]
        _all(self._broker, commands)
        self.send(len(commands) // 2)
        return len(commands) // 2


def joins(directory: Path, groups: int, consumers: int, rounds: int) -> Iterator[Figure]:
    """CPU time of a consumer that joins others which share message groups, and of one that leaves them."""
    broker, client = _opened(directory / "joins")
    crew = _Sharing(broker, client, groups)
    for _ in range(consumers):
        crew.join()
    crew.send(3 * groups // 2)
    costs: dict[str, float] = {}

    def spend(name: str, act: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = act()
        costs[name] = costs.get(name, 0.0) + time.process_time() - began
        return result

    processed = {"with": 0, "without": 0}
    for _ in range(rounds):
        spend("leave", crew.leave)
        spend("join", crew.join)
        processed["with"] += spend("with", crew.work)
        processed["without"] += spend("without", crew.work)
    broker.close()
    each = {name: costs[name] / messages * 1e6 for name, messages in processed.items()}
    yield Figure(
        name=f"engine: a consumer joins {consumers} that share {groups:,} groups",
        value=costs["join"] / rounds * 1000,
        unit="ms CPU",
        goal="under 1",
        body_bytes=len(_BODY),
        consumers=consumers,
        note=f"one leaves: {costs['leave'] / rounds * 1000:.2f} ms; a message just after that {each['with']:.0f} us,"
        f" a round later {each['without']:.0f} us",
    )


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of it; with a share of the messages."""
    sizes = (1, 100, 10_000 // share)
    yield from crowds(directory, sizes)
    yield from taking_turns(directory, (1, 100, 10_000 // share))
    yield from subscriptions(directory, (1, 100, 10_000 // share))
    yield from backlog(directory, 1_000_000 // share)
    yield from statistics(directory, 10_000 // share)
    yield from storm(directory, 200, 500 // share)
    yield from purge(directory, 500_000 // share)
    yield from windows(directory, 10_000 // share)
    yield from selective(directory, 100_000 // share)
