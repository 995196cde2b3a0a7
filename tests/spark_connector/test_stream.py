"""Queues as streams on a real Spark: pinned ranges, settled when they are processed, exactly once into the sink."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sdk import Connection, ConnectionFactory, QueueClaimedException
from tests.server_process import ServerProcess
from tests.spark_connector.queues import fill, staged, texts

PATIENCE = 300.0  #: seconds; longer than anything takes, also where the machine is busy


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"embedded:{tmp_path / 'data'}"
    with ConnectionFactory(url).create_connection():
        yield url


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def stream(spark: SparkSession, url: str, queue: str = "in", **options: Any) -> DataFrame:
    reader = spark.readStream.format("jms").option("url", url).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def start(frame: DataFrame, url: str, checkpoint: str, queue: str = "out", **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("jms").option("url", url).option("queue", queue)
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


def eventually(condition: Any, query: StreamingQuery | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        assert query is None or query.exception() is None
        time.sleep(0.05)


def is_claimed(connection: Connection) -> bool:
    """Whether the queue ``in`` is not open to any query."""
    try:
        connection.request("bounds", {"destination": "in", "claim": "another"})
    except QueueClaimedException:
        return True
    return False


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def sorted_texts(url: str, queue: str) -> list[str]:
    return sorted(texts(url, queue), key=int)


def test_available_now_reads_what_is_there_and_leaves_nothing_behind(
    spark: SparkSession, url: str, checkpoint: str
) -> None:
    fill(url, "in", numbers(1000))
    frame = stream(spark, url, maxMessagesPerTrigger=300).selectExpr("text as value")
    query = start(frame, url, checkpoint, availableNow=True)
    assert query.awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == numbers(1000)
    assert texts(url, "in") == []
    inputs = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert inputs == [300, 300, 300, 100]


def test_a_restarted_query_goes_on_where_it_was(spark: SparkSession, url: str, checkpoint: str) -> None:
    frame = stream(spark, url).selectExpr("text as value")
    for round_ in range(3):
        fill(url, "in", numbers(100, 100 * round_))
        assert start(frame, url, checkpoint, availableNow=True).awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == numbers(300)


def test_a_quiet_queue_is_settled(spark: SparkSession, url: str, checkpoint: str) -> None:
    frame = stream(spark, url).selectExpr("text as value")
    query = start(frame, url, checkpoint)
    try:
        fill(url, "in", numbers(50))
        eventually(lambda: len(texts(url, "out")) == 50, query)
        eventually(lambda: texts(url, "in") == [], query)
    finally:
        query.stop()


def test_nothing_is_settled_before_it_is_processed(spark: SparkSession, url: str, checkpoint: str) -> None:
    fill(url, "in", numbers(100))

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            raise RuntimeError("fails each time")

    frame = stream(spark, url).selectExpr("text as value").mapInArrow(fail, "value string")
    query = start(frame, url, checkpoint, availableNow=True)
    with pytest.raises(Exception, match="fails each time"):
        query.awaitTermination(PATIENCE)
    assert (len(texts(url, "in")), texts(url, "out")) == (100, [])
    again = stream(spark, url).selectExpr("text as value")
    assert start(again, url, checkpoint, availableNow=True).awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == numbers(100)
    assert texts(url, "in") == []
    assert staged(url) == []  # also of the run that failed


def test_a_failed_task_is_tried_again_and_writes_once(spark: SparkSession, url: str, checkpoint: str) -> None:
    fill(url, "in", numbers(400))

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.attemptNumber() == 0:
                raise RuntimeError("fails the first time")

    frame = stream(spark, url, maxMessagesPerPartition=100).selectExpr("text as value")
    query = start(frame.mapInArrow(fail_once, "value string"), url, checkpoint, availableNow=True)
    assert query.awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == numbers(400)
    assert staged(url) == []


def test_a_stream_united_with_itself_reads_one_range_twice(spark: SparkSession, url: str, checkpoint: str) -> None:
    fill(url, "in", numbers(10))
    frame = stream(spark, url)
    both = frame.selectExpr("text as value").union(frame.selectExpr("concat('1', text) as value"))
    assert start(both, url, checkpoint, availableNow=True).awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == sorted([*numbers(10), *(f"1{number}" for number in range(10))], key=int)


def test_two_queries_write_to_one_queue_at_once(spark: SparkSession, url: str, checkpoint: str, tmp_path: Path) -> None:
    for queue, first in (("in", 0), ("in2", 1000)):
        fill(url, queue, numbers(1000, first))
    options = {"maxMessagesPerTrigger": 100, "maxMessagesPerPartition": 40}
    frames = [stream(spark, url, queue, **options).selectExpr("text as value") for queue in ("in", "in2")]
    queries = [
        start(frame, url, str(tmp_path / f"checkpoint{number}"), availableNow=True)
        for number, frame in enumerate(frames)
    ]
    for query in queries:
        assert query.awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == numbers(2000)
    assert staged(url) == []


def test_a_subscription_is_a_stream_of_its_own(spark: SparkSession, url: str, checkpoint: str) -> None:
    reader = spark.readStream.format("jms").option("url", url).option("topic", "t").option("subscription", "s")
    frame = reader.load().selectExpr("text as value")
    assert start(frame, url, checkpoint, availableNow=True).awaitTermination(PATIENCE)
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_topic("t"))
        for number in numbers(20):
            producer.send(number)
    assert start(frame, url, checkpoint, availableNow=True).awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == numbers(20)


def test_aggregates_are_written_in_complete_mode_only_as_an_error(
    spark: SparkSession, url: str, checkpoint: str
) -> None:
    counts = stream(spark, url).groupBy("priority").count().selectExpr("to_json(struct(*)) as value")
    writer = counts.writeStream.format("jms").option("url", url).option("queue", "out").outputMode("complete")
    query = writer.option("checkpointLocation", checkpoint).start()
    fill(url, "in", ["a"])
    with pytest.raises(Exception, match="cannot be overwritten"):
        query.awaitTermination(PATIENCE)


def test_a_queue_of_another_incarnation_is_an_error(spark: SparkSession, url: str, checkpoint: str) -> None:
    fill(url, "in", numbers(5))
    frame = stream(spark, url).selectExpr("text as value")
    assert start(frame, url, checkpoint, availableNow=True).awaitTermination(PATIENCE)
    (last,) = [path for path in Path(checkpoint, "offsets").iterdir() if path.name == "0"]
    lines = last.read_text().splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "incarnation": "another-1"})
    last.write_text("\n".join(lines))
    for file in Path(checkpoint, "offsets").glob(".0.crc"):
        file.unlink()
    fill(url, "in", numbers(5))
    query = start(frame, url, checkpoint, availableNow=True)
    with pytest.raises(
        Exception, match=r"^\[STREAM_FAILED\] .*[^\n]Exception: data of 'in' is lost: .*deleted and made again"
    ):
        query.awaitTermination(PATIENCE)


@pytest.mark.crash
def test_a_server_killed_in_mid_batch_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        fill(server.url, "in", numbers(12_000))

        def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                time.sleep(0.05)
                yield batch

        options = {"maxMessagesPerTrigger": 4_000, "maxMessagesPerPartition": 1_000, "fetchBytes": 10_000}
        frame = stream(spark, server.url, **options).selectExpr("text as value").mapInArrow(slowly, "value string")
        query = start(frame, server.url, checkpoint)
        try:
            for _ in range(2):
                before = query.lastProgress["batchId"] if query.lastProgress else -1
                time.sleep(1.0)
                server.kill()
                server.start()
                eventually(
                    lambda before=before: (
                        (query.lastProgress and query.lastProgress["batchId"] > before) or not texts(server.url, "in")
                    ),
                    query,
                )
            eventually(lambda: not texts(server.url, "in"), query)
        finally:
            query.stop()
        assert sorted_texts(server.url, "out") == numbers(12_000)


def test_a_second_query_on_a_queue_is_refused_and_the_first_one_reads_all(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    fill(url, "in", numbers(60))
    found: list[str] = []
    began = threading.Event()

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(row.text for row in batch.collect())
        began.set()

    def begin(name: str, **options: Any) -> StreamingQuery:
        writer = stream(spark, url, **options).writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    first = begin("one", maxMessagesPerTrigger=5)
    try:
        eventually(began.is_set, first)
        second = begin("two")
        with pytest.raises(StreamingQueryException) as refused:
            second.awaitTermination(PATIENCE)
        text = str(refused.value)
        sentence = "QueueClaimedException: queue 'in' is claimed by another streaming query ("
        assert sentence in text.splitlines()[0]
        assert f"Spark application 'holdfast-tests' ({spark.sparkContext.applicationId}) on host " in text
        assert "takeOver=true" in text
        eventually(lambda: texts(url, "in") == [], first)
    finally:
        first.stop()
    assert sorted(found, key=int) == numbers(60)


def test_a_query_without_its_checkpoint_starts_again_after_it_was_stopped(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        fill(url, "in", numbers(3))
        query = start(stream(spark, url).selectExpr("text as value"), url, str(tmp_path / name))
        try:
            eventually(lambda: texts(url, "in") == [], query)
        finally:
            query.stop()
        # Spark does not wait for the process of the source, which ends the claim.
        with ConnectionFactory(url).create_connection() as connection:
            eventually(lambda: not is_claimed(connection))


def test_a_query_that_failed_in_a_batch_keeps_its_queue_until_another_takes_it_over(
    spark: SparkSession, url: str, checkpoint: str, tmp_path: Path
) -> None:
    fill(url, "in", numbers(3))

    def fail(batch: DataFrame, _: int) -> None:
        raise RuntimeError("fails")

    query = stream(spark, url).writeStream.foreachBatch(fail).option("checkpointLocation", checkpoint).start()
    with pytest.raises(Exception, match="fails"):
        query.awaitTermination(PATIENCE)
    with pytest.raises(Exception, match="is claimed by another streaming query"):
        start(stream(spark, url).selectExpr("text as value"), url, str(tmp_path / "two")).awaitTermination(PATIENCE)
    assert texts(url, "in") == numbers(3)
    new = stream(spark, url, takeOver=True).selectExpr("text as value")
    assert start(new, url, str(tmp_path / "three"), availableNow=True).awaitTermination(PATIENCE)
    assert sorted_texts(url, "out") == numbers(3)
