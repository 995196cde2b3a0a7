"""The data source ``jms``: what Spark is told about it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_connector.batch_reader import JmsBatchReader
from spark_connector.engine_registry import DriverLog, EngineRegistry, reachable
from spark_connector.options import SinkOptions, SourceOptions, parse_sink, parse_source
from spark_connector.rows import SCHEMA, check_sink_schema, projection
from spark_connector.stream_reader import JmsStreamReader
from spark_connector.writer import JmsBatchWriter, JmsStreamWriter

if TYPE_CHECKING:
    from spark_connector.engine_host import EngineHost


class JmsDataSource(DataSource):
    """Queues and topics as DataFrames: format ``jms``."""

    registry: ClassVar[EngineRegistry | None] = None
    #: Whether Spark may run two attempts of a task at once (``spark.speculation``).
    speculation: ClassVar[bool] = True

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "jms"

    def schema(self) -> StructType:
        """All columns; a schema of the user's may name some of them."""
        self._source()
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options, columns = self._source(), projection(schema)
        return JmsBatchReader(reachable(options, self.registry), columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        options, columns = self._source(), projection(schema)
        return JmsStreamReader(reachable(options, self.registry), columns, DriverLog(self.registry))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        options = self._sink(schema, overwrite)
        if options.producer_id is not None:
            raise ValueError("producerId is for streaming queries: a batch job writes again each time it runs")
        return JmsBatchWriter(options, self.speculation)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        return JmsStreamWriter(self._sink(schema, overwrite), self.speculation, DriverLog(self.registry))

    def _source(self) -> SourceOptions:
        return parse_source(dict(self.options))

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        options = parse_sink(dict(self.options))
        if overwrite:
            raise ValueError("a queue cannot be overwritten: use mode('append'), or outputMode('append') in a stream")
        check_sink_schema(schema)
        return reachable(options, self.registry)


_host: EngineHost | None = None
_lock = threading.Lock()


def register(spark: SparkSession) -> None:
    """Make the format ``jms`` known to a Spark session; legal twice.

    Embedded engines that DataFrames name are opened in this process, and stay open until it ends or ``close_engines()``
    is called.

    Args:
        spark: the session.
    """
    # Not above: the worker processes of Spark load this file for each plan, read and write, and need no engine.
    from spark_connector.engine_host import EngineHost

    global _host
    with _lock:
        if _host is None:
            _host = EngineHost()
        found = _host.registry
    speculative = str(spark.conf.get("spark.speculation", "false")).lower() == "true"

    class RegisteredJmsDataSource(JmsDataSource):
        # Made here, so that Spark carries the class by value, with where the registry is.
        registry: ClassVar[EngineRegistry | None] = found
        speculation: ClassVar[bool] = speculative

    spark.dataSource.register(RegisteredJmsDataSource)


def close_engines() -> None:
    """Close the engines that DataFrames opened in this process, where nothing else uses them."""
    global _host
    with _lock:
        host, _host = _host, None
    if host is not None:
        host.close()
