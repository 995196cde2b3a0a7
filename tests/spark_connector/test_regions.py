"""Regions as tables, as streams and as sinks of a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from sdk import ConnectionFactory, Region


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"embedded:{tmp_path / 'data'}"
    with ConnectionFactory(url).create_connection():
        yield url


@pytest.fixture
def quotes(url: str) -> Iterator[Region]:
    with ConnectionFactory(url).create_connection() as connection:
        yield connection.create_session().create_region("quotes")


def load(spark: SparkSession, url: str, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("jms").options(url=url, region="quotes", **options)
    return (reader if schema is None else reader.schema(schema)).load()


def test_a_region_is_a_table(spark: SparkSession, url: str, quotes: Region) -> None:
    quotes.put_all({f"k{number:03}": {"bid": number / 2, "size": number} for number in range(100)})
    quotes.put("text", "t")
    frame = load(spark, url, "key string, bid double, size int", maxMessagesPerPartition=30)
    assert frame.rdd.getNumPartitions() == 4
    quotes.put_all({f"k{number:03}": {"bid": 0.0} for number in range(150)})
    assert frame.count() == 101
    found = {row.key: row.bid for row in frame.where("key like 'k00%'").collect()}
    assert found == {f"k{number:03}": number / 2 for number in range(10)}
    # One frame that is read twice in one job is one moment.
    assert frame.join(frame.withColumnRenamed("bid", "other"), "key").where("bid <> other").count() == 0
    whole = load(spark, url, keyPattern="text").collect()
    assert [(row.key, row.operation, row.text, row.problem) for row in whole] == [("text", "snapshot", "t", None)]


def test_a_table_is_written_to_a_region(spark: SparkSession, url: str, quotes: Region) -> None:
    quotes.put_all({"b": "old", "c": "old"})

    def failing_once(batches: Any) -> Any:
        yield from batches
        if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
            raise RuntimeError("after all rows are written")

    frame = spark.createDataFrame(
        [("a", "put", 1.5, 1), ("b", "destroy", None, None), ("c", "invalidate", None, None), ("d", None, None, 2)],
        "key string, operation string, bid double, size int",
    )
    frame = frame.coalesce(1).mapInArrow(failing_once, frame.schema)
    frame.write.format("jms").options(url=url, region="quotes").mode("append").save()
    assert quotes.get_all() == {"a": {"bid": 1.5, "size": 1}, "d": {"size": 2}}
    assert quotes.keys() == ["a", "c", "d"]
    bad = spark.createDataFrame([("a", "1"), (None, "2")], "key string, value string").coalesce(1)
    with pytest.raises(Exception, match="row 2: column 'key' has the value None: a change needs a key"):
        bad.write.format("jms").options(url=url, region="quotes").mode("append").save()


def test_a_stream_of_a_region_keeps_another_one_alike(
    spark: SparkSession, url: str, quotes: Region, tmp_path: Path
) -> None:
    quotes.put_all({"a": "1", "b": "1"})

    def copy() -> None:
        stream = spark.readStream.format("jms").options(url=url, region="quotes", subscription="copy").load()
        writer = stream.writeStream.format("jms").options(url=url, region="copies")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert writer.start().awaitTermination(300)

    copy()
    with ConnectionFactory(url).create_connection() as connection:
        copies = connection.create_session().create_region("copies")
        assert copies.get_all() == {"a": "1", "b": "1"}
        # While the query is away.
        quotes.put("a", "2")
        quotes.destroy("b")
        quotes.put("c", "1")
        copy()
        assert copies.get_all() == {"a": "2", "c": "1"}
