"""Acknowledgements that the network swallowed, of messages that another consumer has by now."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    IllegalStateException,
    JMSException,
    Message,
    OperationTimedOutException,
    ResourceAllocationException,
    Session,
    StaleAcknowledgementException,
)
from sdk.acknowledgements import LostAcknowledgements
from tests.faults.conftest import Client, Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash

COUNT = 40
MODES = [AcknowledgeMode.AUTO, AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL]


def fill(direct: Connection, name: str) -> list[str]:
    """Send; returns the ids."""
    ids = []
    with direct.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for number in range(COUNT):
            message = session.create_text_message(str(number))
            producer.send(message)
            ids.append(str(message.message_id))
    return ids


def stale(told: list[JMSException]) -> list[StaleAcknowledgementException]:
    return [each for each in told if isinstance(each, StaleAcknowledgementException)]


def lose_and_restore(client: Client, proxy: Proxy) -> None:
    """End the connection, and with it what the proxy holds; let the client come back."""
    proxy.refuse()
    proxy.cut()
    proxy.hold()
    proxy.refuse(False)
    client.wait_for_restore()


def acknowledged_into_the_void(client: Client, proxy: Proxy, name: str, mode: AcknowledgeMode) -> Session:
    """A session that has received and acknowledged all; the server has heard nothing of it."""
    session = client.connection.create_session(mode)
    consumer = session.create_consumer(session.create_queue(name))
    assert wait_for(lambda: len(consumer._prefetch.buffer) == COUNT)
    proxy.hold(Direction.TO_SERVER)
    received = []
    for _ in range(COUNT):
        message = consumer.receive(timeout=WAIT)
        assert message is not None
        received.append(message)
    if mode is not AcknowledgeMode.AUTO:
        for message in received:
            message.acknowledge()
    return session


@pytest.mark.parametrize("in_hand", [True, False], ids=["in hand", "processed"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_what_another_consumer_has_by_now_is_told(
    proxy: Proxy, direct: Connection, connect: Connect, mode: AcknowledgeMode, in_hand: bool
) -> None:
    """The server notices the loss; the client reconnects when the other one has what it had acknowledged."""
    name = f"queue {uuid4()}"
    ids = fill(direct, name)
    client = connect(f"prefetch_messages={COUNT}")
    session = acknowledged_into_the_void(client, proxy, name, mode)
    other = direct.create_session(AcknowledgeMode.CLIENT)
    taking = other.create_consumer(other.create_queue(name))
    proxy.refuse()
    proxy.cut()
    again = [taking.receive(timeout=WAIT) for _ in range(COUNT)]
    assert [str(message) for message in again] == [str(number) for number in range(COUNT)]
    assert {message.delivery_count for message in again if message is not None} == {2}
    if not in_hand:
        assert again[-1] is not None
        again[-1].acknowledge()
    proxy.hold()
    proxy.refuse(False)
    client.wait_for_restore()
    if mode is AcknowledgeMode.AUTO:
        assert wait_for(lambda: stale(client.told))
        (told,) = stale(client.told)
    else:
        with direct.create_session() as sending:
            sending.create_producer(sending.create_queue(f"{name} more")).send("more")
        message = session.create_consumer(session.create_queue(f"{name} more")).receive(timeout=WAIT)
        assert message is not None
        with pytest.raises(StaleAcknowledgementException) as raised:
            message.acknowledge()
        told = raised.value
        message.acknowledge()  # once
        assert stale(client.told) == []
    assert list(told.message_ids) == ids
    assert told.stale_count == COUNT
    assert ids[0] in told.reason
    other.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_nothing_is_reported_where_no_other_consumer_has_them(
    proxy: Proxy, direct: Connection, connect: Connect, mode: AcknowledgeMode
) -> None:
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect(f"prefetch_messages={COUNT}")
    session = acknowledged_into_the_void(client, proxy, name, mode)
    lose_and_restore(client, proxy)
    consumer = session.create_consumer(session.create_queue(name))
    assert consumer.receive(timeout=0.5) is None, "they were acknowledged again"
    session.close()
    assert stale(client.told) == []
    with direct.create_session() as looking:
        assert looking.create_consumer(looking.create_queue(name)).receive(timeout=0.5) is None


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not durable"])
def test_another_subscription_of_the_same_name_keeps_its_messages(
    proxy: Proxy, direct: Connection, connect: Connect, durable: bool
) -> None:
    """A durable subscription and one that is not may have the same name (Jakarta Messaging 3.1 section 8.3.3)."""
    client = connect(f"prefetch_messages={COUNT}")
    session, other = client.connection.create_session(), direct.create_session(AcknowledgeMode.CLIENT)
    news = session.create_topic(f"topic {uuid4()}")
    kinds = {True: Session.create_shared_durable_consumer, False: Session.create_shared_consumer}
    consumer = kinds[durable](session, news, "same name")
    waiting = kinds[not durable](other, news, "same name")
    with direct.create_session() as sending:
        producer = sending.create_producer(news)
        for number in range(COUNT):
            producer.send(str(number))
    assert wait_for(lambda: len(consumer._prefetch.buffer) == COUNT)
    proxy.hold(Direction.TO_SERVER)
    assert [str(consumer.receive(WAIT)) for _ in range(COUNT)] == [str(number) for number in range(COUNT)]
    lose_and_restore(client, proxy)
    assert [str(waiting.receive(WAIT)) for _ in range(COUNT)] == [str(number) for number in range(COUNT)]
    other.close()


def test_a_consumer_that_closes_in_a_black_hole_leaves_its_acknowledgements_to_be_given_again(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect("close_timeout_seconds=0.5&prefetch_messages=40")
    session = client.connection.create_session()
    other = session.create_consumer(session.create_queue(f"{name} other"), prefetch=20)
    fill(direct, f"{name} other")
    consumer = session.create_consumer(session.create_queue(name))
    assert wait_for(lambda: len(consumer._prefetch.buffer) == COUNT and len(other._prefetch.buffer) == 20)
    proxy.hold(Direction.TO_SERVER)
    for _ in range(COUNT):
        assert consumer.receive(WAIT) is not None
    consumer.close()
    for _ in range(20):
        assert other.receive(WAIT) is not None
    lose_and_restore(client, proxy)
    with direct.create_session() as looking:
        assert looking.create_consumer(looking.create_queue(name)).receive(timeout=0.5) is None


def test_what_will_not_be_acknowledged_any_more_is_reported_when_the_session_ends(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect(f"prefetch_messages={COUNT}")
    session = acknowledged_into_the_void(client, proxy, name, AcknowledgeMode.CLIENT)
    other = direct.create_session(AcknowledgeMode.CLIENT)
    taking = other.create_consumer(other.create_queue(name))
    proxy.refuse()
    proxy.cut()
    assert taking.receive(timeout=WAIT) is not None
    proxy.hold()
    proxy.refuse(False)
    client.wait_for_restore()
    session.close()
    assert wait_for(lambda: stale(client.told))
    other.close()


@pytest.mark.parametrize("mode", [*MODES, AcknowledgeMode.DUPS_OK], ids=lambda mode: mode.name)
def test_acknowledging_synchronously_returns_when_the_server_has_it(
    proxy: Proxy, direct: Connection, connect: Connect, mode: AcknowledgeMode
) -> None:
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect("synchronous_acknowledge=true&dups_ok_batch_messages=1")
    session = client.connection.create_session(mode)
    consumer = session.create_consumer(session.create_queue(name))

    def waiting() -> int:
        return sum(each.messages for each in direct.statistics().queues if each.name == name)

    for number in range(5):
        message = consumer.receive(timeout=WAIT)
        assert message is not None
        message.acknowledge()
        assert waiting() == COUNT - number - 1
    proxy.hold(Direction.TO_CLIENT)
    returned = threading.Event()

    def go_on(message: Message | None) -> None:
        assert message is not None
        message.acknowledge()
        returned.set()

    thread = threading.Thread(target=lambda: go_on(consumer.receive(timeout=WAIT)))
    thread.start()
    assert wait_for(lambda: waiting() == COUNT - 6)
    assert not returned.wait(0.3), "the answer is not there"
    proxy.hold()
    assert returned.wait(WAIT)
    thread.join(WAIT)
    session.close()
    assert waiting() == COUNT - 6


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The server refuses to hear acknowledgements again that a loss took, so many times."""
    left = [0]
    give_again = LostAcknowledgements.give_again

    def give_again_refused(self: LostAcknowledgements, request: Any, *arguments: Any) -> None:
        def ask(operation: str, given: Mapping[str, Any], timeout: float | None) -> Any:
            if operation == "settle_positions" and left[0]:
                left[0] -= 1
                raise ResourceAllocationException("the disk is full")
            return request(operation, given, timeout)

        give_again(self, ask, *arguments)

    monkeypatch.setattr(LostAcknowledgements, "give_again", give_again_refused)
    yield left
    assert left == [0]


