"""SIGKILL of the server at random moments: what was confirmed is there, once and in order."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from sdk import AcknowledgeMode, ConnectionFactory, JMSException, Message
from tests.server_process import ServerProcess

pytestmark = pytest.mark.crash

KILLS = 20
BODY = "x" * 500


class Sender:
    """Sends numbers, asynchronously, until the server is gone."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.confirmed: set[int] = set()
        self.enough = threading.Event()
        self._wanted = 0

    def confirmed_or_not(self, message: Message, error: JMSException | None = None) -> None:
        if error is None:
            self.confirmed.add(int(message.body.split()[0]))
            if len(self.confirmed) >= self._wanted:
                self.enough.set()

    def send_until_cut(self, url: str, wanted: int) -> None:
        self._wanted = wanted
        try:
            with (
                ConnectionFactory(
                    url + "?failover=nofailover&close_timeout_seconds=1"
                ).create_connection() as connection,
                connection.create_session() as session,
            ):
                producer = session.create_producer(session.create_queue("numbers"))
                while True:
                    number = self.next
                    self.next += 1
                    producer.send(f"{number} {BODY}", on_completion=self.confirmed_or_not)
        except JMSException:
            return


def test_every_confirmed_message_survives_once_and_in_order(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    confirmed: set[int] = set()
    sent = 0
    with ServerProcess(tmp_path / "data") as server:
        for _ in range(KILLS):
            sender = Sender(sent)
            thread = threading.Thread(target=sender.send_until_cut, args=(server.url, chance.randrange(1, 3000)))
            thread.start()
            assert sender.enough.wait(120), "the server confirms nothing"
            threading.Event().wait(chance.random() * 0.02)
            server.kill()
            thread.join(120)
            assert not thread.is_alive()
            sent = sender.next
            confirmed |= sender.confirmed
            server.start()
        found = []
        with (
            ConnectionFactory(server.url).create_connection() as connection,
            connection.create_session(AcknowledgeMode.DUPS_OK) as session,
        ):
            connection.start()
            consumer = session.create_consumer(session.create_queue("numbers"))
            while (message := consumer.receive_nowait()) is not None:
                found.append(int(message.body.split()[0]))
                assert not message.redelivered
    assert len(confirmed) >= KILLS
    assert found == sorted(set(found)), f"seed {seed}: doubled or out of order"
    assert confirmed <= set(found), f"seed {seed}: lost {sorted(confirmed - set(found))[:10]}"
    assert set(found) <= set(range(sent)), f"seed {seed}: never sent"


def test_what_a_transaction_took_and_sent_happens_together_or_not_at_all(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    total = 3000
    with ServerProcess(tmp_path / "data") as server:
        with ConnectionFactory(server.url).create_connection() as connection, connection.create_session() as session:
            producer = session.create_producer(session.create_queue("in"))
            for number in range(total):
                producer.send(str(number), on_completion=_ignore)

        def move(moved: threading.Event) -> None:
            try:
                with (
                    ConnectionFactory(
                        server.url + "?failover=nofailover&close_timeout_seconds=1"
                    ).create_connection() as connection,
                    connection.create_session(AcknowledgeMode.TRANSACTED) as session,
                ):
                    connection.start()
                    consumer = session.create_consumer(session.create_queue("in"))
                    producer = session.create_producer(session.create_queue("out"))
                    while True:
                        for _ in range(10):
                            message = consumer.receive(timeout=120)
                            if message is None:
                                session.commit()
                                return
                            producer.send(message.body)
                        session.commit()
                        moved.set()
            except JMSException:
                return

        for _ in range(5):
            moved = threading.Event()
            thread = threading.Thread(target=move, args=(moved,))
            thread.start()
            assert moved.wait(120)
            threading.Event().wait(chance.random() * 0.05)
            server.kill()
            thread.join(120)
            assert not thread.is_alive()
            server.start()
        left = _take_all(server.url, "in")
        done = _take_all(server.url, "out")
    assert sorted(left + done) == list(range(total)), f"seed {seed}"
    assert done == sorted(done)


def _ignore(_message: Message, _error: JMSException | None = None) -> None:
    pass


def _take_all(url: str, name: str) -> list[int]:
    with (
        ConnectionFactory(url).create_connection() as connection,
        connection.create_session(AcknowledgeMode.DUPS_OK) as session,
    ):
        connection.start()
        consumer = session.create_consumer(session.create_queue(name))
        found = []
        while (message := consumer.receive_nowait()) is not None:
            found.append(int(message.body))
        return found
