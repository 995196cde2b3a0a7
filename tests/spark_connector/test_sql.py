"""The format in SQL, several queues as one stream, and what the progress of a query says, on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sdk import ConnectionFactory
from tests.spark_connector.queues import fill, texts


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"embedded:{tmp_path / 'data'}"
    with ConnectionFactory(url).create_connection():
        yield url


def test_a_view_reads_a_queue_and_takes_rows_with_insert(spark: SparkSession, url: str) -> None:
    fill(url, "orders", ["a", "b"])
    options = f"USING jms OPTIONS (url '{url}', queue 'orders'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders (text STRING, position BIGINT) {options})")
    assert [row.text for row in spark.sql("SELECT text FROM orders WHERE position > 1").collect()] == ["b"]
    spark.sql("INSERT INTO orders (text) VALUES ('c'), ('d')")
    assert sorted(texts(url, "orders")) == ["a", "b", "c", "d"]
    # A view is a snapshot, as load() is.
    assert spark.sql("SELECT text FROM orders").count() == 2
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders {options}, includeProperties 'false', startingPosition '3')")
    assert "properties" not in spark.table("orders").columns
    assert spark.table("orders").count() == 2


def test_a_table_says_what_to_use_in_its_place(spark: SparkSession, url: str) -> None:
    with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE orders_table USING jms OPTIONS (url '{url}', queue 'orders')")


def test_several_queues_are_one_stream_whose_progress_shows_what_is_left(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    for name in ("in.a", "in.b"):
        fill(url, name, [f"{name} {number}" for number in range(20)])
    stream = spark.readStream.format("jms").options(url=url, queuePattern=r"in\..*", maxMessagesPerTrigger=16).load()
    writer = stream.selectExpr("text as value").writeStream.format("jms").options(url=url, queue="out")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = writer.start()
    assert query.awaitTermination(300)
    assert sorted(texts(url, "out")) == sorted(f"{name} {each}" for name in ("in.a", "in.b") for each in range(20))
    assert texts(url, "in.a") == texts(url, "in.b") == []
    lags = []
    for progress in query.recentProgress:
        source = progress["sources"][0]
        latest, end = (json.loads(source[each])["queues"] for each in ("latestOffset", "endOffset"))
        lags.append(sum(latest[name]["next"] - end[name]["next"] for name in latest))
    assert lags[:3] == [24, 8, 0]
