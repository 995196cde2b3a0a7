"""Requests beyond messaging that are repeated because their answer was lost take effect once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sdk import AcknowledgeMode, Connection, JMSException, ResourceAllocationException, Session
from tests.faults.conftest import Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import wait_for
from tests.server_process import ServerProcess


def send(connection: Connection, queue: str, *bodies: str) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue(queue))
        for body in bodies:
            producer.send(body)


def waiting(connection: Connection, queue: str) -> int:
    return sum(each.messages for each in connection.statistics().queues if each.name == queue)


def bodies(session: Session, queue: str) -> list[Any]:
    return [message.body for message in session.create_browser(session.create_queue(queue))]


def test_a_purge_whose_answer_is_lost_leaves_what_came_after_it(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    client = connect()
    send(direct, "purged", "a", "b", "c")
    client.connection.statistics()  # the links are there
    proxy.hold(Direction.TO_CLIENT)
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(client.connection.request("purge", {"destination": "purged"}, 60))
    )
    asking.start()
    assert wait_for(lambda: waiting(direct, "purged") == 0)
    send(direct, "purged", "d", "e")
    proxy.cut()
    proxy.hold()
    asking.join(120)
    assert answers == [3]
    assert client.told, "the connection was lost"
    with direct.create_session() as session:
        assert bodies(session, "purged") == ["d", "e"]


def test_a_redrive_whose_answer_is_lost_moves_no_more_than_it_was_to(
    server: ServerProcess, proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    client = connect()
    send(direct, "failing", *"abcdef")
    failing = connect("max_redeliveries=0", url=server.url)
    with failing.connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue("failing"))
        for _ in range(6):
            assert consumer.receive(timeout=120) is not None
        session.recover()
        assert consumer.receive(timeout=1) is None  # redelivered once too often: rejected
    assert wait_for(lambda: waiting(direct, "DLQ") == 6)
    client.connection.statistics()  # the links are there
    proxy.hold(Direction.TO_CLIENT)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(client.connection.request("redrive", {"limit": 2}, 60)))
    asking.start()
    assert wait_for(lambda: waiting(direct, "failing") == 2)
    proxy.cut()
    proxy.hold()
    asking.join(120)
    assert answers == [{"moved": 2, "left": 0}]
    assert (waiting(direct, "failing"), waiting(direct, "DLQ")) == (2, 4)


def test_what_a_caller_says_about_a_run_reaches_the_engine(server: ServerProcess, connect: Connect) -> None:
    """The name of an argument is not taken by what a repeated request is recognised by."""
    client = connect()
    send(client.connection, "q", "a", "b")
    now = client.connection.request("bounds", {"destination": "q"})
    server.kill()
    server.start()
    send(client.connection, "q", "c")
    again = client.connection.request("bounds", {"destination": "q", "run": now["run"]})
    assert (again["next"], again["kept"]) == (now["next"] + 1, now["next"])


def test_a_link_beyond_the_limit_is_refused_and_interrupts_nothing(connect: Connect) -> None:
    client = connect()
    session = client.connection.create_session()
    queue = session.create_queue("many links")
    producers = []

    def fill() -> None:
        while True:
            producers.append(session.create_producer(queue))

    with pytest.raises(ResourceAllocationException, match="more links than the limit of 1024"):
        fill()
    assert 1000 < len(producers) <= 1024
    producers[0].send("x")
    producers.pop().close()
    count = len(producers)
    with pytest.raises(ResourceAllocationException):
        fill()
    assert len(producers) == count + 1
    producers[-1].send("y")
    assert client.told == []
    assert client.events == []


@pytest.mark.parametrize("size", [300_000, 1_100_000])
def test_a_name_that_fits_into_no_frame_is_an_error_and_interrupts_nothing(connect: Connect, size: int) -> None:
    client = connect()
    session = client.connection.create_session()
    topic = session.create_topic("t")
    with pytest.raises(ValueError, match="longer than the limit of 400 bytes"):
        session.create_shared_durable_consumer(topic, "s" * size)
    with pytest.raises(JMSException, match=r"[Ll]imit|fit into a frame"):
        session.create_consumer(topic, f"name = '{'x' * size}'")
    with pytest.raises(JMSException):
        client.connection.request("o" * size, {})
    assert client.told == []
    assert client.events == []
