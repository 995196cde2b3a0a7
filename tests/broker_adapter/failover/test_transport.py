"""What the calls of a transport do while its connection is lost, against scripted brokers behind real sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteOpen, State
from broker_adapter.destination import DestinationKind
from broker_adapter.errors import (
    ConnectionLostException,
    InvalidDestinationException,
    JMSException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionRolledBackException,
)
from broker_adapter.transport import Interrupted, Restored
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.restored import (
    FAST,
    WAIT,
    MakeClient,
    message,
    refusing,
    sent_bodies,
    silent,
    url_of,
)
from tests.faults.scenarios import wait_for


def test_a_rejection_is_told_and_not_sent_again(servers: Callable[..., BrokerServer], client: MakeClient) -> None:
    server = servers(silent)
    made = client(url_of(server))
    made.open()
    link = made.sender()
    errors: list[JMSException | None] = []
    made.transport.send(link, message(1), errors.append, WAIT)
    broker = server.brokers[0]
    assert wait_for(lambda: len(broker.held) == 1)
    full = State(0x25, error=AmqpError("amqp:resource-limit-exceeded", "full"))
    server.run(lambda: broker.settle(*broker.held[0], full))
    assert wait_for(lambda: len(errors) == 1)
    assert isinstance(errors[0], ResourceAllocationException)


def test_an_operation_that_waits_for_the_network_in_vain_says_why_it_is_away(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    first, second = servers(), servers(refusing(AmqpError("amqp:internal-error", "no room for you")))
    made = client(url_of(first, second))
    made.open()
    link = made.sender()
    first.close()
    assert wait_for(lambda: len(second.brokers) > 1)
    away = "not restored in time; the last error: .*(no room|failed|lost)"
    with pytest.raises(OperationTimedOutException, match=away):
        made.transport.send(link, message(1), None, 0.05)
    with pytest.raises(OperationTimedOutException, match=away):
        made.transport.request("statistics", {}, 0.05)
    with pytest.raises(TransactionRolledBackException, match=away):
        made.transport.commit(1, 1, [(link, message(2))], [], 0.05)


def test_a_send_without_an_answer_in_time_is_not_sent_again(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers(silent)
    made = client(url_of(server))
    made.open()
    link = made.sender()
    with pytest.raises(OperationTimedOutException):
        made.transport.send(link, message(1), None, 0.1)
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    made.transport.send(link, message(2), lambda _error: None, WAIT)
    assert wait_for(lambda: len(server.brokers[1].held) == 1)
    assert sent_bodies(server.brokers[1]) == [("2", None)]


def test_stale_settlements_are_ignored_and_those_without_a_network_refused(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server, options=f"{FAST}&initial_reconnect_delay_seconds=0.3"))
    made.open()
    receiver = made.receiver()
    made.transport.credit(receiver, 1)
    broker = server.brokers[0]
    link = broker.of(LinkRemoteOpen)[0].link
    assert wait_for(lambda: server.run(lambda: broker.peer.remaining_credit(link)) == 1)
    server.run(lambda: broker.peer.send(link, b"\x00\x53\x77\xa1\x05hello"))
    assert wait_for(lambda: len(made.deliveries) == 1)
    settlements = [Settlement(made.deliveries[0].tag, Outcome.ACCEPTED)]
    server.drop_connections()
    made.wait_for(Interrupted)
    with pytest.raises(ConnectionLostException, match="being restored"):
        made.transport.settle(settlements)
    with pytest.raises(ConnectionLostException, match="being restored"):
        made.transport.drain(receiver, WAIT)
    made.transport.credit(receiver, 1)  # nothing to let
    made.wait_for(Interrupted, Restored)
    made.transport.settle(settlements)


@pytest.mark.parametrize("ends", ["detach", "end_session", "close"])
def test_sends_without_an_answer_are_told_when_their_producer_ends_while_the_network_is_away(
    servers: Callable[..., BrokerServer], client: MakeClient, ends: str
) -> None:
    server = servers()
    made = client(url_of(server, options=f"{FAST}&initial_reconnect_delay_seconds=1000"))
    made.open()
    link = made.sender()
    broker = server.brokers[0]
    broker.accepts = False
    answers: list[JMSException | None] = []
    made.transport.send(link, message(1), answers.append, WAIT)
    assert wait_for(lambda: len(broker.held) == 1)
    server.drop_connections()
    made.wait_for(Interrupted)
    if ends == "detach":
        made.transport.detach(link, WAIT)
    elif ends == "end_session":
        made.transport.end_session(1, WAIT)
    else:
        made.transport.close(WAIT)
    assert len(answers) == 1
    assert made.kinds() == ["Interrupted"], "nothing waited for the next attempt"
    assert isinstance(answers[0], JMSException)


def test_a_temporary_destination_may_be_deleted_while_the_network_is_away(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server, options=f"{FAST}&initial_reconnect_delay_seconds=0.2"))
    made.open()
    destination = made.transport.declare_temporary(DestinationKind.TEMPORARY_QUEUE, WAIT)
    server.drop_connections()
    made.wait_for(Interrupted)
    made.transport.delete_temporary(destination, WAIT)
    made.wait_for(Interrupted, Restored)
    assert server.brokers[1].of(LinkRemoteOpen) == []
    with pytest.raises(InvalidDestinationException):
        made.transport.delete_temporary(destination, WAIT)


def test_a_temporary_destination_that_the_broker_did_not_make_again_may_be_deleted(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers(lambda: ScriptedBroker(holdfast=False))
    made = client(url_of(server))
    made.open()
    destination = made.transport.declare_temporary(DestinationKind.TEMPORARY_QUEUE, WAIT)
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    made.transport.delete_temporary(destination, WAIT)
    with pytest.raises(InvalidDestinationException):
        made.transport.delete_temporary(destination, WAIT)
