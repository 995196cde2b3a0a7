"""What our SDK does where a product differs from the others (``docs/brokers.md``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from proton import Message, symbol, ulong
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from broker_adapter.connect import transport_for
from broker_adapter.destination import queue
from broker_adapter.envelope import BodyKind, Envelope
from broker_adapter.transport import Credentials, SenderSpec
from sdk import (
    AcknowledgeMode,
    ConnectionFactory,
    InvalidDestinationException,
    JMSException,
    Session,
    UnsupportedOperationException,
)
from tests.interop.brokers.brokers import Broker, start_artemis, start_broker_j, start_rabbitmq_4
from tests.interop.conftest import installed

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

WAIT = 30.0
NOTHING = 1.0


def _running(start: Callable[[Path], Broker], factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = installed(lambda: start(factory.mktemp("broker")))
    yield broker
    broker.process.stop()


@pytest.fixture(scope="module")
def broker_j(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from _running(start_broker_j, tmp_path_factory)


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """RabbitMQ 4, with queues that exist."""
    for broker in _running(start_rabbitmq_4, tmp_path_factory):
        for name, kind in (("classic", "classic"), ("other", "classic"), ("quorum", "quorum"), ("again", "quorum")):
            _declare(broker, name, kind)
        yield broker


class _Paired(LinkOption):
    """A link of the pair by which RabbitMQ 4 is managed."""

    def apply(self, link: object) -> None:
        link.properties = {symbol("paired"): True}  # type: ignore[attr-defined]
        link.source.address = link.target.address = "/management"  # type: ignore[attr-defined]
        link.snd_settle_mode = link.SND_SETTLED  # type: ignore[attr-defined]


def _declare(broker: Broker, name: str, kind: str) -> None:
    port = _port(broker)
    connection = BlockingConnection(f"amqp://ada:secret@127.0.0.1:{port}", allowed_mechs="PLAIN", timeout=WAIT)
    sender = connection.create_sender("/management", name="pair", options=_Paired())
    receiver = connection.create_receiver("/management", name="pair", credit=1, options=_Paired())
    body = {"durable": True, "arguments": {"x-queue-type": kind}}
    sender.send(Message(id=ulong(1), subject="PUT", address=f"/queues/{name}", reply_to="$me", body=body))
    assert receiver.receive(timeout=WAIT).subject == "201"
    connection.close()


def _port(broker: Broker) -> int:
    return int(broker.url.partition("?")[0].rpartition(":")[2])


@contextmanager
def _session(
    broker: Broker,
    mode: AcknowledgeMode = AcknowledgeMode.AUTO,
    options: str = "",
    *,
    client_id: str | None = None,
    version_2: bool = False,
) -> Iterator[Session]:
    url = broker.url + options
    if version_2:
        url = url.replace("=/queue/", "=/queues/").replace("=/topic/", "=/exchanges/amq.topic/")
    with ConnectionFactory(url, broker.username, broker.password).create_connection(client_id=client_id) as connection:
        connection.start()
        yield connection.create_session(mode)


def _send_expired(broker: Broker, name: str) -> None:
    """Send a message that says by its properties alone that it has expired, and by no header."""
    transport, _ = transport_for(broker.url)
    transport.open(Credentials(broker.username, broker.password), lambda event: None, WAIT)
    link = transport.attach(SenderSpec(1, queue(name)), None, WAIT)
    expired_ms = time.time_ns() // 1_000_000 - 1000
    transport.send(link, Envelope(queue(name), BodyKind.TEXT, "late", expires_at_ms=expired_ms), None, WAIT)
    transport.close(WAIT)


# ActiveMQ Artemis.


def test_artemis_has_no_queue_of_that_name_for_an_anonymous_producer_either(tmp_path: Path) -> None:
    broker = installed(lambda: start_artemis(tmp_path))
    broker.process.stop()
    settings = tmp_path / "artemis" / "etc" / "broker.xml"
    fixed = "<auto-create-queues>false</auto-create-queues><auto-create-addresses>false</auto-create-addresses>"
    setting = f'<address-settings><address-setting match="fixed.#">{fixed}</address-setting>'
    settings.write_text(settings.read_text().replace("<address-settings>", setting))
    process = broker.process.started_again()
    try:
        with _session(broker) as session:
            missing = session.create_queue("fixed.missing")
            with pytest.raises(InvalidDestinationException, match="does not exist"):
                session.create_producer(missing)
            with pytest.raises(InvalidDestinationException, match="does not exist"):
                session.create_producer().send("x", missing)
    finally:
        process.stop()


# Qpid Broker-J.


def test_broker_j_does_not_send_what_has_expired_here_again(broker_j: Broker) -> None:
    """It ignores ``absolute-expiry-time``, and sent what was given back as failed at once: some 100 times a second."""
    _send_expired(broker_j, "queue-expired")
    with _session(broker_j) as session:
        assert session.create_consumer(session.create_queue("queue-expired")).receive(NOTHING) is None
    with _session(broker_j, options="&local_message_expiry=false") as session:
        message = session.create_consumer(session.create_queue("queue-expired")).receive(WAIT)
        assert message is not None
        assert (message.body, message.delivery_count) == ("late", 2)


def test_broker_j_does_not_send_what_is_rejected_without_end(broker_j: Broker) -> None:
    with _session(broker_j, AcknowledgeMode.CLIENT, "&max_redeliveries=2") as session:
        rejected = session.create_queue("queue-rejected")
        session.create_producer(rejected).send("bad")
        consumer = session.create_consumer(rejected)
        for count in (1, 2, 3):
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.delivery_count == count
            session.recover()
        assert consumer.receive(NOTHING) is None
    with _session(broker_j) as session:
        message = session.create_consumer(rejected).receive(WAIT)
        assert message is not None
        assert (message.body, message.delivery_count) == ("bad", 25)  # 3 recovered, 20 rejected, 1 undeliverable here


# RabbitMQ 4.


def test_rabbitmq_does_not_send_what_has_expired_here_again(rabbitmq: Broker) -> None:
    _send_expired(rabbitmq, "classic")
    with _session(rabbitmq) as session:
        assert session.create_consumer(session.create_queue("classic")).receive(NOTHING) is None
    with _session(rabbitmq, options="&local_message_expiry=false") as session:
        assert session.create_consumer(session.create_queue("classic")).receive(NOTHING) is None  # it was dropped


def test_rabbitmq_takes_anonymous_sends_to_addresses_of_both_versions(rabbitmq: Broker) -> None:
    for version_2 in (False, True):
        with _session(rabbitmq, version_2=version_2) as session:
            names = [session.create_queue(name) for name in ("other", "quorum")]
            producer = session.create_producer()
            for name in names:
                producer.send(f"to {name}", name)
            for name in names:
                message = session.create_consumer(name).receive(WAIT)
                assert message is not None
                assert message.body == f"to {name}"
                assert str(message.destination) == str(name)


def test_rabbitmq_has_no_queue_of_that_name_at_addresses_of_version_2(rabbitmq: Broker) -> None:
    with _session(rabbitmq, version_2=True) as session:
        missing = session.create_queue("missing")
        with pytest.raises(InvalidDestinationException, match="no queue 'missing'"):
            session.create_producer(missing)
        with pytest.raises(JMSException, match="gave the message back"):
            session.create_producer().send("x", missing)


def test_rabbitmq_drops_a_message_of_a_quorum_queue_as_its_21st_delivery_is_recovered(rabbitmq: Broker) -> None:
    with _session(rabbitmq, AcknowledgeMode.CLIENT, version_2=True) as session:
        again = session.create_queue("again")
        session.create_producer(again).send("x")
        consumer = session.create_consumer(again)
        for count in range(1, 22):
            message = consumer.receive(WAIT)
            assert message is not None
            assert (message.delivery_count, message.redelivered) == (count, count > 1)
            session.recover()
        assert consumer.receive(NOTHING) is None


def test_rabbitmq_is_asked_to_keep_or_delete_no_subscription(rabbitmq: Broker) -> None:
    with _session(rabbitmq, client_id="me") as session:
        with pytest.raises(UnsupportedOperationException, match="was not seen to keep subscriptions"):
            session.create_durable_consumer(session.create_topic("t"), "s")
        with pytest.raises(UnsupportedOperationException, match="was not seen to keep subscriptions"):
            session.unsubscribe("s")


def test_rabbitmq_answers_every_synchronous_acknowledgement(rabbitmq: Broker) -> None:
    """Each was confirmed by a session that came and went on one channel: 4 in 1,000 had no answer."""
    options = "&synchronous_acknowledge=true&request_timeout_seconds=10"
    with _session(rabbitmq, AcknowledgeMode.CLIENT, options) as session:
        many = session.create_queue("other")
        producer = session.create_producer(many)
        for _ in range(1000):
            producer.send("x", on_completion=lambda message, error: None)
        consumer = session.create_consumer(many)
        for _ in range(1000):
            message = consumer.receive(WAIT)
            assert message is not None
            message.acknowledge()
