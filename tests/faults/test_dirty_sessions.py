"""Sentences of *Client Failover Behaviour* on each acknowledge mode, and on dirty sessions."""

from __future__ import annotations

import threading
import time

import pytest

from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionLostException,
    Message,
    StaleAcknowledgementException,
    TransactionRolledBackException,
)
from tests.faults.conftest import Connect
from tests.faults.losses import PATIENT, SOON, cut, fill, in_background, lose, messages_in, seconds, stored_in
from tests.faults.proxy import Direction, Proxy
from tests.faults.scenarios import WAIT, wait_for

pytestmark = pytest.mark.crash


# "In Auto Acknowledge mode, by default the last message received by the application may fail to be acknowledged if the
# connection gets closed during onMessage ... in onMessage such failure has to be notified through the
# ExceptionListener."


def test_auto_a_message_whose_listener_ran_through_the_loss_is_redelivered_and_that_is_reported(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 3)
    client = connect()
    seen: list[tuple[str, bool]] = []
    running, go_on = threading.Event(), threading.Event()

    def listener(message: Message) -> None:
        seen.append((message.body, message.redelivered))
        if len(seen) == 2:
            running.set()
            go_on.wait(WAIT)

    with client.connection.create_session() as session:
        session.create_consumer(session.create_queue(name)).listener = listener
        assert running.wait(WAIT)
        cut(client, proxy)
        go_on.set()
        assert wait_for(lambda: len(seen) == 4 and len(client.told) == 2)
    assert seen == [("0", False), ("1", False), ("1", True), ("2", False)], "the last one was only prefetched"
    assert [type(each) for each in client.told] == [ConnectionLostException] * 2
    assert "could not be acknowledged" in client.told[1].reason
    assert messages_in(direct, name) == 0


# "Only a session's last consumed message is subject to this ambiguity."


@pytest.mark.parametrize("held", [Direction.TO_SERVER, Direction.TO_CLIENT], ids=lambda each: each.name)
def test_auto_acknowledgements_that_never_arrived_are_repeated(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, held: Direction
) -> None:
    fill(direct, name, 50)
    client = connect("prefetch_messages=50")
    with client.connection.create_session() as session:
        consumer = session.create_consumer(session.create_queue(name))
        received = [consumer.receive(WAIT) for _ in range(10)]
        assert wait_for(lambda: messages_in(direct, name) == 40)
        proxy.hold(held)  # acknowledgements go nowhere from here on
        received += [consumer.receive(WAIT) for _ in range(20)]
        proxy.hold()  # it would all arrive now, but for the cut
        proxy.cut()
        client.wait_for_restore()
        bodies = [message.body for message in received if message is not None]
        while len(set(bodies)) < 50 and (message := consumer.receive(WAIT)) is not None:
            bodies.append(message.body)
        while (message := consumer.receive(0.3)) is not None:
            bodies.append(message.body)
        again = len(bodies) - len(set(bodies))
        assert sorted(set(bodies), key=int) == [str(number) for number in range(50)]
        assert again <= 1, f"{again} messages were redelivered"
        assert wait_for(lambda: messages_in(direct, name) == 0)


# "Any call to recover() performed following failover should be successful, and the request to recover() would result in
# cleaning the Session and resuming message delivery with the first message sent by the new broker."


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK, AcknowledgeMode.CLIENT])
@pytest.mark.parametrize("when", ["while it is away", "after it is back"])
def test_recover_succeeds_and_delivery_starts_again(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, mode: AcknowledgeMode, when: str
) -> None:
    fill(direct, name, 3)
    client = connect("&dups_ok_delay_seconds=100")
    with client.connection.create_session(mode) as session:
        consumer = session.create_consumer(session.create_queue(name))
        first = consumer.receive(WAIT)
        assert first is not None
        lose(client, proxy)
        if when == "while it is away":
            session.recover()
        proxy.refuse(False)
        client.wait_for_restore()
        if when == "after it is back":
            session.recover()
        message = consumer.receive(WAIT)
        assert message is not None
        again = mode is not AcknowledgeMode.AUTO  # whose acknowledgement was on its way
        assert message.body == ("0" if again else "1")
        message.acknowledge()  # clean: nothing is raised


# "Duplicates are allowed in this mode ... and thus failover can be performed silently."


def test_dups_ok_is_silent(connect: Connect, proxy: Proxy, direct: Connection, name: str) -> None:
    fill(direct, name, 20)
    client = connect("&dups_ok_delay_seconds=100&dups_ok_batch_messages=7")
    with client.connection.create_session(AcknowledgeMode.DUPS_OK) as session:
        consumer = session.create_consumer(session.create_queue(name))
        bodies = []
        for number in range(10):
            message = consumer.receive(WAIT)
            assert message is not None
            bodies.append(message.body)
            if number == 8:
                cut(client, proxy)
        while len(set(bodies)) < 20 and (message := consumer.receive(WAIT)) is not None:
            bodies.append(message.body)
    assert set(bodies) == {str(number) for number in range(20)}
    assert [type(each) for each in client.told] == [ConnectionLostException]


# "A Client Ack Session should be considered 'dirty' if any unacknowledged messages have been received by the
# application ... When the next call to message.acknowledge() is performed, recover() should be called implicitly to
# clean the Session and an exception should be thrown."