def test_acknowledging_synchronously_raises_where_the_server_refuses_to_hear_what_a_loss_took(
    proxy: Proxy, direct: Connection, connect: Connect, refusing: list[int]
) -> None:
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect("synchronous_acknowledge=true")
    session = client.connection.create_session(AcknowledgeMode.CLIENT)
    message = session.create_consumer(session.create_queue(name)).receive(timeout=WAIT)
    assert message is not None
    refusing[0] = 1
    proxy.hold(Direction.TO_SERVER)
    cutting = threading.Timer(0.3, lose_and_restore, (client, proxy))
    cutting.start()
    with pytest.raises(StaleAcknowledgementException, match="refused to hear"):
        message.acknowledge()
    cutting.join(WAIT)
    session.close()


def test_what_the_server_has_refused_to_hear_and_another_has_in_hand_is_told_with_the_next_loss(
    proxy: Proxy, direct: Connection, connect: Connect, refusing: list[int]
) -> None:
    name = f"queue {uuid4()}"
    ids = fill(direct, name)
    client = connect(f"prefetch_messages={COUNT}")
    acknowledged_into_the_void(client, proxy, name, AcknowledgeMode.AUTO)
    other = direct.create_session(AcknowledgeMode.CLIENT)
    taking = other.create_consumer(other.create_queue(name))
    proxy.refuse()
    proxy.cut()
    for _ in range(COUNT):
        assert taking.receive(timeout=WAIT) is not None
    refusing[0] = 1
    proxy.hold()
    proxy.refuse(False)
    client.wait_for_restore()
    assert stale(client.told) == []
    lose_and_restore(client, proxy)
    assert wait_for(lambda: stale(client.told))
    (told,) = stale(client.told)
    assert list(told.message_ids) == ids
    other.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_what_waits_for_the_confirmation_ends_with_its_session(
    proxy: Proxy, direct: Connection, connect: Connect, mode: AcknowledgeMode
) -> None:
    """The connection lives, and the server says nothing."""
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect(
        f"synchronous_acknowledge=true&close_timeout_seconds=0.5&request_timeout_seconds=1000&prefetch_messages={COUNT}"
    )
    session = client.connection.create_session(mode)
    consumer = session.create_consumer(session.create_queue(name))
    assert wait_for(lambda: len(consumer._prefetch.buffer) == COUNT)
    proxy.hold(Direction.TO_SERVER)
    received: list[Message | None] = []
    errors: list[JMSException] = []

    def work() -> None:
        try:
            received.append(message := consumer.receive(WAIT))
            if message is not None:
                message.acknowledge()
        except JMSException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    session.close()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert [str(message) for message in received] == ["0"]
    told = client.told if mode is AcknowledgeMode.AUTO else errors
    assert wait_for(lambda: any(isinstance(each, IllegalStateException) for each in told))


