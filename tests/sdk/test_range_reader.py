"""Queues by position and staged transactions, in the process and over AMQP."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.management import ManagementRequest, outline_of, pack_request
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.operations.request import check_outline
from broker_adapter.engine.operations.requests import REQUESTS
from broker_adapter.engine.operations.steps import MAX_QUEUES
from broker_adapter.envelope import BodyKind, Envelope
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    AcknowledgeMode,
    Connection,
    ConnectionFactory,
    Destination,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    MessageFormatException,
)
from sdk.range_reader import (
    RangeMessage,
    RangeReader,
    StagedTransaction,
    bounds_of_queues,
    discard,
    publish,
    published,
    renew,
    requests_for,
    send_envelopes,
)


@pytest.fixture(params=["embedded", "amqp"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConnectionFactory]:
    if request.param == "embedded":
        yield ConnectionFactory(f"embedded:{tmp_path}")
        return
    broker = Broker(EngineSettings(), str(tmp_path))
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    try:
        yield ConnectionFactory(f"amqp://127.0.0.1:{port}")
    finally:
        listener.stop()
        broker.close()


@pytest.fixture
def connection(factory: ConnectionFactory) -> Iterator[Connection]:
    with factory.create_connection() as connection:
        yield connection


def test_a_range_is_read_and_settled(connection: Connection) -> None:
    with connection.create_session() as session:
        queue = session.create_queue("q")
        reader = RangeReader(connection, queue)
        empty = reader.bounds()
        assert empty.first == empty.next
        producer = session.create_producer(queue)
        for number in range(20):
            producer.send(f"{number} {'x' * 1000}", priority=number % 10)
    bounds = reader.bounds()
    assert bounds.next - bounds.first == 20
    assert empty.message_bytes is None
    assert 1000 < (bounds.message_bytes or 0) < 1300
    chunks = list(reader.read(bounds.first, bounds.next - 1, bounds.incarnation, max_bytes=5000))
    assert len(chunks) > 3
    assert [int(message.envelope().body.split()[0]) for chunk in chunks for message in chunk] == list(range(20))
    assert reader.settle_through(bounds.first + 9, bounds.incarnation) == 10
    (rest,) = reader.read(bounds.first, bounds.next - 1)
    assert [message.position for message in rest] == list(range(bounds.first + 10, bounds.next))
    with pytest.raises(InvalidDestinationException):
        next(reader.read(1, 2, "other"))


def test_a_block_has_at_most_the_bytes_asked_for_or_one_message(connection: Connection) -> None:
    with connection.create_session() as session:
        queue = session.create_queue("q")
        session.create_producer(queue).send_all(["x" * 1000] * 20)
        session.create_producer(queue).send("y" * 50_000)
    blocks = list(RangeReader(connection, queue).read_blocks(1, 21, max_bytes=5000))
    assert [block.length for block in blocks] == [4, 4, 4, 4, 4, 1]
    assert all(len(block.payloads) <= 5000 for block in blocks[:-1])


def test_a_subscription_is_read_by_position(connection: Connection) -> None:
    with connection.create_session() as session:
        topic = session.create_topic("t")
        session.create_shared_durable_consumer(topic, "s").close()
        session.create_producer(topic).send("hello")
        reader = RangeReader(connection, topic, "s")
        bounds = reader.bounds()
        ((message,),) = reader.read(bounds.first, bounds.next - 1)
        assert message.envelope().body == "hello"
        with pytest.raises(InvalidDestinationException):
            RangeReader(connection, topic, "other").bounds()


def test_staged_transactions_are_published_once(connection: Connection) -> None:
    with connection.create_session() as session:
        queue = session.create_queue("out")
        bodies = [f"{number} {'x' * 1000}" for number in range(5000)]
        for attempt in ("a", "b"):
            staged = StagedTransaction(connection, attempt, queue)
            staged.add([Envelope(queue, BodyKind.TEXT, body) for body in bodies])
            staged.flush()
            assert staged.written == 5000
        reader = RangeReader(connection, queue)
        bounds = reader.bounds()
        assert bounds.first == bounds.next
        assert publish(connection, "query", 0, ["a"]) is True
        assert publish(connection, "query", 0, ["b"]) is False
        assert discard(connection, ["b"]) == 0
        bounds = reader.bounds()
        found = [message.envelope().body for chunk in reader.read(bounds.first, bounds.next - 1) for message in chunk]
        assert found == bodies


def test_a_staged_transaction_goes_on_over_another_connection(
    factory: ConnectionFactory, connection: Connection
) -> None:
    with connection.create_session() as session:
        queue = session.create_queue("out")
    lost = factory.create_connection()
    staged = StagedTransaction(lost, "a", queue)
    staged.add([Envelope(queue, BodyKind.TEXT, str(number)) for number in range(3)])
    staged.flush()
    lost.close()
    staged.add([Envelope(queue, BodyKind.TEXT, str(number)) for number in range(3, 5)])
    with pytest.raises(IllegalStateException):
        staged.flush()
    staged.move_to(connection)
    staged.flush()
    assert staged.written == 5
    assert publish(connection, "query", 0, ["a"]) is True
    reader = RangeReader(connection, queue)
    bounds = reader.bounds()
    found = [message.envelope().body for chunk in reader.read(bounds.first, bounds.next - 1) for message in chunk]
    assert found == ["0", "1", "2", "3", "4"]


def test_statistics_are_frozen_objects(connection: Connection) -> None:
    with connection.create_session() as session:
        session.create_producer(session.create_queue("q")).send("x")
    statistics = connection.statistics()
    assert statistics.enqueued == 1
    assert [(each.name, each.messages) for each in statistics.queues] == [("DLQ", 0), ("q", 1)]


def test_positions_are_valid_in_the_run_of_the_broker_in_which_they_were_seen(tmp_path: Path) -> None:
    url, copy = f"embedded:{tmp_path / 'data'}", tmp_path / "copy"

    def fill(connection: Connection, count: int) -> RangeReader:
        with connection.create_session() as session:
            producer = session.create_producer(session.create_queue("q"))
            for number in range(count):
                producer.send(str(number))
            return RangeReader(connection, session.create_queue("q"))

    with ConnectionFactory(url).create_connection() as connection:
        fill(connection, 10)
    shutil.copytree(tmp_path / "data", copy)
    with ConnectionFactory(url).create_connection() as connection:
        seen = fill(connection, 10).bounds()
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(copy, tmp_path / "data")
    with ConnectionFactory(url).create_connection() as connection:
        reader = fill(connection, 20)
        now = reader.bounds(seen.run)
        assert (now.incarnation, now.kept, now.settled) == (seen.incarnation, 11, 0)
        with pytest.raises(InvalidDestinationException, match="restored from an older copy"):
            next(reader.read(15, 20, seen.incarnation, run=seen.run))
        with pytest.raises(InvalidDestinationException, match="restored from an older copy"):
            reader.settle_through(20, seen.incarnation, run=seen.run)
        with pytest.raises(InvalidDestinationException, match="through position 31"):
            reader.settle_through(31, now.incarnation)
        assert reader.settle_through(20, now.incarnation, first=11, run=now.run) == 10
        assert reader.bounds().settled == 20


def test_attempts_are_discarded_and_incomplete_ones_are_not_published(connection: Connection) -> None:
    with connection.create_session() as session:
        queue = session.create_queue("out")
    for name in ("g/0/0.0", "g/0/0.1", "g/0/1.0"):
        staged = StagedTransaction(connection, name, queue)
        staged.add([Envelope(queue, BodyKind.TEXT, name)])
        staged.flush()
    assert published(connection, "g") is None
    assert discard(connection, prefixes=["g/0/0.0"]) == 1
    with pytest.raises(IllegalStateException, match="has 1 messages, not 2"):
        publish(connection, "g", 0, ["g/0/0.1"], [2])
    assert publish(connection, "g", 0, ["g/0/0.1"], [1]) is True
    assert published(connection, "g") == 0
    assert [each.kind for each in connection.statistics().queues if each.kind == "staged"] == []


def test_the_bounds_of_several_queues_come_together(connection: Connection) -> None:
    with connection.create_session() as session:
        for name in ("a", "b"):
            session.create_producer(session.create_queue(name)).send(name)
    run = RangeReader(connection, Destination("a")).bounds().run
    expected = {name: RangeReader(connection, Destination(name)).bounds(run, make=False) for name in ("b", "a")}
    found = bounds_of_queues(connection, {"b": run, "missing": "", "a": run})
    assert found == {**expected, "missing": None}
    made = bounds_of_queues(connection, {"missing": ""}, make=True)
    assert made["missing"] is not None
    assert bounds_of_queues(connection, {}) == {}


def test_each_request_for_several_queues_is_one_that_the_broker_takes() -> None:
    short, long = [str(number) for number in range(2500)], ["ü" * 120 + str(number) for number in range(300)]
    assert [len(part) for part in requests_for(short)] == [MAX_QUEUES, MAX_QUEUES, 500]
    assert list(requests_for(["a", "\ud800"])) == [["a", "\ud800"]]
    for names in (short, long, ["x" * 4096] * 20, ["ü" * 4096] * 9, []):
        parts = list(requests_for(names))
        assert [name for part in parts for name in part] == names
        for part in parts:
            asked = {"destinations": part, "runs": [""] * len(part)}
            outline = outline_of(pack_request(ManagementRequest(1, "bounds_of_queues", asked)))
            assert outline.arguments["destinations"] == part
            check_outline(REQUESTS["bounds_of_queues"], outline.arguments)


def test_a_renewal_returns_for_how_long_what_is_staged_is_kept(connection: Connection) -> None:
    assert renew(connection, "g", 0) == 3600
    assert [each.kind for each in connection.statistics().queues if each.kind == "staged"] == []


def test_a_dead_letter_that_is_read_does_not_expire_any_more(connection: Connection) -> None:
    with connection.create_session(AcknowledgeMode.CLIENT) as session:
        queue = session.create_queue("q")
        message = session.create_text_message("x")
        session.create_producer(queue).send(message, time_to_live=3600)
        ((living,),) = RangeReader(connection, queue).read(1, 1)
        assert living.envelope().expires_at_ms == message.expires_at_ms
    dead = RangeMessage(1, 0, living.payload, {"JMS_HOLDFAST_DEAD_LETTER_REASON": "rejected"}).envelope()
    assert (dead.expires_at_ms, dead.properties) == (None, {"JMS_HOLDFAST_DEAD_LETTER_REASON": "rejected"})


def test_the_broker_reads_of_a_range_what_a_selector_chooses(connection: Connection) -> None:
    with connection.create_session() as session:
        queue = session.create_queue("q")
        producer = session.create_producer(queue)
        for number in range(500):
            message = session.create_text_message(str(number))
            message.properties["n"] = number
            producer.send(message)
    reader = RangeReader(connection, queue)
    bounds = reader.bounds()
    chosen = reader.read(bounds.first, bounds.next - 1, selector="n = 3 OR n = 250 OR n > 497")
    assert [message.envelope().body for part in chosen for message in part] == ["3", "250", "498", "499"]
    with pytest.raises(InvalidSelectorException):
        list(reader.read(bounds.first, bounds.next - 1, selector="n >"))


def test_a_queue_that_is_not_there_is_made_only_where_that_is_wanted(connection: Connection) -> None:
    with connection.create_session() as session:
        reader = RangeReader(connection, session.create_queue("new"))
    with pytest.raises(InvalidDestinationException):
        reader.bounds(make=False)
    assert reader.bounds() == reader.bounds(make=False)


def ready(*texts: str) -> list[Envelope]:
    """Envelopes for a queue, with what a connector sets."""
    return [
        Envelope(
            Destination("q"),
            BodyKind.TEXT,
            text,
            {"n": 1},
            message_id=f"ID:own-{text}",
            sent_at_ms=7,
            expires_at_ms=4_102_444_800_000,
            priority=6,
            group_id="g",
        )
        for text in texts
    ]


@pytest.mark.parametrize("policy", ["uuid", "producer", "none"])
def test_envelopes_are_sent_with_their_headers_and_those_of_a_send(factory: ConnectionFactory, policy: str) -> None:
    url = f"{factory._url}?message_id_policy={policy}"
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        queue = session.create_queue("q")
        producer = session.create_producer(queue)
        send_envelopes(producer, ready("a", "b"))
        send_envelopes(producer, [])
        producer.send("c")
        consumer = session.create_consumer(queue)
        first, second, third = (consumer.receive(timeout=5.0) for _ in range(3))
        assert first is not None
        assert second is not None
        assert third is not None
        assert [first.body, second.body, third.body] == ["a", "b", "c"]
        assert (first.priority, first.group_id, first.expires_at_ms, dict(first.properties)) == (
            *(6, "g", 4_102_444_800_000),
            {"n": 1},
        )
        assert (first.sent_at_ms or 0) > 7
        ids = [first.message_id, second.message_id]
        if policy == "uuid":
            assert ids == ["ID:own-a", "ID:own-b"]
        elif policy == "none":
            assert ids == [None, None]
        else:
            assert len({*ids, third.message_id}) == 3
            assert "ID:own-a" not in ids


def test_envelopes_that_are_sent_by_a_transacted_session_wait_for_its_commit(connection: Connection) -> None:
    with connection.create_session(AcknowledgeMode.TRANSACTED) as session:
        queue = session.create_queue("q")
        send_envelopes(session.create_producer(queue), ready("a"))
        session.rollback()
        send_envelopes(session.create_producer(queue), ready("b", "c"))
        assert RangeReader(connection, queue).bounds().first == 1
        session.commit()
        assert texts_of(RangeReader(connection, queue)) == ["b", "c"]


def test_an_envelope_that_cannot_be_encoded_is_named_and_the_others_are_sent(connection: Connection) -> None:
    with connection.create_session() as session:
        queue = session.create_queue("q")
        bad = ready("b")[0]._replace(properties={"n": object()})
        with pytest.raises(MessageFormatException) as caught:
            send_envelopes(session.create_producer(queue), [*ready("a"), bad, *ready("c")])
        assert list(caught.value.failures) == [1]
        assert texts_of(RangeReader(connection, queue)) == ["a", "c"]


def test_a_closed_producer_sends_no_envelopes(connection: Connection) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        producer.close()
        with pytest.raises(IllegalStateException, match="CLOSED"):
            send_envelopes(producer, ready("a"))


def test_two_envelopes_sent_again_have_their_identities(factory: ConnectionFactory) -> None:
    """By which the broker knows them where failover repeats them."""
    with factory.create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue("q"))
        send_envelopes(producer, ready("a", "b"))
        (found,) = RangeReader(connection, session.create_queue("q")).read(1, 2)
        identities = [message.envelope().identity for message in found]
        assert None not in identities
        assert len(set(identities)) == 2


def texts_of(reader: RangeReader) -> list[Any]:
    bounds = reader.bounds()
    return [message.envelope().body for part in reader.read(bounds.first, bounds.next - 1) for message in part]
