"""Sends and requests that are repeated, against scripted brokers behind real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.envelope import Envelope, unpack
from broker_adapter.errors import ConnectionLostException, JMSException, ResourceAllocationException
from broker_adapter.transport import Interrupted, LinkInterrupted, LinkRestored, Restored
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.restored import GONE, WAIT, MakeClient, message, sent_bodies, silent, url_of
from tests.faults.scenarios import wait_for


def test_what_had_no_answer_is_sent_again_in_order_before_anything_new(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers(silent)
    made = client(url_of(server))
    made.open()
    link = made.sender()
    answers: list[tuple[int, JMSException | None]] = []
    for number in range(5):
        made.transport.send(link, message(number), lambda error, number=number: answers.append((number, error)), WAIT)  # type: ignore[misc]
    assert wait_for(lambda: len(server.brokers[0].held) == 5)
    server._make_broker = ScriptedBroker
    server.drop_connections()
    made.transport.send(link, message(5), None, WAIT)
    assert wait_for(lambda: len(answers) == 5)
    assert answers == [(number, None) for number in range(5)]
    again = server.brokers[1].held  # nothing: it accepts
    assert again == []


def test_what_comes_to_a_lost_connection_after_the_next_one_is_there_keeps_its_identity(
    servers: Callable[..., BrokerServer], client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that stands still in the middle of a send for as long as the restore takes.  What its producer sends
    next is ahead of it then; our engine takes identities in any order."""
    server = servers(silent)
    made = client(url_of(server))
    made.open()
    link = made.sender()
    reached, go_on = threading.Event(), threading.Event()
    lost = made.transport._current.last
    assert lost is not None

    def late(_link: int, _envelope: Envelope, on_settled: Any, _timeout: float | None) -> None:
        reached.set()
        go_on.wait(WAIT)
        on_settled(ConnectionLostException("lost"))

    monkeypatch.setattr(lost, "send", late)
    sending = threading.Thread(target=made.transport.send, args=(link, message(1), lambda _error: None, WAIT))
    sending.start()
    assert reached.wait(WAIT)
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    made.transport.send(link, message(2), lambda _error: None, WAIT)
    go_on.set()
    sending.join(WAIT)
    assert wait_for(lambda: len(server.brokers[1].held) == 2)
    found = [unpack(delivery.payload) for _, delivery in server.brokers[1].held]
    assert [each.body for each in found] == ["2", "1"]
    assert [each.identity for each in found] == [message(2).identity, message(1).identity]


@pytest.mark.parametrize("holdfast", [True, False])
def test_what_is_sent_again_is_marked_for_a_broker_that_cannot_tell(
    servers: Callable[..., BrokerServer], client: MakeClient, holdfast: bool
) -> None:
    server = servers(lambda: silent(holdfast=holdfast))
    made = client(url_of(server))
    made.open()
    link = made.sender()
    for number in range(2):
        made.transport.send(link, message(number), lambda _error: None, WAIT)
    assert wait_for(lambda: len(server.brokers[0].held) == 2)
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    made.transport.send(link, message(2), lambda _error: None, WAIT)
    assert wait_for(lambda: len(server.brokers[1].held) == 3)
    mark = None if holdfast else True
    assert sent_bodies(server.brokers[1]) == [("0", mark), ("1", mark), ("2", None)]


def test_what_had_no_answer_on_a_closed_link_is_sent_again_on_the_new_one(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    broker = server.brokers[0]
    broker.accepts = False
    answers: list[JMSException | None] = []
    for number in range(3):
        made.transport.send(link, message(number), answers.append, WAIT)
    assert wait_for(lambda: len(broker.held) == 3)
    broker.accepts = True
    server.run(lambda: broker.peer.close_link(broker.held[0][0], GONE))
    made.wait_for(LinkInterrupted, LinkRestored)
    assert wait_for(lambda: answers == [None] * 3)


def test_a_connection_that_is_lost_again_while_it_sends_again_starts_over(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    """Brokers that hang up at the first message, three times; none of what had no answer is lost or doubled."""

    class HangingUp(ScriptedBroker):
        def _transfers(self, event: Any) -> None:
            self.peer.close(AmqpError("amqp:connection:forced", "no"))

    server = servers(HangingUp)
    made = client(url_of(server))
    made.open()
    link = made.sender()
    answers: list[JMSException | None] = []
    server_brokers = server.brokers

    def make() -> ScriptedBroker:
        return HangingUp() if len(server_brokers) < 3 else ScriptedBroker()

    server._make_broker = make
    for number in range(20):
        made.transport.send(link, message(number), answers.append, WAIT)
    assert wait_for(lambda: len(answers) == 20)
    assert answers == [None] * 20
    assert len(server_brokers) == 4


class Ending(ScriptedBroker):
    """Ends the connection over each link that is asked for, so often in all; with this error, or without a word."""

    def __init__(self, ends: list[AmqpError | None]) -> None:
        super().__init__()
        self._ends = ends

    def _attach(self, event: Any) -> None:
        if not self._ends:
            super()._attach(event)
            return
        self.peer.close(self._ends.pop(0))


TOO_MUCH = AmqpError("amqp:resource-limit-exceeded", "more links than the limit of 3")


def test_a_request_for_which_the_broker_ends_the_connection_twice_fails_with_its_words(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    ends: list[AmqpError | None] = [TOO_MUCH] * 10
    made = client(url_of(servers(lambda: Ending(ends))))
    made.open()
    with pytest.raises(
        ResourceAllocationException, match=r"ended the connection 2 times meanwhile: more links than"
    ) as told:
        made.sender()
    assert told.value.error_code == "amqp:resource-limit-exceeded"
    assert len(ends) == 8
    made.wait_for(Interrupted, Restored, Interrupted, Restored)
    ends.clear()
    made.transport.send(made.sender(), message(1), None, WAIT)


@pytest.mark.parametrize(
    "error", [None, AmqpError("amqp:connection:forced", "an operator stops it")], ids=["no word", "forced"]
)
def test_a_request_is_repeated_as_long_as_the_broker_does_not_say_that_it_is_at_fault(
    servers: Callable[..., BrokerServer], client: MakeClient, error: AmqpError | None
) -> None:
    ends = [error] * 5 + [TOO_MUCH]
    made = client(url_of(servers(lambda: Ending(ends))))
    made.open()
    made.transport.send(made.sender(), message(1), None, WAIT)
    assert ends == []
