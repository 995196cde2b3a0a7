"""``send_all`` where the connection is lost and the server is killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from sdk import Connection, ConnectionFactory, ConnectionLostException, Interrupted, JMSException
from tests.faults.conftest import Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import wait_for
from tests.server_process import ServerProcess


def bodies(connection: Connection, queue: str) -> list[str]:
    with connection.create_session() as session:
        return [message.body for message in session.create_browser(session.create_queue(queue))]


def test_each_message_is_there_once_and_in_order_wherever_the_connection_is_cut(
    proxy: Proxy, direct: Connection, connect: Connect, name: str
) -> None:
    client = connect()
    chance = random.Random(7)

    def cut() -> None:
        for number in range(1, 11):
            time.sleep(chance.random() * 0.05)
            proxy.cut()
            client.wait_for_restore(number)

    cutting = threading.Thread(target=cut)
    sent = 0
    with client.connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        cutting.start()
        while cutting.is_alive():
            producer.send_all([str(number) for number in range(sent, sent + 400)])
            sent += 400
    assert client.count(Interrupted) == 10
    assert bodies(direct, name) == [str(number) for number in range(sent)]


@pytest.mark.crash
def test_all_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with ConnectionFactory(server.url).create_connection() as connection:
            session = connection.create_session()
            session.create_producer(session.create_queue("q")).send_all([str(number) for number in range(3000)])
            server.kill()
        server.start()
        with ConnectionFactory(server.url).create_connection() as connection:
            connection.start()
            assert bodies(connection, "q") == [str(number) for number in range(3000)]


def test_a_session_that_is_closed_by_another_thread_ends_the_wait(proxy: Proxy, connect: Connect, name: str) -> None:
    client = connect()
    session = client.connection.create_session()
    producer = session.create_producer(session.create_queue(name))
    proxy.hold(Direction.TO_CLIENT)
    told: list[JMSException] = []

    def send() -> None:
        try:
            producer.send_all(["a", "b"])
        except JMSException as error:
            told.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    assert wait_for(lambda: producer._sent == 2)
    client.connection.close()
    sending.join(60)
    assert not sending.is_alive()
    assert isinstance(told[0], ConnectionLostException)
    assert "the message may have been sent" in str(told[0])
    proxy.hold()
