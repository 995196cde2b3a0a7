"""Queues and topics as Spark DataFrames, batch and streaming, source and sink.

::

    from spark_connector import register

    register(spark)
    orders = spark.read.format("jms").option("url", "amqp://localhost:5672").option("queue", "orders").load()
"""

from spark_connector.data_source import JmsDataSource, close_engines, register

__all__ = ["JmsDataSource", "close_engines", "register"]
