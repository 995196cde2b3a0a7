"""The client's protocol against a scripted broker, without sockets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ack_modes import Outcome, Settlement
from broker_adapter.amqp.client.protocol import ClientOptions, ClientProtocol, Phase
from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    LinkRemoteOpen,
    RemoteClose,
    RemoteOpen,
    SessionRemoteClose,
    SessionRemoteOpen,
    Transfers,
)
from broker_adapter.amqp.messages.amqp_message import encode_amqp
from broker_adapter.amqp.proton_engine.peer import Peer, PeerLimits
from broker_adapter.amqp.sasl import ClientLogin
from broker_adapter.destination import DestinationKind, queue, topic
from broker_adapter.envelope import ENVELOPE_VERSION, Envelope
from broker_adapter.errors import (
    ConnectionLostException,
    InvalidClientIDException,
    InvalidURLException,
    JMSException,
    JMSSecurityException,
    ProtocolException,
    ResourceAllocationException,
)
from broker_adapter.failover.failures import says_why
from broker_adapter.transport import Delivery, Failed, ReceiverSpec, SenderSpec
from tests.broker_adapter.amqp.client.conversations import BODY, QUEUE, attached, foreign, receiver, sender
from tests.broker_adapter.amqp.client.scripted_broker import Result, ScriptedBroker, Wired

# The connection.


def test_open_names_the_client_and_its_capabilities(wired: Wired) -> None:
    (opened,) = wired.broker.of(RemoteOpen)

    assert (opened.container_id, opened.hostname) == ("client-1", "host")
    assert opened.properties == {"product": "Holdfast", "version": "1"}
    assert "jms" not in opened.properties["product"].lower()
    assert opened.desired_capabilities == {
        "sole-connection-for-container",
        "ANONYMOUS-RELAY",
        "DELAYED_DELIVERY",
        "SHARED-SUBS",
        "HOLDFAST-ENVELOPE",
        "HOLDFAST-BATCHES",
    }


def test_open_tells_what_the_broker_is() -> None:
    result = Result()
    wired = Wired(ScriptedBroker(holdfast=False))
    wired.client.open(result)
    wired.pump()

    assert (result.value.product, result.value.is_holdfast, result.value.client_id) == ("other", False, "client-1")
    assert wired.client.envelope_version == 0
    assert Wired().opened().client.envelope_version == ENVELOPE_VERSION
    assert Wired(envelope=False).opened().client.envelope_version == 0


@pytest.mark.parametrize(("known", "spoken"), [(1, 1), (2, 1), (9999, 1)])
def test_the_lower_version_of_the_envelope_is_spoken(known: int, spoken: int) -> None:
    broker = ScriptedBroker()
    broker.envelope_version = known
    assert Wired(broker).opened().client.envelope_version == spoken


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (AmqpError("amqp:invalid-field", "in use", {"invalid-field": "container-id"}), InvalidClientIDException),
        (AmqpError("amqp:unauthorized-access", "no"), JMSSecurityException),
        (AmqpError("amqp:resource-limit-exceeded", "full"), ResourceAllocationException),
    ],
)
@pytest.mark.parametrize("said", [True, "true"])
def test_a_refused_open_raises_the_reason(error: AmqpError, cls: type[JMSException], said: object) -> None:
    broker = ScriptedBroker(properties={"amqp:connection-establishment-failed": said})
    broker.open_error = error
    wired = Wired(broker)
    result = Result()
    wired.client.open(result)
    wired.pump()

    with pytest.raises(cls):
        _ = result.value
    assert wired.events == []
    assert wired.client.phase is Phase.CLOSED


def test_a_broker_that_asks_for_too_short_an_idle_time_out_is_left_with_the_reason() -> None:
    broker = ScriptedBroker()
    broker.peer = Peer(PeerLimits(idle_timeout_ms=20), server=True)
    wired = Wired(broker)
    result = Result()
    wired.client.open(result)
    wired.pump()

    with pytest.raises(JMSException, match="idle-time-out of 10 ms is not kept; ask for 250 ms at least"):
        _ = result.value
    assert wired.client.phase is Phase.CLOSED
    (closed,) = broker.of(RemoteClose)
    assert closed.error.condition == "amqp:not-implemented"


def test_close_is_answered_and_legal_twice(wired: Wired) -> None:
    assert wired.ask(wired.client.close) is None
    assert wired.ask(wired.client.close) is None
    assert wired.events == []
    assert wired.client.output_closed


def test_a_lost_connection_fails_everything_that_waits_once(wired: Wired) -> None:
    wired.broker.accepts = False
    wired.broker.answers_drain = False
    wired.broker.credit = 1
    link, consumer = sender(wired), receiver(wired)
    sends: list[Any] = []
    results = [Result() for _ in range(5)]
    wired.client.send_all([(link, BODY, sends.append)])
    wired.client.send_all([(link, BODY, sends.append)])
    wired.client.credit(consumer, 5)
    wired.pump()
    wired.client.drain(consumer, results[0])
    wired.client.request("x", {}, results[1])
    wired.client.attach_sender(SenderSpec(1, queue("other")), results[2])
    wired.client.unsubscribe("sub", results[3])
    wired.client.end_session(9, results[4])
    wired.client.receive_end()

    assert results[4].value is None
    for result in results[:4]:
        with pytest.raises(ConnectionLostException):
            _ = result.value
    assert [type(error) for error in sends] == [ConnectionLostException] * 2
    assert wired.sends_done == 2
    assert [type(event) for event in wired.events] == [Failed]
    late: list[Any] = []
    wired.client.send_all([(link, BODY, late.append)])
    assert [type(error) for error in late] == [ConnectionLostException]
    assert wired.sends_done == 3


def test_a_connection_closed_by_the_broker_tells_the_reason(wired: Wired) -> None:
    wired.broker.peer.close(AmqpError("amqp:connection:forced", "maintenance"))
    wired.pump()

    (event,) = wired.events
    assert isinstance(event, Failed)
    assert str(event.error) == "maintenance [amqp:connection:forced]"
    assert isinstance(event.error, ConnectionLostException)


def test_a_client_that_the_broker_has_not_heard_of_has_lost_its_connection(wired: Wired) -> None:
    """It is closed for the silence of the network, and for nothing that it has sent."""
    wired.broker.peer.close(AmqpError("amqp:resource-limit-exceeded", "local-idle-timeout expired"))
    wired.pump()

    (event,) = wired.events
    assert isinstance(event, Failed)
    assert isinstance(event.error, ConnectionLostException)
    assert not says_why(event.error)


def test_garbage_from_the_broker_fails_the_connection(wired: Wired) -> None:
    wired.client.receive(b"\xff" * 100)

    (event,) = wired.events
    assert isinstance(event, Failed)
    assert isinstance(event.error, ProtocolException)


def test_a_silent_broker_is_taken_for_lost() -> None:
    wired = Wired(limits=PeerLimits(idle_timeout_ms=1_000)).opened()
    wired.client.tick(1)
    wired.client.tick(1_002)

    (event,) = wired.events
    assert isinstance(event, Failed)
    assert event.error.reason == "the broker was silent for 1 s"


# Hostile brokers: callbacks, or one failure; never another error.


def busy(wired: Wired, feed: Any) -> None:
    """A client that does everything once; ``feed`` carries bytes."""
    results = [Result() for _ in range(9)]
    got: list[Delivery] = []
    answers: list[Any] = []
    client = wired.client
    client.open(results[0])
    feed()
    for step in (
        lambda: client.attach_sender(SenderSpec(1, QUEUE), results[1]),
        lambda: client.attach_receiver(ReceiverSpec(1, QUEUE, selector="a = 1"), got.extend, results[2]),
        lambda: client.credit(results[2].calls[0][0], 9),
        lambda: client.send_all([(results[1].calls[0][0][0], BODY, answers.append)]),
        lambda: client.settle([Settlement(each.tag, Outcome.ACCEPTED) for each in got]),
        lambda: client.commit(1, 1, [(results[1].calls[0][0][0], BODY)], [], results[3]),
        lambda: client.drain(results[2].calls[0][0], results[4]),
        lambda: client.declare_temporary(DestinationKind.TEMPORARY_QUEUE, results[5]),
        lambda: client.unsubscribe("sub", results[6]),
        lambda: client.detach(results[2].calls[0][0], results[7]),
        lambda: client.close(results[8]),
    ):
        if client.phase is not Phase.OPEN:
            break
        try:
            step()
        except (IndexError, TypeError):
            continue  # what the step builds on was damaged
        feed()
    client.receive_end()
    assert client.phase is Phase.CLOSED
    assert all(len(result.calls) <= 1 for result in results)
    assert len([event for event in wired.events if isinstance(event, Failed)]) <= 1


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_answers_give_callbacks_or_one_failure(data: st.DataObject) -> None:
    wired = Wired()

    def feed() -> None:
        for _ in range(8):
            sent = wired.client.pending_output()
            if sent:
                wired.broker.peer.receive(sent)
            wired.broker.handle()
            answer = bytearray(wired.broker.peer.pending_output())
            if not answer and not sent:
                return
            if answer and data.draw(st.integers(0, 4)) == 0:
                where = data.draw(st.integers(0, len(answer) - 1))
                answer[where] = data.draw(st.integers(0, 255))
            wired.client.receive(bytes(answer))

    busy(wired, feed)


def test_our_own_server_is_known_also_where_our_own_format_is_not_used() -> None:
    wired = Wired(envelope=False)
    result = Result()
    wired.client.open(result)
    wired.pump()

    assert result.value.is_holdfast
    assert wired.client.envelope_version == 0


# Prefixes of addresses.


def test_queues_have_their_prefix_on_the_wire_alone() -> None:
    wired = Wired(ScriptedBroker(holdfast=False), queue_prefix="q/").opened()
    inbox: list[Delivery] = []
    sender(wired)
    target = attached(wired).target
    assert target is not None
    assert target.address == "q/q"
    link = receiver(wired, inbox.extend)
    far = wired.broker.links[attached(wired).name]
    wired.client.credit(link, 2)
    wired.pump()
    for body in (Envelope(queue("q/q"), reply_to=queue("q/answers")), Envelope(topic("t"))):
        wired.broker.peer.send(far, encode_amqp(body))
    wired.pump()
    assert [each.envelope.destination for each in inbox] == [QUEUE, topic("t")]
    assert inbox[0].envelope.reply_to == queue("answers")


def test_a_connection_with_a_prefix_to_our_own_server_is_closed_and_says_so() -> None:
    wired = Wired(ScriptedBroker(), queue_prefix="p/")
    result = Result()
    wired.client.open(result)
    wired.pump()
    with pytest.raises(InvalidURLException, match="queue_prefix='p/'"):
        _ = result.value
    assert wired.client.phase is Phase.CLOSED
    assert len(wired.broker.of(RemoteClose)) == 1


# Conversations, frame by frame.


def test_what_was_not_expected_is_shown_beside_what_was() -> None:
    wired = foreign()
    with pytest.raises(AssertionError) as caught:
        wired.broker.expect(RemoteOpen, Transfers, LinkRemoteOpen)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[1].split()[0] == "RemoteOpen"
    assert "SessionRemoteOpen" in lines[2]
    assert lines[3].endswith("(nothing)")


def test_closing_a_session_and_the_connection_says_goodbye_in_order() -> None:
    wired = foreign()
    sender(wired)
    wired.broker.expect(RemoteOpen, SessionRemoteOpen, SessionRemoteOpen, LinkRemoteOpen)
    wired.ask(wired.client.end_session, 1)
    wired.broker.expect(SessionRemoteClose)
    wired.client.close(Result())
    wired.pump()
    wired.broker.expect(RemoteClose)


@pytest.mark.parametrize(("epoch", "remedy"), [(0, "if it wants TLS, connect with amqps://"), (1, "so try again")])
def test_a_peer_that_ends_the_login_may_want_tls_only_where_no_connection_worked_before(
    epoch: int, remedy: str
) -> None:
    options = ClientOptions(
        container_id="c", hostname="h", version="1", has_client_id=True, commit_prefix="p", epoch=epoch
    )
    client = ClientProtocol(options, ClientLogin(("PLAIN",), "al", "s3cret"), lambda _event: None, lambda _count: None)
    opened = Result()
    client.open(opened)
    client.receive_end()
    with pytest.raises(ConnectionLostException, match=f"closed the connection during the login; .*{remedy}"):
        _ = opened.value
