"""Objects that an application drops without closing them: they are closed, and say so."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter import StoreException
from sdk import AcknowledgeMode, Connection, ConnectionFactory, JMSContext, QueueBrowser
from sdk.finalizers import WeakTable, dropped
from tests.faults.scenarios import wait_for
from tests.server_process import ServerProcess
from tests.threads import no_new_threads

WAIT = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(params=["embedded", "amqp", "failover"])
def make(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Callable[[], Connection]]:
    """Makes connections to one broker."""
    url = {
        "embedded": "embedded:",
        "amqp": f"{server.url}?failover=nofailover",
        "failover": f"failover:({server.url})",
    }[request.param]
    with ConnectionFactory(url).create_connection():  # keeps the embedded engine
        yield lambda: started(ConnectionFactory(url).create_connection())


def started(connection: Connection) -> Connection:
    connection.start()
    return connection


def fill(connection: Connection, name: str, count: int) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(count):
            producer.send(str(number))


def held(connection: Connection, name: str) -> int:
    """How many consumers a queue has, and messages in their hands."""
    return sum(each.in_hand + each.consumers for each in connection.statistics().queues if each.name == name)


def taken(connection: Connection, name: str) -> list[tuple[str, bool]]:
    """All that is in a queue, and whether it says that it was delivered before."""
    with connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        found = []
        while (message := consumer.receive(0)) is not None:
            found.append((message.body, message.redelivered))
        return found


def drop(act: Callable[[], Any], *expected: str) -> list[str]:
    """Do something that drops what it makes; what the warnings say once these have come."""
    gc.collect()  # what other tests have dropped is closed, and warned of, before
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()

        def told() -> list[str]:
            for each in caught:
                each.source = None
            gc.collect()  # while a consumer is being closed, it keeps its session
            return [str(each.message) for each in caught if each.category is ResourceWarning]

        def all_came() -> bool:
            texts = told()
            return all(sum(part in text for text in texts) >= expected.count(part) for part in expected)

        assert wait_for(all_came), told()
        return told()


def test_a_dropped_consumer_gives_back_what_it_prefetched(make: Callable[[], Connection]) -> None:
    name = f"consumer {time.monotonic()}"
    with make() as connection, connection.create_session() as session:
        fill(connection, name, 20)

        def receive_one() -> None:
            message = session.create_consumer(session.create_queue(name)).receive(WAIT)
            assert message is not None
            assert message.body == "0"

        (warning,) = drop(receive_one)
        assert warning.startswith("unclosed <MessageConsumer consumer ")
        assert wait_for(lambda: held(connection, name) == 0)
        assert taken(connection, name) == [(str(number), False) for number in range(1, 20)]


def test_a_message_can_be_acknowledged_when_its_consumer_and_session_are_dropped(
    make: Callable[[], Connection],
) -> None:
    name = f"acknowledged {time.monotonic()}"
    with make() as connection:
        fill(connection, name, 2)
        session = connection.create_session(AcknowledgeMode.CLIENT)
        message = session.create_consumer(session.create_queue(name)).receive(WAIT)
        assert message is not None
        del session
        gc.collect()
        message.acknowledge()
        del message
        gc.collect()
        assert wait_for(lambda: held(connection, name) == 0)
        assert taken(connection, name) == [("1", False)]


def test_a_dropped_session_gives_back_what_it_received(make: Callable[[], Connection]) -> None:
    name = f"session {time.monotonic()}"
    with make() as connection:
        fill(connection, name, 3)

        def receive_one() -> None:
            session = connection.create_session(AcknowledgeMode.TRANSACTED)
            assert session.create_consumer(session.create_queue(name)).receive(WAIT) is not None

        drop(receive_one, "unclosed <MessageConsumer", "unclosed <Session")
        assert wait_for(lambda: held(connection, name) == 0)
        assert sorted(taken(connection, name)) == [("0", True), ("1", False), ("2", False)]


def test_a_dropped_connection_gives_back_everything(make: Callable[[], Connection]) -> None:
    name = f"connection {time.monotonic()}"
    with make() as watcher:
        fill(watcher, name, 3)

        def receive_one() -> None:
            session = make().create_session(AcknowledgeMode.CLIENT)
            assert session.create_consumer(session.create_queue(name)).receive(WAIT) is not None

        drop(receive_one, "unclosed <MessageConsumer", "unclosed <Session", "unclosed <Connection")
        assert wait_for(lambda: held(watcher, name) == 0)
        assert sorted(body for body, _ in taken(watcher, name)) == ["0", "1", "2"]


@pytest.mark.parametrize("had_a_thread", [False, True], ids=["no thread", "had a thread"])
def test_a_session_that_is_dropped_with_its_consumer_gives_back_what_it_holds_without_the_collector(
    make: Callable[[], Connection], had_a_thread: bool
) -> None:
    name = f"both {time.monotonic()}"
    with make() as watcher:
        fill(watcher, name, 4)
        connection = make()
        session = connection.create_session(AcknowledgeMode.CLIENT)
        if had_a_thread:
            completed = threading.Event()
            producer = session.create_producer(session.create_queue("other"))
            producer.send("x", on_completion=lambda _message, _error: completed.set())
            assert completed.wait(WAIT)
            state = session._state
            assert wait_for(lambda: state.thread is None)
            del producer
        consumer = session.create_consumer(session.create_queue(name))
        assert [consumer.receive(WAIT) is not None for _ in range(2)] == [True, True]
        gc.disable()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                del consumer, session
                assert wait_for(lambda: held(watcher, name) == 0)
        finally:
            gc.enable()
        assert sorted(taken(watcher, name)) == [("0", True), ("1", True), ("2", False), ("3", False)]
        connection.close()


def test_a_connection_that_is_dropped_with_its_session_is_closed_without_the_collector(
    make: Callable[[], Connection],
) -> None:
    name = f"all {time.monotonic()}"
    with make() as watcher:
        fill(watcher, name, 4)
        before = watcher.statistics().clients
        connection = make()
        session = connection.create_session(AcknowledgeMode.CLIENT)
        consumer = session.create_consumer(session.create_queue(name))
        message = consumer.receive(WAIT)
        assert message is not None
        message.acknowledge()
        assert consumer.receive(WAIT) is not None
        assert watcher.statistics().clients == before + 1
        gc.disable()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                del consumer, session, connection, message
                assert wait_for(lambda: watcher.statistics().clients == before)
        finally:
            gc.enable()


class Worker:
    """Objects of an application that refer to each other, so that the garbage collector finds them all at once."""

    def __init__(self, connection: Connection, name: str, mode: AcknowledgeMode) -> None:
        self.connection = connection
        self.session = connection.create_session(mode)
        self.consumer = self.session.create_consumer(self.session.create_queue(name))
        self.itself = self


@pytest.mark.parametrize("mode", [AcknowledgeMode.CLIENT, AcknowledgeMode.TRANSACTED])
@pytest.mark.parametrize("what", ["session", "connection"])
def test_what_was_never_delivered_is_not_marked_when_all_is_dropped_together(
    make: Callable[[], Connection], what: str, mode: AcknowledgeMode
) -> None:
    """All weak references are gone before the first finalizer runs, and that of the connection comes first."""
    name = f"together {time.monotonic()}"
    with make() as watcher:
        fill(watcher, name, 4)

        def receive_one() -> None:
            worker = Worker(make() if what == "connection" else watcher, name, mode)
            assert worker.consumer.receive(WAIT) is not None

        drop(receive_one, f"unclosed <{what.title()}")  # the others are being closed with it, or warn as well
        assert wait_for(lambda: held(watcher, name) == 0)
        assert sorted(taken(watcher, name)) == [("0", True), *((str(number), False) for number in range(1, 4))]


def test_what_comes_for_a_consumer_that_waits_to_be_closed_is_given_back(make: Callable[[], Connection]) -> None:
    name = f"waits {time.monotonic()}"
    with make() as watcher, make() as connection, connection.create_session() as session:
        closing, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            closing.set()
            assert go_on.wait(WAIT)

        dropped(object(), wait, connection._transport, warns=False)
        assert closing.wait(WAIT)

        def receive() -> None:
            consumer = session.create_consumer(session.create_queue(name), prefetch=20)
            assert consumer.receive(0) is None
            holder: list[Any] = [consumer]
            holder.append(holder)

        drop(receive, "unclosed <MessageConsumer")
        fill(watcher, name, 20)
        assert wait_for(lambda: held(watcher, name) == 21)
        go_on.set()
        assert wait_for(lambda: held(watcher, name) == 0)
        assert taken(watcher, name) == [(str(number), False) for number in range(20)]


def test_a_session_that_is_dropped_is_closed_though_it_had_a_thread(make: Callable[[], Connection]) -> None:
    name = f"thread {time.monotonic()}"
    with make() as watcher:
        fill(watcher, name, 3)

        def use(mode: AcknowledgeMode, *, listens: bool = False, sends: bool = False) -> None:
            session = make().create_session(mode)
            consumer = session.create_consumer(session.create_queue(name))
            if listens:
                consumer.listener = lambda _message: None
                consumer.close()
            else:
                assert consumer.receive(WAIT) is not None
            if sends:  # in a transaction that is not committed
                session.create_producer(session.create_queue("elsewhere")).send("x", on_completion=lambda *_: None)

        def use_all() -> None:
            use(AcknowledgeMode.DUPS_OK)
            use(AcknowledgeMode.TRANSACTED, sends=True)
            use(AcknowledgeMode.AUTO, listens=True)

        before = set(threading.enumerate())
        drop(use_all, "TRANSACTED", "DUPS_OK", "AUTO", *["unclosed <Connection"] * 3)
        assert wait_for(lambda: held(watcher, name) == 0)
        assert wait_for(lambda: not [each for each in set(threading.enumerate()) - before if "session" in each.name])


def test_a_listener_whose_connection_has_failed_keeps_no_thread(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        factory = ConnectionFactory(f"{server.url}?failover=nofailover")

        def listen() -> None:
            session = started(factory.create_connection()).create_session()
            session.create_consumer(session.create_queue("q")).listener = lambda _message: None

        before = set(threading.enumerate())
        listen()
        mine = [each for each in set(threading.enumerate()) - before if "session" in each.name]
        assert mine
        server.kill()
        for thread in mine:
            thread.join(WAIT)
            assert not thread.is_alive()


def test_a_broker_that_hangs_does_not_hold_up_what_is_dropped_at_another_one(
    server: ServerProcess, tmp_path: Path
) -> None:
    name = f"healthy {time.monotonic()}"
    with ServerProcess(tmp_path / "data") as hanging, ConnectionFactory(server.url).create_connection() as watcher:
        stuck, well = (started(ConnectionFactory(each.url).create_connection()) for each in (hanging, server))
        sessions = stuck.create_session(), well.create_session()
        consumers = [each.create_consumer(each.create_queue(name)) for each in sessions]
        assert wait_for(lambda: [each.consumers for each in watcher.statistics().queues if each.name == name] == [1])
        closed = threading.Event()
        os.kill(hanging.pid, signal.SIGSTOP)
        try:
            drop(consumers.clear)
            dropped(object(), closed.set, stuck._transport, warns=False)
            assert wait_for(
                lambda: [each.consumers for each in watcher.statistics().queues if each.name == name] == [0]
            )
            assert not closed.is_set()  # that one waits still
        finally:
            os.kill(hanging.pid, signal.SIGCONT)
        well.close()
        stuck.close()


def test_what_is_dropped_is_closed_though_the_process_gets_no_thread() -> None:
    with ConnectionFactory("embedded:").create_connection() as connection:
        closed = threading.Event()
        with no_new_threads():
            dropped(object(), closed.set, connection._transport, warns=False)
            assert closed.wait(WAIT)
        again = threading.Event()
        dropped(object(), again.set, connection._transport, warns=False)
        assert again.wait(WAIT)


def test_an_iterator_that_is_left_is_ended_elsewhere_and_its_browser_is_forgotten(
    make: Callable[[], Connection],
) -> None:
    name = f"browsed {time.monotonic()}"
    with make() as connection, connection.create_session() as session:
        fill(connection, name, 100)
        browser = session.create_browser(session.create_queue(name))
        ended_by: list[str] = []
        end = QueueBrowser._end

        def noted(*arguments: Any) -> None:
            ended_by.append(threading.current_thread().name)
            end(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QueueBrowser, "_end", noted)
            iterator = iter(browser)
            next(iterator)
            holder: list[Any] = [iterator]
            holder.append(holder)
            del holder, iterator
            gc.collect()
            assert wait_for(lambda: ended_by == ["holdfast-dropped-closer"])
            looks = browser._enumerations
            assert wait_for(lambda: not looks)
        del browser
        gc.collect()
        assert wait_for(lambda: not session._links.browsers._references)


def test_a_consumer_with_a_listener_goes_on_without_references_to_it(make: Callable[[], Connection]) -> None:
    name = f"listener {time.monotonic()}"
    with make() as connection:
        heard: list[str] = []

        def listen() -> None:
            session = connection.create_session()
            session.create_consumer(session.create_queue(name)).listener = lambda message: heard.append(message.body)

        assert drop(listen) == []
        fill(connection, name, 5)
        assert wait_for(lambda: heard == ["0", "1", "2", "3", "4"])


@pytest.mark.parametrize("make", ["embedded", "failover"], indirect=True)  # which is over AMQP
def test_a_producer_that_is_dropped_leaves_no_link_and_no_warning(make: Callable[[], Connection]) -> None:
    name = f"producer {time.monotonic()}"
    with make() as connection, connection.create_session() as session:
        orders = session.create_queue(name)

        def send() -> None:
            for number in range(1100):  # a connection has 1,024 links
                session.create_producer(orders).send(str(number))
                if not number % 100:
                    assert wait_for(lambda: len(session._links.producers._references) < 100)

        assert drop(send) == []
        assert wait_for(lambda: not session._links.producers._references)
        found: list[tuple[str, bool]] = []
        assert wait_for(lambda: found.extend(taken(connection, name)) or len(found) >= 1100)
        assert sorted(found) == sorted((str(number), False) for number in range(1100))


def test_what_is_closed_is_dropped_without_a_word(make: Callable[[], Connection]) -> None:
    def use() -> None:
        with make() as connection, connection.create_session() as session:
            session.create_consumer(session.create_queue("q"))

    assert [each for each in drop(use) if "MessageConsumer" not in each] == []


def test_a_context_that_is_dropped_is_closed(server: ServerProcess) -> None:
    name = f"context {time.monotonic()}"
    factory = ConnectionFactory(server.url)
    with factory.create_connection() as watcher:
        watcher.start()
        fill(watcher, name, 2)

        def receive_one() -> None:
            context: JMSContext = factory.create_context()
            assert context.create_consumer(context.create_queue(name)).receive(WAIT) is not None

        drop(receive_one, "unclosed <MessageConsumer", "unclosed <Session", "unclosed <Connection")
        assert wait_for(lambda: held(watcher, name) == 0)
        assert [body for body, _ in taken(watcher, name)] == ["1"]


def test_a_finalizer_neither_waits_nor_closes_what_another_process_has() -> None:
    started, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    with ConnectionFactory("embedded:").create_connection() as connection:

        def close() -> None:
            started.set()
            assert go_on.wait(WAIT)
            closed.set()

        dropped(object(), close, connection._transport, warns=False)
        assert started.wait(WAIT)
        assert not closed.is_set()
        go_on.set()
        assert closed.wait(WAIT)
        child = os.fork()
        if not child:  # it has no thread that closes, and must not warn of its parent's connections
            try:
                warnings.simplefilter("error")
                dropped(object(), lambda: None, connection._transport)
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_a_table_keeps_nothing() -> None:
    class Thing:
        pass

    table: WeakTable[Thing] = WeakTable()
    one, other = Thing(), Thing()
    table[1], table[2] = one, other
    assert (table.values(), 1 in table, table.get(3)) == ([one, other], True, None)
    gone = weakref.ref(other)
    del other
    assert gone() is None
    assert (table.values(), 2 in table, table.pop(2), table.pop(2)) == ([one], False, True, False)
    table.clear()
    assert table.values() == []


def test_an_embedded_connection_that_failed_and_is_dropped_gives_the_store_back(tmp_path: Path) -> None:
    factory = ConnectionFactory(f"embedded:{tmp_path / 'data'}")

    def fail() -> None:
        connection: Any = factory.create_connection()
        connection._transport._broker._fail(StoreException("the disk is broken"), (), None)
        assert wait_for(lambda: not connection._lifecycle.usable)

    assert [each.split(" ")[:2] for each in drop(fail)] == [["unclosed", "<Connection"]]

    def is_free() -> bool:
        try:
            factory.create_connection().close()
        except StoreException:
            return False  # it is being closed, in another thread
        return True

    assert wait_for(is_free)
