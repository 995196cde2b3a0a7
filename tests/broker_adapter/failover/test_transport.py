"""The transport that restores connections, against scripted brokers behind real sockets."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import LinkRemoteOpen, RemoteOpen, State
from broker_adapter.amqp.payloads import decode_payload
from broker_adapter.destination import DestinationKind, queue
from broker_adapter.envelope import BodyKind, Envelope, Identity, unpack
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.failover import rules
from broker_adapter.failover.inner import Identification
from broker_adapter.failover.transport import FailoverTransport
from broker_adapter.failover.unanswered import RESENT_PROPERTY
from broker_adapter.transport import (
    Credentials,
    Delivery,
    Failed,
    Interrupted,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    Peer,
    ReceiverSpec,
    Restored,
    SenderSpec,
    TransportEvent,
)
from broker_adapter.urls.url import AmqpURL, FailoverURL, parse_url
from tests.broker_adapter.amqp.client.broker_server import BrokerServer
from tests.broker_adapter.amqp.client.scripted_broker import ScriptedBroker
from tests.faults.scenarios import wait_for
from tests.threads import no_new_threads

WAIT = 120.0
QUEUE = queue("q")
FAST = "reconnect_delay_seconds=0.01&stable_seconds=0"


def message(number: int) -> Envelope:
    return Envelope(QUEUE, BodyKind.TEXT, str(number), identity=Identity("producer", 1, number))


@attrs.define
class Client:
    transport: FailoverTransport
    events: list[TransportEvent]
    credentials: list[Credentials]  #: of each attempt
    deliveries: list[Delivery] = attrs.field(factory=list)

    def open(self, timeout: float | None = WAIT) -> Peer:
        return self.transport.open(Credentials(), self.events.append, timeout)

    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.events]

    def wait_for(self, *kinds: type) -> None:
        """Until exactly these have come, in this order, leaving out what tells of a restore under way."""
        names = [kind.__name__ for kind in kinds]

        def told() -> list[str]:
            return [name for name in self.kinds() if name != "Restoring"]

        assert wait_for(lambda: len(told()) >= len(names)), self.events
        assert told() == names

    def sender(self) -> int:
        return self.transport.attach(SenderSpec(1, QUEUE), None, WAIT)

    def receiver(self, **fields: Any) -> int:
        return self.transport.attach(ReceiverSpec(1, QUEUE, **fields), self.deliveries.extend, WAIT)


MakeClient = Callable[..., Client]


@pytest.fixture
def servers() -> Iterator[Callable[..., BrokerServer]]:
    made: list[BrokerServer] = []

    def make(*arguments: Any) -> BrokerServer:
        made.append(BrokerServer(*arguments))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def client() -> Iterator[MakeClient]:
    made: list[FailoverTransport] = []

    def make(url: str, **arguments: Any) -> Client:
        parsed = parse_url(url)
        assert isinstance(parsed, FailoverURL)
        seen: list[Credentials] = []

        def inner(address: AmqpURL, epoch: int, identification: Identification) -> AmqpTransport:
            transport = AmqpTransport(address, epoch=epoch, commit_prefix=identification.commit_prefix)
            really_open = transport.open

            def open_it(credentials: Credentials, *rest: Any) -> Peer:
                seen.append(credentials)
                return really_open(credentials, *rest)

            transport.open = open_it  # type: ignore[method-assign]
            return transport

        transport = FailoverTransport(parsed, inner, random=lambda: 0.5, **arguments)
        made.append(transport)
        return Client(transport, [], seen)

    yield make
    for transport in made:
        transport.close(1)


def url_of(*servers: BrokerServer, options: str = FAST) -> str:
    inner = ",".join(f"amqp://127.0.0.1:{server.port}" for server in servers)
    return f"failover:({inner})?{options}"


def silent(*, holdfast: bool = True) -> ScriptedBroker:
    """A broker that answers no message."""
    broker = ScriptedBroker(holdfast=holdfast)
    broker.accepts = False
    return broker


def refusing(error: AmqpError) -> Callable[[], ScriptedBroker]:
    """Brokers that close each connection as they open it."""

    def make() -> ScriptedBroker:
        broker = ScriptedBroker()
        broker.open_error = error
        return broker

    return make


# Opening.


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


def test_a_new_connection_that_finds_nobody_says_how_often_it_tried(client: MakeClient) -> None:
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


# Redirects.


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


# Refusals.


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


# Losing and restoring.


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


def sent_bodies(broker: ScriptedBroker) -> list[tuple[Any, Any]]:
    """(body, mark of a message that is sent again) of what a silent broker holds."""
    found = []
    for _, delivery in broker.held:
        envelope = decode_payload(delivery.payload)
        found.append((envelope.body, (envelope.properties or {}).get(RESENT_PROPERTY)))
    return found


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
    away = "not restored in time; the last error: .*(no room|failed|lost)"
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
    with pytest.raises(OperationTimedOutException):
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


# Commits.


def test_a_commit_in_flight_is_in_doubt_where_the_broker_cannot_tell(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    discharged = threading.Event()

    class Forgetful(ScriptedBroker):
        def _coordinate(self, link: int, delivery: Any) -> None:
            if len(delivery.payload) < 12:
                super()._coordinate(link, delivery)  # a declare; a discharge has no answer
            else:
                discharged.set()

    server = servers(lambda: Forgetful(holdfast=False))
    made = client(url_of(server))
    made.open()
    link = made.sender()
    results: list[JMSException] = []

    def commit() -> None:
        try:
            made.transport.commit(1, 1, [(link, message(1))], [], WAIT)
        except JMSException as error:
            results.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    assert discharged.wait(WAIT)
    server.drop_connections()
    thread.join(WAIT)
    assert [type(each) for each in results] == [TransactionInDoubtException]


def test_a_commit_whose_connection_ends_as_its_time_is_over_is_in_doubt(
    servers: Callable[..., BrokerServer], client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was discharged, and perhaps done: whether it could be withdrawn is not known any more."""

    class Silent(ScriptedBroker):
        def _coordinate(self, link: int, delivery: Any) -> None:
            if len(delivery.payload) < 12:
                super()._coordinate(link, delivery)  # a declare; a discharge has no answer

    server = servers(lambda: Silent(holdfast=False))
    made = client(url_of(server))
    made.open()
    link = made.sender()
    ask = AmqpTransport._ask

    def cut_first(transport: AmqpTransport, what: str, *others: Any) -> Any:
        if what == "the end of the commit":
            server.drop_connections()
            assert wait_for(lambda: transport.is_lost)
        return ask(transport, what, *others)

    monkeypatch.setattr(AmqpTransport, "_ask", cut_first)
    with pytest.raises(TransactionInDoubtException):
        made.transport.commit(1, 1, [(link, message(1))], [], 0.5)


