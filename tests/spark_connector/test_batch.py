"""DataFrames over queues on a real Spark: reading takes nothing, writing happens once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from sdk import ConnectionFactory
from spark_connector import register
from spark_connector.rows import SCHEMA
from tests import forked_command
from tests.server_process import ServerProcess
from tests.spark_connector.queues import browse, fill, staged, texts

#: What Spark puts before the sentence of an error, when it plans.
FIRST = r"^\[PYTHON_DATA_SOURCE_ERROR\] Failed to [\w ]+: "


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A durable engine in this process, or a server in another one."""
    if getattr(request, "param", "embedded") == "embedded":
        url = f"embedded:{tmp_path / 'data'}"
        with ConnectionFactory(url).create_connection():
            yield url
        return
    with ServerProcess(tmp_path / "data") as server:
        yield server.url


both = pytest.mark.parametrize("url", ["embedded", "amqp"], indirect=True)


def load(spark: SparkSession, url: str, queue: str, **options: Any) -> DataFrame:
    reader = spark.read.format("jms").option("url", url).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(row.text for row in frame.select("text").collect())


@both
def test_a_queue_is_read_with_all_columns_and_nothing_is_taken(spark: SparkSession, url: str) -> None:
    fill(url, "q", ["a", b"\x00", {"k": 1}], priority=7, time_to_live=3600)
    frame = load(spark, url, "q")
    assert frame.schema == SCHEMA
    first, second, third = sorted(frame.collect(), key=lambda row: row.position)
    assert (first.queue, first.text, first.body, first.bodyType, first.priority) == ("q", "a", None, "text", 7)
    assert (second.body, second.bodyType, third.text, third.bodyType) == (
        bytearray(b"\x00"),
        "bytes",
        '{"k": 1}',
        "map",
    )
    assert first.messageId == browse(url, "q")[0].message_id
    assert first.expiration > first.timestamp
    assert first.properties == {}
    assert len(browse(url, "q")) == 3


def test_an_empty_queue_is_an_empty_dataframe(spark: SparkSession, url: str) -> None:
    assert load(spark, url, "nothing").collect() == []


def test_each_load_is_a_snapshot(spark: SparkSession, url: str) -> None:
    fill(url, "q", ["1"])
    before = load(spark, url, "q")
    assert before.count() == 1
    fill(url, "q", ["2"])
    assert before.count() == 1
    assert load(spark, url, "q").count() == 2


def test_a_dataframe_can_be_united_with_itself(spark: SparkSession, url: str) -> None:
    fill(url, "q", [str(number) for number in range(20)])
    frame = load(spark, url, "q", maxMessagesPerPartition=7)
    low, high = frame.where("position <= 5"), frame.where("position > 15")
    assert low.union(high).count() == 10
    assert frame.union(frame).count() == 40


@both
def test_many_partitions_read_everything_once(spark: SparkSession, url: str) -> None:
    fill(url, "q", [str(number) for number in range(1000)])
    frame = load(spark, url, "q", maxMessagesPerPartition=101, fetchBytes=5000)
    assert frame.rdd.getNumPartitions() == 10
    assert bodies(frame) == sorted(str(number) for number in range(1000))


def test_a_users_schema_selects_columns(spark: SparkSession, url: str) -> None:
    fill(url, "q", ["a"])
    reader = spark.read.format("jms").schema("text string, position bigint").option("url", url).option("queue", "q")
    frame = reader.load()
    assert frame.columns == ["text", "position"]
    assert frame.collect()[0].text == "a"


@both
def test_a_subscription_is_read(spark: SparkSession, url: str) -> None:
    def read() -> DataFrame:
        options = {"url": url, "topic": "t", "subscription": "s"}
        return spark.read.format("jms").options(**options).load()

    assert read().count() == 0  # the subscription is made
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_topic("t")).send("news")
    assert bodies(read()) == ["news"]


def test_rows_become_messages_with_their_headers(spark: SparkSession, url: str) -> None:
    frame = spark.createDataFrame(
        [("a", "k1", "c1", "t1", 9, {"x": "1"}), ("b", None, None, None, None, None)],
        "text string, key string, correlationId string, type string, priority int, properties map<string,string>",
    )
    frame.coalesce(1).write.format("jms").option("url", url).option("queue", "out").mode("append").save()
    first, second = browse(url, "out")
    assert (first.body, first.group_id, first.correlation_id, first.type, first.priority) == ("a", "k1", "c1", "t1", 9)
    assert dict(first.properties) == {"x": "1"}
    assert (second.body, second.group_id, second.priority) == ("b", None, 4)


def test_one_value_column_is_enough_and_an_empty_frame_writes_nothing(spark: SparkSession, url: str) -> None:
    frame = spark.range(100).selectExpr("to_json(struct(*)) as value")
    frame.write.format("jms").option("url", url).option("queue", "out").mode("append").save()
    assert sorted(texts(url, "out")) == sorted(f'{{"id":{number}}}' for number in range(100))
    frame.where("false").write.format("jms").option("url", url).option("queue", "none").mode("append").save()
    assert texts(url, "none") == []


@both
def test_what_was_read_can_be_written(spark: SparkSession, url: str) -> None:
    fill(url, "q", [str(number) for number in range(10)])
    load(spark, url, "q").write.format("jms").option("url", url).option("queue", "copy").mode("append").save()
    assert sorted(texts(url, "copy")) == sorted(texts(url, "q"))


