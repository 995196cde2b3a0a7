"""A client's sessions against a scripted broker."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    LinkRemoteClose,
    LinkRemoteOpen,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
)
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.transport import LinkLost
from tests.broker_adapter.amqp.client.conversations import attached, foreign, receiver, sender
from tests.broker_adapter.amqp.client.scripted_broker import Result, Wired


def test_a_session_ended_by_the_broker_loses_its_links_and_is_begun_again(wired: Wired) -> None:
    link = sender(wired)
    wired.broker.peer.end_session(attached(wired).session, AmqpError("amqp:resource-limit-exceeded", "too much"))
    wired.pump()

    (lost,) = wired.events
    assert isinstance(lost, LinkLost)
    assert (lost.link, type(lost.error)) == (link, ResourceAllocationException)
    assert sender(wired) != link


def test_sessions_of_the_port_have_sessions_of_their_own(wired: Wired) -> None:
    sender(wired, session=1)
    first = attached(wired).session
    sender(wired, session=2)
    second = attached(wired).session
    sender(wired, session=1)

    assert attached(wired).session == first != second
    wired.ask(wired.client.end_session, 1)
    assert wired.broker.of(SessionRemoteClose)[-1].session == first
    wired.ask(wired.client.end_session, 1)


@pytest.mark.parametrize("attach", [sender, receiver])
def test_a_detach_without_an_answer_is_done_when_the_client_ends_its_session(wired: Wired, attach: Any) -> None:
    """The broker has dropped the session, and answers nothing on it any more."""
    link, other = attach(wired), attach(wired, session=2)
    detached, of_other = Result(), Result()
    wired.client.detach(link, detached)
    wired.client.detach(other, of_other)
    wired.client.end_session(1, Result())

    assert detached.value is None
    assert of_other.pending
    wired.pump()
    assert of_other.value is None
    assert len(detached.calls) == 1


@pytest.mark.parametrize("attach", [sender, receiver])
def test_a_detach_without_an_answer_is_done_when_the_broker_ends_its_session(wired: Wired, attach: Any) -> None:
    link, detached = attach(wired), Result()
    wired.broker.peer.end_session(attached(wired).session, AmqpError("amqp:internal-error", "the session is gone"))
    wired.client.detach(link, detached)
    wired.pump()

    assert detached.value is None
    assert wired.events == []


def test_rabbitmq_4_gets_time_between_the_end_of_a_session_and_the_begin_of_the_next_one() -> None:
    """It may lose a begin that comes on the channel of a session that it has just ended: the attach has no answer."""
    wired = foreign(properties={"product": "RabbitMQ", "version": "4.0.5"})
    sender(wired)
    channel = attached(wired).session
    wired.broker.expect(RemoteOpen, SessionRemoteOpen, SessionRemoteOpen, LinkRemoteOpen)
    wired.ask(wired.client.end_session, 1)
    wired.broker.expect((SessionRemoteClose, lambda event: event.session == channel), LinkRemoteOpen, LinkRemoteClose)
    wired.ask(wired.client.go_round)
    wired.broker.expect((LinkRemoteOpen, lambda event: event.target.address is None), LinkRemoteClose)
