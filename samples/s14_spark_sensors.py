"""Spark, streaming: readings in JSON; means of minutes into Parquet, and what is no reading into a queue of its own.

Run it: ``python -m samples.s14_spark_sensors [URL]``.  Two queries read one topic, each by a subscription of its own.
They are stopped and started again from their checkpoints, and in the end the Parquet is compared with what was sent.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict

from pyspark.sql import DataFrame, SparkSession, functions

from sdk import Connection, ConnectionFactory
from spark_connector import register

TOPIC, REJECTED = "sample.readings", "sample.rejected"
FORM = "sensor string, at timestamp, celsius double, wrong string"
REASON = """case when reading.wrong is not null then 'not the JSON of a reading'
    when reading.sensor is null or reading.at is null or reading.celsius is null then 'a field is missing' end"""


def reading(sensor: str, at: str, celsius: float) -> str:
    return json.dumps({"sensor": sensor, "at": f"2026-03-01T{at}Z", "celsius": celsius})


MORNING = [
    reading("roof", "12:00:10", 4.0),
    "roof: 5 degrees",
    reading("roof", "12:00:50", 6.0),
    reading("yard", "12:01:20", 9.0),
    reading("roof", "12:03:00", 7.0),  # the minutes up to 12:01 are complete; this one waits in the checkpoint
]
EVENING = [
    reading("roof", "12:03:40", 9.0),
    '{"sensor": "yard", "celsius": 5.0}',
    reading("yard", "12:03:30", 8.0),
    reading("roof", "12:09:00", 2.0),  # the minutes up to 12:07 are complete
]


class Pipeline:
    """The two queries; their checkpoints and the Parquet are in one directory."""

    def __init__(self, spark: SparkSession, url: str, directory: str) -> None:
        self._spark, self._url, self._directory = spark, url, directory

    def run(self) -> None:
        """Have each query go on where it was, until all that is there is processed."""
        means = self.means().writeStream.foreachBatch(self.save)
        rejected = self.rejected().writeStream.format("jms").options(url=self._url, queue=REJECTED)
        for writer, name in ((means, "checkpoint.means"), (rejected, "checkpoint.rejected")):
            writer = writer.option("checkpointLocation", f"{self._directory}/{name}")
            writer.trigger(availableNow=True).start().awaitTermination()

    def readings(self, subscription: str) -> DataFrame:
        read = self._spark.readStream.format("jms")
        messages = read.options(url=self._url, topic=TOPIC, subscription=subscription).load()
        parsed = functions.from_json("text", FORM, {"columnNameOfCorruptRecord": "wrong"}).alias("reading")
        return messages.select("text", "messageId", parsed).withColumn("reason", functions.expr(REASON))

    def means(self) -> DataFrame:
        """A row for each minute and sensor, once no reading of that minute is expected any more."""
        good = self.readings("means").where("reason is null").select("reading.*")
        minutes = good.withWatermark("at", "1 minute").groupBy(functions.window("at", "1 minute"), "sensor")
        mean = minutes.agg(functions.avg("celsius").alias("mean"))
        return mean.selectExpr("date_format(window.start, 'HH:mm') as minute", "sensor", "mean")

    def save(self, rows: DataFrame, number: int) -> None:
        # A batch that is run again, after a failure, has the same number: it replaces what the first run has written.
        rows.write.mode("overwrite").parquet(f"{self._directory}/means/batch={number}")

    def rejected(self) -> DataFrame:
        """What is no reading, as it came, with the reason as a property."""
        bad = self.readings("rejected").where("reason is not null")
        return bad.selectExpr("text as value", "map('reason', reason, 'original', messageId) as properties")

    def saved(self) -> list[tuple[str, str, float]]:
        rows = self._spark.read.schema("minute string, sensor string, mean double").parquet(f"{self._directory}/means")
        return sorted((row.minute, row.sensor, row.mean) for row in rows.collect())


def expected() -> list[tuple[str, str, float]]:
    """What the Parquet must have: the means of the minutes before the last one, by plain Python."""
    found = defaultdict(list)
    for text in MORNING + EVENING:
        if '"at"' in text:
            fields = json.loads(text)
            found[fields["at"][11:16], fields["sensor"]].append(fields["celsius"])
    return sorted((*key, sum(values) / len(values)) for key, values in found.items() if key[0] < "12:09")


def send(connection: Connection, texts: list[str]) -> None:
    with connection.create_session() as session:
        topic = session.create_topic(TOPIC)
        for subscription in ("means", "rejected"):  # a query makes its own, but misses what was sent before
            session.create_shared_durable_consumer(topic, subscription).close()
        producer = session.create_producer(topic)
        for text in texts:
            producer.send(text)
    print(f"sent: {len(texts)}")


def main(url: str | None = None) -> int:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}
    settings["spark.python.daemon.module"] = "spark_connector.worker_daemon"  # workers that start faster
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    with tempfile.TemporaryDirectory() as directory:
        url = url or f"embedded:{directory}/data"
        pipeline = Pipeline(spark, url, directory)
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
            connection.start()
            rejected = session.create_consumer(session.create_queue(REJECTED))
            before: list[tuple[str, str, float]] = []
            for texts in (MORNING, EVENING):
                send(connection, texts)
                pipeline.run()
                now = pipeline.saved()
                for row in now:
                    print("  {} {} {:.1f}".format(*row) + ("" if row in before else "  new"))
                before = now
                while (message := rejected.receive_nowait()) is not None:
                    print(f"  rejected: {message.text} ({message.properties['reason']})")
        is_right = before == expected()
        print("each minute once, as sent" if is_right else f"WRONG: {before} in place of {expected()}")
        spark.stop()
    return 0 if is_right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="samples.s14_spark_sensors", description=__doc__.partition("\n")[0])
    parser.add_argument("url", nargs="?", metavar="URL", help="default: an engine in this process")
    sys.exit(main(parser.parse_args().url))
