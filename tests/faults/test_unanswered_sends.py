"""Sends that had no answer when the connection was lost arrive once."""

from __future__ import annotations

import time

import pytest

from sdk import Connection, DeliveryMode, JMSException
from tests.faults.conftest import Connect
from tests.faults.losses import in_background, stored_in
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("lost", ["the message", "its answer"])
def test_a_synchronous_send_in_flight_arrives_once(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, lost: str
) -> None:
    client = connect()
    with client.connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        producer.send("first")
        proxy.hold(Direction.TO_SERVER if lost == "the message" else Direction.TO_CLIENT)
        thread, results = in_background(lambda: producer.send("second"))
        if lost == "its answer":
            assert wait_for(lambda: stored_in(direct, name) == 2)
        else:
            time.sleep(0.1)
        proxy.leave_half_open()
        proxy.hold()
        thread.join(WAIT)
        assert results == [None]
        producer.send("third")
    assert stored_in(direct, name) == 3


@pytest.mark.parametrize("mode", DeliveryMode, ids=lambda mode: mode.name)
def test_asynchronous_sends_arrive_once_in_their_order_over_many_cuts(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, mode: DeliveryMode
) -> None:
    client = connect("&send_window_messages=50")
    answers: list[tuple[str, JMSException | None]] = []
    count = 2000
    with client.connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(count):
            producer.send(
                str(number),
                delivery_mode=mode,
                on_completion=lambda message, error: answers.append((message.body, error)),
            )
            if number % 200 == 100:
                proxy.cut()
    assert wait_for(lambda: len(answers) == count)
    assert answers == [(str(number), None) for number in range(count)], "in order, none failed"
    with direct.create_session() as elsewhere:
        consumer = elsewhere.create_consumer(elsewhere.create_queue(name))
        found = []
        while len(found) < count and (message := consumer.receive(WAIT)) is not None:
            found.append(message.body)
        assert consumer.receive(0.3) is None
    assert found == [str(number) for number in range(count)]
