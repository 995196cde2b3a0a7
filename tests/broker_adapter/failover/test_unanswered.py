"""Sends and requests that are repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope, unpack
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    ResourceAllocationException,
)
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.links import Link
from broker_adapter.failover.unanswered import RESENT_PROPERTY, repeated
from broker_adapter.transport import Interrupted, LinkInterrupted, LinkLost, LinkRestored, Peer, Restored, SenderSpec
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.fake_inner import LOST, Connection, Failover, FakeInner
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


class Poisoned(ScriptedBroker):
    """Accepts messages, and ends the connection for one of them."""

    def _transfers(self, event: Any) -> None:
        for delivery in event.deliveries:
            if unpack(delivery.payload).body == "poison":
                self.peer.close(AmqpError("amqp:internal-error", "I do not like it"))
                return
        super()._transfers(event)


def test_a_message_that_the_broker_ends_the_connection_for_is_not_sent_a_third_time(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers(Poisoned)
    made = client(url_of(server))
    made.open()
    link = made.sender()
    with pytest.raises(
        JMSException, match=r"ended its connection or link 2 times meanwhile: .*I do not like it"
    ) as raised:
        made.transport.send(
            link, Envelope(queue("q"), BodyKind.TEXT, "poison", identity=message(0).identity), None, WAIT
        )
    assert raised.value.error_code == "amqp:internal-error"
    made.transport.send(link, message(1), None, WAIT)
    assert len(server.brokers) == 3


def test_of_several_messages_without_an_answer_the_oldest_is_suspected(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers(Poisoned)
    made = client(url_of(server))
    made.open()
    link = made.sender()
    answers: list[tuple[str, JMSException | None]] = []

    def send(body: str) -> None:
        envelope = Envelope(queue("q"), BodyKind.TEXT, body, identity=message(len(body)).identity)
        made.transport.send(link, envelope, lambda error: answers.append((body, error)), WAIT)

    for body in ("poison", "behind it", "behind that one"):
        send(body)
    assert wait_for(lambda: len(answers) == 3)
    assert [(body, error is None) for body, error in answers] == [
        ("poison", False),
        ("behind it", True),
        ("behind that one", True),
    ]
    assert len(server.brokers) <= 5


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


# Without a network, and by one thread.


Answers = list[tuple[int, JMSException | None]]  #: the number of each message, and the answer to it


def bodies(inner: FakeInner) -> list[tuple[int, Any, Any]]:
    """(link, body, mark of a message that is sent again) of all that was sent."""
    return [(link, envelope.body, (envelope.properties or {}).get(RESENT_PROPERTY)) for link, envelope, _ in inner.sent]


def lose_with_its_sends(failover: Failover, order: list[int]) -> None:
    """The connection is lost, and its sends fail in this order."""
    failover.lose()
    for index in order:
        failover.inner.sent[index][2](LOST)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_sends_are_repeated_in_their_first_order_however_they_fail(order: list[int]) -> None:
    failover, answers = Failover(), Answers()
    first, second = failover.sender(), failover.sender()
    for number, link in enumerate((first, second, first)):
        failover.send(link, number, answers)
    lose_with_its_sends(failover, order)
    failover.connect(FakeInner())
    assert bodies(failover.inner) == [(1, "0", None), (2, "1", None), (1, "2", None)]
    for _, _, on_settled in failover.inner.sent:
        on_settled(None)
    assert answers == [(0, None), (1, None), (2, None)]


def test_a_send_is_marked_for_a_broker_that_cannot_tell_whether_it_has_it() -> None:
    failover, answers = Failover(peer=Peer("Another", "1", "client", is_holdfast=False)), Answers()
    failover.send(failover.sender(), 1, answers)
    lose_with_its_sends(failover, [0])
    failover.connect(FakeInner())
    assert bodies(failover.inner) == [(1, "1", True)]
    assert answers == []


def test_a_send_that_is_refused_or_not_waited_for_any_more_is_not_repeated() -> None:
    failover, answers = Failover(), Answers()
    link = failover.sender()
    refusal = JMSException("the queue is full")
    failover.send(link, 1, answers)(refusal)
    send = failover.send(link, 2, answers)
    kept = failover.send(link, 3, answers)
    send.abandoned = True
    failover.lose()
    send(LOST)
    kept(LOST)
    kept.abandoned = True
    failover.connect(FakeInner())
    assert failover.inner.sent == []
    assert answers == [(1, refusal), (2, LOST)]


def test_a_send_of_a_closed_link_is_not_repeated() -> None:
    failover, answers = Failover(), Answers()
    link, other = failover.sender(), failover.sender()
    sends = [failover.send(link, 1, answers), failover.send(other, 2, answers), failover.send(link, 3, answers)]
    lose_with_its_sends(failover, [0, 1])
    with failover.current.lock:
        failover.links.remove([link])
        assert failover.unanswered.take_of([link]) == [sends[0]]
    sends[2](LOST)
    assert answers == [(3, LOST)]
    failover.connect(FakeInner())
    assert bodies(failover.inner) == [(1, "2", None)]


def test_a_link_that_is_closed_while_its_sends_are_repeated_takes_no_more_of_them() -> None:
    failover, answers = Failover(), Answers()
    link = failover.sender()
    failover.send(link, 1, answers)
    failover.send(link, 2, answers)
    lose_with_its_sends(failover, [0, 1])
    then = FakeInner()

    def close() -> None:
        with failover.current.lock:
            failover.links.remove([link])

    then.before["send"] = close
    failover.connect(then)
    assert bodies(then) == [(1, "1", None)]
    ((number, error),) = answers
    assert number == 2
    assert isinstance(error, IllegalStateException)


def test_what_is_not_sent_is_given_back_once_as_the_connection_ends() -> None:
    failover, answers = Failover(), Answers()
    send = failover.send(failover.sender(), 1, answers)
    lose_with_its_sends(failover, [0])
    with failover.current.lock:
        assert failover.unanswered.take_all() == [send]
        assert failover.unanswered.take_all() == []
        failover.current.close()
    send(LOST)
    assert answers == [(1, LOST)]


def test_sends_that_are_lost_again_as_the_connection_ends_are_told_of_it() -> None:
    failover, answers = Failover(), Answers()
    link = failover.sender()
    for number in (1, 2, 3):
        failover.send(link, number, answers)
    lose_with_its_sends(failover, [0, 1, 2])
    then = FakeInner()

    def end() -> None:
        with failover.current.lock:
            link.attachment = None
            failover.current.close()
            unsent = failover.unanswered.take_all()
        for send in unsent:
            send.on_settled(LOST)

    then.before["send"] = end
    failover.begin(then)
    failover.reattacher.restore(cast(Inner, then))
    then.sent[0][2](LOST)
    assert sorted(number for number, _ in answers) == [1, 2, 3]
    assert all(isinstance(error, ConnectionLostException) for _, error in answers)


def test_without_failover_no_send_is_repeated() -> None:
    failover, answers = Failover("&failover=nofailover"), Answers()
    failover.send(failover.sender(), 1, answers)
    failover.inner.is_lost = True
    failover.inner.sent[0][2](LOST)
    assert answers == [(1, LOST)]


def test_sends_that_are_lost_as_they_are_repeated_are_repeated_by_the_next_connection() -> None:
    failover, answers = Failover(), Answers()
    link = failover.sender()
    failover.send(link, 1, answers)
    failover.send(link, 2, answers)
    lose_with_its_sends(failover, [0, 1])
    second, third = FakeInner(), FakeInner()

    def lose() -> None:
        second.is_lost = True

    second.before["send"] = lose
    second.raises["send"] = [LOST, LOST]
    with pytest.raises(ConnectionLostException, match="lost again"):
        failover.connect(second)
    failover.connect(third)
    assert bodies(third) == [(1, "1", None), (1, "2", None)]


def test_the_answer_of_a_lost_connection_that_comes_late_is_sent_by_the_next_one_at_once() -> None:
    failover, answers = Failover(), Answers()
    send = failover.send(failover.sender(), 1, answers)
    failover.lose()
    failover.connect(FakeInner())
    send(LOST)
    assert bodies(failover.inner) == [(1, "1", None)]
    failover.inner.sent[0][2](None)
    assert answers == [(1, None)]


def test_a_request_is_repeated_over_the_next_connection() -> None:
    failover, then = Failover(), FakeInner()

    def act(inner: Inner, left: float) -> str:
        if inner is not failover.inner or inner.is_lost:
            raise AssertionError
        if cast(Any, inner) is not then:
            failover.lose()
            failover.connect(then)
            raise LOST
        return f"done, with {left} s left"

    assert repeated(failover.current, "it", 5.0, act) == "done, with 5.0 s left"


def test_a_request_that_fails_while_the_connection_is_there_is_not_repeated() -> None:
    failover = Failover()
    failover.inner.raises["confirm"] = [JMSException("no")]
    with pytest.raises(JMSException, match="no"):
        repeated(failover.current, "it", 5.0, lambda inner, left: inner.confirm(left))
    assert failover.inner.calls == [("confirm",)]


def test_a_send_that_fails_as_the_connection_is_restored_is_repeated_by_it() -> None:
    """Its answer comes behind the last check of what is to be sent again, and ahead of the restored event."""
    connection = Connection().open()
    link = connection.sender()
    answers: list[JMSException | None] = []
    connection.transport.send(link, message(1), answers.append, None)
    lost = connection.inner
    ((_, _, answer),) = lost.sent
    restored = FakeInner()
    connection.next.append(restored)
    resend = connection.transport._unanswered.resend_restored

    def late(inner: Inner) -> None:
        resend(inner)
        answer(LOST)

    connection.transport._unanswered.resend_restored = late  # type: ignore[method-assign]
    connection.cut_and_restore()
    assert [envelope.body for _, envelope, _ in restored.sent] == ["1"]
    restored.sent[0][2](None)
    assert answers == [None]


@pytest.mark.parametrize("what", ["connection", "link"])
def test_a_late_send_waits_for_its_place_without_keeping_events_from_being_told(what: str) -> None:
    """The thread that makes places in the window tells of events as well."""
    connection = Connection("", FakeInner(), FakeInner()).open()
    link, first = connection.sender(), connection.inner
    connection.transport.attach(SenderSpec(1, queue("other")), None, WAIT)
    answers: list[JMSException | None] = []
    connection.transport.send(link, message(1), answers.append, WAIT)
    late = first.sent[-1][2]
    waits, told = threading.Event(), threading.Event()

    def place() -> None:
        waits.set()
        assert told.wait(WAIT), "the event was not told while the send waited"

    current, links = connection.transport._current, connection.transport._links
    restored = connection.next[0] if what == "connection" else first
    plain_connect, plain_attach = current.connect, links.attach

    def fail_late() -> None:  # behind the last check of what has no answer
        restored.before["send"] = place
        late(LOST)

    def connect(inner: Inner, peer: Peer) -> bool:
        if cast(FakeInner, inner) is restored:
            fail_late()
        return plain_connect(inner, peer)

    def attach(attached: Link) -> None:
        if attached.number == link:
            fail_late()
        plain_attach(attached)

    current.connect = connect  # type: ignore[method-assign]
    links.attach = attach  # type: ignore[method-assign]
    if what == "connection":
        first.cut()
    else:
        first.tell(LinkLost(1, ResourceAllocationException("idle")))
    assert waits.wait(WAIT)
    restored.tell(LinkLost(2, ResourceAllocationException("idle")))
    told.set()
    assert wait_for(lambda: [envelope.body for _, envelope, _ in restored.sent][-1:] == ["1"])
    connection.transport.close(WAIT)
