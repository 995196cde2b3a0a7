"""Spark, streaming: a query from one queue to another, stopped and started again from its checkpoint.

Run it: ``python -m samples.s08_spark_streaming [URL]``.
"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from sdk import Connection, ConnectionFactory
from spark_connector import register


def send(connection: Connection, *texts: str) -> None:
    with connection.create_session() as session:
        producer = session.create_producer(session.create_queue("sample.words"))
        for text in texts:
            producer.send(text)


def main(url: str | None = None) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    with tempfile.TemporaryDirectory() as directory:
        url = url or f"embedded:{directory}/data"

        def run_query() -> None:
            words = spark.readStream.format("jms").option("url", url).option("queue", "sample.words").load()
            shouted = words.selectExpr("upper(text) as value")
            writer = shouted.writeStream.format("jms").option("url", url).option("queue", "sample.shouted")
            writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
            writer.trigger(availableNow=True).start().awaitTermination()

        with ConnectionFactory(url).create_connection() as connection:
            send(connection, "once", "upon")
            run_query()
            send(connection, "a", "time")
            run_query()  # goes on where it was
            connection.start()
            with connection.create_session() as session:
                consumer = session.create_consumer(session.create_queue("sample.shouted"))
                while (message := consumer.receive_nowait()) is not None:
                    print(message.text)
            left = {queue.name: queue.messages for queue in connection.statistics().queues}
            print("left in sample.words:", left["sample.words"])
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
