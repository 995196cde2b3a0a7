"""Transactions with messages that go over the network in parts: all of it is there, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands.effects import StoreBatch
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import StoreException
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    AcknowledgeMode,
    BytesMessage,
    ConnectionFactory,
    TransactionInDoubtException,
    TransactionRolledBackException,
)

WAIT = 60.0
KIB = 1024
MIB = 1024 * KIB

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server with these settings; returns its URL."""
    started: list[tuple[Listener, Broker]] = []

    def start(**settings: int) -> str:
        broker = Broker(EngineSettings(), tmp_path / "data")
        listener = Listener(broker, "127.0.0.1", 0, ServerSettings(**settings), lambda: ServerLogin(None, plain=True))
        started.append((listener, broker))
        return f"amqp://127.0.0.1:{listener.start()[1]}"

    yield start
    for listener, broker in started:
        listener.stop()
        broker.close()


def received(url: str, name: str, count: int) -> list[int]:
    """The sizes of what is in a queue."""
    sizes = []
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        consumer = session.create_consumer(session.create_queue(name))
        while (message := consumer.receive(timeout=WAIT if len(sizes) < count else 0.1)) is not None:
            sizes.append(message.body_length if isinstance(message, BytesMessage) else len(message.get_body(str)))
    return sizes


@pytest.mark.parametrize("options", ["", "?max_frame_bytes=4096", "?envelope=false"])
@pytest.mark.parametrize(
    ("count", "size"), [(1, 130_950), (10, 200_000), (3, MIB), (1, 4 * MIB), (2, 15 * MIB), (300, 130 * KIB)]
)
def test_what_a_transaction_sends_is_there_whatever_its_size(serve: Serve, count: int, size: int, options: str) -> None:
    url = serve()
    with (
        ConnectionFactory(url + options).create_connection() as connection,
        connection.create_session(AcknowledgeMode.TRANSACTED) as session,
    ):
        producer = session.create_producer(session.create_queue("q"))
        for _ in range(count):
            producer.send(bytes(size))
        session.commit()
        producer.send(b"the next transaction")
        session.commit()
    assert received(url, "q", count + 1) == [size] * count + [20]


def test_small_and_large_messages_of_several_producers_are_committed_together(serve: Serve) -> None:
    url = serve()
    with (
        ConnectionFactory(url).create_connection() as connection,
        connection.create_session(AcknowledgeMode.TRANSACTED) as session,
    ):
        producers = [session.create_producer(session.create_queue(name)) for name in ("one", "two", "three")]
        for size in (10, 3 * MIB, 20, 500 * KIB, 30):
            for producer in producers:
                producer.send(bytes(size))
        session.commit()
    for name in ("one", "two", "three"):
        assert received(url, name, 5) == [10, 3 * MIB, 20, 500 * KIB, 30]


def test_a_large_answer_and_what_it_answers_are_one_step(serve: Serve) -> None:
    url = serve()
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
            session.create_producer(session.create_queue("in")).send(b"question")
            session.commit()
            consumer = session.create_consumer(session.create_queue("in"))
            producer = session.create_producer(session.create_queue("out"))
            assert consumer.receive(timeout=WAIT) is not None
            producer.send(bytes(4 * MIB))
            session.rollback()
            assert consumer.receive(timeout=WAIT) is not None
            producer.send(bytes(5 * MIB))
            session.commit()
    assert received(url, "in", 0) == []
    assert received(url, "out", 1) == [5 * MIB]


@pytest.mark.parametrize(("count", "size"), [(1, 9 * MIB), (6, 2 * MIB), (100, 100 * KIB)])
def test_a_transaction_beyond_the_limit_of_a_connection_says_so_and_leaves_nothing(
    serve: Serve, count: int, size: int
) -> None:
    url = serve(max_connection_bytes=8 * MIB)
    with (
        ConnectionFactory(url).create_connection() as connection,
        connection.create_session(AcknowledgeMode.TRANSACTED) as session,
    ):
        producer = session.create_producer(session.create_queue("q"))
        for _ in range(count):
            producer.send(bytes(size))
        with pytest.raises(TransactionRolledBackException, match="option max_connection_bytes"):
            session.commit()
    assert received(url, "q", 0) == []


def test_a_message_beyond_the_limit_rolls_its_transaction_back_and_the_session_goes_on(serve: Serve) -> None:
    url = serve()
    with (
        ConnectionFactory(url).create_connection() as connection,
        connection.create_session(AcknowledgeMode.TRANSACTED) as session,
    ):
        producer = session.create_producer(session.create_queue("q"))
        producer.send(b"small")
        producer.send(bytes(16 * MIB + 1))
        with pytest.raises(TransactionRolledBackException, match="limit"):
            session.commit()
        producer.send(b"after")
        session.commit()
    assert received(url, "q", 1) == [5]


def test_a_commit_at_which_the_store_fails_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails as the transaction is written: it may be there or not."""
    written = LmdbStore.commit

    def fail_then(store: LmdbStore, batch: StoreBatch) -> None:
        written(store, batch)
        if batch.messages:
            raise StoreException("the store failed: Input/output error")

    with ConnectionFactory(f"embedded:{tmp_path / 'data'}").create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        session.create_producer(session.create_queue("q")).send("of the transaction")
        monkeypatch.setattr(LmdbStore, "commit", fail_then)
        with pytest.raises(TransactionInDoubtException, match="Input/output error"):
            session.commit()
        monkeypatch.undo()
    assert received(f"embedded:{tmp_path / 'data'}", "q", 1) == [len("of the transaction")]


def test_a_commit_at_which_the_store_of_the_server_fails_is_in_doubt(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: LmdbStore, batch: StoreBatch) -> None:
        raise StoreException("the store failed: Input/output error")

    with ConnectionFactory(serve() + "?failover=nofailover").create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        session.create_producer(session.create_queue("q")).send("of the transaction")
        monkeypatch.setattr(LmdbStore, "commit", fail)
        with pytest.raises(TransactionInDoubtException):
            session.commit()
        monkeypatch.undo()
