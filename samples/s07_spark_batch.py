"""Spark, batch: a queue as a DataFrame, and a DataFrame into a queue.

Run it: ``python -m samples.s07_spark_batch [URL]``.
"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from sdk import ConnectionFactory
from spark_connector import register


def main(url: str | None = None) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    with tempfile.TemporaryDirectory() as directory:
        url = url or f"embedded:{directory}"
        with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
            producer = session.create_producer(session.create_queue("sample.orders"))
            for number in range(1, 101):
                producer.send(f'{{"order": {number}, "amount": {number * 10}}}')

            # Reading takes nothing: it is a snapshot of what was there at load().
            orders = spark.read.format("jms").option("url", url).option("queue", "sample.orders").load()
            parsed = orders.selectExpr("from_json(text, 'order int, amount int') as o").select("o.*")
            print("orders:", parsed.count(), "amount:", parsed.groupBy().sum("amount").first()[0])

            # Writing is exactly once, also where tasks fail and are tried again.  Each row names its queue.
            queue = "if(amount > 950, 'sample.large', 'sample.small') as queue"
            routed = parsed.selectExpr("to_json(struct(*)) as value", queue)
            routed.write.format("jms").option("url", url).mode("append").save()
            connection.start()
            consumer = session.create_consumer(session.create_queue("sample.large"))
            while (message := consumer.receive_nowait()) is not None:
                print("large:", message.text)
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
