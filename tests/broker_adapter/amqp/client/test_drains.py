"""Drains, and what waits for their answers before it ends, against a scripted broker."""

from __future__ import annotations

from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.events import (
    RELEASED_STATE,
    Dispositions,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    SessionRemoteClose,
)
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.destination import queue, topic
from broker_adapter.envelope import Envelope
from broker_adapter.errors import ConnectionLostException, IllegalStateException
from broker_adapter.transport import Delivery, Subscription
from tests.broker_adapter.amqp.client.conversations import (
    MESSAGE,
    QUEUE,
    RABBITMQ_3,
    attached,
    deliver,
    delivered,
    foreign,
    receiver,
)
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired


def test_drain_ends_with_the_credit(wired: Wired) -> None:
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.ask(wired.client.drain, link)  # there is no credit: nothing to wait for
    wired.client.credit(link, 5)
    wired.ask(wired.client.drain, link)
    with pytest.raises(IllegalStateException):
        wired.ask(wired.client.drain, 12_345)


def test_drain_ends_too_when_the_broker_uses_up_the_credit(wired: Wired) -> None:
    wired.broker.answers_drain = False
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    wired.client.credit(link, 2)
    drained = Result()
    wired.client.drain(link, drained)
    wired.pump()
    assert drained.pending
    deliver(wired, MESSAGE)
    assert drained.pending
    deliver(wired, MESSAGE)

    assert drained.value is True
    assert len(got) == 2


def test_a_drain_behind_new_credit_asks_for_that_as_well(wired: Wired) -> None:
    wired.broker.answers_drain = False
    link = receiver(wired, [].extend)
    drained = [Result(), Result()]
    for each in drained:
        wired.client.credit(link, 2)
        wired.client.drain(link, each)
        wired.pump()
    flows = [(each.credit, each.drain) for each in wired.broker.of(LinkFlow)]
    assert flows[-1] == (4, True)
    deliver(wired, MESSAGE)
    deliver(wired, MESSAGE)
    assert drained[1].pending
    wired.broker.peer.drained(wired.broker.of(LinkFlow)[-1].link)
    wired.pump()

    assert [each.value for each in drained] == [True, True]


def test_a_drain_ends_behind_all_messages_that_come_with_its_end(wired: Wired) -> None:
    wired.broker.answers_drain = False
    got: list[Delivery] = []
    link = receiver(wired, got.extend)
    other = receiver(wired, destination=queue("other"))
    far, far_other = wired.broker.by_address["q"], wired.broker.by_address["other"]
    wired.client.credit(link, 3)
    wired.client.credit(other, 2)
    wired.pump()
    then: list[int] = []

    def drained(_result: Any, _error: Any) -> bool:
        then.append(len(got))
        return True

    wired.client.drain(link, drained)
    wired.pump()
    for each in (far, far_other, far, far_other, far):
        wired.broker.peer.send(each, MESSAGE)
    wired.pump()
    assert then == [3]


def test_an_unreadable_message_gives_no_new_credit_during_a_drain(wired: Wired) -> None:
    wired.broker.answers_drain = False
    link = receiver(wired)
    wired.client.credit(link, 1)
    drained = Result()
    wired.client.drain(link, drained)
    wired.pump()
    deliver(wired, b"no message")
    assert drained.value is True


def test_a_consumer_is_detached_from_another_broker_when_all_it_got_is_settled() -> None:
    wired = foreign()
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    first, second = delivered(wired, link, inbox, 2)
    wired.ask(wired.client.detach, link)
    assert not wired.broker.of(LinkRemoteClose)
    wired.client.settle([first])
    wired.pump()
    assert not wired.broker.of(LinkRemoteClose)
    wired.client.settle([second])
    wired.pump()
    assert [type(event) for event in wired.broker.log[-2:]] == [Dispositions, LinkRemoteClose]


def test_what_still_comes_to_a_consumer_that_leaves_is_released() -> None:
    wired = foreign()
    wired.broker.answers_drain = False
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    (settlement,) = delivered(wired, link, inbox, 1)
    wired.client.credit(link, 1)
    wired.ask(wired.client.detach, link)
    wired.broker.peer.send(wired.broker.links[attached(wired).name], encode_amqp(Envelope(QUEUE)))
    wired.pump()
    assert wired.broker.of(Dispositions)[-1].state == RELEASED_STATE
    assert len(inbox) == 1
    wired.client.settle([settlement])
    wired.pump()
    assert len(wired.broker.of(LinkRemoteClose)) == 1


def test_a_subscription_is_in_use_until_its_consumer_has_left() -> None:
    wired = foreign()
    inbox: list[Delivery] = []
    spec: dict[str, Any] = {"destination": topic("t"), "subscription": Subscription("s", durable=True, shared=False)}
    link = receiver(wired, inbox.extend, **spec)
    settlements = delivered(wired, link, inbox, 1)
    wired.ask(wired.client.detach, link)
    with pytest.raises(IllegalStateException, match="in use"):
        receiver(wired, **spec)
    wired.client.settle(settlements)
    wired.pump()
    (closed,) = wired.broker.of(LinkRemoteClose)
    assert not closed.closed
    receiver(wired, **spec)


