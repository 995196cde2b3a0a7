"""Full queues and messages whose time is over: the same answers over every transport, and the same places."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.destination import queue
from broker_adapter.errors import JMSException, TransactionRolledBackException
from tests.contracts.calls import TEMPORARY, Answers, blocked_sends, depth
from tests.contracts.conftest import MakeEngine
from tests.contracts.transports import WAIT, Client, Receiver, eventually, message

Q = queue("q")
EXPIRES = "expiry_queue=late"


def _soon(milliseconds: int) -> int:
    return time.time_ns() // 1_000_000 + milliseconds


def _set_aside(client: Client, *bodies: Any) -> None:
    """Exactly these are in the expiry queue, and are counted; none is a dead letter."""
    eventually(lambda: depth(client, "late") == len(bodies))
    assert client.bodies("late") == list(bodies)
    assert client.transport.request("statistics", {}, WAIT)["expired"] == len(bodies)
    assert client.bodies("DLQ") == []


#: How long messages live that are to expire while a consumer has them, in milliseconds: longer, where the machine is so
#: busy that the one before expired on its way there.
LIVES_MS = (200, 1_000, 5_000, 25_000)


def _expired_in_hand(client: Client, receiver: Receiver) -> int:
    """Have a message expire in the hands of a receiver; returns how many were sent for that."""
    for sent, life_ms in enumerate(LIVES_MS, 1):
        client.send("q", "late", expires_at_ms=_soon(life_ms))
        eventually(lambda sent=sent: receiver.deliveries or depth(client, "late") == sent)
        if receiver.deliveries:
            time.sleep(life_ms / 1000 + 0.1)
            return sent
    raise AssertionError("the messages expired on their way")


# Room.


def test_what_a_transaction_takes_from_a_queue_is_room_for_what_it_puts_there(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=2&blocked_send_timeout_seconds=0.1").open()
    client.send("q", "a", "b")
    receiver = client.receiver(Q, 2)
    taken = [Settlement(each.tag, Outcome.ACCEPTED) for each in receiver.wait_for(2)]
    link = client.sender(Q)
    client.transport.commit(1, 1, [(link, message(Q, "c")), (link, message(Q, "d"))], taken, WAIT)
    assert client.bodies("q") == ["c", "d"]


def test_a_commit_that_takes_less_than_it_puts_is_rolled_back_at_once(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=2&blocked_send_timeout_seconds=0.1").open()
    client.send("q", "a", "b")
    receiver = client.receiver(Q, 1)
    taken = [Settlement(each.tag, Outcome.ACCEPTED) for each in receiver.wait_for(1)]
    link = client.sender(Q)
    with pytest.raises(TransactionRolledBackException, match=r"max_queue_messages.*does not wait for room"):
        client.transport.commit(1, 1, [(link, message(Q, "c")), (link, message(Q, "d"))], taken, WAIT)
    client.transport.end_session(1, WAIT)
    assert client.bodies("q") == ["a", "b"]


def test_a_commit_that_would_overtake_a_blocked_send_of_its_connection_is_refused(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=2").open()
    client.send("q", "a", "b")
    receiver = client.receiver(Q, 2)
    taken = receiver.wait_for(2)
    link = client.sender(Q)
    answers: list[Any] = []
    client.transport.send(link, message(Q, "c"), answers.append, WAIT)
    eventually(lambda: blocked_sends(client, "q") == 1)
    # It takes one and puts one there, so there would be room for it, and not for the send.
    settlements = [Settlement(taken[0].tag, Outcome.ACCEPTED)]
    with pytest.raises(TransactionRolledBackException, match="max_queue_messages"):
        client.transport.commit(1, 1, [(link, message(Q, "d"))], settlements, WAIT)
    client.settle(taken[1:])
    eventually(lambda: answers == [None])
    assert sorted(client.bodies("q")) == ["a", "c"]


def test_a_send_to_a_temporary_queue_by_its_name_waits_as_one_to_the_queue_and_ends_with_it(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine("max_queue_messages=1&blocked_send_timeout_seconds=60")
    owner, other = engine.open(), engine.open()
    temporary = owner.transport.declare_temporary(TEMPORARY, WAIT)
    named = queue(temporary.name)
    other.send(named.name, "first")
    answers = Answers()
    other.transport.send(other.sender(named), message(named, "second"), answers, WAIT)
    eventually(lambda: blocked_sends(owner, temporary.name) == 1)
    owner.transport.delete_temporary(temporary, WAIT)
    assert isinstance(answers.wait_for(1)[0], JMSException)


def test_sends_that_wait_are_taken_one_by_one_as_there_is_room(make_engine: MakeEngine) -> None:
    client = make_engine("max_queue_messages=1").open()
    client.send("q", "a")
    link = client.sender(Q)
    answers: list[Any] = []
    for body in "bcd":
        client.transport.send(link, message(Q, body), answers.append, WAIT)
    eventually(lambda: blocked_sends(client, "q") >= 1)
    for body in "abcd":
        receiver = client.receiver(Q, 1)
        assert [each.envelope.body for each in receiver.wait_for(1)] == [body]
        client.settle(receiver.deliveries)
        client.transport.detach(receiver.link, WAIT)
    eventually(lambda: answers == [None] * 3)


# Expiry.


@pytest.mark.parametrize("committed", [False, True], ids=["sent", "committed"])
def test_what_has_expired_on_arrival_is_set_aside(make_engine: MakeEngine, committed: bool) -> None:
    client = make_engine(EXPIRES).open()
    link = client.sender(Q)
    late = message(Q, "late", expires_at_ms=_soon(-1000))
    if committed:
        client.transport.commit(1, 1, [(link, late), (link, message(Q, "in time"))], [], WAIT)
    else:
        client.transport.send(link, late, None, WAIT)
        client.transport.send(link, message(Q, "in time"), None, WAIT)
    _set_aside(client, "late")
    assert client.bodies("q") == ["in time"]


def test_what_expires_while_its_sender_is_held_back_is_set_aside(make_engine: MakeEngine) -> None:
    client = make_engine(f"{EXPIRES}&max_queue_messages=1").open()
    client.send("q", "first")
    link = client.sender(Q)
    answers: list[Any] = []
    client.transport.send(link, message(Q, "late", expires_at_ms=_soon(50)), answers.append, WAIT)
    eventually(lambda: blocked_sends(client, "q") == 1)
    time.sleep(0.1)
    client.settle(client.receiver(Q, 1).wait_for(1))
    _set_aside(client, "late")
    assert answers == [None]


@pytest.mark.parametrize("outcome", [Outcome.MODIFIED, Outcome.RELEASED, Outcome.REJECTED, Outcome.FAILED])
def test_what_expires_in_hand_and_comes_back_is_set_aside(make_engine: MakeEngine, outcome: Outcome) -> None:
    client = make_engine(f"{EXPIRES}&max_deliveries=1").open()
    receiver = client.receiver(Q, 1)
    sent = _expired_in_hand(client, receiver)
    client.settle(receiver.deliveries, outcome)
    _set_aside(client, *["late"] * sent)
    assert client.bodies("q") == []


def test_what_expires_in_the_hands_of_a_client_that_goes_is_set_aside(make_engine: MakeEngine) -> None:
    engine = make_engine(f"{EXPIRES}&max_deliveries=1")
    client, other = engine.open(), engine.open()
    sent = _expired_in_hand(client, other.receiver(Q, 1))
    other.close()
    _set_aside(client, *["late"] * sent)
