"""Queries whose checkpoint and queue have drifted apart, on a real Spark: copied, older, ahead of a restored broker."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records import start_numbers as run_numbers
from broker_adapter.engine.records.start_numbers import ALWAYS_KEPT_RUNS
from broker_adapter.engine.store.starts import AGING_STARTS, run_of
from broker_adapter.settings import EngineSettings
from sdk import ConnectionFactory
from tests.server_process import ServerProcess
from tests.spark_connector.queues import fill, texts
from tests.spark_connector.served import Served

PATIENCE = 300.0  #: seconds; longer than anything takes, also where the machine is busy


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"embedded:{tmp_path / 'data'}"
    with ConnectionFactory(url).create_connection():
        yield url


class Files:
    """A source that can be read again from any checkpoint: a directory, one file a batch."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self._path = path
        self._count = 0
        path.mkdir()

    def add(self, *lines: str) -> None:
        """One more batch."""
        self._count += 1
        path = self._path / f"{self._count}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (self._count, self._count))  # Spark takes the oldest file first

    def stream(self) -> DataFrame:
        reader = self._spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
        return reader.text(str(self._path))


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path / "files")


def run(frame: DataFrame, url: str, checkpoint: Path, queue: str = "out", **options: Any) -> StreamingQuery:
    """Run a query until it has written what is there."""
    writer = frame.writeStream.format("jms").options(
        url=url, queue=queue, checkpointLocation=str(checkpoint), **options
    )
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    return query


