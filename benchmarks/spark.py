"""The Spark connector: rows written, read and streamed, and what Spark's Python API allows at most.

``local[2]``, over loopback, 1 KiB rows.  The API limit is a data source in Python that has its Arrow batches ready, and
a sink that drops what it gets: nothing that a connector written in Python does can be faster.  Each line has been done
before, with few rows, so that Spark and its workers have started.  A line's note says what a row costs in CPU time: of
the JVM, of Spark's Python workers, and of the broker.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from benchmarks.modes import OrderError, server
from benchmarks.report import Figure
from benchmarks.spark_limit import LimitSource
from sdk import ConnectionFactory
from spark_connector import register

BODY_BYTES = 1024
#: Rows of a micro-batch.
PER_BATCH = 50_000
TEXT_ONLY = "text string"
#: Messages before those that are measured, and how long the queue is idle between two.
_WARM_ROUNDS = 5
_IDLE_SECONDS = 0.5
#: The lines that have an API limit beside them.
WRITE, READ, READ_TEXT, STREAM = "written", "read, all columns", "read, text only", "queue to queue"
#: Queues that rows name in the column ``queue``.
_QUEUES = 12
ROUTED = f"written to {_QUEUES} queues"


@attrs.frozen
class Cost:
    """What a line has cost: seconds of each row's time, and of the CPU of the processes."""

    rows: int
    seconds: float
    jvm: float
    python: float
    broker: float

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def note(self) -> str:
        """The CPU time of a row."""
        parts = (("JVM", self.jvm), ("Python", self.python), ("broker", self.broker))
        return "us CPU a row: " + ", ".join(f"{name} {seconds / self.rows * 1e6:.1f}" for name, seconds in parts)


class Meter:
    """Measures lines.

    Args:
        broker: its process; None: there is none.
    """

    def __init__(self, broker: psutil.Process | None = None) -> None:
        self._broker = broker

    def measured(self, rows: int, act: Callable[[], None]) -> Cost:
        """What it costs to do something with so many rows."""
        before, started = self._used(), time.perf_counter()
        act()
        seconds, after = time.perf_counter() - started, self._used()
        # Workers that Spark ends after a minute without work take with them what they have used.
        jvm, python, broker = (max(0.0, late - early) for early, late in zip(before, after, strict=True))
        return Cost(rows, seconds, jvm, python, broker)

    def _used(self) -> tuple[float, float, float]:
        """Seconds of CPU that the JVM, the Python workers and the broker have used, with those that have ended."""
        jvm = python = 0.0
        for process in psutil.Process().children(recursive=True):
            if process == self._broker:
                continue
            try:
                times, name = process.cpu_times(), process.name()
            except psutil.NoSuchProcess:
                continue
            if name == "java":
                jvm += times.user + times.system
            else:
                python += times.user + times.system + times.children_user + times.children_system
        broker = 0.0
        if self._broker is not None:
            times = self._broker.cpu_times()
            broker = times.user + times.system
        return jvm, python, broker


def session(**config: str) -> SparkSession:
    """A session of Spark that says nothing."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = (
        builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
    )
    for name, value in config.items():
        builder = builder.config(name.replace("_", "."), value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def frame_of(spark: SparkSession, rows: int) -> DataFrame:
    """Rows of 1 KiB, numbered, in two partitions."""
    return spark.range(0, rows, 1, 2).selectExpr(f"lpad(id, {BODY_BYTES}, '0') as value")


def drain(frame: DataFrame) -> None:
    """Read all columns of all rows, and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def check(frame: DataFrame, column: str, rows: int) -> None:
    """Raise OrderError where a row is missing, or there twice."""
    found = frame.selectExpr(f"count(distinct cast({column} as bigint))", "count(*)").first()
    if found is None or tuple(found) != (rows, rows):
        raise OrderError(f"wrote {rows} rows, read {found}")


