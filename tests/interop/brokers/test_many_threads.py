"""Many threads that use connections to ActiveMQ Artemis in every way, undisturbed and while these are cut."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from sdk import (
    Connection,
    ConnectionFactory,
    InvalidDestinationException,
    JMSException,
    TransactionInDoubtException,
)
from tests.faults.proxy import Proxy
from tests.faults.test_many_threads import OPTIONS, Shaken, Shaker
from tests.interop.brokers.brokers import Broker, start_artemis
from tests.interop.conftest import installed
from tests.sdk.test_many_threads import Threads

pytestmark = [pytest.mark.interop, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = installed(lambda: start_artemis(tmp_path_factory.mktemp("artemis")))
    yield broker
    broker.process.stop()


def drain(threads: Threads, connection: Connection) -> None:
    """Receive all that is left, as far as a broker shows that."""
    with connection.create_session() as session:
        for name in threads.queues:
            consumer = session.create_consumer(session.create_queue(name))
            while (message := consumer.receive(3)) is not None:
                threads.note(message)


def test_nothing_is_lost_or_doubled_and_the_connection_stays(artemis: Broker) -> None:
    """Sessions that end with a drain under way must not make the broker break the connection."""
    factory = ConnectionFactory(artemis.url, artemis.username, artemis.password)
    with factory.create_connection() as connection:
        told: list[JMSException] = []
        connection.exception_listener = told.append
        connection.start()
        threads = Threads(factory, connection, 1)
        threads.run(120)
        drain(threads, connection)
        assert told == []
    assert threads.sent == set(threads.ended)
    assert max(threads.ended.values()) == 1


class OverCuts(Shaken):
    """Threads that know what their broker cannot do."""

    acts = 40
    queues = ("cut1", "cut2", "cut3")

    def act(self, chance: random.Random, name: str) -> None:
        # It cannot say what became of a commit, and makes no temporary destination again.
        with contextlib.suppress(TransactionInDoubtException, InvalidDestinationException):
            super().act(chance, name)


def test_nothing_is_lost_and_no_thread_hangs_while_connections_are_cut(artemis: Broker) -> None:
    port = urlsplit(artemis.url).port
    assert port is not None
    with Proxy(port) as proxy:
        factory = ConnectionFactory(
            f"{proxy.url}{OPTIONS}&allow_plain_without_tls=true", artemis.username, artemis.password
        )
        with factory.create_connection() as connection:
            connection.start()
            threads = OverCuts(factory, connection, 2)
            cutter = Shaker(None, proxy, 2)
            cutter.start()
            try:
                threads.run(120)
            finally:
                cutter.stop()
            drain(threads, connection)
    assert threads.sent <= {*threads.ended, *threads.doubtful}
    assert threads.losses > 0