def messages(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """The queue ``in`` as a stream."""
    reader = spark.readStream.format("jms").options(url=url, queue="in", **options)
    return reader.load().selectExpr("text as value")


def test_a_copied_checkpoint_writes_its_batches_to_another_queue(
    spark: SparkSession, url: str, files: Files, tmp_path: Path
) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    files.add("a")
    run(files.stream(), url, original)
    shutil.copytree(original, copy)
    files.add("b")
    files.add("c")
    run(files.stream(), url, original)
    run(files.stream(), url, copy, "other")
    assert (texts(url, "out"), texts(url, "other")) == (["a", "b", "c"], ["b", "c"])


def test_an_older_checkpoint_writes_each_batch_once_and_says_what_it_drops(
    spark: SparkSession, url: str, files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current, older, again = tmp_path / "current", tmp_path / "older", tmp_path / "again"
    files.add("a")
    run(files.stream(), url, current)
    for path in (older, again):
        shutil.copytree(current, path)
    files.add("b", "b")
    run(files.stream(), url, current)
    files.add("c")
    run(files.stream(), url, older)
    assert texts(url, "out") == ["a", "b", "b", "c"]
    (warning,) = [each.getMessage() for each in caplog.records if each.name.startswith("holdfast.spark_connector")]
    assert "batch 1 of the query was published to queue 'out' before, so its 2 messages were dropped" in warning
    with ConnectionFactory(url).create_connection() as connection:
        assert connection.statistics().duplicates_rejected == 2
    run(files.stream(), url, again, producerId="again")
    assert texts(url, "out") == ["a", "b", "b", "c", "b", "b", "c"]


def test_a_batch_job_has_no_producer_id(spark: SparkSession, url: str) -> None:
    rows = spark.createDataFrame([("a",)], "value string")
    with pytest.raises(Exception, match="producerId is for streaming queries"):
        rows.write.format("jms").options(url=url, queue="out", producerId="p").mode("append").save()


def test_a_checkpoint_that_is_older_than_the_queue_is_an_error_unless_loss_is_allowed(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    checkpoint, older = tmp_path / "checkpoint", tmp_path / "older"
    fill(url, "in", ["1", "2"])
    run(messages(spark, url), url, checkpoint)
    shutil.copytree(checkpoint, older)
    fill(url, "in", ["3", "4"])
    run(messages(spark, url), url, checkpoint)
    fill(url, "in", ["5", "6"])
    with pytest.raises(Exception, match="positions from 3 to 4 were read and settled by a query that was ahead of it"):
        run(messages(spark, url), url, older)
    assert texts(url, "in") == ["5", "6"]
    run(messages(spark, url, failOnDataLoss=False), url, older, producerId="older")
    assert texts(url, "out") == ["1", "2", "3", "4", "5", "6"]
    assert texts(url, "in") == []


def test_a_checkpoint_that_was_copied_while_its_first_batch_ran_is_an_error_unless_loss_is_allowed(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    checkpoint, copy = tmp_path / "checkpoint", tmp_path / "copy"
    fill(url, "in", ["1", "2"])
    run(messages(spark, url), url, checkpoint)
    shutil.copytree(checkpoint, copy)
    for name in ("0", ".0.crc"):
        (copy / "commits" / name).unlink()
    with pytest.raises(Exception, match="its first batch ran, which began at position 1: the positions up to 2 were"):
        run(messages(spark, url), url, copy, "other")
    fill(url, "in", ["3"])
    run(messages(spark, url, failOnDataLoss=False), url, copy, "other")
    assert texts(url, "other") == ["3"]


@pytest.mark.parametrize("new", [2, 50])
def test_a_broker_restored_from_a_backup_has_no_message_deleted_unread(
    spark: SparkSession, tmp_path: Path, new: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With fewer, and with more new messages than the checkpoint has positions ahead of the backup."""
    checkpoint, data, backup = tmp_path / "checkpoint", tmp_path / "data", tmp_path / "backup"
    unread = [f"new {number}" for number in range(new)]
    with ServerProcess(data) as server:
        fill(server.url, "in", ["1", "2", "3"])
        run(messages(spark, server.url), server.url, checkpoint)
        server.stop()
        shutil.copytree(data, backup)
        server.start()
        fill(server.url, "in", ["4", "5", "6"])
        run(messages(spark, server.url), server.url, checkpoint)
        server.stop()
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        server.start()
        fill(server.url, "in", unread)
        server.stop()  # one more restart, so that the run is forgotten
        server.start()
        with pytest.raises(Exception, match="the broker's store was replaced by an older copy"):
            run(messages(spark, server.url), server.url, checkpoint)
        assert texts(server.url, "in") == unread
        query = run(messages(spark, server.url, failOnDataLoss=False), server.url, checkpoint)
        assert texts(server.url, "out") == ["1", "2", "3", *unread]
        assert texts(server.url, "in") == []
        assert "going on with what 'in' has, though data is lost: the broker's store was replaced" in caplog.text
        assert [each["numInputRows"] for each in query.recentProgress][:2] == [0, new]  # it begins again, and reads
        fill(server.url, "in", ["later"])
        run(messages(spark, server.url), server.url, checkpoint)
        assert texts(server.url, "out") == ["1", "2", "3", *unread, "later"]
        assert texts(server.url, "in") == []


def committed_run(checkpoint: Path) -> str:
    """The run of the broker in the offset of the last batch that is done, as the checkpoint has it."""
    done = max((int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")), default=None)
    if done is None:
        return ""
    return run_of(json.loads((checkpoint / "offsets" / str(done)).read_text().splitlines()[-1])["run"])


def test_a_query_that_waits_while_its_broker_starts_more_often_than_it_remembers_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_numbers, "KEPT_RUNS", ALWAYS_KEPT_RUNS)
    checkpoint = tmp_path / "checkpoint"
    served = Served(Broker(EngineSettings(), str(tmp_path / "data")))
    url = served.options.url
    options = {"url": url, "queue": "out", "checkpointLocation": str(checkpoint)}
    try:
        served.fill(0, 3)
        query = messages(spark, url, headRefreshSeconds=0.1).writeStream.format("jms").options(**options).start()

        def wait_until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + PATIENCE
            while not condition():
                assert query.exception() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)

        wait_until(lambda: served.left() == [])
        first = committed_run(checkpoint)
        assert first == served.run
        for _ in range(3):
            served.start_often(AGING_STARTS + 1)
            wait_until(lambda: committed_run(checkpoint) == served.run)
        assert first not in served.known
        served.fill(3, 2)
        wait_until(lambda: texts(url, "out") == ["0", "1", "2", "3", "4"] and served.left() == [])
        query.stop()
        # A query that is stopped renews nothing.
        served.start_often(ALWAYS_KEPT_RUNS + 1)
        with pytest.raises(Exception, match="has started more often than it remembers"):
            run(messages(spark, url), url, checkpoint)
        served.fill(5, 1)
        run(messages(spark, url, failOnDataLoss=False), url, checkpoint)
        assert texts(url, "out") == ["0", "1", "2", "3", "4", "5"]
    finally:
        served.stop()
