"""A data source that does nothing but hand ready Arrow batches to Spark, and a sink that drops what it gets."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from broker_adapter import BodyKind, Destination, Envelope
from spark_connector.rows import SCHEMA, Readable, batch_of, projection

_PER_BATCH = 2000
_PARTITIONS = 2


class LimitSource(DataSource):
    """The format ``limit``, with options ``rows`` and ``bytes``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "limit"

    def schema(self) -> StructType:
        """As the connector's."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads one batch again and again."""
        return _Reader(projection(schema), int(self.options["rows"]), int(self.options["bytes"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Drops rows."""
        return _Writer()


class _Reader(DataSourceReader):
    def __init__(self, columns: tuple[str, ...], rows: int, size: int) -> None:
        self._columns, self._rows, self._size = columns, rows, size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._rows // _PARTITIONS) for _ in range(_PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        envelope = Envelope(
            Destination("limit"),
            BodyKind.TEXT,
            "0" * self._size,
            message_id="ID:00000000-0000-0000-0000-000000000000-0",
            sent_at_ms=1,
        )
        nothing = [None] * _PER_BATCH
        batch = batch_of(Readable(range(_PER_BATCH), [envelope] * _PER_BATCH, nothing), "limit", self._columns)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, _PER_BATCH))
            left -= _PER_BATCH


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