def test_the_end_of_a_session_ends_the_consumers_that_are_leaving() -> None:
    wired = foreign()
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    settlements = delivered(wired, link, inbox, 1)
    wired.ask(wired.client.detach, link)
    wired.ask(wired.client.end_session, 1)
    wired.client.settle(settlements)
    wired.pump()
    assert len(wired.broker.of(SessionRemoteClose)) == 1


def draining() -> tuple[Wired, int, int]:
    """A consumer whose drain has no answer yet: the connection, its link here and there."""
    wired = foreign()
    wired.broker.answers_drain = False
    link = receiver(wired)
    wired.client.credit(link, 10)
    wired.client.drain(link, Result())
    wired.pump()
    return wired, link, wired.broker.links[attached(wired).name]


def test_a_consumer_is_detached_from_another_broker_when_its_drain_is_answered() -> None:
    """Artemis answers a drain whose link or session has ended on a channel that there is not."""
    wired, link, far = draining()
    detached = Result()
    wired.client.detach(link, detached)
    wired.pump()
    assert detached.pending
    assert not wired.broker.of(LinkRemoteClose)
    wired.broker.peer.drained(far)
    wired.pump()
    assert detached.value is None
    assert len(wired.broker.of(LinkRemoteClose)) == 1


def test_a_session_is_ended_at_another_broker_when_its_drains_are_answered() -> None:
    wired, link, far = draining()
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    wired.client.end_session(1, ended)
    wired.pump()
    assert detached.value is None, "it goes with its session"
    assert ended.pending
    assert not wired.broker.of(SessionRemoteClose)
    wired.broker.peer.send(far, encode_amqp(Envelope(QUEUE)))
    wired.pump()
    assert wired.broker.of(Dispositions)[-1].state == RELEASED_STATE
    wired.broker.peer.drained(far)
    wired.pump()
    assert ended.value is None
    assert len(wired.broker.of(SessionRemoteClose)) == 1


def test_a_drain_whose_credit_is_used_up_needs_no_answer() -> None:
    wired, _, far = draining()
    ended = Result()
    wired.client.end_session(1, ended)
    for _ in range(10):
        wired.broker.peer.send(far, encode_amqp(Envelope(QUEUE)))
    wired.pump()
    assert ended.value is None


@pytest.mark.parametrize("what", ["link", "session"])
def test_a_drain_of_what_the_broker_closes_itself_is_not_waited_for(what: str) -> None:
    wired, link, far = draining()
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    if what == "link":
        wired.broker.peer.close_link(far)
        wired.pump()
        assert detached.value is None
        wired.client.end_session(1, ended)
    else:
        wired.client.end_session(1, ended)
        wired.broker.peer.end_session(wired.broker.of(LinkRemoteOpen)[0].session)
    wired.pump()
    assert ended.value is None


def test_a_broker_that_does_not_answer_a_drain_is_waited_for_two_seconds() -> None:
    wired, link, _ = draining()
    wired.client.tick(10_000)
    wired.client.drain(link, Result())  # asked again: still since the first time
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    wired.client.end_session(1, ended)
    wired.client.tick(10_001)
    wired.pump()
    assert not ended.pending


def test_a_drain_that_was_asked_for_just_now_is_waited_for_until_two_seconds_have_passed() -> None:
    wired = Wired(ScriptedBroker(holdfast=False))
    wired.client.tick(10_000)  # as a connection does when it is made
    wired.opened()
    wired.broker.answers_drain = False
    link = receiver(wired)
    wired.client.credit(link, 10)
    wired.client.drain(link, Result())
    detached = Result()
    wired.client.detach(link, detached)
    wired.client.tick(11_999)
    wired.pump()
    assert detached.pending
    wired.client.tick(12_000)
    wired.pump()
    assert detached.value is None


def test_calls_that_wait_for_a_drain_fail_when_the_connection_is_lost() -> None:
    wired, link, _ = draining()
    other = receiver(wired, destination=queue("other"))
    wired.client.credit(other, 10)
    wired.client.drain(other, Result())
    detached, ended = Result(), Result()
    wired.client.detach(link, detached)
    wired.client.fail(ConnectionLostException("gone"))
    wired.client.end_session(1, ended)
    assert isinstance(detached.calls[0][1], ConnectionLostException)


def test_rabbitmq_3_is_neither_drained_nor_told_that_a_delivery_was_modified() -> None:
    wired = foreign(properties=RABBITMQ_3)
    inbox: list[Delivery] = []
    link = receiver(wired, inbox.extend)
    (settlement,) = delivered(wired, link, inbox, 1)
    assert wired.ask(wired.client.drain, link) is False
    wired.client.settle([Settlement(settlement.tag, Outcome.MODIFIED)])
    wired.pump()
    assert wired.broker.of(Dispositions)[-1].state == RELEASED_STATE
    assert not any(event.drain for event in wired.broker.of(LinkFlow))
