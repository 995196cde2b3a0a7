"""The Spark connector: rows read and written."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.modes import OrderError, server
from benchmarks.report import Figure
from spark_connector import register

BODY_BYTES = 1024


def rows(directory: Path, count: int = 200_000) -> Iterator[Figure]:
    """Write rows to a queue, and read them back, over loopback AMQP; after a first, small round that starts Spark."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    with server(directory / "spark") as (url, _):

        def write(queue: str, number: int) -> float:
            frame = spark.range(number).repartition(2).selectExpr(f"lpad(id, {BODY_BYTES}, '0') as value")
            started = time.perf_counter()
            frame.write.format("jms").options(url=url, queue=queue).mode("append").save()
            return time.perf_counter() - started

        def read(queue: str, number: int) -> float:
            started = time.perf_counter()
            frame = spark.read.format("jms").options(url=url, queue=queue).load()
            found = frame.selectExpr("count(distinct cast(text as bigint))", "count(*)").first()
            if found is None or tuple(found) != (number, number):
                raise OrderError(f"wrote {number} rows, read {found}")
            return time.perf_counter() - started

        write("warm", 1000)
        read("warm", 1000)
        written = write("rows", count)
        seconds = read("rows", count)
    spark.stop()
    for what, took in (("written", written), ("read, all columns", seconds)):
        yield Figure(
            name=f"Spark: rows {what}, local[2], over AMQP",
            value=count / took,
            unit="rows/s",
            body_bytes=BODY_BYTES,
            producers=2 if what == "written" else 0,
            consumers=0 if what == "written" else 2,
        )
