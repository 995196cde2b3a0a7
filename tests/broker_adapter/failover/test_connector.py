"""Opening, losing and restoring a connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteOpen, RemoteOpen
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidClientIDException,
    JMSException,
    JMSSecurityException,
    OperationTimedOutException,
    ResourceAllocationException,
)
from broker_adapter.failover import rules
from broker_adapter.failover.rules import State
from broker_adapter.transport import BrokerAnnounced, Failed, Interrupted, Restored, Restoring, SenderSpec, Server
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.broker_adapter.failover.fake_inner import LOST, Connection, FakeInner
from tests.broker_adapter.failover.restored import FAST, QUEUE, WAIT, MakeClient, message, refusing, silent, url_of
from tests.faults.scenarios import wait_for
from tests.threads import no_new_threads


def test_a_new_connection_takes_the_first_address_that_answers(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    gone, there = servers(), servers()
    gone.close()
    made = client(url_of(gone, there))
    assert made.open().product == "Holdfast"
    assert made.transport.state is rules.State.CONNECTED
    assert len(made.credentials) == 2
    assert made.events == []


def test_a_new_connection_that_finds_no_server_says_how_often_it_tried(client: MakeClient) -> None:
    made = client(f"failover:(amqp://127.0.0.1:1,amqp://127.0.0.1:2)?{FAST}")
    with pytest.raises(ConnectionLostException, match="no connection after 2 attempts; the last one, at amqp"):
        made.open()
    with pytest.raises(ConnectionLostException):
        made.transport.attach(SenderSpec(1, QUEUE), None, WAIT)


def test_a_new_connection_keeps_its_deadline_over_many_attempts(client: MakeClient) -> None:
    made = client(f"amqp://127.0.0.1:1?{FAST}&startup_max_reconnect_attempts=none&reconnect_multiplier=1")
    start = time.monotonic()
    with pytest.raises((ConnectionLostException, OperationTimedOutException)):  # between two attempts, or within one
        made.open(0.3)
    assert time.monotonic() - start > 0.2
    assert len(made.credentials) > 1


def test_a_client_id_in_use_ends_the_opening_at_once(servers: Callable[..., BrokerServer], client: MakeClient) -> None:
    taken = AmqpError("amqp:invalid-field", "in use", {"invalid-field": "container-id"})
    made = client(url_of(servers(refusing(taken)), servers()))
    with pytest.raises(InvalidClientIDException):
        made.open()
    assert len(made.credentials) == 1


def redirecting(to: BrokerServer, **fields: Any) -> Callable[[], ScriptedBroker]:
    info = {"network-host": "127.0.0.1", "port": to.port, "hostname": "elsewhere", **fields}
    return refusing(AmqpError("amqp:connection:redirect", "moved", info))


def test_a_redirect_is_followed_to_the_place_and_name_that_it_says(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    target = servers()
    made = client(f"amqp://127.0.0.1:{servers(redirecting(target)).port}?{FAST}")
    made.open()
    (opened,) = target.brokers[0].of(RemoteOpen)
    assert opened.hostname == "elsewhere"


def test_redirects_in_a_circle_end_with_an_error(servers: Callable[..., BrokerServer], client: MakeClient) -> None:
    first = servers()
    second = servers(redirecting(first))
    first._make_broker = redirecting(second)
    made = client(f"amqp://127.0.0.1:{first.port}?{FAST}")
    with pytest.raises(ConnectionLostException, match="moved; it is at 127"):
        made.open()
    assert len(made.credentials) == 9


def test_why_a_redirect_leads_nowhere_is_in_the_log_and_in_the_error_of_the_next_loss(
    servers: Callable[..., BrokerServer], client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    server, nobody = servers(), servers()
    nobody.close()
    made = client(f"amqp://127.0.0.1:{server.port}?reconnect_delay_seconds=0.01&stable_seconds=1000")
    made.open()
    moved = AmqpError("amqp:connection:redirect", "moved", {"network-host": "127.0.0.1", "port": nobody.port})
    server.run(lambda: server.brokers[0].peer.close(moved))
    made.wait_for(Interrupted, Restored)
    server.run(lambda: server.brokers[1].peer.close(moved))
    made.wait_for(Interrupted, Restored, Interrupted, Restored)
    here, there = f"amqp://127.0.0.1:{server.port}", f"amqp://127.0.0.1:{nobody.port}"
    first, second = [each.error for each in made.events if isinstance(each, Interrupted)]
    assert first.reason == f"moved; it is at 127.0.0.1:{nobody.port}"
    assert second.reason.startswith(f"{first.reason}; the last redirect to {there} failed: ")
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings[0] == f"! the connection to {here} is lost: {first}"
    assert warnings[1].startswith(f"! the redirect to {there} failed: ")
    assert warnings[2:] == [f"! the connection to {here} is lost: {second}"], "each reason is told once"


def test_why_a_redirect_led_nowhere_is_in_the_log_where_another_address_is_connected(
    servers: Callable[..., BrokerServer], client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = servers()
    nobody.close()
    made = client(url_of(servers(redirecting(nobody)), servers()))
    made.open()
    assert f"! the redirect to amqp://127.0.0.1:{nobody.port} failed: " in caplog.text


def test_a_refused_connection_is_tried_once_with_fresh_credentials(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers(refusing(AmqpError("amqp:unauthorized-access", "expired")))
    asked: list[None] = []

    def refresh() -> tuple[str, str]:
        asked.append(None)
        if len(asked) == 1:
            server._make_broker = ScriptedBroker
        return "user", "fresh"

    made = client(url_of(server), refresh=refresh)
    made.open()
    assert [each.password for each in made.credentials] == [None, "fresh"]
    server._make_broker = refusing(AmqpError("amqp:unauthorized-access", "expired"))
    server.run(lambda: server.brokers[-1].peer.close(AmqpError("amqp:unauthorized-access", "expired")))
    made.wait_for(Interrupted, Failed)
    assert len(asked) == 2, "once for each refusal"
    failed = made.events[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, JMSSecurityException)


def test_credentials_that_cannot_be_had_end_the_connection(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    def refresh() -> tuple[str, str]:
        raise OSError("the key store is away")

    made = client(url_of(servers(refusing(AmqpError("amqp:unauthorized-access", "no")))), refresh=refresh)
    with pytest.raises(JMSSecurityException, match="the key store is away"):
        made.open()


def test_links_come_back_with_their_numbers_and_deliveries_with_a_new_epoch(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    sender, receiver = made.sender(), made.receiver()
    server.drop_connections()
    made.wait_for(Interrupted, Restored)
    restored = made.events[-1]
    assert isinstance(restored, Restored)
    assert restored.epoch == 1
    assert (restored.attempts, restored.address) == (1, f"amqp://127.0.0.1:{server.port}")
    made.transport.send(sender, message(1), None, WAIT)
    made.transport.credit(receiver, 5)
    broker = server.brokers[1]
    opened = broker.of(LinkRemoteOpen)
    assert sorted(each.is_sender for each in opened) == [False, True]
    link = next(each.link for each in opened if each.is_sender)
    assert wait_for(lambda: server.run(lambda: broker.peer.remaining_credit(link)) == 5)
    server.run(lambda: broker.peer.send(link, b"\x00\x53\x77\xa1\x05hello"))
    assert wait_for(lambda: len(made.deliveries) == 1)
    assert made.deliveries[0].tag.epoch == 1
    assert made.deliveries[0].envelope.body == "hello"


def test_the_next_address_is_taken_where_the_first_one_is_gone(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    first, second = servers(), servers()
    made = client(url_of(first, second))
    made.open()
    link = made.sender()
    first.close()
    made.wait_for(Interrupted, Restored)
    made.transport.send(link, message(1), None, WAIT)
    assert second.brokers[0].of(RemoteOpen)


def test_sends_without_an_answer_are_told_when_the_attempts_are_exhausted(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server, options=f"{FAST}&max_reconnect_attempts=2"))
    made.open()
    link = made.sender()
    broker = server.brokers[0]
    broker.accepts = False
    answers: list[JMSException | None] = []
    made.transport.send(link, message(1), answers.append, WAIT)
    assert wait_for(lambda: len(broker.held) == 1)
    server._make_broker = refusing(AmqpError("amqp:connection:forced", "go away"))
    server.drop_connections()
    made.wait_for(Interrupted, Failed)
    assert isinstance(answers[0], ConnectionLostException)


def test_a_connection_that_is_lost_while_no_thread_can_restore_it_fails_and_says_why(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers(silent)
    made = client(url_of(server))
    made.open()
    sender = made.sender()
    told: list[JMSException | None] = []
    made.transport.send(sender, message(1), told.append, WAIT)
    with no_new_threads():
        server.drop_connections()
        made.wait_for(Interrupted, Failed)
    assert made.transport.state is rules.State.FAILED
    assert isinstance(told[0], ResourceAllocationException)
    with pytest.raises(ResourceAllocationException, match=r"cannot be restored.*can't start new thread"):
        made.transport.send(sender, message(2), None, WAIT)


# Without a network.


def test_a_connection_is_opened_once_and_closed_as_often_as_one_likes() -> None:
    connection = Connection().open()
    with pytest.raises(IllegalStateException, match="opened before"):
        connection.open()
    for _ in range(2):
        connection.transport.close(5.0)
    assert connection.inner.calls == [("open",), ("close", 5.0), ("close", 0)]
    with pytest.raises(IllegalStateException, match="is closed"):
        connection.sender()
    Connection().transport.close(None)  # without an inner transport


def test_each_restored_connection_has_another_epoch_and_is_told_where_it_is_and_since_when() -> None:
    refusing = FakeInner()
    refusing.raises["open"] = [LOST]
    connection = Connection("", FakeInner(), refusing).open()
    link = connection.sender()
    connection.cut_and_restore()
    assert connection.epochs == [0, 1, 2]
    assert connection.has_told(Interrupted, Restoring, Restored)
    restored = connection.events[-1]
    assert isinstance(restored, Restored)
    assert (restored.epoch, restored.address, restored.attempts) == (2, "amqp://h:1", 2)
    assert refusing.calls == [("open",), ("close", 0)]
    connection.inner.answers = [None]
    connection.transport.send(link, message(1), None, 5.0)
    connection.transport.close(5.0)


def test_a_connection_that_is_lost_as_it_is_restored_is_restored_once_more() -> None:
    again = FakeInner()
    connection = Connection("", FakeInner(), again).open()
    connection.sender()
    again.before["attach"] = again.cut
    connection.inner.cut()
    assert connection.has_told(Interrupted, Restoring, Restoring, Restored)
    connection.transport.close(5.0)


def test_a_connection_that_is_lost_before_it_was_open_is_not_opened() -> None:
    inner = FakeInner()
    inner.before["open"] = inner.cut
    connection = Connection("", inner)
    with pytest.raises(ConnectionLostException, match="the cable was cut"):
        connection.open()
    assert connection.transport.state is State.FAILED


def test_a_fault_while_a_connection_is_restored_is_logged_and_counts_as_a_failed_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = Connection().open()
    faulty = FakeInner()

    def fail() -> None:
        raise ZeroDivisionError("a fault")

    faulty.before["open"] = fail
    connection.next = [faulty]
    connection.cut_and_restore()
    assert "restoring the connection failed unexpectedly" in caplog.text
    connection.transport.close(5.0)


def test_a_connection_that_stays_away_is_logged_again_and_ends_after_its_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing = [FakeInner() for _ in range(12)]
    for each in refusing:
        each.raises["open"] = [LOST]
    connection = Connection("&max_reconnect_attempts=12", FakeInner(), *refusing).open()
    connection.inner.cut()
    assert connection.has_told(Interrupted, Failed)
    assert "still away after 10 attempts" in caplog.text
    with pytest.raises(ConnectionLostException, match="no connection after 12 attempts"):
        connection.transport.confirm(5.0)


def test_without_failover_the_listener_is_told_of_a_failure_at_once() -> None:
    connection = Connection("&failover=nofailover").open()
    link = connection.sender()
    answers: list[JMSException | None] = []
    connection.transport.send(link, message(1), answers.append, 5.0)
    connection.inner.cut()
    assert connection.events == [Failed(LOST)]
    connection.inner.sent[0][2](LOST)
    assert answers == [LOST]


def test_a_connection_that_has_no_time_left_is_not_tried_again() -> None:
    inner = FakeInner()
    inner.raises["open"] = [LOST]
    connection = Connection("&startup_max_reconnect_attempts=none&connect_delay_seconds=1000", inner)
    with pytest.raises(ConnectionLostException, match="the cable was cut"):
        connection.open(100.0)
    assert connection.transport.state is State.FAILED
    assert len(connection.inners) == 1


def test_a_connection_that_is_closed_as_it_is_tried_is_not_tried_again() -> None:
    inner = FakeInner()
    connection = Connection("&startup_max_reconnect_attempts=none", inner)
    inner.before["open"] = lambda: connection.transport.close(5.0)
    inner.raises["open"] = [LOST]
    with pytest.raises(ConnectionLostException):
        connection.open()
    assert connection.transport.state is State.CLOSED
    assert len(connection.inners) == 1


def test_the_servers_that_a_broker_announces_are_where_the_connection_is_restored() -> None:
    first, second = FakeInner(), FakeInner()
    refusing = FakeInner()
    refusing.raises["open"] = [LOST]
    connection = Connection("&failover=failover_exchange", first, refusing, second).open()
    first.tell(BrokerAnnounced((Server("other", 2, hostname="inside"), Server("h", 1))))
    first.cut()
    assert connection.has_told(*[BrokerAnnounced] * 2, Interrupted, Restoring, Restored, BrokerAnnounced)
    assert [each.host for each in connection.addresses] == ["h", "h", "other"]
    assert connection.addresses[-1].amqp.vhost == "inside"
    second.tell(BrokerAnnounced((Server("third", 3),)))
    first.tell(BrokerAnnounced((Server("fourth", 4),)))  # of the connection before
    hosts = {each.host for each in connection.transport._rules.addresses}
    assert "third" in hosts
    assert "fourth" not in hosts
    connection.transport.close(5.0)


def test_a_client_that_wants_redundancy_is_told_what_each_broker_has_in_order() -> None:
    first, second = FakeInner(), FakeInner()
    first.peer = attrs.evolve(first.peer, redundancy=2)
    connection = Connection("&redundancy=2", first, second).open()
    first.tell(BrokerAnnounced((), 1))
    first.cut()
    assert connection.has_told(*[BrokerAnnounced] * 2, Interrupted, Restoring, Restored, BrokerAnnounced)
    first.tell(BrokerAnnounced((), 3))  # of the connection before
    second.tell(BrokerAnnounced((), 2))
    announced = [each.redundancy for each in connection.events if isinstance(each, BrokerAnnounced)]
    assert announced == [2, 1, 0, 2]
    assert [each.calls.count(("watch",)) for each in connection.inners] == [1, 1]
    connection.transport.close(5.0)


def test_a_client_that_wants_nothing_announced_asks_for_nothing() -> None:
    connection = Connection().open()
    assert connection.inner.calls == [("open",)]
    assert connection.events == []
    connection.transport.close(5.0)


def test_a_connection_that_is_lost_as_it_asks_what_is_announced_is_restored() -> None:
    first = FakeInner()
    first.raises["watch"] = [LOST]
    first.before["watch"] = first.cut
    connection = Connection("&redundancy=1", first).open()
    assert connection.has_told(BrokerAnnounced, Interrupted, Restoring, Restored, BrokerAnnounced)
    connection.transport.close(5.0)


def test_a_fault_behind_the_restore_leaves_the_connection_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection().open()
    link = connection.sender()
    failed: list[int] = []

    def fail() -> None:
        failed.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(connection.transport._unanswered, "resend_late", fail)
    connection.inner.cut()
    assert wait_for(lambda: failed)
    assert connection.has_told(Interrupted, Restoring, Restored)
    connection.inner.answers = [None]
    connection.transport.send(link, message(1), None, WAIT)
    assert connection.transport.state is State.CONNECTED
    assert wait_for(lambda: "failed unexpectedly" in caplog.text)
    assert wait_for(lambda: not [each for each in threading.enumerate() if each.name == "holdfast-failover"])
    connection.transport.close(5.0)


@pytest.mark.parametrize("step", ["open", "connected"])
def test_an_inner_transport_that_does_not_become_the_connection_is_closed(step: str) -> None:
    first, second = FakeInner(), FakeInner()
    if step == "connected":
        first.before["open"] = first.cut
    else:
        first.raises[step] = [LOST]
        first.before[step] = lambda: setattr(first, "is_lost", True)
    options = "&failover=failover_exchange&startup_max_reconnect_attempts=5"
    connection = Connection(options, first, second).open()
    assert first.calls[-1] == ("close", 0)
    assert connection.inner is second
    assert ("close", 0) not in second.calls
    connection.transport.close(5.0)
