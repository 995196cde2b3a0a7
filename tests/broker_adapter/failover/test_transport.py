"""What the calls of a transport do while its connection is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteOpen, State
from broker_adapter.destination import DestinationKind
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.rules import State as ConnectionState
from broker_adapter.transport import (
    Interrupted,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    Peer,
    ReceiverSpec,
    Restored,
    Restoring,
    SenderSpec,
)
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.fake_inner import LOST, QUEUE, Connection, FakeInner
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
    away = "not restored in time for .*; the last error: .*(no room|failed|lost|nothing listens)"
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
    with pytest.raises(OperationTimedOutException, match=r"^the send had no answer within 0\.1 s; .* a second one$"):
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


# Without a network.


def test_a_send_that_waits_raises_its_answer() -> None:
    connection = Connection().open()
    link = connection.sender()
    full = ResourceAllocationException("full")
    connection.inner.answers = [None, full]
    connection.transport.send(link, message(1), None, 5.0)
    with pytest.raises(ResourceAllocationException, match="full") as told:
        connection.transport.send(link, message(2), None, 5.0)
    assert told.value is not full, "each thread has a traceback of its own"


def test_what_an_inner_transport_raises_is_raised_while_it_is_connected() -> None:
    connection = Connection().open()
    link = connection.sender()
    large = MessageFormatException("too large")
    connection.inner.raises["send"] = [large, large]
    for on_settled in (None, lambda _error: None):
        with pytest.raises(MessageFormatException):
            connection.transport.send(link, message(1), on_settled, 5.0)


def test_a_send_waits_for_the_connection_where_it_is_lost_in_the_middle() -> None:
    connection = Connection().open()
    link = connection.sender()
    first = connection.inner
    first.before["send"] = first.cut
    first.raises["send"] = [LOST]
    answers: list[JMSException | None] = []
    connection.transport.send(link, message(1), answers.append, 120.0)
    assert connection.has_told(Interrupted, Restoring, Restored)
    assert [envelope.body for _, envelope, _ in connection.inner.sent] == ["1"]
    connection.transport.close(5.0)


def test_a_link_whose_detach_a_handler_of_a_signal_interrupts_is_detached_by_the_next_call() -> None:
    connection = Connection().open()
    link = connection.sender()

    def interrupt() -> None:
        raise KeyboardInterrupt

    connection.inner.before["detach"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        connection.transport.detach(link, 5.0)
    connection.inner.raises["detach"] = [JMSException("no")]
    with pytest.raises(JMSException, match="no"):
        connection.transport.detach(link, 5.0)
    connection.transport.detach(link, 5.0)  # it is closed
    assert connection.inner.calls.count(("detach", 1)) == 2


@pytest.mark.parametrize("what", ["detach", "end_session"])
def test_what_ends_as_the_connection_is_lost_is_not_confirmed(what: str) -> None:
    connection = Connection().open()
    number = connection.sender() if what == "detach" else 1
    end = getattr(connection.transport, what)
    connection.inner.before[what] = connection.inner.cut
    connection.inner.raises[what] = [LOST]
    assert end(number, 5.0) is False
    assert connection.has_told(Interrupted, Restoring, Restored)
    link = connection.sender()
    assert connection.transport.end_session(1, 5.0) is True
    assert connection.transport.detach(link, 5.0) is False, "it is not there any more"
    connection.transport.close(5.0)


def interrupted_at(number: int, call: Callable[[], object]) -> bool:
    """Raise as the handler of a signal does, where a function of failover begins or ends; whether that was so."""
    left = number

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if not frame.f_globals["__name__"].startswith("broker_adapter.failover"):
            return None
        left -= event in ("call", "return")
        if not left:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("what", ["attach", "unsubscribe", "confirm", "commit"])
def test_no_call_is_kept_wherever_the_handler_of_a_signal_interrupts_it(what: str) -> None:
    connection = Connection().open()
    transport = connection.transport
    link = transport.attach(ReceiverSpec(1, QUEUE), lambda _deliveries: None, 5.0)
    calls: dict[str, Callable[[], object]] = {
        "attach": connection.sender,
        "unsubscribe": lambda: transport.unsubscribe("name", 5.0, 1),
        "confirm": lambda: transport.confirm(5.0, 1, link),
        "commit": lambda: transport.commit(1, 1, [], [], 5.0),
    }
    number = 1
    while interrupted_at(number, calls[what]):
        assert not transport._current.calls, number
        number += 1
    assert number > 5, "it has been interrupted at each step"


def test_what_has_ended_has_ended_though_the_connection_is_lost_as_the_broker_is_told() -> None:
    connection = Connection().open()
    connection.sender()
    inner = connection.inner
    inner.before["end_session"] = inner.cut
    inner.raises["end_session"] = [LOST]
    connection.transport.end_session(1, 5.0)
    assert connection.has_told(Interrupted, Restoring, Restored)
    assert ("attach", QUEUE) not in connection.inner.calls
    connection.transport.close(5.0)


def test_a_subscription_that_was_deleted_before_the_answer_was_lost_is_deleted() -> None:
    connection = Connection("", FakeInner(), FakeInner()).open()
    first, second = connection.inner, connection.next[0]
    unknown = InvalidDestinationException("no such subscription")
    first.raises["unsubscribe"] = [unknown, LOST]
    with pytest.raises(InvalidDestinationException):
        connection.transport.unsubscribe("reader", 5.0)
    first.raises["unsubscribe"] = [LOST]
    first.before["unsubscribe"] = first.cut
    second.raises["unsubscribe"] = [unknown]
    connection.transport.unsubscribe("reader", 120.0)
    assert second.calls[-1] == ("unsubscribe", "reader")
    connection.transport.close(5.0)


def test_a_link_that_is_lost_as_it_is_made_is_made_by_the_next_connection() -> None:
    connection = Connection().open()
    first = connection.inner
    first.before["attach"] = first.cut
    connection.sender()
    assert connection.inner.calls.count(("attach", QUEUE)) == 1
    connection.inner.before["declare_temporary"] = connection.inner.cut
    temporary = connection.transport.declare_temporary(DestinationKind.TEMPORARY_QUEUE, 120.0)
    assert connection.inner.calls[-1] == ("declare_temporary",)
    spec = ReceiverSpec(1, temporary)
    link = connection.transport.attach(spec, lambda _deliveries: None, 5.0)
    with pytest.raises(IllegalStateException, match="a consumer uses it"):
        connection.transport.delete_temporary(temporary, 5.0)
    connection.transport.detach(link, 5.0)
    connection.transport.delete_temporary(temporary, 5.0)
    connection.transport.close(5.0)


def test_a_link_that_the_broker_closes_before_it_is_known_is_attached_again() -> None:
    connection = Connection().open()
    inner = connection.inner
    inner.before["attach"] = lambda: inner.tell(LinkLost(1, JMSException("idle")))
    connection.sender()
    assert connection.has_told(LinkInterrupted, LinkRestored)
    assert inner.calls.count(("attach", QUEUE)) == 2


def test_credit_is_given_where_there_is_a_link_and_a_network() -> None:
    connection = Connection()
    with pytest.raises(IllegalStateException, match="not open yet"):
        connection.transport.credit(1, 5)
    connection.open()
    link = connection.transport.attach(ReceiverSpec(1, QUEUE), lambda _deliveries: None, 5.0)
    inner = connection.inner
    connection.transport.credit(link, 5)
    connection.transport.credit(99, 5)
    assert inner.calls[-1] == ("credit", 1, 5)
    inner.raises["credit"] = [JMSException("no"), LOST]
    with pytest.raises(JMSException, match="no"):
        connection.transport.credit(link, 5)
    inner.is_lost = True
    connection.transport.credit(link, 5)


def test_a_drain_says_whether_its_connection_its_link_or_its_time_is_lost() -> None:
    connection = Connection().open()
    link = connection.transport.attach(ReceiverSpec(1, QUEUE), lambda _deliveries: None, 5.0)
    inner, drain = connection.inner, connection.transport.drain
    assert drain(link, 5.0)
    with pytest.raises(IllegalStateException, match="link 99 is closed"):
        drain(99, 5.0)
    inner.raises["drain"] = [OperationTimedOutException("late"), JMSException("no"), JMSException("no")]
    with pytest.raises(OperationTimedOutException):
        drain(link, 5.0)
    with pytest.raises(JMSException, match=r"^no$"):
        drain(link, 5.0)
    inner.is_lost = True
    with pytest.raises(ConnectionLostException, match="the connection is lost: no"):
        drain(link, 5.0)


def test_settling_says_that_the_connection_is_lost_whatever_the_broker_said_as_it_ended_it() -> None:
    connection = Connection().open()
    inner, settle = connection.inner, connection.transport.settle
    inner.raises["settle"] = [JMSException("no"), ResourceAllocationException("too much"), LOST]
    with pytest.raises(JMSException, match=r"^no$"):
        settle([])
    inner.is_lost = True  # its news are on the way
    with pytest.raises(ConnectionLostException, match="the connection is lost: too much"):
        settle([])
    with pytest.raises(ConnectionLostException) as raised:
        settle([])
    assert raised.value is LOST


def test_a_request_has_the_same_id_and_run_each_time() -> None:
    connection = Connection().open()
    first = connection.inner
    first.before["request"] = first.cut
    first.raises["request"] = [LOST]
    assert connection.transport.request("purge", {"destination": "q", "request_id": None}, 120.0) == "purge"
    ((_, _, asked),) = [each for each in first.calls if each[0] == "request"]
    ((_, _, again),) = [each for each in connection.inner.calls if each[0] == "request"]
    assert asked == again
    assert asked.keys() == {"destination", "request_id", "request_run"}
    assert asked["request_id"] is not None
    connection.transport.close(5.0)
    other = FakeInner()
    other.peer = Peer("Another", "1", "client", is_holdfast=False)
    connection = Connection("", other).open()
    connection.transport.request("purge", {"destination": "q"}, 5.0)
    assert other.calls[-1] == ("request", "purge", {"destination": "q"})


def test_a_request_that_is_not_waited_for_is_asked_once_and_of_a_network_that_is_there() -> None:
    connection = Connection().open()
    answers: list[Any] = []

    def take(result: Any, error: JMSException | None) -> bool:
        answers.append(error or result)
        return True

    connection.transport.begin_request("apply_batch", {"site": 1}, take)
    assert answers == ["apply_batch"]
    assert connection.inner.calls[-1] == ("begin_request", "apply_batch", {"site": 1})
    first = connection.inner
    first.raises["begin_request"] = [LOST]
    with pytest.raises(ConnectionLostException):
        connection.transport.begin_request("apply_batch", {}, take)
    assert [each for each in first.calls if each[0] == "begin_request"][1:] == [("begin_request", "apply_batch", {})]
    connection.transport.close(5.0)
    with pytest.raises(IllegalStateException, match="closed"):
        connection.transport.begin_request("apply_batch", {}, take)
    assert len(answers) == 1


def test_it_says_where_it_stands() -> None:
    connection = Connection().open()
    connection.sender()
    assert repr(connection.transport) == "<FailoverTransport CONNECTED at amqp://h:1, 1 links>"
    connection.transport.settle([])
    connection.transport.confirm(5.0)
    connection.transport.commit(1, 1, [], [], 5.0)
    assert [each[0] for each in connection.inner.calls[-3:]] == ["settle", "confirm", "commit"]


@pytest.mark.parametrize("outlasts_loss", [True, False])
@pytest.mark.parametrize("ends", ["detach", "end_session"])
def test_a_confirmation_ends_with_its_consumer_or_session_and_those_of_others_wait(
    ends: str, outlasts_loss: bool
) -> None:
    connection = Connection().open()
    transport = connection.transport
    connection.inner.confirms = False
    links = [transport.attach(ReceiverSpec(number, QUEUE), lambda _deliveries: None, 5.0) for number in (1, 2)]
    raised: list[tuple[int, str]] = []

    def confirm(session: int) -> None:
        try:
            transport.confirm(WAIT, session, links[session - 1], outlasts_loss=outlasts_loss)
        except JMSException as error:
            raised.append((session, error.reason))

    threads = [threading.Thread(target=confirm, args=(session,)) for session in (1, 2)]
    for thread in threads:
        thread.start()
    assert wait_for(lambda: [name for name, *_ in connection.inner.calls].count("confirm") == 2)
    what = "consumer" if ends == "detach" else "session"
    for session in (1, 2):
        assert len(raised) == session - 1
        transport.detach(links[session - 1], WAIT) if ends == "detach" else transport.end_session(session, WAIT)
        threads[session - 1].join(WAIT)
        assert raised[-1] == (session, f"the acknowledgement: the {what} was closed meanwhile")


@pytest.mark.parametrize("outlasts_loss", [True, False])
def test_a_confirmation_that_begins_once_its_consumer_has_closed_is_not_waited_for(outlasts_loss: bool) -> None:
    """A listener may outlast its consumer."""
    connection = Connection().open()
    link = connection.transport.attach(ReceiverSpec(1, QUEUE), lambda _deliveries: None, 5.0)
    connection.transport.detach(link, 5.0)
    with pytest.raises(IllegalStateException, match="the acknowledgement: the consumer was closed meanwhile"):
        connection.transport.confirm(WAIT, 1, link, outlasts_loss=outlasts_loss)
    assert "confirm" not in [name for name, *_ in connection.inner.calls]


def test_a_confirmation_that_waits_for_the_network_ends_with_its_consumer() -> None:
    connection = Connection("&initial_reconnect_delay_seconds=1000").open()
    link = connection.transport.attach(ReceiverSpec(1, QUEUE), lambda _deliveries: None, 5.0)
    connection.inner.cut()
    assert connection.has_told(Interrupted)
    raised: list[JMSException] = []

    def confirm() -> None:
        try:
            connection.transport.confirm(WAIT, 1, link)
        except JMSException as error:
            raised.append(error)

    thread = threading.Thread(target=confirm)
    thread.start()
    assert wait_for(lambda: bool(connection.transport._current.calls))
    connection.transport.detach(link, WAIT)
    thread.join(WAIT)
    assert [each.reason for each in raised] == ["the acknowledgement: the consumer was closed meanwhile"]
    connection.transport.close(WAIT)


@pytest.mark.parametrize("what", ["link", "session"])
def test_what_is_closed_while_the_rest_is_restored_is_closed_at_the_broker_as_well(what: str) -> None:
    """Its link is there again: an exclusive consumer that stayed would keep others from the queue."""
    connection = Connection().open()
    links = [connection.sender() for _ in range(2)]
    restored = FakeInner()
    connection.next.append(restored)
    close = {
        "link": lambda: connection.transport.detach(links[0], 5.0),
        "session": lambda: connection.transport.end_session(1, 5.0),
    }[what]
    resend = connection.transport._unanswered.resend_restored

    def closing(inner: Inner) -> None:
        close()
        resend(inner)

    connection.transport._unanswered.resend_restored = closing  # type: ignore[method-assign]
    connection.cut_and_restore()
    assert [call for call in restored.calls if call[0] in ("detach", "end_session")] == [
        ("detach", 1) if what == "link" else ("end_session", 1)
    ]


WAITING: dict[str, tuple[Callable[[Connection, int], object], type[JMSException], str]] = {
    "send": (
        lambda connection, link: connection.transport.send(link, message(1), None, 100.0),
        IllegalStateException,
        "link 1 is closed",
    ),
    "send asynchronously": (
        lambda connection, link: connection.transport.send(link, message(1), lambda _error: None, 100.0),
        IllegalStateException,
        "link 1 is closed",
    ),
    "attach": (
        lambda connection, link: connection.transport.attach(SenderSpec(1, QUEUE), None, 100.0),
        IllegalStateException,
        "attaching a producer to 'q': the session was closed meanwhile",
    ),
    "commit": (
        lambda connection, link: connection.transport.commit(1, 1, [(link, message(1))], [], 100.0),
        TransactionRolledBackException,
        "nothing was committed: the commit: the session was closed meanwhile",
    ),
}


def without_a_second_connection() -> Connection:
    """An open connection that is not restored once it is lost."""
    away = [FakeInner() for _ in range(50)]
    for each in away:
        each.raises["open"] = [LOST]
    return Connection("", FakeInner(), *away).open()


@pytest.mark.parametrize("ends", ["session", "link"])
@pytest.mark.parametrize("call", WAITING)
def test_what_waits_for_the_network_waits_no_longer_than_its_session_or_its_link(call: str, ends: str) -> None:
    connection = without_a_second_connection()
    link, other = connection.sender(), connection.transport.attach(SenderSpec(2, QUEUE), None, 5.0)
    connection.inner.cut()
    assert wait_for(lambda: connection.transport.state is ConnectionState.RECONNECTING)
    act, kind, reason = WAITING[call]
    raised: list[tuple[str, JMSException]] = []

    def wait(name: str, link: int) -> None:
        try:
            act(connection, link)
        except JMSException as error:
            raised.append((name, error))

    waiting = threading.Thread(target=wait, args=("first", link), daemon=True)
    waiting.start()
    assert wait_for(lambda: waiting.is_alive() and len(connection.transport._current.changed._waiters) > 0)
    connection.transport.end_session(2, 5.0)
    assert waiting.is_alive()
    if ends == "session":
        connection.transport.end_session(1, 5.0)
    else:
        connection.transport.detach(link, 5.0)
    if ends == "session" or "send" in call:
        waiting.join(60)
        assert [(name, type(error), str(error)) for name, error in raised] == [("first", kind, reason)]
        assert connection.transport._current.calls == {}
    else:
        assert waiting.is_alive()
    connection.transport.close(5.0)
    waiting.join(60)
    with pytest.raises(IllegalStateException):
        connection.transport.send(other, message(1), None, 5.0)


def test_a_link_that_was_attached_after_its_session_had_ended_is_detached() -> None:
    connection = Connection().open()
    connection.inner.before["attach"] = lambda: connection.transport.end_session(1, 5.0)
    with pytest.raises(IllegalStateException, match="the session was closed meanwhile"):
        connection.sender()
    assert connection.inner.calls[-1] == ("detach", 1)
    connection.transport.send(connection.sender(), message(1), lambda _error: None, 5.0)


def test_a_commit_that_is_to_be_resolved_is_in_doubt_where_its_session_ends() -> None:
    connection = without_a_second_connection()
    link = connection.sender()
    connection.inner.before["commit"] = connection.inner.cut
    connection.inner.raises["commit"] = [TransactionInDoubtException("lost in the middle")]
    raised: list[JMSException] = []

    def commit() -> None:
        try:
            connection.transport.commit(1, 1, [(link, message(1))], [], 100.0)
        except JMSException as error:
            raised.append(error)

    waiting = threading.Thread(target=commit, daemon=True)
    waiting.start()
    assert wait_for(lambda: connection.transport.state is ConnectionState.RECONNECTING)
    connection.transport.end_session(1, 5.0)
    waiting.join(60)
    assert [(type(error), str(error)) for error in raised] == [
        (
            TransactionInDoubtException,
            "lost in the middle; asking the broker whether it was committed: the session was closed meanwhile",
        )
    ]
    connection.transport.close(5.0)
