"""Queries whose checkpoint and queue have drifted apart, on a real Spark: copied, older, ahead of a restored broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sdk import ConnectionFactory
from tests.server_process import ServerProcess
from tests.spark_connector.queues import fill, texts

PATIENCE = 120.0  #: seconds


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"embedded:{tmp_path / 'data'}"
    with ConnectionFactory(url).create_connection():
        yield url


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
    run(messages(spark, url, failOnDataLoss=False), url, older, "other")
    assert texts(url, "in") == []


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
        server.stop()  # one more restart, so that nobody remembers it
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
