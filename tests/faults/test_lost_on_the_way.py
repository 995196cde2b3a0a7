"""Messages that the network loses on their way to the client: they were never seen, so they do not count as failed."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from sdk import AcknowledgeMode, Connection, Message, MessageConsumer, StaleAcknowledgementException
from tests.faults.conftest import Connect
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash

LOSSES = 12  #: more than deliveries may fail


def held(direct: Connection, name: str) -> int:
    """How many messages of a queue the consumers have, as far as the server knows."""
    (found,) = [each for each in direct.statistics().queues if each.name == name]
    return found.in_hand


def received(consumer: MessageConsumer) -> Message:
    message = consumer.receive(timeout=WAIT)
    assert message is not None
    return message


@pytest.mark.parametrize("closes", [False, True], ids=["recovered", "closed"])
def test_what_is_given_back_into_a_dead_network_was_seen(
    proxy: Proxy, direct: Connection, connect: Connect, closes: bool
) -> None:
    name = f"queue {uuid4()}"
    with direct.create_session() as sending:
        sending.create_producer(sending.create_queue(name)).send("seen")
    client = connect("reconnect_delay_seconds=0.01&close_timeout_seconds=60&poll_timeout_seconds=1")
    session = client.connection.create_session(AcknowledgeMode.CLIENT)
    consumer = session.create_consumer(session.create_queue(name))
    assert not received(consumer).redelivered
    proxy.hold(Direction.TO_SERVER)
    if closes:
        closing = threading.Thread(target=session.close)
        closing.start()
        assert wait_for(lambda: not session._state.lifecycle.usable)
    else:
        session.recover()
    proxy.cut()
    proxy.hold()
    client.wait_for_restore()
    if closes:
        closing.join(WAIT)
        session = client.connection.create_session(AcknowledgeMode.CLIENT)
        consumer = session.create_consumer(session.create_queue(name))
    again = received(consumer)
    assert (again.redelivered, again.delivery_count) == (True, 2)
    again.acknowledge()


def test_a_network_that_is_lost_again_and_again_makes_no_dead_letters(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    name = f"queue {uuid4()}"
    with direct.create_session() as sending:
        producer = sending.create_producer(sending.create_queue(name))
        producer.send("seen")
        client = connect("prefetch_messages=500")
        with client.connection.create_session(AcknowledgeMode.CLIENT) as session:
            consumer = session.create_consumer(session.create_queue(name))
            assert str(received(consumer)) == "seen"
            for loss in range(LOSSES):
                proxy.hold(Direction.TO_CLIENT)
                producer.send(str(loss))
                assert wait_for(lambda count=loss + 2: held(direct, name) == count)  # type: ignore[misc]
                proxy.cut()
                proxy.hold()
                client.wait_for_restore(loss + 1)
                client.connection.stop()
                client.connection.start()  # which gives credit again
                assert wait_for(lambda count=loss + 2: len(consumer._prefetch.buffer) == count)  # type: ignore[misc]
            again = [received(consumer) for _ in range(1 + LOSSES)]
            assert [str(each) for each in again] == ["seen", *map(str, range(LOSSES))]
            assert [each.delivery_count for each in again] == [2, *[1] * LOSSES]
            with pytest.raises(StaleAcknowledgementException, match="1 message "):
                again[-1].acknowledge()


def test_two_consumers_whose_networks_are_lost_in_turn_make_no_dead_letters(
    proxy: Proxy, direct: Connection, connect: Connect
) -> None:
    name = f"queue {uuid4()}"
    with direct.create_session() as sending:
        producer = sending.create_producer(sending.create_queue(name))
        for number in range(5):
            producer.send(str(number))
    client = connect("reconnect_delay_seconds=0.01")

    def consumer_of(connection: Connection) -> MessageConsumer:
        session = connection.create_session(AcknowledgeMode.CLIENT)
        return session.create_consumer(session.create_queue(name), prefetch=10)

    mine = consumer_of(client.connection)
    assert wait_for(lambda: len(mine._prefetch.buffer) == 5)
    others = [consumer_of(direct)]
    for loss in range(1, LOSSES + 1):
        proxy.refuse()
        proxy.cut()
        assert wait_for(lambda: len(others[-1]._prefetch.buffer) == 5), "the other one gets what was lost"
        proxy.refuse(False)
        client.wait_for_restore(loss)
        client.connection.stop()
        client.connection.start()  # which gives credit again
        others[-1].close()  # which gives back what it has prefetched
        assert wait_for(
            lambda: sum(not mine._prefetch.is_stale(each.tag) for each in mine._prefetch.buffer.copy()) == 5
        )
        others.append(consumer_of(direct))
    again = [received(mine) for _ in range(5)]
    assert [(str(each), each.delivery_count) for each in again] == [(str(number), 1) for number in range(5)]
    again[-1].acknowledge()
