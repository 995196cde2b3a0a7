"""A browser as its application sees it: what it shows, what it passes over, and how an iteration ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import ENVELOPE_FORMAT
from broker_adapter.in_process import EngineLease
from broker_adapter.urls.url import EmbeddedURL, parse_url
from sdk import (
    Connection,
    ConnectionFactory,
    IllegalStateException,
    JMSException,
    MessageFormatException,
    Session,
)

WAIT = 120.0


@pytest.fixture
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with ConnectionFactory(f"embedded:{tmp_path_factory.mktemp('store')}").create_connection() as connection:
        connection.start()
        yield connection


@pytest.fixture
def session(connection: Connection) -> Session:
    session = connection.create_session()
    producer = session.create_producer(session.create_queue("q"))
    for number in range(3):
        message = session.create_text_message(str(number))
        message.properties["n"] = number
        producer.send(message)
    return session


def bodies(browser: Iterator[object]) -> list[object]:
    return [each.body for each in browser]  # type: ignore[attr-defined]


def test_it_says_what_it_browses_and_starts_at_the_head_each_time(session: Session) -> None:
    queue = session.create_queue("q")
    with session.create_browser(queue, "n > 0") as browser:
        assert (browser.destination, browser.selector) == (queue, "n > 0")
        assert "of 'q'" in repr(browser)
        assert bodies(iter(browser)) == ["1", "2"]
        producer = session.create_producer(queue)
        message = session.create_text_message("3")
        message.properties["n"] = 3
        producer.send(message)
        assert bodies(iter(browser)) == ["1", "2", "3"]
    assert repr(browser).endswith("CLOSED>")
    with pytest.raises(IllegalStateException, match="CLOSED"):
        next(iter(browser))
    assert session.create_browser(queue).selector is None


def test_a_message_that_cannot_be_read_is_told_and_passed_over(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    url = f"embedded:{tmp_path_factory.mktemp('bad')}"
    parsed = parse_url(url)
    assert isinstance(parsed, EmbeddedURL)
    lease = EngineLease(parsed)
    client = lease.broker.call(c.Connect(None), WAIT)
    lease.broker.call(c.Enqueue(client, Destination("q"), [c.NewMessage(ENVELOPE_FORMAT, b"garbage")]), WAIT)
    told: list[JMSException] = []
    heard = threading.Event()

    def hear(error: JMSException) -> None:
        told.append(error)
        heard.set()

    with ConnectionFactory(url).create_connection() as connection:
        connection.exception_listener = hear
        session = connection.create_session()
        queue = session.create_queue("q")
        session.create_producer(queue).send("good")
        assert bodies(iter(session.create_browser(queue))) == ["good"]
        assert heard.wait(WAIT)
    assert isinstance(told[0], MessageFormatException)
    lease.release()
