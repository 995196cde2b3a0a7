"""A consumer as its application sees it: what it says of itself, and what a loop over it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sdk import Connection, ConnectionFactory, IllegalStateException, Session


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with ConnectionFactory(f"embedded:{tmp_path}").create_connection() as connection:
        connection.start()
        yield connection


@pytest.fixture
def session(connection: Connection) -> Session:
    return connection.create_session()


def test_it_says_where_its_messages_come_from_and_which_it_takes(session: Session) -> None:
    topic = session.create_topic("news")
    with session.create_consumer(topic, "n = 1", no_local=True) as consumer:
        assert (consumer.destination, consumer.selector, consumer.no_local) == (topic, "n = 1", True)
    with pytest.raises(IllegalStateException, match=r"consumer \d+ of session \d+ on 'news' is CLOSED"):
        consumer.receive(0)
    consumer = session.create_consumer(session.create_queue("q"))
    assert (consumer.selector, consumer.no_local) == (None, False)


def test_exclusive_is_for_queues_and_no_local_for_topics(session: Session) -> None:
    with pytest.raises(ValueError, match=r"^exclusive=True is for queues, and 'news' is a topic$"):
        session.create_consumer(session.create_topic("news"), exclusive=True)
    with pytest.raises(ValueError, match=r"^no_local=True is for topics, and 'q' is a queue$"):
        session.create_consumer(session.create_queue("q"), no_local=True)


def test_a_loop_over_a_consumer_gets_messages_until_it_is_closed(session: Session) -> None:
    queue = session.create_queue("q")
    producer = session.create_producer(queue)
    for number in range(5):
        producer.send(str(number))
    consumer = session.create_consumer(queue)
    got = []
    for message in consumer:
        got.append(message.body)
        if len(got) == 4:
            consumer.close()
    assert got == ["0", "1", "2", "3"]
    with pytest.raises(IllegalStateException, match="CLOSED"):
        next(iter(consumer))
    assert next(iter(session.create_consumer(queue))).body == "4"


def test_what_waits_is_received_without_waiting_and_what_is_not_there_is_none(session: Session) -> None:
    queue = session.create_queue("q")
    consumer = session.create_consumer(queue)
    assert consumer.receive_nowait() is None
    session.create_producer(queue).send("x")
    message = consumer.receive_nowait()
    assert message is not None
    assert message.body == "x"


def test_a_stopped_connection_gives_out_nothing(connection: Connection, session: Session) -> None:
    queue = session.create_queue("q")
    session.create_producer(queue).send("x")
    consumer = session.create_consumer(queue)
    connection.stop()
    assert consumer.receive_nowait() is None
    assert consumer.receive(0.01) is None
    connection.start()
    message = consumer.receive(10)
    assert message is not None
    assert message.body == "x"
