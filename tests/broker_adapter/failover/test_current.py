"""Which inner transport is in use, and how calls wait for one: without a network, by a clock that stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
)
from broker_adapter.failover.current import CurrentTransport, SessionCall
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.rules import Abandoned, GiveUp, Reconnect, State
from broker_adapter.urls.url import FailoverURL, parse_url
from tests.broker_adapter.failover.fake_inner import LOST, Failover, FakeInner, our_broker

WAIT = 120.0


def unopened() -> CurrentTransport:
    url = parse_url("amqp://h:1")
    assert isinstance(url, FailoverURL)
    return CurrentTransport(Reconnect(url.addresses, url.failover, lambda: 0.5), lambda: 0.0)


def inner_of(failover: Failover) -> Inner:
    return cast(Inner, failover.inner)


def closed() -> CurrentTransport:
    current = Failover().current
    with current.lock:
        current.close()
    return current


def failed() -> CurrentTransport:
    current = Failover("&failover=nofailover").current
    with current.lock:
        action = current.connection_lost(LOST, 1000.0)
        assert isinstance(action, GiveUp)
        current.fail(action.error)
    return current


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (unopened, IllegalStateException, "is not open yet"),
        (closed, IllegalStateException, "is closed"),
        (failed, ConnectionLostException, "the cable was cut"),
    ],
)
def test_what_needs_a_connection_raises_why_there_is_none(
    make: Callable[[], CurrentTransport], error: type[JMSException], reason: str
) -> None:
    current = make()
    for call in (current.usable, current.require_usable, lambda: current.wait_until_connected(None, "it")):
        with pytest.raises(error, match=reason):
            call()


def test_a_connection_is_used_at_once_while_it_is_there() -> None:
    failover = Failover()
    current = failover.current
    assert current.state is State.CONNECTED
    assert current.usable() is current.wait_until_connected(0.0, "it") is inner_of(failover)
    current.require_usable()


def test_a_lost_connection_is_waited_for_until_the_deadline() -> None:
    failover = Failover()
    failover.lose()
    current = failover.current
    current.require_usable()
    with pytest.raises(ConnectionLostException, match="is being restored"):
        current.usable()
    with pytest.raises(OperationTimedOutException, match=r"not restored in time for the send; the last error: .*cut"):
        current.wait_until_connected(failover.now, "the send")
    results: list[Inner] = []
    thread = threading.Thread(target=lambda: results.append(current.wait_until_connected(None, "the send")))
    thread.start()
    failover.connect(FakeInner())
    thread.join(WAIT)
    assert results == [failover.inner]
    assert current.last_error is None


def test_a_loss_is_waited_for_where_a_call_knows_of_it_first() -> None:
    failover = Failover()
    current, inner = failover.current, inner_of(failover)
    with pytest.raises(OperationTimedOutException):
        current.wait_until_lost(inner, failover.now, "the send")
    current.wait_until_loss_is_announced(inner, failover.now)  # without success
    failover.lose()
    current.wait_until_lost(inner, failover.now, "the send")


def test_a_callback_does_not_wait() -> None:
    failover = Failover()
    failover.inner.is_in_callback = True
    with pytest.raises(IllegalStateException, match="cannot call what waits"):
        failover.current.require_usable()
    failover.lose()
    with pytest.raises(IllegalStateException, match="the send cannot wait in a callback"):
        failover.current.wait_until_connected(None, "the send")


def test_a_connection_that_is_lost_as_it_is_restored_is_not_connected() -> None:
    failover = Failover()
    failover.lose()
    current, inner = failover.current, FakeInner()
    failover.begin(inner)
    current.broken = LOST
    assert not current.connect(cast(Inner, inner), our_broker())
    current.begin(cast(Inner, inner))
    inner.is_lost = True
    assert not current.connect(cast(Inner, inner), our_broker())
    assert current.state is State.RECONNECTING
    assert current.connected is None


def test_a_connection_that_was_given_up_is_not_connected_any_more() -> None:
    failover = Failover()
    current = failover.current
    failover.lose()
    current.rules.process(Abandoned(), failover.now)
    inner = cast(Inner, FakeInner())
    current.begin(inner)
    assert not current.connect(inner, our_broker())
    assert not current.is_closed()


def test_a_call_of_a_session_that_ends_meanwhile_does_not_wait_and_those_of_others_do() -> None:
    failover = Failover()
    failover.lose()
    current = failover.current
    ended, other, of_none = SessionCall(1), SessionCall(2), SessionCall(None)
    current.calls.update(dict.fromkeys((ended, other, of_none)))
    with current.lock:
        current.end_session(1)
    with pytest.raises(IllegalStateException, match="the send: the session was closed meanwhile"):
        current.wait_until_connected(None, "the send", ended)
    for call in (other, of_none):
        with pytest.raises(OperationTimedOutException):
            current.wait_until_connected(failover.now, "the send", call)


def test_a_call_of_a_consumer_that_ends_meanwhile_does_not_wait_and_those_of_its_session_do() -> None:
    failover = Failover()
    failover.lose()
    current = failover.current
    ended, other, of_session = SessionCall(1, 5), SessionCall(1, 6), SessionCall(1)
    current.calls.update(dict.fromkeys((ended, other, of_session)))
    with current.lock:
        current.end_consumer(5)
    with pytest.raises(IllegalStateException, match="the acknowledgement: the consumer was closed meanwhile"):
        current.wait_until_connected(None, "the acknowledgement", ended)
    for call in (other, of_session):
        with pytest.raises(OperationTimedOutException):
            current.wait_until_connected(failover.now, "the acknowledgement", call)


def test_the_end_of_a_consumer_ends_the_wait_of_its_call_for_the_broker() -> None:
    current, errors = Failover().current, list[JMSException]()
    call = SessionCall(1, 5)
    call.end_wait, current.calls[call] = errors.append, None
    with current.lock:
        current.end_consumer(5)
    assert [each.reason for each in errors] == ["the acknowledgement: the consumer was closed meanwhile"]
