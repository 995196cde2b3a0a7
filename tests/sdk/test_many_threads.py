"""Many threads at once, with a scheduler and a garbage collector that interrupt them wherever they can.

Each thread does what applications do, at random: sessions of all modes on a connection of its own or on a shared one,
producers that wait for answers and that do not, consumers, listeners, browsers, temporary destinations.
"""

from __future__ import annotations

import contextlib
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

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    JMSException,
    Message,
    MessageConsumer,
    Session,
    TransactionInDoubtException,
)
from tests.server_process import ServerProcess

WAIT = 120.0
THREADS = 8
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

    acts = 25  #: of each thread
    queues = tuple(f"q{number}" for number in range(3))

    def __init__(self, factory: ConnectionFactory, shared: Connection, seed: int) -> None:
        self._factory = factory
        self._shared = shared
        self._seed = seed
        self._lock = threading.Lock()
        self.sent: set[str] = set()  #: and confirmed
        self.ended: Counter[str] = Counter()  #: acknowledged or committed
        self.committed: set[str] = set()  #: of these, in a transaction
        self.doubtful: set[str] = set()  #: committed or not: the broker cannot tell
        self.again: list[str] = []  #: came although they had been committed
        self.failures: list[BaseException] = []

    def run(self, seconds: float = WAIT * 4) -> None:
        """All threads, to their end."""
        threads = [
            threading.Thread(target=self._guarded, args=(number,), name=f"worker {number}", daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert [thread.name for thread in threads if thread.is_alive()] == []
        if self.failures:
            raise self.failures[0]

    def _guarded(self, number: int) -> None:
        chance = random.Random(self._seed * THREADS + number)
        try:
            for act in range(self.acts):
                self.act(chance, f"{number}/{act}")
        except BaseException as error:
            self.failures.append(error)

    def connected(self) -> Connection:
        """A new connection."""
        connection = self._factory.create_connection()
        connection.start()
        return connection

    def act(self, chance: random.Random, name: str) -> None:
        """One session, and what is done with it."""
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(self.connected()) if chance.random() < 0.3 else self._shared
            session = stack.enter_context(connection.create_session(chance.choice(MODES)))
            work: Callable[..., None] = chance.choices(
                [self._send, self._receive, self._listen, self._use_temporary, self._browse], [8, 8, 2, 2, 2]
            )[0]
            work(chance, session, name)

    def _send(self, chance: random.Random, session: Session, name: str) -> None:
        producer = session.create_producer(session.create_queue(chance.choice(self.queues)))
        bodies = [f"{name}/{number}" for number in range(chance.randint(1, 30))]
        for body in bodies:
            if session.transacted:
                producer.send(body)
            elif chance.random() < 0.5:
                producer.send(body)
                self.confirm(body)
            else:
                producer.send(body, on_completion=self.completed)
        if session.transacted and chance.random() < 0.2:
            session.rollback()
        elif session.transacted:
            session.commit()
            self.confirm(*bodies)

    def confirm(self, *bodies: str) -> None:
        """These were sent for certain."""
        with self._lock:
            self.sent.update(bodies)

    def completed(self, message: Message, error: JMSException | None) -> None:
        """An asynchronous send has ended."""
        if error is None:
            self.confirm(message.body)
        else:
            self.failures.append(error)

    def _receive(self, chance: random.Random, session: Session, _name: str) -> None:
        consumer = session.create_consumer(session.create_queue(chance.choice(self.queues)))
        together: list[Message] = []
        for _ in range(30):
            message = consumer.receive(0.02)
            if message is None:
                break
            if session.acknowledge_mode in (AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED):
                together.append(message)
                continue
            if session.acknowledge_mode is AcknowledgeMode.INDIVIDUAL:
                message.acknowledge()
            self.note(message)
        returns = chance.random() < 0.2
        if session.transacted:
            try:
                session.rollback() if returns else session.commit()
            except TransactionInDoubtException:
                with self._lock:
                    self.doubtful.update(message.body for message in together)
                raise
        elif session.acknowledge_mode is AcknowledgeMode.CLIENT:
            if returns:
                session.recover()
            elif together:
                together[-1].acknowledge()
        if not returns:
            self.note(*together, transacted=session.transacted)

    def note(self, *messages: Message, transacted: bool = False) -> None:
        """These are done with."""
        bodies = [message.body for message in messages]
        with self._lock:
            self.ended.update(bodies)
            self.again += self.committed.intersection(bodies)
            if transacted:
                self.committed.update(bodies)

    def _listen(self, chance: random.Random, session: Session, name: str) -> None:
        if session.acknowledge_mode not in (AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK):
            self._send(chance, session, name)
            return
        consumer = session.create_consumer(session.create_queue(chance.choice(self.queues)))
        consumer.listener = self.note
        time.sleep(0.02)
        consumer.close()

    def _use_temporary(self, chance: random.Random, session: Session, name: str) -> None:
        make: Any = chance.choice([session.create_temporary_queue, session.create_temporary_topic])
        destination = make()
        consumer = session.create_consumer(destination)
        session.create_producer(destination).send(name)
        if session.transacted:
            session.commit()
        self.check_temporary(consumer, name)
        if session.transacted:
            session.commit()
        consumer.close()
        session.delete_temporary(destination)

    def check_temporary(self, consumer: MessageConsumer, name: str) -> None:
        """What was sent to a temporary destination arrives."""
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.body == name

    def _browse(self, chance: random.Random, session: Session, _name: str) -> None:
        with session.create_browser(session.create_queue(chance.choice(self.queues))) as browser:
            for _, _message in zip(range(20), browser, strict=False):
                pass

    def drain(self, connection: Connection) -> None:
        """Receive all that is left."""
        connection.start()
        with connection.create_session() as session:
            for name in self.queues:
                consumer = session.create_consumer(session.create_queue(name))
                # What was given back several times is delayed before it is redelivered.
                while depth(connection, name):
                    message = consumer.receive(WAIT)
                    assert message is not None
                    self.note(message)


def depth(connection: Connection, queue: str) -> int:
    return sum(each.messages for each in connection.statistics().queues if each.name == queue)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_or_doubled_and_no_thread_hangs(factory: ConnectionFactory, seed: int) -> None:
    with factory.create_connection() as connection:
        connection.start()
        threads = Threads(factory, connection, seed)
        threads.run()
        threads.drain(connection)
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
