"""What a DataFrame reads of a queue: a snapshot between two positions, over real brokers; no Spark runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import Connection, ConnectionFactory, ConnectionLostException, InvalidDestinationException, JMSException
from spark_connector.batch_reader import BrowsePartition, JmsBatchReader, RangePartition, matching, source_of
from spark_connector.connections import connection_for, drop_connection
from spark_connector.options import SourceOptions
from tests.spark_connector.queues import away_once, fill, texts

COLUMNS = ("text", "position")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(), str(tmp_path))
    yield broker
    broker.close()


def serve(broker: Broker, port: int = 0) -> tuple[Listener, int]:
    listener = Listener(broker, "127.0.0.1", port, ServerSettings(), lambda: ServerLogin(None, plain=True))
    return listener, listener.start()[1]


@pytest.fixture
def options(broker: Broker) -> Iterator[SourceOptions]:
    listener, port = serve(broker)
    options = SourceOptions(url=f"amqp://127.0.0.1:{port}", queue="in", max_messages_per_partition=4, retry_seconds=0.5)
    yield options
    drop_connection(options)
    listener.stop()


def read(reader: JmsBatchReader) -> list[list[str]]:
    """The texts that each task reads."""
    return [
        [text for batch in reader.read(partition) for text in batch.to_pydict()["text"]]
        for partition in reader.partitions()
    ]


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_tasks_read_parts_of_what_was_there_and_take_nothing(options: SourceOptions) -> None:
    fill(options.url, "in", numbers(10))
    reader = JmsBatchReader(options, COLUMNS)
    partitions = reader.partitions()
    assert [each.value for each in partitions] == [(1, 3), (4, 6), (7, 10)]
    fill(options.url, "in", ["later"])
    for _ in range(2):
        found = [batch.to_pydict() for each in partitions for batch in reader.read(each)]
        assert [text for each in found for text in each["text"]] == numbers(10)
        assert [position for each in found for position in each["position"]] == list(range(1, 11))
    assert texts(options.url, "in") == [*numbers(10), "later"]


def test_tasks_have_a_limit_of_bytes_as_well(options: SourceOptions) -> None:
    fill(options.url, "in", ["x" * 1000] * 12)
    some = attrs.evolve(options, max_messages_per_partition=100)
    assert len(JmsBatchReader(some, COLUMNS).partitions()) == 1
    by_bytes = JmsBatchReader(attrs.evolve(some, max_bytes_per_partition=4000), COLUMNS)
    assert [each.value for each in by_bytes.partitions()] == [(1, 3), (4, 6), (7, 9), (10, 12)]
    one_by_one = JmsBatchReader(attrs.evolve(some, max_bytes_per_partition=1), COLUMNS)
    assert len(one_by_one.partitions()) == 12
    assert [len(each) for each in read(one_by_one)] == [1] * 12


def test_a_pattern_chooses_by_the_whole_name_and_no_temporary_queue() -> None:
    names = ["orders.b", "temporary-queue/1-2", "orders.a", "my.orders.a", "DLQ"]
    assert matching("orders[.].*", names) == ("orders.a", "orders.b")
    assert matching(".*", names) == ("DLQ", "my.orders.a", "orders.a", "orders.b")
    assert matching("temporary-queue/.*", names) == ()


def test_the_replies_that_a_program_waits_for_are_not_read_by_a_pattern(options: SourceOptions) -> None:
    fill(options.url, "in", ["0"])
    with ConnectionFactory(options.url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_temporary_queue()).send("a reply")
        everything = attrs.evolve(options, queue=None, queue_pattern=".*")
        tasks = JmsBatchReader(everything, ("text",)).partitions()
    assert [task.options.queue for task in tasks if isinstance(task, RangePartition)] == ["in"]


def test_an_empty_queue_has_no_tasks_and_a_task_without_a_partition_no_rows(options: SourceOptions) -> None:
    fill(options.url, "in", [])
    with connection_for(options).create_session() as session:
        session.create_producer(session.create_queue("in")).send("x")
        connection_for(options).start()
        assert session.create_consumer(session.create_queue("in")).receive(60) is not None
    reader = JmsBatchReader(options, COLUMNS)
    assert reader.partitions() == []
    assert list(reader.read(None)) == []


def test_a_shared_subscription_that_is_missing_is_made(options: SourceOptions) -> None:
    source = attrs.evolve(options, queue=None, topic="news", subscription="mine")
    assert source_of(source).is_topic
    reader = JmsBatchReader(source, COLUMNS)
    assert reader.partitions() == []
    with connection_for(source).create_session() as session:
        session.create_producer(session.create_topic("news")).send("x")
    assert read(reader) == [["x"]]


def test_a_queue_that_is_deleted_meanwhile_is_an_error_or_no_rows(
    options: SourceOptions, caplog: pytest.LogCaptureFixture
) -> None:
    fill(options.url, "in", numbers(3))
    (partition,) = JmsBatchReader(options, COLUMNS).partitions()
    assert isinstance(partition, RangePartition)
    connection_for(options).request("delete", {"destination": "in", "force": True})
    reader = JmsBatchReader(options, COLUMNS)
    with pytest.raises(InvalidDestinationException):
        list(reader.read(partition))
    tolerant = attrs.evolve(partition, options=attrs.evolve(options, fail_on_data_loss=False))
    assert list(reader.read(tolerant)) == []
    assert "positions 1 to 3 of 'in' are lost" in caplog.text


def test_a_damaged_message_is_an_error_or_left_out(
    options: SourceOptions, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(options.url, "in", numbers(3))
    with broker.store.snapshot() as tables:
        _, (key, value), _ = tables.items("messages")
    broker.store.apply([("messages", key, value[:-1] + bytes((value[-1] ^ 1,)))])
    broker._stores._cache.clear()
    reader = JmsBatchReader(options, COLUMNS)
    with pytest.raises(JMSException, match="position 2 of queue 'in' cannot be trusted"):
        read(reader)
    assert read(JmsBatchReader(attrs.evolve(options, fail_on_data_loss=False), COLUMNS)) == [["0", "2"]]
    assert "damaged messages of 'in' are left out, and in the broker's quarantine: [2]" in caplog.text


@pytest.mark.damages
def test_to_look_for_an_instant_sets_no_damaged_message_aside(options: SourceOptions, broker: Broker) -> None:
    fill(options.url, "in", numbers(7))
    with broker.store.snapshot() as tables:
        key, value = list(tables.items("messages"))[3]
    broker.store.apply([("messages", key, value[:-1] + bytes((value[-1] ^ 1,)))])
    broker._stores._cache.clear()
    for start in ("2020-01-01T00:00:00Z", "earliest"):
        reader = JmsBatchReader(attrs.evolve(options, starting_position=start), COLUMNS)
        with pytest.raises(JMSException, match="position 4 of queue 'in' cannot be trusted"):
            read(reader)
    later = attrs.evolve(options, starting_position="2999-01-01T00:00:00Z")
    assert read(JmsBatchReader(later, COLUMNS)) == []


def test_a_task_goes_on_where_it_was_when_the_connection_is_lost(broker: Broker) -> None:
    listener, port = serve(broker)
    options = SourceOptions(url=f"amqp://127.0.0.1:{port}?failover=nofailover", queue="in", fetch_bytes=1)
    fill(options.url, "in", numbers(10))
    reader = JmsBatchReader(options, COLUMNS)
    (partition,) = reader.partitions()
    found = []
    for number, batch in enumerate(reader.read(partition)):
        found += batch.to_pydict()["text"]
        if number == 1:
            listener.stop()
            listener, _ = serve(broker, port)
    assert found == numbers(10)
    drop_connection(options)
    listener.stop()


def test_a_task_goes_on_where_it_was_also_where_its_selector_chooses_nothing(
    options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses its connection before every second answer, and each loss is long after the last one."""

    def failing(self: Connection, operation: str, arguments: Any, *rest: Any) -> Any:
        if operation == "read_range":
            firsts.append(arguments["first"])
            if len(firsts) % 2 == 0:
                now[0] += 3600.0
                raise ConnectionLostException("lost")
        return request(self, operation, arguments, *rest)

    fill(options.url, "in", ["x" * 100] * 40)
    whole = attrs.evolve(options, max_messages_per_partition=100, fetch_bytes=1000, selector="no = 1", retry_seconds=60)
    (partition,) = JmsBatchReader(whole, COLUMNS).partitions()
    firsts: list[int] = []
    now = [1.0]
    request = Connection.request
    monkeypatch.setattr(Connection, "request", failing)
    monkeypatch.setattr("spark_connector.batch_reader.time", SimpleNamespace(monotonic=lambda: now[0], sleep=str))
    assert list(JmsBatchReader(whole, COLUMNS).read(partition)) == []
    answered = firsts[::2]
    assert len(answered) > 2
    assert answered == sorted(set(answered)), "no part is read twice"


