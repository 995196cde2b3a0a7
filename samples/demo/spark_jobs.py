"""The Spark part: a batch job over the departures that were on time, and a streaming query over all of them.

Run by the demo as ``python -m samples.demo.spark_jobs URL CHECKPOINT``; says what it does in lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from spark_connector import register

DEPARTURE = "number bigint, carrier string, origin string, dest string, dep_delay double"


def say(what: str, **fields: Any) -> None:
    """One line for the demo."""
    print(json.dumps({"what": what, **fields}), flush=True)


def departures(frame: DataFrame) -> DataFrame:
    """The messages' texts as columns."""
    return frame.select(from_json(col("text"), DEPARTURE).alias("departure")).select("departure.*")


def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of each batch of rows: sum and number of delays by carrier, as JSON.  The reader adds them up."""
    for batch in batches:
        flown = pa.Table.from_batches([batch])
        flown = flown.filter(pc.is_valid(flown["dep_delay"]))
        found = flown.group_by("carrier").aggregate([("dep_delay", "sum"), ("dep_delay", "count")]).to_pylist()
        values = [
            json.dumps({"carrier": row["carrier"], "sum": row["dep_delay_sum"], "count": row["dep_delay_count"]})
            for row in found
        ]
        yield pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})


def main(url: str, checkpoint: str, batch: str) -> None:
    """Run both jobs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("holdfast-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.daemon.module", "spark_connector.worker_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)

    rest = departures(spark.read.format("jms").options(url=url, queue="demo.rest").load()).dropDuplicates(["number"])
    counts = {row["carrier"]: row["count"] for row in rest.groupBy("carrier").count().collect()}
    say("batch", counts=counts)

    def stream(queue: str) -> DataFrame:
        reader = spark.readStream.format("jms").options(url=url, queue=queue, maxMessagesPerTrigger=batch)
        return departures(reader.load())

    everything = stream("demo.late").union(stream("demo.rest")).dropDuplicates(["number"])
    writer = everything.select("carrier", "dep_delay").mapInArrow(sums, "value string").writeStream.format("jms")
    writer = writer.options(url=url, queue="demo.means", checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    say("stream started")
    told = -1
    while not query.awaitTermination(0.2):
        progress = query.lastProgress
        if progress and progress["batchId"] > told:
            told = progress["batchId"]
            say("stream batch", number=told)
    say("stream done", batches=len(query.recentProgress))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
