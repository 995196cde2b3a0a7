"""Commits over connections that are lost, against scripted brokers behind real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.errors import JMSException, TransactionInDoubtException, TransactionRolledBackException
from broker_adapter.transport import Interrupted
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.restored import WAIT, MakeClient, message, url_of
from tests.faults.scenarios import wait_for


def test_a_commit_in_flight_is_in_doubt_where_the_broker_cannot_tell(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    discharged = threading.Event()

    class Forgetful(ScriptedBroker):
        def _coordinate(self, link: int, delivery: Any) -> None:
            if len(delivery.payload) < 12:
                super()._coordinate(link, delivery)  # a declare; a discharge has no answer
            else:
                discharged.set()

    server = servers(lambda: Forgetful(holdfast=False))
    made = client(url_of(server))
    made.open()
    link = made.sender()
    results: list[JMSException] = []

    def commit() -> None:
        try:
            made.transport.commit(1, 1, [(link, message(1))], [], WAIT)
        except JMSException as error:
            results.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    assert discharged.wait(WAIT)
    server.drop_connections()
    thread.join(WAIT)
    assert [type(each) for each in results] == [TransactionInDoubtException]


def test_a_commit_whose_connection_ends_as_its_time_is_over_is_in_doubt(
    servers: Callable[..., BrokerServer], client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was discharged, and perhaps done: whether it could be withdrawn is not known any more."""

    class Silent(ScriptedBroker):
        def _coordinate(self, link: int, delivery: Any) -> None:
            if len(delivery.payload) < 12:
                super()._coordinate(link, delivery)  # a declare; a discharge has no answer

    server = servers(lambda: Silent(holdfast=False))
    made = client(url_of(server))
    made.open()
    link = made.sender()
    ask = AmqpTransport._ask

    def cut_first(transport: AmqpTransport, what: str, *others: Any) -> Any:
        if what == "the end of the commit":
            server.drop_connections()
            assert wait_for(lambda: transport.is_lost)
        return ask(transport, what, *others)

    monkeypatch.setattr(AmqpTransport, "_ask", cut_first)
    with pytest.raises(TransactionInDoubtException):
        made.transport.commit(1, 1, [(link, message(1))], [], 0.5)


def test_a_commit_that_was_never_sent_is_rolled_back(servers: Callable[..., BrokerServer], client: MakeClient) -> None:
    """The network is away for as long as the commit may take: nobody is in doubt."""
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    server.close()
    made.wait_for(Interrupted)
    with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
        made.transport.commit(1, 1, [(link, message(1))], [], 0.2)


def test_a_loss_that_nobody_was_told_of_yet_rolls_back_one_commit(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    results: list[JMSException | None] = []

    def commit() -> None:
        for number in range(3):
            try:
                made.transport.commit(1, number, [(link, message(1))], [], WAIT)
                results.append(None)
            except JMSException as error:
                results.append(error)

    with made.transport._current.telling:
        inner = made.transport._current.last
        assert inner is not None
        server.drop_connections()
        assert wait_for(lambda: inner.is_lost)
        thread = threading.Thread(target=commit)
        thread.start()
        thread.join(0.1)
        assert results == []
    thread.join(WAIT)
    assert [type(each) for each in results] == [TransactionRolledBackException, type(None), type(None)]


def test_a_commit_whose_broker_opens_no_transaction_is_rolled_back(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    class Silent(ScriptedBroker):
        def _coordinate(self, link: int, delivery: Any) -> None:
            """No answer to the declare."""

    made = client(url_of(servers(Silent)))
    made.open()
    link = made.sender()
    with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
        made.transport.commit(1, 1, [(link, message(1))], [], 0.3)


def test_a_commit_through_a_link_that_is_closed_does_nothing(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    made = client(url_of(servers()))
    made.open()
    link = made.sender()
    made.transport.detach(link, WAIT)
    with pytest.raises(TransactionRolledBackException, match=f"link {link} is closed"):
        made.transport.commit(1, 1, [(link, message(1))], [], WAIT)