def test_client_a_dirty_session_says_so_once_and_with_how_many_messages(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 5)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        before = [consumer.receive(WAIT) for _ in range(3)]
        assert wait_for(lambda: len(consumer._prefetch.buffer) == 2), (
            "what the network still has would count as delivered"
        )
        cut(client, proxy)
        assert before[2] is not None
        with pytest.raises(StaleAcknowledgementException) as raised:
            before[2].acknowledge()
        assert raised.value.stale_count == 3
        before[2].acknowledge()  # once
        after = [consumer.receive(WAIT) for _ in range(5)]
        assert [(each.body, each.redelivered) for each in after if each is not None] == [
            (str(number), number < 3) for number in range(5)
        ]
        before[0].acknowledge()  # type: ignore[union-attr]  # does not acknowledge what came since
        assert messages_in(direct, name) == 5
        assert after[4] is not None
        after[4].acknowledge()
        assert wait_for(lambda: messages_in(direct, name) == 0)


def test_client_what_came_after_the_loss_is_recovered_with_the_dirty_session(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 3)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        assert consumer.receive(WAIT) is not None
        cut(client, proxy)
        newer = [consumer.receive(WAIT) for _ in range(2)]
        assert newer[1] is not None
        with pytest.raises(StaleAcknowledgementException):
            newer[1].acknowledge()
        assert messages_in(direct, name) == 3, "it acknowledged what it should have recovered"
        again = [consumer.receive(WAIT) for _ in range(3)]
        assert {each.body for each in again if each is not None} == {"0", "1", "2"}
        assert again[2] is not None
        again[2].acknowledge()
        assert wait_for(lambda: messages_in(direct, name) == 0)


def test_client_a_clean_session_notices_nothing(connect: Connect, proxy: Proxy, direct: Connection, name: str) -> None:
    fill(direct, name, 4)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.CLIENT) as session:
        consumer = session.create_consumer(session.create_queue(name))
        for number in range(4):
            message = consumer.receive(WAIT)
            assert message is not None
            assert message.body == str(number)
            message.acknowledge()
            cut(client, proxy)
    assert messages_in(direct, name) == 0


def test_individual_each_stale_message_is_refused_by_itself(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 3)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.INDIVIDUAL) as session:
        consumer = session.create_consumer(session.create_queue(name))
        stale = consumer.receive(WAIT)
        cut(client, proxy)
        good = consumer.receive(WAIT)
        assert stale is not None
        assert good is not None
        good.acknowledge()
        with pytest.raises(StaleAcknowledgementException) as raised:
            stale.acknowledge()
        assert raised.value.stale_count == 1
        stale.acknowledge()  # once
        assert wait_for(lambda: messages_in(direct, name) == 2)


# "A Transacted Session should be considered 'dirty' if any uncommitted send/receive operations exist ... When the next
# call to commit() is made, the Session will automatically be rolled back and TransactionRolledBackException thrown."


@pytest.mark.parametrize("work", ["a send", "a receive", "both"])
def test_transacted_a_dirty_session_rolls_back_once_and_the_next_transaction_is_clean(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, work: str
) -> None:
    fill(direct, f"{name} in", 1)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue(f"{name} out"))
        consumer = session.create_consumer(session.create_queue(f"{name} in"))

        def do() -> None:
            if work != "a receive":
                producer.send("x")
            if work != "a send":
                assert consumer.receive(WAIT) is not None

        do()
        cut(client, proxy)
        with pytest.raises(TransactionRolledBackException):
            session.commit()
        assert stored_in(direct, f"{name} out") == 0
        assert messages_in(direct, f"{name} in") == 1
        do()
        session.commit()
        assert stored_in(direct, f"{name} out") == (work != "a receive")
        assert messages_in(direct, f"{name} in") == (work == "a send")


def test_transacted_a_rollback_after_the_loss_succeeds_and_cleans(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    fill(direct, name, 1)
    client = connect(PATIENT)
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        consumer = session.create_consumer(session.create_queue(name))
        assert consumer.receive(WAIT) is not None
        lose(client, proxy)
        assert seconds(session.rollback) < SOON
        proxy.refuse(False)
        message = consumer.receive(WAIT)
        assert message is not None
        assert message.redelivered
        session.commit()
    assert messages_in(direct, name) == 0


def test_transacted_a_session_that_did_nothing_notices_nothing(connect: Connect, proxy: Proxy, name: str) -> None:
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue(name))
        for _ in range(3):
            cut(client, proxy)
            session.commit()
            producer.send("x")
            session.commit()


def test_transacted_what_is_sent_while_the_network_is_away_belongs_to_a_transaction_of_its_own(
    connect: Connect, proxy: Proxy, direct: Connection, name: str
) -> None:
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue(name))
        lose(client, proxy)
        producer.send("x")
        proxy.refuse(False)
        session.commit()
    assert messages_in(direct, name) == 1


@pytest.mark.parametrize("arrives", [True, False], ids=["its answer was lost", "it was lost"])
def test_transacted_a_commit_under_way_is_resolved(
    connect: Connect, proxy: Proxy, direct: Connection, name: str, arrives: bool
) -> None:
    fill(direct, f"{name} in", 1)
    client = connect()
    with client.connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        consumer = session.create_consumer(session.create_queue(f"{name} in"))
        producer = session.create_producer(session.create_queue(f"{name} out"))
        producer.send("warm up")
        session.commit()
        assert consumer.receive(WAIT) is not None
        producer.send("x")
        proxy.hold(Direction.TO_CLIENT if arrives else Direction.TO_SERVER)
        thread, results = in_background(session.commit)
        if arrives:
            assert wait_for(lambda: stored_in(direct, f"{name} out") == 2)
        else:
            time.sleep(0.2)
        if arrives:
            proxy.leave_half_open()  # the server has not noticed when the client comes back
        else:
            proxy.cut()
        proxy.hold()
        thread.join(WAIT)
        if arrives:
            assert results == [None]
        else:
            assert isinstance(results[0], TransactionRolledBackException)
        assert stored_in(direct, f"{name} out") == 1 + arrives
        assert messages_in(direct, f"{name} in") == (not arrives)
        producer.send("next")
        session.commit()
