"""The data source ``jms``: what Spark is told about it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, ClassVar, Final

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
from spark_connector.driver.engine_registry import DriverLog, EngineRegistry, reachable
from spark_connector.driver.worker_python import check_worker_python
from spark_connector.options import SNAPSHOT, SinkOptions, SourceOptions, parse_sink, parse_source
from spark_connector.queues_stream import JmsQueuesStreamReader
from spark_connector.refused_stream import RefusedStream
from spark_connector.regions.reader import JmsRegionReader
from spark_connector.regions.rows import REGION_SCHEMA, RegionColumns, check_region_schema, region_projection
from spark_connector.regions.stream import JmsRegionStreamReader
from spark_connector.regions.writer import JmsRegionStreamWriter, JmsRegionWriter
from spark_connector.rows import SCHEMA, check_sink_schema, names_queues, projection
from spark_connector.sentences import sentence_first
from spark_connector.spool.reader import JmsSpoolReader, Reach, reach_of
from spark_connector.stream_reader import JmsStreamReader
from spark_connector.writer import JmsBatchWriter, JmsStreamWriter, destination_of

if TYPE_CHECKING:
    from spark_connector.driver.engine_host import EngineHost

_log = logging.getLogger(f"holdfast.{__name__}")
#: The column that an option leaves out.
_PROPERTIES: Final = "properties"


@sentence_first
class JmsDataSource(DataSource):
    """Queues and topics as DataFrames: format ``jms``."""

    registry: ClassVar[EngineRegistry | None] = None
    #: Whether Spark may run two attempts of a task at once (``spark.speculation``).
    speculation: ClassVar[bool] = True
    #: How executors reach the driver.
    reach: ClassVar[Reach] = Reach()
    #: The application of Spark, as a query that wants a queue of one of its queries is told.
    application: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "jms"

    def schema(self) -> StructType:
        """All columns; a schema of the user's may name some of them."""
        options = self._source()
        columns = SCHEMA if options.region is None else REGION_SCHEMA
        if options.include_properties:
            return columns
        return StructType([each for each in columns if each.name != _PROPERTIES])

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = self._source()
        if options.region is not None:
            if options.starting_position not in (None, SNAPSHOT):
                raise ValueError("startingPosition is for streams of a region; a batch of it has all its keys")
            return JmsRegionReader(reachable(options, self.registry), self._region_columns(options, schema))
        if options.spool is not None:
            raise ValueError(
                "a spool is for streams: a batch reads what a foreign broker shows in a browser, and takes nothing;"
                " leave out 'spool'"
            )
        columns = self._columns(options, schema)
        return JmsBatchReader(reachable(options, self.registry), columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        try:
            return self._stream_reader(schema)
        except Exception as error:
            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._source()
        if options.region is not None:
            if options.subscription is None:
                raise ValueError(
                    "the stream of a region needs the option 'subscription': a name under which the server keeps the"
                    " events that this query has not read yet; no other query may have it"
                )
            if options.key_pattern is not None or options.selector is not None:
                raise ValueError("keyPattern and selector are for batches; the rows of a stream are chosen by where()")
            names = self._region_columns(options, schema)
            found = reachable(options, self.registry)
            return JmsRegionStreamReader(found, names, DriverLog(self.registry), self.application)
        columns = self._columns(options, schema)
        if options.ending_position is not None:
            raise ValueError("endingPosition is for batches: a stream ends when it is stopped")
        if options.spool is not None:
            reach = self.reach if options.spool_host is None else Reach(options.spool_host, self.reach.bound)
            return JmsSpoolReader(options, columns, DriverLog(self.registry), reach)
        several = options.queues is not None or options.queue_pattern is not None
        kind = JmsQueuesStreamReader if several else JmsStreamReader
        return kind(reachable(options, self.registry), columns, DriverLog(self.registry), self.application)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        options = self._sink(schema, overwrite)
        if options.producer_id is not None:
            raise ValueError("producerId is for streaming queries: a batch job writes again each time it runs")
        if options.region is not None:
            return JmsRegionWriter(options)
        return JmsBatchWriter(options, self.speculation)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        options = self._sink(schema, overwrite)
        if options.region is not None:
            return JmsRegionStreamWriter(options, DriverLog(self.registry))
        return JmsStreamWriter(options, self.speculation, DriverLog(self.registry))

    def _columns(self, options: SourceOptions, schema: StructType) -> tuple[str, ...]:
        _check_properties(options, schema)
        return projection(schema)

    def _region_columns(self, options: SourceOptions, schema: StructType) -> RegionColumns:
        _check_properties(options, schema)
        return region_projection(schema)

    def _source(self) -> SourceOptions:
        return parse_source(dict(self.options))

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        names = schema.fieldNames()
        options = parse_sink(dict(self.options), routes="queue" in names)
        if overwrite:
            what = "queue" if options.region is None else "region"
            raise ValueError(f"a {what} cannot be overwritten: use mode('append'), or outputMode('append') in a stream")
        if options.region is None:
            check_sink_schema(schema)
            if options.topic is not None and names_queues(names, destination_of(options)):
                raise ValueError("the rows have a column queue, and go to a topic: leave out one of both")
        else:
            check_region_schema(schema)
        return reachable(options, self.registry)


def _check_properties(options: SourceOptions, schema: StructType) -> None:
    if not options.include_properties and _PROPERTIES in schema.names:
        raise ValueError("the schema has a column properties, and includeProperties=false: leave out one of both")


#: With 0 or less of it, which mean "no limit" by Spark's own description, Spark 4.3.0 refuses each source in Python.
_RECORDS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_host: EngineHost | None = None
_lock = threading.Lock()


def register(spark: SparkSession) -> None:
    """Make the format ``jms`` known to a Spark session; legal twice.

    Embedded engines that DataFrames name are opened in this process, and stay open until it ends or ``close_engines()``
    is called.

    Args:
        spark: the session.

    Raises:
        RuntimeError: the session is a local one, and its workers have a Python that cannot import the connector.
    """
    check_worker_python(spark)
    records = spark.conf.get(_RECORDS, None)
    if records is not None and int(records) <= 0:
        _log.warning(
            "%s=%s: Spark 4.3 reads no data source in Python with it ('The maximum arrow batch size should be greater"
            " than 0'); set it to 1 or more, by default it is 10000",
            *(_RECORDS, records),
        )
    # Not above: the worker processes of Spark load this file for each plan, read and write, and need no engine.
    from spark_connector.driver.engine_host import EngineHost

    global _host
    with _lock:
        if _host is None:
            _host = EngineHost()
        found = _host.registry
    speculative = str(spark.conf.get("spark.speculation", "false")).lower() == "true"
    found_reach = reach_of(spark.conf.get)
    named = f"Spark application {spark.conf.get('spark.app.name', '')!a:.60} ({spark.conf.get('spark.app.id', ''):.60})"

    class RegisteredJmsDataSource(JmsDataSource):
        # Made here, so that Spark carries the class by value, with where the registry is.
        registry: ClassVar[EngineRegistry | None] = found
        speculation: ClassVar[bool] = speculative
        reach: ClassVar[Reach] = found_reach
        application: ClassVar[str] = named

    spark.dataSource.register(RegisteredJmsDataSource)


def close_engines() -> None:
    """Close the engines that DataFrames opened in this process, where nothing else uses them."""
    global _host
    with _lock:
        host, _host = _host, None
    if host is not None:
        host.close()
