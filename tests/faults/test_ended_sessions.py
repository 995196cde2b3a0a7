"""Commits whose session, or link to the transaction coordinator, the server ends while the connection lives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.server.links.coordinator import Coordinator
from sdk import AcknowledgeMode, Connection, ConnectionFactory, Session, TransactionRolledBackException
from tests.broker_adapter.server.served import Served
from tests.faults.scenarios import WAIT

GONE = AmqpError("amqp:internal-error", "ended by the server")
FAST = "reconnect_delay_seconds=0.01&stable_seconds=0"


def end_session(coordinator: Coordinator, link: int) -> None:
    peer: Any = coordinator._peer
    peer.end_session(peer._endpoints.links[link].session.number, GONE)


def end_link(coordinator: Coordinator, link: int) -> None:
    coordinator._peer.close_link(link, GONE)
    coordinator.remove(link)


End = Callable[[Coordinator, int], None]


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.fixture
def connection(served: Served) -> Iterator[Connection]:
    with ConnectionFactory(f"{served.url}?{FAST}").create_connection() as made:
        made.start()
        yield made


def moved(session: Session) -> None:
    """A message is received from one queue and sent to another, in a transaction that is open."""
    source, target = session.create_queue("in"), session.create_queue("out")
    message = session.create_consumer(source).receive(timeout=WAIT)
    assert message is not None
    session.create_producer(target).send(message.body)


def messages(connection: Connection) -> dict[str, int]:
    return {queue.name: queue.messages for queue in connection.statistics().queues}


@pytest.mark.parametrize("end", [end_session, end_link])
@pytest.mark.parametrize("is_done", [True, False], ids=["behind the commit", "ahead of it"])
def test_a_commit_whose_session_or_coordinator_the_server_ends_is_done_or_rolled_back(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, end: End, is_done: bool
) -> None:
    with connection.create_session() as session:
        session.create_producer(session.create_queue("in")).send("x")
    discharge, ended = Coordinator._discharge, []

    def end_at_the_first(coordinator: Coordinator, link: int, *others: Any) -> None:
        if ended:
            discharge(coordinator, link, *others)
            return
        ended.append(link)
        if not is_done:
            end(coordinator, link)
            return
        with monkeypatch.context() as patched:
            patched.setattr(Coordinator, "_on_committed", lambda *_arguments: None)  # the answer is lost
            discharge(coordinator, link, *others)
        coordinator._calls.submit()
        end(coordinator, link)

    monkeypatch.setattr(Coordinator, "_discharge", end_at_the_first)
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        moved(session)
        if is_done:
            session.commit()
        else:
            with pytest.raises(TransactionRolledBackException, match="ended by the server"):
                session.commit()
        assert ended
        session.create_producer(session.create_queue("other")).send("the session goes on")
        session.commit()
    assert messages(connection)["other"] == 1
    assert (messages(connection).get("in", 0), messages(connection).get("out", 0)) == ((0, 1) if is_done else (1, 0))
