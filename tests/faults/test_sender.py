"""Senders, where the server is killed and started again, and the connection is cut."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_adapter import queue
from sdk import Connection, ConnectionFactory, IllegalStateException, JMSException
from tests.faults.conftest import Connect
from tests.faults.proxy import Proxy
from tests.faults.scenarios import WAIT, wait_for
from tests.server_process import ServerProcess

THREADS, EACH = 100, 30


def read(connection: Connection, name: str) -> dict[int, list[int]]:
    """The numbers of each thread, as they are in the queue."""
    seen: dict[int, list[int]] = defaultdict(list)
    with connection.create_session() as session:
        for message in session.create_browser(queue(name)):
            thread, number = map(int, str(message).split())
            seen[thread].append(number)
    return seen


@pytest.mark.crash
def test_each_message_is_there_once_and_in_the_order_of_its_thread_over_a_kill(tmp_path: Path) -> None:
    half = threading.Semaphore(0)
    with ServerProcess(tmp_path / "data") as server, ConnectionFactory(server.url).create_connection() as connection:
        orders = connection.create_sender(queue("q"))

        def send(thread: int) -> None:
            for number in range(EACH):
                orders.send(f"{thread} {number}")
                half.release()

        with ThreadPoolExecutor(THREADS) as threads:
            sends = [threads.submit(send, thread) for thread in range(THREADS)]
            for _ in range(THREADS * EACH // 2):
                assert half.acquire(timeout=WAIT)
            server.kill()
            server.start()
            for each in sends:
                each.result()
        assert read(connection, "q") == {thread: list(range(EACH)) for thread in range(THREADS)}


def test_an_exception_listener_that_sends_is_refused_while_all_sessions_wait_for_the_network(
    proxy: Proxy, connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdk.sender.MOST_SESSIONS", 1)
    client = connect("send_timeout_seconds=60")
    orders = client.connection.create_sender(queue(name))
    orders.send("0 0")
    refused: list[JMSException] = []
    sending = threading.Thread(target=lambda: orders.send("0 1"))

    def listener(_error: JMSException) -> None:
        sending.start()
        (state,) = [session._state for session, _ in orders._shared.members]
        wait_for(lambda: state.calling)
        try:
            orders.send("0 2")
        except JMSException as error:
            refused.append(error)

    client.connection.exception_listener = listener
    proxy.refuse()
    proxy.cut()
    assert wait_for(lambda: refused)
    assert isinstance(refused[0], IllegalStateException)
    assert "would wait for the network" in str(refused[0])
    proxy.refuse(False)
    sending.join(60)
    assert read(client.connection, name) == {0: [0, 1]}
