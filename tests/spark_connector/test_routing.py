"""Rows of a DataFrame that name their queues, in batches and streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark_connector.queues import fill, texts


def test_a_batch_goes_to_the_queues_that_its_rows_name(spark: SparkSession, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    rows = spark.createDataFrame(
        [("1", "good"), ("x", "bad"), ("2", "good"), ("?", None)], "value string, queue string"
    )
    writing = rows.coalesce(1).write.format("jms").mode("append")
    with pytest.raises(Exception, match=r"row 4: column 'queue' has the value None: .* no option queue"):
        writing.options(url=url).save()
    assert (texts(url, "good"), texts(url, "bad")) == ([], [])
    writing.options(url=url, queue="rest").save()
    assert [texts(url, name) for name in ("good", "bad", "rest")] == [["1", "2"], ["x"], ["?"]]
    with pytest.raises(Exception, match="column queue, and go to a topic"):
        rows.write.format("jms").options(url=url, topic="t", deliveryGuarantee="at_least_once").mode("append").save()
    with pytest.raises(Exception, match="or for each row by a column queue"):
        rows.select("value").write.format("jms").options(url=url).mode("append").save()
    with pytest.raises(Exception, match=r"unknown column 'topic'.* and queue, key"):
        rows.selectExpr("value", "queue as topic").write.format("jms").options(url=url, queue="q").mode("append").save()


def test_a_stream_goes_to_the_queues_that_its_rows_name_once_over_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    for bodies in (["1", "x", "2"], ["3", "y"]):
        fill(url, "in", bodies)
        stream = spark.readStream.format("jms").options(url=url, queue="in").load()
        query = (
            stream.selectExpr("text as value", "if(try_cast(text as int) is null, 'bad', 'good') as queue")
            .writeStream.format("jms")
            .options(url=url, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
    assert sorted(texts(url, "good")) == ["1", "2", "3"]
    assert sorted(texts(url, "bad")) == ["x", "y"]
