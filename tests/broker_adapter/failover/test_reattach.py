"""Links that are attached again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteOpen
from broker_adapter.destination import Destination, DestinationKind, queue
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    OperationTimedOutException,
    ResourceAllocationException,
    UnsupportedOperationException,
)
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.links import Attachment, Link, LinkState
from broker_adapter.failover.rules import State
from broker_adapter.transport import (
    Interrupted,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    ReceiverSpec,
    Restored,
    SenderSpec,
)
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.fake_inner import LOST, Connection, Failover, FakeInner, our_broker
from tests.broker_adapter.failover.restored import GONE, QUEUE, WAIT, MakeClient, message, url_of
from tests.faults.scenarios import wait_for
from tests.threads import no_new_threads


def test_a_lost_link_of_a_browser_does_not_come_back(servers: Callable[..., BrokerServer], client: MakeClient) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    look = made.receiver(browse=True, presettled=True)
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    assert server.brokers[1].of(LinkRemoteOpen) == []
    with pytest.raises(ConnectionLostException):
        made.transport.drain(look, WAIT)
    made.transport.detach(look, WAIT)


def test_a_link_that_the_broker_closes_is_attached_again_and_announced(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    sender, receiver = made.sender(), made.receiver()
    broker = server.brokers[0]
    first, second = (each.link for each in broker.of(LinkRemoteOpen))
    for link in (first, second):
        before = len(made.events)
        server.run(lambda link=link: broker.peer.close_link(link, GONE))  # type: ignore[misc]
        assert wait_for(lambda before=before: len(made.events) == before + 2)  # type: ignore[misc]
    made.wait_for(LinkInterrupted, LinkRestored, LinkInterrupted, LinkRestored)
    assert [each.link for each in made.events] == [sender, sender, receiver, receiver]  # type: ignore[union-attr]
    lost = made.events[0]
    assert isinstance(lost, LinkInterrupted)
    assert "idle for too long" in lost.error.reason
    made.transport.send(sender, message(1), None, WAIT)
    made.transport.drain(receiver, WAIT)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_confirmation_ends_with_its_consumer_whose_link_was_closed_by_the_broker(
    servers: Callable[..., BrokerServer], client: MakeClient, comes_back: bool
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    receiver = made.receiver()
    broker, raised = server.brokers[0], list[JMSException]()
    broker.accepts = False

    def confirm() -> None:
        try:
            made.transport.confirm(WAIT, 1, receiver)
        except JMSException as error:
            raised.append(error)

    thread = threading.Thread(target=confirm)
    thread.start()
    assert wait_for(lambda: len(broker.held) == 1)
    if not comes_back:
        broker.refusals["q"] = AmqpError("amqp:resource-limit-exceeded", "busy")
    server.run(lambda: broker.peer.close_link(broker.of(LinkRemoteOpen)[0].link, GONE))
    made.wait_for(LinkInterrupted, *([LinkRestored] if comes_back else []))
    assert thread.is_alive()
    made.transport.detach(receiver, WAIT)
    thread.join(WAIT)
    assert [each.reason for each in raised] == ["the acknowledgement: the consumer was closed meanwhile"]
    assert "Interrupted" not in made.kinds(), "it did not wait for the end of the connection"


def test_a_link_that_never_holds_counts_its_failed_attempts(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server, options="reconnect_delay_seconds=0.01&stable_seconds=1000&max_reconnect_attempts=3"))
    made.open()
    made.sender()
    broker = server.brokers[0]
    expected: list[type] = []
    for number in range(3):
        server.run(lambda: broker.peer.close_link(broker.of(LinkRemoteOpen)[-1].link, GONE))
        expected += [LinkInterrupted, LinkRestored]
        made.wait_for(*expected)
        assert len(broker.of(LinkRemoteOpen)) == number + 2
    server.run(lambda: broker.peer.close_link(broker.of(LinkRemoteOpen)[-1].link, GONE))
    made.wait_for(*expected, LinkInterrupted, LinkLost)
    lost = made.events[-1]
    assert isinstance(lost, LinkLost)
    assert "3 attempts" in lost.error.reason
    assert "idle for too long" in lost.error.reason


def test_a_session_that_the_broker_ends_has_its_links_attached_again(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    sender, receiver = made.sender(), made.receiver()
    broker = server.brokers[0]
    session = broker.of(LinkRemoteOpen)[0].session
    server.run(lambda: broker.peer.end_session(session, AmqpError("amqp:internal-error", "restarted")))
    assert wait_for(lambda: made.kinds().count("LinkRestored") == 2), made.events
    made.transport.send(sender, message(1), None, WAIT)
    made.transport.drain(receiver, WAIT)


@pytest.mark.parametrize(
    "error",
    [
        AmqpError("amqp:resource-deleted", "the queue is gone"),
        AmqpError("amqp:unauthorized-access", "not yours any more"),
    ],
)
def test_a_link_that_is_closed_for_a_lasting_reason_stays_closed(
    servers: Callable[..., BrokerServer], client: MakeClient, error: AmqpError
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    broker = server.brokers[0]
    server.run(lambda: broker.peer.close_link(broker.of(LinkRemoteOpen)[0].link, error))
    made.wait_for(LinkLost)
    with pytest.raises(IllegalStateException):
        made.transport.send(link, message(1), None, WAIT)


def test_a_link_that_is_refused_for_a_while_is_attached_in_the_end(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    broker = server.brokers[0]
    broker.refusals["q"] = AmqpError("amqp:resource-limit-exceeded", "busy")
    server.run(lambda: broker.peer.close_link(broker.of(LinkRemoteOpen)[0].link, GONE))
    made.wait_for(LinkInterrupted)
    assert wait_for(lambda: len(broker.of(LinkRemoteOpen)) >= 3)
    with pytest.raises(OperationTimedOutException, match=r"not attached again in time; the last error: .*busy"):
        made.transport.send(link, message(1), None, 0.05)
    broker.refusals.clear()
    made.wait_for(LinkInterrupted, LinkRestored)
    made.transport.send(link, message(2), None, WAIT)


def test_a_link_that_the_new_broker_refuses_for_good_is_lost_and_the_others_go_on(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    sender, receiver = (
        made.sender(),
        made.transport.attach(ReceiverSpec(1, queue("other")), lambda _deliveries: None, WAIT),
    )

    def without_q() -> ScriptedBroker:
        broker = ScriptedBroker()
        broker.refusals["q"] = AmqpError("amqp:not-found", "no such queue")
        return broker

    server._make_broker = without_q
    server.drop_connections()
    made.wait_for(Interrupted, Restored, LinkLost)
    lost = made.events[-1]
    assert isinstance(lost, LinkLost)
    assert lost.link == sender
    assert isinstance(lost.error, InvalidDestinationException)
    made.transport.drain(receiver, WAIT)


def test_a_link_that_is_closed_again_while_things_are_restored_is_attached_again(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    class Closing(ScriptedBroker):
        """Closes the first link as soon as the second one is attached."""

        def _attach(self, event: Any) -> None:
            super()._attach(event)
            if len(self.links) == 2:
                self.peer.close_link(min(self.links.values()), GONE)

    server = servers()
    made = client(url_of(server))
    made.open()
    sender, receiver = made.sender(), made.receiver()
    server._make_broker = Closing
    server.drop_connections()
    made.wait_for(Interrupted, Restored, LinkInterrupted, LinkRestored)
    made.transport.send(sender, message(1), None, WAIT)
    made.transport.drain(receiver, WAIT)


def test_a_link_that_is_lost_as_soon_as_the_connection_is_restored_is_attached_again_once(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    made.receiver()

    class Losing(logging.Handler):
        """Has the link lost between the restore and what comes after it, in the same thread."""

        def emit(self, record: logging.LogRecord) -> None:
            if "is restored" in record.getMessage():
                broker = server.brokers[-1]
                broker.refusals["q"] = AmqpError("amqp:resource-limit-exceeded", "busy")
                server.run(lambda: broker.peer.close_link(broker.of(LinkRemoteOpen)[-1].link, GONE))
                assert wait_for(lambda: LinkInterrupted in map(type, made.events))

    log, losing = logging.getLogger("holdfast.broker_adapter.failover"), Losing()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(losing)
    try:
        server.drop_connections()
        assert wait_for(lambda: len(server.brokers[-1].of(LinkRemoteOpen)) >= 3)
        server.run(server.brokers[-1].refusals.clear)
        made.wait_for(Interrupted, Restored, LinkInterrupted, LinkRestored)
    finally:
        log.removeHandler(losing)
        log.setLevel(before)


def test_a_link_that_is_lost_while_no_thread_can_attach_it_again_is_lost_for_good(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    made.receiver()
    broker = server.brokers[0]
    with no_new_threads():
        server.run(lambda: broker.peer.close_link(broker.of(LinkRemoteOpen)[0].link, GONE))
        made.wait_for(LinkInterrupted, LinkLost)
    lost = made.events[-1]
    assert isinstance(lost, LinkLost)
    assert "can't start new thread" in str(lost.error)
    made.sender()


class Waiting(ScriptedBroker):
    """Answers links when as many as are expected have been asked for; then as many of the rest."""

    def __init__(self, *batches: int) -> None:
        super().__init__()
        self._batches = list(batches)
        self._asked: list[Any] = []

    def _attach(self, event: Any) -> None:
        self._asked.append(event)
        if self._batches and len(self._asked) == self._batches[0]:
            asked, self._asked = self._asked, []
            del self._batches[0]
            for each in asked:
                super()._attach(each)


def test_links_are_attached_again_in_order_and_a_hundred_in_one_round_trip(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    links = [made.transport.attach(SenderSpec(1, queue(f"q{number}")), None, WAIT) for number in range(150)]
    server._make_broker = lambda: Waiting(100, 50)
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    attached = [event.target.address for event in server.brokers[1].of(LinkRemoteOpen)]
    assert attached == [f"q{number}" for number in range(150)]
    made.transport.send(links[-1], message(1), None, WAIT)


def test_temporary_destinations_are_made_again_in_one_round_trip(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    for _ in range(3):
        made.transport.declare_temporary(DestinationKind.TEMPORARY_QUEUE, WAIT)
    server._make_broker = lambda: Waiting(3)
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    assert len(server.brokers[1].of(LinkRemoteOpen)) == 3


def test_a_link_that_is_refused_in_the_middle_of_many_is_the_only_one_that_is_lost(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    links = [made.transport.attach(SenderSpec(1, queue(f"q{number}")), None, WAIT) for number in range(5)]

    def without_q2() -> ScriptedBroker:
        broker = Waiting(5)
        broker.refusals["q2"] = AmqpError("amqp:not-found", "gone")
        return broker

    server._make_broker = without_q2
    server.drop_connections()
    made.wait_for(Interrupted, Restored, LinkLost)
    for number, link in enumerate(links):
        if number == 2:
            with pytest.raises(IllegalStateException):
                made.transport.send(link, message(number), None, WAIT)
        else:
            made.transport.send(link, message(number), None, WAIT)


# Without a network, by a clock that a test sets.


OTHER = queue("other")
BUSY = ResourceAllocationException("busy")


def closed(failover: Failover, link: Link, error: JMSException) -> None:
    """The broker closes a link, and all that follows from it has happened."""
    assert link.attachment is not None
    inner, number = link.attachment
    failover.reattacher.closed_by_broker(inner, LinkLost(number, error))
    wait_for_attempts()


def wait_for_attempts() -> None:
    """Until no thread attaches a link any more."""
    for thread in threading.enumerate():
        if thread.name == "holdfast-failover-link":
            thread.join(WAIT)
            assert not thread.is_alive()


def test_a_restore_makes_temporary_destinations_before_links_and_links_in_their_order() -> None:
    failover = Failover()
    failover.sender(OTHER)
    failover.sender()
    temporary = Destination("temporary", DestinationKind.TEMPORARY_QUEUE)
    failover.reattacher.temporaries[temporary] = None
    failover.lose()
    failover.connect(FakeInner())
    assert failover.inner.calls == [("restore_temporaries", [temporary]), ("attach", OTHER), ("attach", QUEUE)]


def test_a_restore_asks_for_a_hundred_links_at_once() -> None:
    failover, then = Failover(), FakeInner()
    for _ in range(250):
        failover.sender()
    failover.lose()
    failover.connect(then)
    assert then.batches == [100, 100, 50]


def test_a_restore_ends_where_the_connection_is_lost_or_a_link_has_no_answer() -> None:
    failover = Failover()
    link = failover.sender()
    failover.lose()
    second = FakeInner()
    second.refuses[QUEUE] = OperationTimedOutException("no answer")
    with pytest.raises(OperationTimedOutException):
        failover.connect(second)
    third = FakeInner()
    third.refuses[QUEUE] = LOST
    third.is_lost = True
    with pytest.raises(ConnectionLostException):
        failover.connect(third)
    failover.connect(FakeInner())
    assert link.state is LinkState.ATTACHED


def test_a_link_that_is_closed_while_it_is_attached_again_is_detached() -> None:
    failover, then = Failover(), FakeInner()
    link = failover.sender()
    failover.lose()

    def close() -> None:
        with failover.current.lock:
            failover.links.remove([link])

    then.before["attach"] = close
    failover.connect(then)
    assert then.calls == [("attach", QUEUE), ("detach", 1)]


def test_a_link_that_the_broker_closes_has_its_sends_repeated_before_it_takes_new_ones() -> None:
    failover = Failover()
    answers: list[Any] = []
    link = failover.sender()
    send = failover.send(link, 1, answers)
    states: list[LinkState] = []
    failover.inner.before["attach"] = lambda: send(BUSY)  # its answer comes as the link is closed already
    failover.inner.before["send"] = lambda: states.append(link.state)
    closed(failover, link, BUSY)
    assert failover.events == [LinkInterrupted(link.number, BUSY, 1), LinkRestored(link.number)]
    assert states == [LinkState.REATTACHED]
    assert link.state is LinkState.ATTACHED
    assert [number for number, _, _ in failover.inner.sent] == [1, 2]
    assert answers == []


def test_a_send_that_fails_between_the_last_check_and_the_event_that_its_link_is_there_is_repeated() -> None:
    failover = Failover()
    answers: list[Any] = []
    link = failover.sender()
    send = failover.send(link, 1, answers)
    resend_of = failover.unanswered.resend_of

    def late(of: Link, attachment: Attachment) -> bool:
        found = resend_of(of, attachment)
        send(BUSY)
        return found

    failover.unanswered.resend_of = late  # type: ignore[method-assign]
    closed(failover, link, BUSY)
    assert link.state is LinkState.ATTACHED
    assert [number for number, _, _ in failover.inner.sent] == [1, 2]
    assert answers == []


@pytest.mark.parametrize("browse", [False, True])
def test_a_link_is_gone_where_the_broker_would_refuse_it_again_or_it_is_that_of_a_browser(browse: bool) -> None:
    failover = Failover()
    answers: list[Any] = []
    link = failover.sender()
    send = failover.send(link, 1, answers)
    error: JMSException = InvalidDestinationException("deleted")
    if browse:
        link.spec, error = ReceiverSpec(1, QUEUE, browse=True), BUSY
    closed(failover, link, error)
    assert failover.events == [LinkLost(link.number, error, 1)]
    assert failover.links.get(link.number) is None
    send(error)
    assert answers == [(1, error)]
    with pytest.raises(IllegalStateException, match="link 1 is closed"):
        failover.reattacher.wait_until_attached(link.number, failover.now, "it")


@pytest.mark.parametrize("kind", [JMSSecurityException, UnsupportedOperationException])
def test_a_link_that_is_refused_for_good_as_it_is_attached_again_is_gone(kind: type[JMSException]) -> None:
    failover = Failover()
    answers: list[Any] = []
    link = failover.sender()
    send = failover.send(link, 1, answers)
    failover.inner.refuses[QUEUE] = kind("not yours any more, or not of this broker")
    failover.inner.before["attach"] = lambda: send(BUSY)
    closed(failover, link, BUSY)
    assert [type(each) for each in failover.events] == [LinkInterrupted, LinkLost]
    assert answers == [(1, failover.inner.refuses[QUEUE])]


def test_a_link_is_given_up_after_as_many_attempts_as_a_connection() -> None:
    failover = Failover("&reconnect_delay_seconds=0.001&max_reconnect_attempts=3")
    link = failover.sender()
    failover.inner.refuses[QUEUE] = BUSY
    failover.step = 1000.0
    closed(failover, link, BUSY)
    assert [type(each) for each in failover.events] == [LinkInterrupted, LinkLost]
    assert failover.inner.calls == [("attach", QUEUE)] * 4
    with pytest.raises(IllegalStateException):
        failover.reattacher.wait_until_attached(link.number, failover.now, "it")


def test_a_link_whose_connection_is_lost_as_it_is_attached_again_is_left_to_the_restore() -> None:
    failover = Failover()
    link = failover.sender()
    failover.inner.before["attach"] = failover.lose
    failover.inner.raises["attach"] = [LOST]
    closed(failover, link, BUSY)
    assert [type(each) for each in failover.events] == [LinkInterrupted]
    failover.connect(FakeInner())
    assert link.state is LinkState.ATTACHED


def test_a_link_that_is_closed_again_before_its_number_is_known_is_attached_once_more() -> None:
    failover = Failover("&reconnect_delay_seconds=0.001")
    failover.step = 1000.0
    link = failover.sender()
    again = JMSException("again")

    def close_early() -> None:
        failover.reattacher.closed_by_broker(cast(Inner, failover.inner), LinkLost(2, again))

    failover.inner.before["attach"] = close_early
    closed(failover, link, BUSY)
    wait_for_attempts()
    assert [type(each) for each in failover.events] == [LinkInterrupted, LinkInterrupted, LinkRestored]
    assert link.attachment == (failover.inner, 3)


def test_what_an_earlier_inner_transport_says_of_links_is_ignored() -> None:
    failover = Failover()
    link, earlier = failover.sender(), failover.inner
    failover.lose()
    failover.connect(FakeInner())
    failover.reattacher.closed_by_broker(cast(Inner, earlier), LinkLost(1, BUSY))
    failover.reattacher.reattach(cast(Inner, earlier), link, BUSY)
    assert failover.events == []
    assert link.state is LinkState.ATTACHED


def test_a_link_that_was_closed_ahead_of_a_loss_that_is_noticed_first_is_left_to_the_restore() -> None:
    """As the link of a new consumer, which is added ahead of the news that the broker has closed it already."""
    failover = Failover()
    link = failover.sender()
    failover.lose()
    failover.reattacher.reattach(cast(Inner, failover.inner), link, BUSY)
    wait_for_attempts()
    assert failover.events == [], "a restored connection would not say that the link is there again"
    assert (link.state, link.error) == (LinkState.DETACHED, None)
    failover.connect(FakeInner())
    assert link.state is LinkState.ATTACHED


def test_a_link_that_the_broker_closes_while_the_connection_is_restored_waits_for_the_restore() -> None:
    failover = Failover()
    link = failover.sender()
    failover.lose()
    inner = FakeInner()
    failover.begin(inner)
    failover.reattacher.restore(cast(Inner, inner))
    failover.reattacher.closed_by_broker(cast(Inner, inner), LinkLost(1, BUSY))
    assert failover.events == []
    with failover.current.lock:
        assert failover.current.connect(cast(Inner, inner), our_broker())
        assert failover.links.attach_restored() == [(link, BUSY)]


def test_a_link_that_is_attached_again_is_waited_for_until_the_deadline() -> None:
    failover = Failover()
    link = failover.sender()
    assert failover.reattacher.wait_until_attached(link.number, failover.now, "the send") is link
    with failover.current.lock:
        failover.links.detach(link)
        failover.links.interrupt(link, BUSY)
    with pytest.raises(OperationTimedOutException, match=r"the send: its link was not attached again in time.*busy"):
        failover.reattacher.wait_until_attached(link.number, failover.now, "the send")
    failover.lose()
    assert failover.reattacher.wait_until_attached(link.number, failover.now, "the send").state is LinkState.DETACHED


def test_a_link_that_was_attached_to_a_connection_that_is_lost_keeps_the_attachment_of_the_next_one() -> None:
    """Its thread has the broker's answer, and goes on only when the next connection is there."""
    connection = Connection().open()
    link, first = connection.sender(), connection.inner
    connection.transport.attach(SenderSpec(1, queue("other")), None, 5.0)
    answered, goes_on = threading.Event(), threading.Event()
    plain = first.attach

    def attach(*arguments: Any) -> int:
        number = plain(*arguments)
        answered.set()
        goes_on.wait(WAIT)
        return number

    first.attach = attach  # type: ignore[method-assign]
    first.tell(LinkLost(1, ResourceAllocationException("idle")))
    assert answered.wait(WAIT)
    first.cut()
    assert wait_for(lambda: connection.transport.state is State.CONNECTED and connection.inner is not first)
    goes_on.set()
    assert wait_for(lambda: not [each for each in threading.enumerate() if each.name == "holdfast-failover-link"])

    found = connection.transport._links.get(link)
    assert found is not None
    assert (found.state, found.attachment) == (LinkState.ATTACHED, (connection.inner, 1))
    connection.transport.send(link, message(1), lambda _error: None, WAIT)
    connection.transport.commit(1, 1, [(link, message(2))], [], WAIT)
    assert [each for each in connection.inner.calls if each[0] == "commit"] == [("commit", 1, 1, [1])]
    connection.transport.close(WAIT)
