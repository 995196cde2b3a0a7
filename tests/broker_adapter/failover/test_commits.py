"""Commits over connections that are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.errors import (
    JMSException,
    OperationTimedOutException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.transport import Interrupted, Peer
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.fake_inner import LOST, Failover, FakeInner, our_broker
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
    """The network is away for as long as the commit may take: it is not in doubt."""
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    server.close()
    made.wait_for(Interrupted)
    with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
        made.transport.commit(1, 1, [(link, message(1))], [], 0.2)


def test_a_loss_that_was_not_reported_yet_rolls_back_one_commit(
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

    with made.transport._current.events_lock:
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


# Without a network, by a clock that stands still.


DOUBT = TransactionInDoubtException("the connection was lost in the middle")


def commit_that_is_lost(
    failover: Failover, error: JMSException, *, then: FakeInner | None = None, peer: Peer | None = None
) -> None:
    """A commit in the middle of which the connection is lost, and perhaps restored."""
    link = failover.sender()

    def lose() -> None:
        failover.lose()
        if then is not None:
            failover.connect(then, peer)

    failover.inner.before["commit"] = lose
    failover.inner.raises["commit"] = [error]
    failover.commits.commit(7, 3, [(link.number, message(1))], [], 0.0)


def test_a_commit_has_the_numbers_of_its_links_in_the_inner_transport() -> None:
    failover = Failover()
    first, second = failover.sender(), failover.sender()
    failover.commits.commit(7, 1, [(second.number, message(1)), (first.number, message(2))], [], 5.0)
    failover.lose()
    failover.inner = FakeInner()
    failover.inner._next_link = 11
    failover.connect(failover.inner)
    failover.commits.commit(7, 2, [(second.number, message(1)), (first.number, message(2))], [], 5.0)
    assert failover.inner.calls[-1] == ("commit", 7, 2, [12, 11])


def test_a_commit_that_the_broker_did_is_done() -> None:
    failover, then = Failover(), FakeInner()
    failover.now += 1
    commit_that_is_lost(failover, DOUBT, then=then)
    assert then.calls[-1] == ("resolve_commit", 7, 3, 0.0)


def test_a_commit_that_the_broker_did_not_do_is_rolled_back() -> None:
    then = FakeInner()
    then.resolves = False
    with pytest.raises(TransactionRolledBackException, match="lost before it was done"):
        commit_that_is_lost(Failover(), DOUBT, then=then)


def test_a_commit_is_resolved_by_the_next_connection_where_this_one_is_lost_again() -> None:
    failover, second, third = Failover(), FakeInner(), FakeInner()

    def lose_again() -> None:
        failover.lose()
        failover.connect(third)

    second.before["resolve_commit"] = lose_again
    second.raises["resolve_commit"] = [LOST]
    commit_that_is_lost(failover, DOUBT, then=second)
    assert third.calls[-1][0] == "resolve_commit"


@pytest.mark.parametrize("resolves", [None, JMSException("no such operation")])
def test_a_commit_that_the_broker_cannot_tell_of_is_in_doubt(resolves: JMSException | None) -> None:
    then = FakeInner()
    then.resolves = None
    then.raises["resolve_commit"] = [resolves]
    with pytest.raises(TransactionInDoubtException, match=r"in the middle; (the broker does not remember|no such)"):
        commit_that_is_lost(Failover(), DOUBT, then=then)


def test_a_commit_is_in_doubt_at_another_store_or_where_there_is_none() -> None:
    with pytest.raises(TransactionInDoubtException, match="has another store"):
        commit_that_is_lost(Failover(), DOUBT, then=FakeInner(), peer=our_broker("another"))
    with pytest.raises(TransactionInDoubtException) as told:
        commit_that_is_lost(Failover(peer=our_broker(None)), DOUBT)
    assert told.value is DOUBT


def test_a_commit_is_in_doubt_where_the_connection_is_not_restored_in_time() -> None:
    with pytest.raises(
        TransactionInDoubtException,
        match="the connection was not restored in time for asking the broker whether it was committed",
    ):
        commit_that_is_lost(Failover(), DOUBT)


def test_a_commit_that_was_not_sent_before_the_loss_is_rolled_back() -> None:
    with pytest.raises(TransactionRolledBackException, match="the connection was lost before: the cable was cut"):
        commit_that_is_lost(Failover(), LOST)


@pytest.mark.parametrize(
    "error", [OperationTimedOutException("late"), DOUBT, TransactionRolledBackException("a limit"), JMSException("no")]
)
def test_what_a_commit_raises_while_the_connection_is_there_is_raised(error: JMSException) -> None:
    failover = Failover()
    failover.inner.raises["commit"] = [error]
    with pytest.raises(type(error)) as told:
        failover.commits.commit(7, 3, [], [], 5.0)
    assert told.value is error


def test_a_commit_whose_link_is_not_attached_in_time_is_rolled_back() -> None:
    failover = Failover()
    link = failover.sender()
    with failover.current.lock:
        failover.links.detach(link)
        failover.links.interrupt(link, JMSException("busy"))
    with pytest.raises(TransactionRolledBackException, match=r"its link was not attached again in time.*busy"):
        failover.commits.commit(7, 3, [(link.number, message(1))], [], 0.0)


def test_the_deliveries_of_a_commit_have_failed_where_its_producer_is_closed() -> None:
    failover = Failover()
    settlements = [Settlement(DeliveryTag(0, 1, 1), Outcome.ACCEPTED)]
    with pytest.raises(TransactionRolledBackException, match="link 99 is closed"):
        failover.commits.commit(7, 3, [(99, message(1))], settlements, 5.0)
    assert failover.inner.calls[-1] == ("settle", [Settlement(DeliveryTag(0, 1, 1), Outcome.MODIFIED)])