def test_a_commit_that_was_never_sent_is_rolled_back(servers: Callable[..., BrokerServer], client: MakeClient) -> None:
    """The network is away for as long as the commit may take: nobody is in doubt."""
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    server.close()
    made.wait_for(Interrupted)
    with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
        made.transport.commit(1, 1, [(link, message(1))], [], 0.2)


def test_a_loss_that_nobody_was_told_of_yet_rolls_back_one_commit(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    server = servers()
    made = client(url_of(server))
    made.open()
    link = made.sender()
    results: list[JMSException | None] = []

    def commit() -> None:
        for number in range(3):
            try:
                made.transport.commit(1, number, [(link, message(1))], [], WAIT)
                results.append(None)
            except JMSException as error:
                results.append(error)

    with made.transport._current.telling:
        inner = made.transport._current.last
        assert inner is not None
        server.drop_connections()
        assert wait_for(lambda: inner.is_lost)
        thread = threading.Thread(target=commit)
        thread.start()
        thread.join(0.1)
        assert results == []
    thread.join(WAIT)
    assert [type(each) for each in results] == [TransactionRolledBackException, type(None), type(None)]


def test_a_commit_whose_broker_opens_no_transaction_is_rolled_back(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    class Silent(ScriptedBroker):
        def _coordinate(self, link: int, delivery: Any) -> None:
            """No answer to the declare."""

    made = client(url_of(servers(Silent)))
    made.open()
    link = made.sender()
    with pytest.raises(TransactionRolledBackException, match="nothing was committed"):
        made.transport.commit(1, 1, [(link, message(1))], [], 0.3)


def test_a_commit_through_a_link_that_is_closed_does_nothing(
    servers: Callable[..., BrokerServer], client: MakeClient
) -> None:
    made = client(url_of(servers()))
    made.open()
    link = made.sender()
    made.transport.detach(link, WAIT)
    with pytest.raises(TransactionRolledBackException, match=f"link {link} is closed"):
        made.transport.commit(1, 1, [(link, message(1))], [], WAIT)


# Links that the broker closes.


GONE = AmqpError("amqp:link:detach-forced", "idle for too long")


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
    sender, receiver = made.sender(), made.transport.attach(ReceiverSpec(1, queue("other")), [].extend, WAIT)

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


# The end.


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


def test_a_link_that_is_closed_again_while_things_are_restored_is_mended(
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


def test_a_link_that_is_lost_as_soon_as_the_connection_is_restored_is_mended_once(
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