def test_a_task_reads_ten_thousand_messages_of_every_kind_in_their_order(options: SourceOptions) -> None:
    bodies: list[object] = []
    for number in range(2500):
        bodies += [f"text {number}", b"bytes", {"number": number}, [number]]
    connection = connection_for(options)
    with connection.create_session() as session:
        session.create_producer(session.create_queue("in")).send_all(bodies)  # type: ignore[arg-type]
    whole = attrs.evolve(options, max_messages_per_partition=100_000, fetch_bytes=64 * 1024)
    (partition,) = JmsBatchReader(whole, ("text", "body", "bodyType", "position")).partitions()
    rows = [row for batch in JmsBatchReader(whole, COLUMNS).read(partition) for row in batch.to_pylist()]
    assert [row["position"] for row in rows] == list(range(1, 10_001))
    assert {(row["bodyType"], row["body"]) for row in rows} == {
        ("text", None),
        ("bytes", b"bytes"),
        ("map", None),
        ("stream", None),
    }
    shown = [row["text"] for row in rows]
    for number in range(2500):
        kinds = [f"text {number}", None, json.dumps({"number": number}), json.dumps([number])]
        assert shown[4 * number : 4 * number + 4] == kinds


def test_a_task_asks_for_one_answer_while_spark_works_on_the_last_and_for_no_other(
    options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(options.url, "in", ["x" * 1000] * 40)
    whole = attrs.evolve(options, max_messages_per_partition=100, fetch_bytes=10_000)
    (partition,) = JmsBatchReader(whole, COLUMNS).partitions()
    asked: list[int] = []
    request = Connection.request

    def noted(self: Connection, operation: str, arguments: Any, *rest: Any) -> Any:
        if operation == "read_range":
            asked.append(arguments["first"])
            assert arguments["max_bytes"] == 10_000
        return request(self, operation, arguments, *rest)

    monkeypatch.setattr(Connection, "request", noted)
    batches = JmsBatchReader(whole, COLUMNS).read(partition)
    taken = 0
    for number in range(3):
        taken += next(batches).num_rows
        assert taken <= 10 * (number + 1)
        assert len(asked) <= number + 2
    batches.close()  # type: ignore[attr-defined]
    assert len(asked) == 4


def test_a_broker_that_stays_away_is_an_error_after_a_while(broker: Broker) -> None:
    listener, port = serve(broker)
    options = SourceOptions(
        url=f"amqp://127.0.0.1:{port}?failover=nofailover&connect_timeout_seconds=1", queue="in", retry_seconds=0.5
    )
    fill(options.url, "in", numbers(3))
    reader = JmsBatchReader(options, COLUMNS)
    (partition,) = reader.partitions()
    listener.stop()
    with pytest.raises(ConnectionLostException):
        list(reader.read(partition))
    drop_connection(options)


def test_a_queue_of_a_broker_without_positions_is_browsed_by_one_task(options: SourceOptions) -> None:
    fill(options.url, "in", numbers(2500), priority=7)
    partition = BrowsePartition(options, ("text", "position", "priority"))
    assert partition.value == "in"
    batches = [each.to_pydict() for each in JmsBatchReader(options, COLUMNS).read(partition)]
    assert [len(each["text"]) for each in batches] == [1000, 1000, 500]
    assert [text for each in batches for text in each["text"]] == numbers(2500)
    assert batches[0]["position"] == [None] * 1000
    assert set(batches[0]["priority"]) == {7}


def test_a_task_that_browses_waits_for_a_broker_that_is_away_as_it_begins(
    options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(options.url, "in", numbers(2))
    away = away_once(monkeypatch)
    (batch,) = JmsBatchReader(options, COLUMNS).read(BrowsePartition(options, ("text",)))
    assert next(away, None) is None
    assert batch.to_pydict() == {"text": numbers(2)}
