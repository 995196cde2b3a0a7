"""Many threads at once, with a scheduler and a garbage collector that interrupt them wherever they can.

Each thread does what applications do, at random: sessions of all modes on a connection of its own or on a shared one,
producers that wait for answers and that do not, consumers, listeners, browsers, temporary destinations.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sdk import AcknowledgeMode, Connection, ConnectionFactory, JMSException, Message, Session
from tests.server_process import ServerProcess

WAIT = 20.0
THREADS = 8
QUEUES = 3
#: What each thread does.
ACTS = 25
MODES = [mode for mode in AcknowledgeMode if mode is not AcknowledgeMode.NO_ACK]


@pytest.fixture(params=["embedded", "amqp"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConnectionFactory]:
    if request.param == "embedded":
        yield ConnectionFactory(f"embedded:{tmp_path}")
        return
    with ServerProcess(tmp_path) as server:
        yield ConnectionFactory(server.url)


@pytest.fixture(autouse=True)
def interruptions() -> Iterator[None]:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    gc.set_threshold(100, 5, 5)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


class Threads:
    """What they do, and what they saw."""

    def __init__(self, factory: ConnectionFactory, shared: Connection, seed: int) -> None:
        self._factory = factory
        self._shared = shared
        self._seed = seed
        self._lock = threading.Lock()
        self.sent: set[str] = set()
        self.ended: Counter[str] = Counter()  #: acknowledged or committed
        self.failures: list[BaseException] = []

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._guarded, args=(number,), name=f"worker {number}", daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + WAIT * 2
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert [thread.name for thread in threads if thread.is_alive()] == []
        if self.failures:
            raise self.failures[0]

    def _guarded(self, number: int) -> None:
        try:
            self._work(random.Random(self._seed * THREADS + number), number)
        except BaseException as error:
            self.failures.append(error)

    def _work(self, chance: random.Random, number: int) -> None:
        for act in range(ACTS):
            own = chance.random() < 0.3
            connection = self._factory.create_connection() if own else self._shared
            connection.start()
            with connection.create_session(chance.choice(MODES)) as session:
                work: Callable[..., None] = chance.choices(
                    [self._send, self._receive, self._listen, self._use_temporary, self._browse], [8, 8, 2, 2, 2]
                )[0]
                work(chance, session, f"{number}/{act}")
            if own:
                connection.close()

    def _send(self, chance: random.Random, session: Session, name: str) -> None:
        producer = session.create_producer(session.create_queue(f"q{chance.randrange(QUEUES)}"))
        bodies = [f"{name}/{number}" for number in range(chance.randint(1, 30))]
        for body in bodies:
            if session.transacted or chance.random() < 0.5:
                producer.send(body)
            else:
                producer.send(body, on_completion=self._completed)
        if session.transacted and chance.random() < 0.2:
            session.rollback()
            return
        if session.transacted:
            session.commit()
        with self._lock:
            self.sent.update(bodies)

    def _completed(self, _message: Message, error: JMSException | None) -> None:
        if error is not None:
            self.failures.append(error)

    def _receive(self, chance: random.Random, session: Session, _name: str) -> None:
        consumer = session.create_consumer(session.create_queue(f"q{chance.randrange(QUEUES)}"))
        messages: list[Message] = []
        while len(messages) < 30 and (message := consumer.receive(0.02)) is not None:
            messages.append(message)
            if session.acknowledge_mode is AcknowledgeMode.INDIVIDUAL:
                message.acknowledge()
        returns = chance.random() < 0.2
        if session.transacted:
            session.rollback() if returns else session.commit()
        elif session.acknowledge_mode is AcknowledgeMode.CLIENT:
            if returns:
                session.recover()
            elif messages:
                messages[-1].acknowledge()
        else:
            returns = False
        if not returns:
            self.note(messages)

    def note(self, messages: list[Message]) -> None:
        """These are done with."""
        with self._lock:
            self.ended.update(message.body for message in messages)

    def _listen(self, chance: random.Random, session: Session, name: str) -> None:
        if session.acknowledge_mode not in (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK):
            self._send(chance, session, name)
            return
        heard: list[Message] = []
        consumer = session.create_consumer(session.create_queue(f"q{chance.randrange(QUEUES)}"))
        consumer.listener = heard.append
        time.sleep(0.02)
        consumer.close()
        self.note(heard)

    def _use_temporary(self, chance: random.Random, session: Session, name: str) -> None:
        make: Any = chance.choice([session.create_temporary_queue, session.create_temporary_topic])
        destination = make()
        consumer = session.create_consumer(destination)
        session.create_producer(destination).send(name)
        if session.transacted:
            session.commit()
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.body == name
        if session.transacted:
            session.commit()
        consumer.close()
        session.delete_temporary(destination)

    def _browse(self, chance: random.Random, session: Session, _name: str) -> None:
        with session.create_browser(session.create_queue(f"q{chance.randrange(QUEUES)}")) as browser:
            for _, _message in zip(range(20), browser, strict=False):
                pass


def depth(connection: Connection, queue: str) -> int:
    return sum(each.messages for each in connection.statistics().queues if each.name == queue)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_or_doubled_and_nobody_hangs(factory: ConnectionFactory, seed: int) -> None:
    with factory.create_connection() as connection:
        threads = Threads(factory, connection, seed)
        threads.run()
        with connection.create_session() as session:
            for number in range(QUEUES):
                consumer = session.create_consumer(session.create_queue(f"q{number}"))
                # What was given back several times rests a while before it comes again.
                while depth(connection, f"q{number}"):
                    message = consumer.receive(WAIT)
                    assert message is not None
                    threads.note([message])
        assert connection.statistics().duplicates_rejected == 0
    assert threads.sent == set(threads.ended)
    assert max(threads.ended.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT], ids=lambda mode: mode.name)
def test_sends_that_wait_and_sends_that_do_not_stay_in_order_on_a_shared_connection(
    factory: ConnectionFactory, mode: AcknowledgeMode
) -> None:
    count = 400
    with factory.create_connection() as connection:
        connection.start()

        def send(number: int) -> None:
            chance = random.Random(number)
            with connection.create_session() as session:
                producer = session.create_producer(session.create_queue(f"q{number}"))
                for index in range(count):
                    completion = (lambda _message, error: failures.append(error)) if chance.random() < 0.7 else None
                    producer.send(str(index), on_completion=completion)

        failures: list[JMSException | None] = []
        senders = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(4)]
        for thread in senders:
            thread.start()
        with connection.create_session(mode) as session:
            for number in range(4):
                consumer = session.create_consumer(session.create_queue(f"q{number}"))
                received: list[Message] = []
                while len(received) < count and (message := consumer.receive(WAIT)) is not None:
                    received.append(message)
                assert [message.body for message in received] == [str(index) for index in range(count)]
                if mode is AcknowledgeMode.CLIENT:
                    received[-1].acknowledge()
        for thread in senders:
            thread.join(WAIT)
        assert set(failures) == {None}
        assert connection.statistics().duplicates_rejected == 0