def test_a_receive_does_not_wait_for_the_network_with_a_message_that_it_has(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    """Meanwhile another consumer may get what comes behind that message."""
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect(f"synchronous_acknowledge=true&request_timeout_seconds=1000&prefetch_messages={COUNT}")
    session = client.connection.create_session()
    consumer = session.create_consumer(session.create_queue(name))
    assert wait_for(lambda: len(consumer._prefetch.buffer) == COUNT)
    proxy.hold(Direction.TO_SERVER)
    received: list[Message | None] = []
    thread = threading.Thread(target=lambda: received.append(consumer.receive(1)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    proxy.refuse()
    proxy.cut()
    thread.join(WAIT)
    assert [str(message) for message in received] == ["0"]
    assert wait_for(lambda: any("1 acknowledgement of session 1 is not confirmed" in str(each) for each in client.told))
    proxy.hold()
    proxy.refuse(False)
    client.wait_for_restore()
    assert str(consumer.receive(WAIT)) == "1", "the first one is acknowledged by now"


def test_a_listener_acknowledges_synchronously(direct: Connection, connect: Connect) -> None:
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect("synchronous_acknowledge=true")
    session = client.connection.create_session()
    left: list[int] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        left.append(sum(each.messages for each in direct.statistics().queues if each.name == name))
        if len(left) == COUNT:
            done.set()

    session.create_consumer(session.create_queue(name)).listener = listen
    assert done.wait(WAIT)
    session.close()
    assert left == list(range(COUNT, 0, -1))


def test_a_listener_goes_on_when_an_acknowledgement_is_not_confirmed_in_time(
    direct: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the exception listener is called, and the consumer still asks for the next message."""
    name = f"queue {uuid4()}"
    fill(direct, name)
    client = connect("synchronous_acknowledge=true&prefetch_messages=5")
    transport = client.connection._transport
    confirm = transport.confirm
    left = [10]

    def fail_at_first(*arguments: Any, **options: Any) -> None:
        confirm(*arguments, **options)
        if left[0]:
            left[0] -= 1
            raise OperationTimedOutException("the confirmation: no answer in time")

    monkeypatch.setattr(transport, "confirm", fail_at_first)
    processed: list[str] = []
    session = client.connection.create_session()
    session.create_consumer(session.create_queue(name)).listener = lambda message: processed.append(message.text)  # type: ignore[attr-defined]
    assert wait_for(lambda: len(processed) == COUNT)
    assert processed == [str(number) for number in range(COUNT)]
    session.close()
    assert sum(isinstance(each, OperationTimedOutException) for each in client.told) == 10