@both
def test_a_task_that_fails_and_is_tried_again_writes_once(spark: SparkSession, url: str) -> None:
    fill(url, "q", [str(number) for number in range(500)])

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch  # some rows have gone to the sink before it fails
            if context.attemptNumber() == 0:
                raise RuntimeError("fails the first time")

    frame = load(spark, url, "q", maxMessagesPerPartition=100, fetchBytes=2000).selectExpr("text as value")
    frame = frame.mapInArrow(fail_once, "value string")
    frame.write.format("jms").option("url", url).option("queue", "out").mode("append").save()
    assert sorted(texts(url, "out"), key=int) == [str(number) for number in range(500)]
    assert staged(url) == []


@pytest.mark.parametrize(("url", "killed"), [("embedded", False), ("amqp", True)], indirect=["url"])
def test_a_job_that_fails_for_good_writes_nothing_and_leaves_nothing(
    spark: SparkSession, url: str, killed: bool
) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and killed:
                os._exit(1)
            elif number == 1:
                raise RuntimeError("fails each time")

    frame = spark.range(100_000).selectExpr("cast(id as string) as value").mapInArrow(fail, "value string")
    with pytest.raises(Exception, match=r"fails each time|Python worker exited unexpectedly"):
        frame.write.format("jms").option("url", url).option("queue", "out").mode("append").save()
    assert texts(url, "out") == []
    deadline = time.monotonic() + 300
    while staged(url):  # what still ran when the job was aborted
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_with_one_slow_task_outlasts_the_time_out_of_what_the_others_staged(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A row in 1.5 s; Spark passes them on when 64 KiB have gathered."""
    sleep = "java_method('java.lang.Thread', 'sleep', cast(if(id < 10, 0, 1500) as bigint))"
    frame = spark.range(0, 20, 1, 2).selectExpr(f"concat(cast(id as string), coalesce({sleep}, '')) as value")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        with ServerProcess(tmp_path / "data", "--option", "staged_timeout_seconds=8") as server:
            frame.write.format("jms").option("url", server.url).option("queue", "out").mode("append").save()
            assert len(texts(server.url, "out")) == 20
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@both
def test_at_least_once_writes_without_staging_also_to_a_topic(spark: SparkSession, url: str) -> None:
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        session.create_shared_durable_consumer(session.create_topic("t"), "s").close()
    writer = spark.range(50).selectExpr("cast(id as string) as value").write.format("jms").option("url", url)
    writer.option("topic", "t").option("deliveryGuarantee", "at_least_once").mode("append").save()
    options = {"url": url, "topic": "t", "subscription": "s"}
    assert bodies(spark.read.format("jms").options(**options).load()) == sorted(str(number) for number in range(50))


def test_wrong_options_and_schemas_are_told_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    with pytest.raises(Exception, match=rf"{FIRST}ValueError: unknown option 'qeue'"):
        spark.read.format("jms").option("url", url).option("qeue", "q").load()
    with pytest.raises(Exception, match=rf"{FIRST}ValueError: unknown column 'other'"):
        spark.read.format("jms").schema("other string").option("url", url).option("queue", "q").load().count()
    rows = spark.range(1)
    with pytest.raises(Exception, match=rf"{FIRST}ValueError: these rows .*no column 'value', 'text' or 'body'"):
        rows.write.format("jms").option("url", url).option("queue", "q").mode("append").save()
    with pytest.raises(Exception, match="cannot be overwritten"):
        rows.selectExpr("cast(id as string) as value").write.format("jms").option("url", url).option("queue", "q").mode(
            "overwrite"
        ).save()


def test_a_store_that_another_process_owns_is_a_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        pytest.raises(Exception, match=rf"{FIRST}[\w.]+: .*in use by process {server.pid}"),
    ):
        load(spark, f"embedded:{tmp_path / 'data'}", "q").count()


def test_a_broker_that_is_not_there_is_a_clear_error(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=rf"{FIRST}[\w.]+: no connection to 127\.0\.0\.1:1"):
        load(spark, "amqp://127.0.0.1:1", "q", retrySeconds=0).count()


def test_a_wrong_password_is_a_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    users = str(tmp_path / "users")
    environment = {**os.environ, "HOLDFAST_PASSWORD": "secret"}
    added = forked_command.run(("user", "add", users, "alice"), None, environment, 300)
    assert added.returncode == 0
    with (
        ServerProcess(tmp_path / "data", "--users", users) as server,
        pytest.raises(Exception, match=rf"{FIRST}[\w.]+JMSSecurityException: "),
    ):
        load(spark, server.url, "q", username="alice", password="guess").count()


@pytest.mark.parametrize("records", ["0", "-1"])
def test_a_limit_of_records_with_which_spark_reads_no_source_in_python_is_told_by_register(
    spark: SparkSession, records: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, records)
    try:
        register(spark)
        assert f"{name}={records}" in caplog.text
        with pytest.raises(Exception, match="maximum arrow batch size should be greater than 0"):
            load(spark, "amqp://127.0.0.1:1", "in").collect()
    finally:
        spark.conf.set(name, before or "10000")
    caplog.clear()
    register(spark)
    assert name not in caplog.text


def test_what_spark_says_without_register_is_in_the_documentation(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="jms") as unknown:
        load(spark.newSession(), "amqp://127.0.0.1:1", "in")
    sentence = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: jms"
    assert sentence in str(unknown.value)
    for page in ("docs/faq.md", "docs/spark.md"):
        assert sentence in " ".join(Path(page).read_text(encoding="utf-8").split())
