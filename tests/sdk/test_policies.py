"""What the options of a connection and of a consumer decide: prefetch, ids, users, redeliveries, expiry."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter import InvalidURLException, queue, topic
from sdk import AcknowledgeMode, Connection, ConnectionFactory, JMSException, Message
from tests.sdk.small_broker import SmallBroker

WAIT = 120.0


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with with_options(tmp_path, "redelivery_delay_seconds=0") as connection:
        yield connection


def with_options(path: Path, options: str, **arguments: Any) -> Connection:
    """A started connection to an engine of this test's own."""
    connection = ConnectionFactory(f"embedded:{path}?{options}").create_connection(**arguments)
    connection.start()
    return connection


# Prefetch.


@pytest.mark.parametrize(
    ("kind", "options", "credit"),
    [
        ("queue", {"prefetch_messages": 7}, 7),
        ("queue", {"prefetch_messages": 7, "topic_prefetch_messages": 4}, 7),
        ("topic", {"prefetch_messages": 7, "topic_prefetch_messages": 4}, 4),
        ("durable", {"prefetch_messages": 7, "topic_prefetch_messages": 4}, 7),
        ("shared", {"prefetch_messages": 7, "topic_prefetch_messages": 4}, 4),
    ],
)
def test_each_kind_of_consumer_has_its_prefetch(kind: str, options: dict[str, int], credit: int) -> None:
    broker = SmallBroker(**options)
    with broker.connect() as connection, connection.create_session() as session:
        connection.start()
        if kind == "queue":
            session.create_consumer(queue("q"))
        elif kind == "topic":
            session.create_consumer(topic("t"))
        elif kind == "durable":
            session.create_shared_durable_consumer(topic("t"), "s")
        else:
            session.create_shared_consumer(topic("t"), "s")
        assert broker.credits == [credit]


def test_a_consumer_may_have_a_prefetch_of_its_own() -> None:
    broker = SmallBroker()
    with broker.connect() as connection, connection.create_session() as session:
        connection.start()
        session.create_consumer(queue("q"), prefetch=2)
        assert broker.credits == [2]
        for wrong in (-1, 32768, True, 1.5):
            with pytest.raises(ValueError, match="prefetch="):
                session.create_consumer(queue("q"), prefetch=wrong)  # type: ignore[arg-type]


def test_consumers_without_prefetch_leave_the_rest_to_others(connection: Connection) -> None:
    with connection.create_session() as session:
        destination = session.create_queue("q")
        lazy, busy = (session.create_consumer(destination, prefetch=0) for _ in range(2))
        producer = session.create_producer(destination)
        for body in "abc":
            producer.send(body)
        found = [consumer.receive(timeout=WAIT) for consumer in (lazy, busy, lazy)]
        assert [message.body for message in found if message is not None] == ["a", "b", "c"]


# Exclusive consumers.


def test_an_exclusive_consumer_gets_everything_until_it_goes(connection: Connection) -> None:
    with connection.create_session() as session:
        destination = session.create_queue("q")
        master = session.create_consumer(destination, exclusive=True)
        standby = session.create_consumer(destination, exclusive=True)
        producer = session.create_producer(destination)
        for body in "ab":
            producer.send(body)
        for body in "ab":
            message = master.receive(timeout=WAIT)
            assert message is not None
            assert message.body == body
        assert standby.receive_nowait() is None
        master.close()
        producer.send("c")
        message = standby.receive(timeout=WAIT)
        assert message is not None
        assert message.body == "c"


# Message ids and users.


def sent(connection: Connection) -> Message:
    """A message as it arrives."""
    with connection.create_session() as session:
        destination = session.create_queue("q")
        session.create_producer(destination).send("x")
        message = session.create_consumer(destination).receive(timeout=WAIT)
        assert message is not None
        return message


@pytest.mark.parametrize(
    ("policy", "pattern"),
    [("producer", r"ID:[-0-9a-f]{36}:\d+:\d+-[123]"), ("uuid", r"ID:[-0-9a-f]{36}"), ("none", None)],
)
def test_message_ids_are_made_as_the_policy_says(tmp_path: Path, policy: str, pattern: str | None) -> None:
    with with_options(tmp_path, f"message_id_policy={policy}") as connection:
        session = connection.create_session()
        producer, consumer = session.create_producer(queue("q")), session.create_consumer(queue("q"))
        given, received = [], []
        for _ in range(3):
            message = session.create_text_message("x")
            producer.send(message)
            given.append(message.message_id)
            arrived = consumer.receive(WAIT)
            assert arrived is not None
            received.append(arrived.message_id)
    assert received == given
    if pattern is None:
        assert given == [None] * 3
    else:
        assert all(each is not None and re.fullmatch(pattern, each) for each in given)
        assert len(set(given)) == 3


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidURLException, match="'random' is none of producer, uuid, none"):
        ConnectionFactory("embedded:?message_id_policy=random")


def test_messages_name_their_sender_where_that_is_asked_for(tmp_path: Path) -> None:
    with with_options(tmp_path, "populate_user_id=true", username="ada", password="x") as connection:
        assert sent(connection).user_id == "ada"
    with with_options(tmp_path, "", username="ada", password="x") as connection:
        assert sent(connection).user_id is None


def test_no_client_can_send_as_another_user(tmp_path: Path) -> None:
    with with_options(tmp_path, "", username="ada", password="x") as connection, connection.create_session() as session:
        destination = session.create_queue("q")
        message = session.create_text_message("x")
        message.user_id = "root"
        session.create_producer(destination).send(message)
        found = session.create_consumer(destination).receive(timeout=WAIT)
        assert found is not None
        assert found.user_id is None


