"""Queues seen from a test: filling them, reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sdk import AcknowledgeMode, Connection, ConnectionFactory, ConnectionLostException, Message


def fill(url: str, name: str, bodies: Iterable[Any], **arguments: Any) -> None:
    """Send messages, in one transaction a thousand."""
    with (
        ConnectionFactory(url).create_connection() as connection,
        connection.create_session(AcknowledgeMode.TRANSACTED) as session,
    ):
        producer = session.create_producer(session.create_queue(name))
        for number, body in enumerate(bodies):
            producer.send(body, **arguments)
            if number % 1000 == 999:
                session.commit()
        session.commit()


def browse(url: str, name: str) -> list[Message]:
    """What waits in a queue."""
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        return list(session.create_browser(session.create_queue(name)))


def staged(url: str) -> list[tuple[str, int]]:
    """(name, messages) of what is staged and not published."""
    with ConnectionFactory(url).create_connection() as connection:
        return [(each.name, each.messages) for each in connection.statistics().queues if each.kind == "staged"]


def texts(url: str, name: str) -> list[str]:
    """The bodies of what waits in a queue."""
    return [message.body for message in browse(url, name)]


def away_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Have the next connection fail as if the broker were away; what is returned is used up then."""
    create, away = ConnectionFactory.create_connection, iter([True])

    def fail_once(factory: ConnectionFactory) -> Connection:
        if next(away, False):
            raise ConnectionLostException("the broker is away")
        return create(factory)

    monkeypatch.setattr(ConnectionFactory, "create_connection", fail_once)
    return away
