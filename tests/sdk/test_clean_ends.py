"""After a clean end only what was in the application's hands is redelivered with a mark; what was prefetched is not
marked.

Over each transport, in each mode, with and without a restart of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import AcknowledgeMode, Connection, ConnectionFactory, MessageConsumer, Session

WAIT = 120.0
COUNT = 100
Places = Callable[[], Iterator[str]]

ENDS: dict[str, Callable[[Connection, Session, MessageConsumer], None]] = {
    "consumer": lambda connection, session, consumer: consumer.close(),
    "session": lambda connection, session, consumer: session.close(),
    "connection": lambda connection, session, consumer: connection.close(),
    "stopped connection": lambda connection, session, consumer: (connection.stop(), connection.close())[0],
}


@contextmanager
def serving(kind: str, directory: Path) -> Iterator[str]:
    """A broker over the messages of a directory, until the end of the block; yields its URL."""
    if kind == "in process":
        yield f"embedded:{directory}"
        return
    broker = Broker(EngineSettings(), str(directory))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    try:
        url = f"amqp://127.0.0.1:{port}"
        yield f"failover:({url})" if kind == "failover" else f"{url}?failover=nofailover"
    finally:
        listener.stop()
        broker.close()


def counts(url: str) -> list[int]:
    """The delivery counts of all messages, in order."""
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        consumer = session.create_consumer(session.create_queue("q"))
        messages = [consumer.receive(timeout=WAIT) for _ in range(COUNT)]
        assert [str(message) for message in messages] == [str(number) for number in range(COUNT)]
        return [message.delivery_count for message in messages if message is not None]


@pytest.mark.parametrize(
    ("mode", "selector", "restarted"),
    [  # each pair of two of these
        (AcknowledgeMode.CLIENT, None, False),
        (AcknowledgeMode.CLIENT, "number >= 0", True),
        (AcknowledgeMode.TRANSACTED, None, True),
        (AcknowledgeMode.TRANSACTED, "number >= 0", False),
    ],
    ids=["client", "client, selector, restarted", "transacted, restarted", "transacted, selector"],
)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["in process", "amqp", "failover"])
def test_only_what_was_in_hand_is_marked(
    tmp_path: Path, mode: AcknowledgeMode, kind: str, end: str, selector: str | None, restarted: bool
) -> None:
    def use(url: str) -> None:
        with ConnectionFactory(url).create_connection() as connection:
            connection.start()
            with connection.create_session() as sending:
                producer = sending.create_producer(sending.create_queue("q"))
                for number in range(COUNT):
                    message = sending.create_text_message(str(number))
                    message.properties["number"] = number
                    producer.send(message)
            session = connection.create_session(mode)
            consumer = session.create_consumer(session.create_queue("q"), selector)
            assert [str(consumer.receive(timeout=WAIT)) for _ in range(3)] == ["0", "1", "2"]
            ENDS[end](connection, session, consumer)

    expected = [2] * 3 + [1] * (COUNT - 3)
    if restarted:
        with serving(kind, tmp_path) as url:
            use(url)
        with serving(kind, tmp_path) as url:
            assert counts(url) == expected
    else:
        with serving(kind, tmp_path) as url, ConnectionFactory(url).create_connection():  # keeps the engine open
            use(url)
            assert counts(url) == expected


@pytest.mark.parametrize("kind", ["in process", "amqp", "failover"])
def test_nothing_unseen_is_set_aside_although_no_redelivery_is_allowed(tmp_path: Path, kind: str) -> None:
    with serving(kind, tmp_path) as url, ConnectionFactory(url).create_connection():
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
            producer = session.create_producer(session.create_queue("q"))
            for number in range(COUNT):
                producer.send(str(number))
        joined = f"{url}{'&' if '?' in url else '?'}max_redeliveries=0"
        for number in range(COUNT // 4):
            with ConnectionFactory(joined).create_connection() as connection, connection.create_session() as session:
                connection.start()
                message = session.create_consumer(session.create_queue("q")).receive(timeout=WAIT)
                assert str(message) == str(number)
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
            connection.start()
            assert session.create_consumer(session.create_queue("DLQ")).receive(timeout=0) is None


def test_a_server_that_stops_again_and_again_makes_no_dead_letters_of_messages_never_delivered(tmp_path: Path) -> None:
    with (
        serving("in process", tmp_path) as url,
        ConnectionFactory(url).create_connection() as connection,
        connection.create_session() as session,
    ):
        producer = session.create_producer(session.create_queue("q"))
        for number in range(COUNT):
            producer.send(str(number))
    for _ in range(12):
        with serving("amqp", tmp_path) as url:
            connection = ConnectionFactory(url).create_connection()
            connection.start()
            session = connection.create_session(AcknowledgeMode.CLIENT)
            consumer = session.create_consumer(session.create_queue("q"), prefetch=COUNT)
            assert str(consumer.receive(timeout=WAIT)) == "0"
        connection.close()
    with serving("amqp", tmp_path) as url:
        assert counts(url) == [2] * COUNT, "it is not known which of them were seen"