# Redeliveries and expiry.


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("time_to_live", 0, "=0 is not a number of seconds, or a timedelta, from 0.001 to 3155760000 seconds; None"),
        ("time_to_live", 0.0001, "time_to_live=0.0001 is not a number of seconds, or a timedelta, from 0.001 to"),
        ("time_to_live", -1, "from 0.001 to"),
        ("time_to_live", True, "from 0.001 to"),
        ("time_to_live", "1", "from 0.001 to"),
        ("time_to_live", float("nan"), "from 0.001 to"),
        (
            "delivery_delay",
            float("inf"),
            "is not a number of seconds, or a timedelta, from 0 to 3155760000 seconds; None means no delay",
        ),
        ("delivery_delay", -1, "from 0 to"),
    ],
)
def test_a_time_that_cannot_be_is_refused_with_the_times_that_can(
    connection: Connection, name: str, value: Any, reason: str
) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(queue("q"))
        with pytest.raises(ValueError, match=re.escape(reason)):
            setattr(producer, name, value)
        with pytest.raises(ValueError, match=re.escape(reason)):
            producer.send("x", **{name: value})
        producer.send("x", time_to_live=0.001, delivery_delay=0)


@pytest.mark.parametrize("local", [True, False])
def test_what_expired_on_its_way_is_given_out_where_that_is_wanted(local: bool) -> None:
    broker = SmallBroker(local_message_expiry=local)
    with broker.connect() as connection, connection.create_session() as session:
        connection.start()
        session.create_producer(queue("q")).send("x", time_to_live=0.001)
        time.sleep(0.01)
        # It returns also where the broker sends it again and again.
        message = session.create_consumer(queue("q")).receive(timeout=0.05 if local else WAIT)
        assert (message is None) is local


def test_a_listener_that_raises_is_paused_longer_each_time_where_the_broker_does_not_delay_redelivery() -> None:
    broker = SmallBroker()
    times: list[float] = []
    finished = threading.Event()

    def listener(message: Message) -> None:
        times.append(time.monotonic())
        if len(times) == 4:
            finished.set()
        raise ValueError("always")

    with broker.connect() as connection:
        session = connection.create_session()
        session.create_producer(queue("q")).send("bad")
        session.create_consumer(queue("q")).listener = listener
        connection.start()
        assert finished.wait(WAIT)
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses[1] >= 0.09
        assert pauses[2] >= 0.19
    assert [each.outcome for each in broker.settled].count(Outcome.FAILED) == 4


def test_a_session_whose_listener_is_paused_is_closed_at_once() -> None:
    broker = SmallBroker()
    with broker.connect() as connection:
        session = connection.create_session()
        session.create_producer(queue("q")).send("x")
        consumer = session.create_consumer(queue("q"))
        consumer._resumes_at = time.monotonic() + 10 * WAIT
        seen: list[Message] = []
        consumer.listener = seen.append
        connection.start()
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < WAIT
    assert seen == []


@pytest.mark.parametrize("mode", [AcknowledgeMode.AUTO, AcknowledgeMode.DUPS_OK], ids=lambda mode: mode.name)
def test_a_listener_that_always_raises_is_left_in_peace_longer_each_time_and_then_for_good(
    tmp_path: Path, mode: AcknowledgeMode
) -> None:
    times: list[float] = []
    good = threading.Event()

    def listener(message: Message) -> None:
        if message.body == "good":
            good.set()
            message.acknowledge()
            return
        times.append(time.monotonic())
        assert message.delivery_count == len(times)
        raise ValueError("always")

    options = "max_deliveries=4&redelivery_delay_seconds=0.1"
    with with_options(tmp_path, options) as connection, connection.create_session() as watching:
        session = connection.create_session(mode)
        destination = watching.create_queue("q")
        session.create_consumer(destination).listener = listener
        producer = watching.create_producer(destination)
        producer.send("bad")
        dead = watching.create_consumer(watching.create_queue("DLQ")).receive(timeout=WAIT)
        assert dead is not None
        assert dead.properties["JMS_HOLDFAST_DEAD_LETTER_COUNT"] == 4
        assert dead.properties["JMS_HOLDFAST_DEAD_LETTER_EXCEPTION"] == "ValueError: always"
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(pauses) == 3
        assert pauses[1] >= 0.09
        assert pauses[2] >= 0.19
        producer.send("good")
        assert good.wait(WAIT)
        session.close()


# Transactions and callbacks.


def test_a_commit_returns_when_the_callbacks_of_its_sends_have_returned(connection: Connection) -> None:
    told: list[Any] = []
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        producer = session.create_producer(session.create_queue("q"))

        def completed(message: Message, error: JMSException | None) -> None:
            if message.body == "19":
                threading.Event().wait(0.2)  # a commit that does not wait returns meanwhile
            told.append((message.body, error))

        for number in range(20):
            producer.send(str(number), on_completion=completed)
        assert told == []
        session.commit()
        assert told == [(str(number), None) for number in range(20)]
        told.clear()
        producer.send("never", on_completion=lambda message, error: told.append(type(error).__name__))
        session.rollback()
        assert told == ["TransactionRolledBackException"]


def test_everything_received_is_acknowledged_by_the_session(connection: Connection) -> None:
    with connection.create_session(AcknowledgeMode.CLIENT) as session:
        destination = session.create_queue("q")
        producer = session.create_producer(destination)
        for body in "ab":
            producer.send(body)
        consumer = session.create_consumer(destination)
        for _ in range(2):
            consumer.receive(timeout=WAIT)
        session.acknowledge()
        session.acknowledge()
    with connection.create_session() as session:
        assert session.create_consumer(destination).receive_nowait() is None