def stream_through(frame: DataFrame, name: str, options: Mapping[str, str]) -> None:
    """Run a query until it has written all that is there."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format(name).options(**options).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()


def holdfast_lines(spark: SparkSession, directory: Path, rows: int, warm_up: int) -> dict[str, Cost]:
    """What our connector and our server do, with every commit synced."""
    register(spark)
    with server(directory) as (url, process):
        meter = Meter(process)

        def write(queue: str, number: int, guarantee: str = "exactly_once", *columns: str) -> Cost:
            writer = frame_of(spark, number).selectExpr("value", *columns).write.format("jms").mode("append")
            writer = writer.options(url=url, queue=queue, deliveryGuarantee=guarantee)
            return meter.measured(number, writer.save)

        def check_queues(name: str, number: int) -> None:
            with ConnectionFactory(url).create_connection() as connection:
                queues = connection.statistics().queues
            counts = [each.messages for each in queues if each.name.startswith(f"{name} ")]
            if (len(counts), sum(counts)) != (_QUEUES, number):
                raise OrderError(f"wrote {number} rows to {_QUEUES} queues, which have {counts}")

        def read(queue: str, number: int, schema: str | None = None) -> Cost:
            reader = spark.read.format("jms").options(url=url, queue=queue, minPartitions="2")
            found = (reader if schema is None else reader.schema(schema)).load()
            return meter.measured(number, lambda: drain(found))

        def stream(source: str, target: str, number: int) -> Cost:
            reader = spark.readStream.format("jms").options(url=url, queue=source, maxMessagesPerTrigger=str(PER_BATCH))
            # Two tasks a batch, as the other side has two partitions; also of the first, smaller ones, so that all of
            # Spark's workers have started.
            found = reader.option("minPartitions", "2").schema(TEXT_ONLY).load()
            return meter.measured(number, lambda: stream_through(found, "jms", {"url": url, "queue": target}))

        def all_of(name: str, number: int) -> dict[str, Cost]:
            costs = {WRITE: write(name, number)}
            check(spark.read.format("jms").options(url=url, queue=name).load(), "text", number)
            route = f"concat('{name}.routed ', cast(value as bigint) % {_QUEUES}) as queue"
            costs[ROUTED] = write(name, number, "exactly_once", route)
            check_queues(f"{name}.routed", number)
            costs[f"{WRITE}, at least once"] = write(f"{name}.more", number, "at_least_once")
            costs[READ] = read(name, number)
            costs[READ_TEXT] = read(name, number, TEXT_ONLY)
            costs[STREAM] = stream(name, f"{name}.target", number)
            check(spark.read.format("jms").options(url=url, queue=f"{name}.target").load(), "text", number)
            return costs

        all_of("warm", warm_up)
        return all_of("rows", rows)


def latencies(spark: SparkSession, directory: Path, rounds: int) -> list[float]:
    """Seconds from a message to an idle queue until a query has written it to another one, Python at both ends."""
    register(spark)
    with (
        server(directory) as (url, _),
        tempfile.TemporaryDirectory() as checkpoint,
        ConnectionFactory(url).create_connection() as connection,
        connection.create_session() as session,
    ):
        connection.start()
        producer = session.create_producer(session.create_queue("idle"))
        consumer = session.create_consumer(session.create_queue("idle.target"))
        found = spark.readStream.format("jms").options(url=url, queue="idle").schema(TEXT_ONLY).load()
        writer = found.writeStream.format("jms").options(url=url, queue="idle.target")
        query = writer.option("checkpointLocation", checkpoint).start()
        seconds = []
        try:
            for number in range(rounds + _WARM_ROUNDS):
                started = time.perf_counter()
                producer.send(str(number))
                message = consumer.receive(timeout=60)
                if message is None or message.body != str(number):
                    raise OrderError(f"sent {number}, received {message and message.body!r}")
                if number >= _WARM_ROUNDS:
                    seconds.append(time.perf_counter() - started)
                time.sleep(_IDLE_SECONDS)
        finally:
            query.stop()
        return seconds


def limit_lines(spark: SparkSession, rows: int, warm_up: int) -> dict[str, Cost]:
    """What a data source can do in Python at most."""
    spark.dataSource.register(LimitSource)
    meter = Meter()

    def all_of(number: int) -> dict[str, Cost]:
        writer = frame_of(spark, number).write.format(LimitSource.name()).mode("append")
        costs = {WRITE: meter.measured(number, writer.save)}
        reader = spark.read.format(LimitSource.name()).option("rows", str(number)).option("bytes", str(BODY_BYTES))
        costs[READ] = meter.measured(number, lambda: drain(reader.load()))
        text = reader.schema(StructType.fromDDL(TEXT_ONLY)).load()
        costs[READ_TEXT] = meter.measured(number, lambda: drain(text))
        return costs

    all_of(warm_up)
    return all_of(rows)


def rows(directory: Path, count: int = 200_000) -> Iterator[Figure]:
    """Our lines, with the API limit of the same run beside them."""
    spark = session()
    try:
        limits = limit_lines(spark, count, min(count, 20_000))
        ours = holdfast_lines(spark, directory / "spark", count, min(count, 20_000))
        waits = latencies(spark, directory / "latency", 10 if count < 100_000 else 30)
    finally:
        spark.stop()
    for what, cost in limits.items():
        yield _figure(f"Spark API limit: rows {what}", cost)
    for what, cost in ours.items():
        limit = limits.get(what)
        figure = _figure(f"Spark: rows {what}", cost, limit, "read at least 0.6" if what in (READ, READ_TEXT) else None)
        if what == ROUTED:
            one = ours[WRITE].rate
            figure = attrs.evolve(figure, yardstick=f"to one queue {one:,.0f}", ratio=cost.rate / one)
        yield figure

    yield Figure(
        name="Spark: a message through a micro-batch, idle queue to queue, p50",
        value=statistics.median(waits) * 1000,
        unit="ms",
        goal="below 350",
    )


def _figure(name: str, cost: Cost, limit: Cost | None = None, goal: str | None = None) -> Figure:
    return Figure(
        name=f"{name}, local[2]",
        value=cost.rate,
        unit="rows/s",
        yardstick=None if limit is None else f"API limit {limit.rate:,.0f}",
        ratio=None if limit is None else cost.rate / limit.rate,
        goal=goal,
        body_bytes=BODY_BYTES,
        note=cost.note,
    )
