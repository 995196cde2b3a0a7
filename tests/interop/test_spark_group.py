"""Spark with a group as its broker: each message is there once over kills of the primary, and over hand-overs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.faults.group_servers import GroupServers
from tests.spark_connector.conftest import running
from tests.spark_connector.queues import fill, staged, texts
from tests.spark_connector.test_killed_query import check_killed_query
from tests.spark_connector.test_stream import eventually, numbers, sorted_texts, start, stream

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from running()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[GroupServers]:
    """All nodes have the same at the end."""
    with GroupServers(tmp_path) as made:
        yield made
        made.wait_for_sync()
        assert made.differences() == []


def takeovers(group: GroupServers) -> list[Callable[[], None]]:
    def kill() -> None:
        group.start(group.kill_primary())

    return [kill, group.hand_over, kill]


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.05)
        yield batch


def test_a_query_goes_on_over_takeovers_of_its_source_and_sink(
    spark: SparkSession, group: GroupServers, tmp_path: Path
) -> None:
    fill(group.url, "in", numbers(20_000))
    options = {"maxMessagesPerTrigger": 5_000, "maxMessagesPerPartition": 1_000, "fetchBytes": 10_000}
    frame = stream(spark, group.url, **options).selectExpr("text as value").mapInArrow(slowly, "value string")
    query = start(frame, group.url, str(tmp_path / "checkpoint"))
    try:
        for take_over in takeovers(group):
            before = query.lastProgress["batchId"] if query.lastProgress else -1
            time.sleep(1.0)
            take_over()
            eventually(lambda last=before: query.lastProgress and query.lastProgress["batchId"] > last, query)
            group.wait_for_sync()
        fill(group.url, "in", numbers(1_000, 20_000))
        eventually(lambda: not texts(group.url, "in"), query)
    finally:
        query.stop()
    assert sorted_texts(group.url, "out") == numbers(21_000)
    assert staged(group.url) == []


def test_a_query_that_is_killed_with_the_primary_goes_on_from_its_checkpoint(
    spark: SparkSession, group: GroupServers, tmp_path: Path
) -> None:
    killed = group.primary
    check_killed_query(spark, tmp_path, group.url, lambda: group.kill(killed))
    group.start(killed)


def test_what_a_dataframe_stages_is_published_once_over_takeovers(spark: SparkSession, group: GroupServers) -> None:
    done: list[int] = []

    def take_over_thrice() -> None:
        for take_over in takeovers(group):
            before = len(staged(group.url))
            eventually(lambda last=before: len(staged(group.url)) > last)
            take_over()
            group.wait_for_sync()
            done.append(len(texts(group.url, "out")))

    working = threading.Thread(target=take_over_thrice)
    working.start()
    rows = (
        spark.range(20_000)
        .repartition(100)
        .selectExpr("cast(id as string) as value")
        .mapInArrow(slowly, "value string")
    )
    rows.write.format("jms").mode("append").options(url=group.url, queue="out").save()
    working.join()
    assert done == [0, 0, 0], "nothing was published yet"
    assert sorted_texts(group.url, "out") == numbers(20_000)
    assert staged(group.url) == []
