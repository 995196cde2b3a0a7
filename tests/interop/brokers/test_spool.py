"""Spark's streaming source on brokers that know no positions, with the driver and the broker killed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sdk import AcknowledgeMode, ConnectionFactory
from tests.interop.brokers.brokers import STARTS, Broker
from tests.interop.conftest import installed
from tests.spark_connector.spooled_query import SpooledQuery

pytestmark = [pytest.mark.interop, pytest.mark.timeout(3000)]


def fill(broker: Broker, bodies: Iterable[int]) -> None:
    """Send messages; a failure is an error, so that each of them is at the broker."""
    factory = ConnectionFactory(broker.url, broker.username, broker.password)
    with factory.create_connection() as connection, connection.create_session(AcknowledgeMode.AUTO) as session:
        session.create_producer(session.create_queue("queue-in")).send_all([str(each) for each in bodies])


@pytest.mark.parametrize("name", ["ActiveMQ Artemis", "RabbitMQ 3"])
def test_each_message_is_in_the_sink_once_where_the_driver_and_the_broker_are_killed(name: str, tmp_path: Path) -> None:
    broker = installed(lambda: STARTS[name](tmp_path))
    process = broker.process
    try:
        fill(broker, range(2000))
        login = {"username": broker.username, "password": broker.password}
        options = {"url": broker.url, "queue": "queue-in", "maxMessagesPerTrigger": 300, **login}
        query = SpooledQuery(tmp_path, options)

        def kill_the_broker() -> None:
            nonlocal process
            process.stop()
            process = process.started_again()
            fill(broker, range(2000, 3000))

        query.killed(kill_the_broker)
        query.killed(lambda: fill(broker, range(3000, 4000)))
        assert sorted(map(int, query.finished())) == list(range(4000))
    finally:
        process.stop()
