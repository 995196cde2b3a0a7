"""A client's requests to our own server, against a scripted broker."""

from __future__ import annotations

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.requests import MAX_REQUESTS
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import Dispositions, Transfers
from broker_adapter.amqp.management import ManagementAnswer
from broker_adapter.amqp.wire import MANAGEMENT_ADDRESS
from broker_adapter.errors import (
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    MessageFormatException,
    ResourceAllocationException,
)
from broker_adapter.transport import Delivery
from tests.broker_adapter.amqp.client.conversations import MESSAGE, receiver
from tests.broker_adapter.amqp.client.manager import Manager
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired


def test_requests_are_answered_by_number(wired: Wired) -> None:
    wired.broker.accepts = False
    manager = Manager(wired)
    first, second = Result(), Result()
    wired.client.request("one", {"a": 1}, first)
    wired.client.request("two", {}, second)
    wired.pump()

    assert [(each.operation, each.arguments) for each in manager.requests()] == [("one", {"a": 1}), ("two", {})]
    manager.answer(ManagementAnswer(2, ("InvalidDestinationException", "no such queue", "amqp:not-found"), None))
    manager.answer(ManagementAnswer(1, None, {"depth": 3}))
    manager.answer(ManagementAnswer(77, None, None))
    assert first.value == {"depth": 3}
    with pytest.raises(InvalidDestinationException, match="no such queue"):
        _ = second.value


def test_a_request_comes_after_what_was_settled_before_it(wired: Wired) -> None:
    """proton writes transfers ahead of dispositions where both are to be written."""
    wired.broker.accepts = False
    Manager(wired)
    wired.client.request("first", {}, Result())  # attaches the links
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 3)
    wired.pump()
    far = wired.broker.by_address["q"]
    for _ in range(3):
        wired.broker.peer.send(far, MESSAGE)
    wired.pump()
    before = len(wired.broker.log)
    for number, delivery in enumerate(got):
        wired.client.settle([Settlement(delivery.tag, Outcome.ACCEPTED)])
        wired.client.request(str(number), {}, Result())
    wired.pump()

    happened = [event for event in wired.broker.log[before:] if isinstance(event, Dispositions | Transfers)]
    assert [type(event) for event in happened] == [Dispositions, Transfers] * 3


def test_requests_need_our_own_server() -> None:
    wired = Wired(ScriptedBroker(holdfast=False)).opened()

    with pytest.raises(JMSException, match="needs a Holdfast server, and this broker is 'other'"):
        wired.ask(wired.client.request, "one", {})


def test_requests_go_on_for_longer_than_the_credit_for_answers_lasts(wired: Wired) -> None:
    manager = Manager(wired)
    for number in range(1, 3 * MAX_REQUESTS):
        asked = Result()
        wired.client.request("one", {}, asked)
        wired.pump()
        manager.answer(ManagementAnswer(number, None, number))
        assert asked.value == number


def test_requests_that_wait_have_a_limit(wired: Wired) -> None:
    wired.broker.accepts = False
    waiting = [Result() for _ in range(MAX_REQUESTS)]
    for each in waiting:
        wired.client.request("x", {}, each)
    with pytest.raises(ResourceAllocationException, match="that is the limit"):
        wired.ask(wired.client.request, "x", {})
    assert all(each.pending for each in waiting)


def test_a_lost_management_link_fails_the_requests_that_wait(wired: Wired) -> None:
    wired.broker.refusals[MANAGEMENT_ADDRESS] = AmqpError("amqp:unauthorized-access", "not for you")

    with pytest.raises(JMSSecurityException, match="not for you"):
        wired.ask(wired.client.request, "x", {})


def test_a_request_that_cannot_be_packed_is_refused_at_once(wired: Wired) -> None:
    wired.broker.accepts = False
    manager = Manager(wired)
    result = Result()
    wired.client.request("one", {"odd": object()}, result)
    wired.pump()
    with pytest.raises(MessageFormatException):
        _ = result.value
    assert manager.requests() == []


def test_a_request_above_the_limit_of_the_broker_fails_alone(wired: Wired) -> None:
    wired.broker.accepts = False
    wired.broker.max_message_bytes = 1000
    manager = Manager(wired)
    small, large, last = Result(), Result(), Result()
    wired.client.request("one", {}, small)
    wired.client.request("two", {"value": "x" * 1000}, large)
    wired.client.request("three", {}, last)
    wired.pump()
    with pytest.raises(MessageFormatException, match=r"request of 10\d\d bytes is larger than the limit of 1000"):
        _ = large.value
    assert [each.operation for each in manager.requests()] == ["one", "three"]
    assert small.pending
    assert last.pending


def test_an_answer_that_cannot_be_decoded_ends_the_connection_and_what_waits_with_it(wired: Wired) -> None:
    wired.broker.accepts = False
    manager = Manager(wired)
    result = Result()
    wired.client.request("one", {}, result)
    wired.pump()
    assert len(manager.requests()) == 1
    manager.send(b"garbage")
    with pytest.raises(JMSException, match="the broker's answer cannot be decoded"):
        _ = result.value
