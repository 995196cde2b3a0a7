"""A region as a DataFrame: all its keys and values as of one position, read in ranges of keys."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import pairwise

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker_adapter import checked_interest
from sdk import Connection, ConnectionLostException, OperationTimedOutException
from sdk.region_reader import RegionKey, close_snapshot, open_snapshot, read_keys
from spark_connector.connections import connection_for, drop_connection, with_retries
from spark_connector.options import SourceOptions
from spark_connector.regions.rows import RegionColumns, batch_of_keys
from spark_connector.sentences import sentence_first

_log = logging.getLogger(f"holdfast.{__name__}")


#: Kinds of interest that are patterns of keys, and selectors.
_EXPRESSION, _SELECTOR = 2, 3


@attrs.frozen
class KeyRangePartition(InputPartition):
    """What one task reads: the keys behind ``after`` up to ``through`` of a snapshot, or up to a version."""

    options: SourceOptions
    columns: RegionColumns
    snapshot: str | None  #: None: what is there, but for keys that have changed behind ``version``
    version: int
    after: str | None
    through: str | None

    @property
    def value(self) -> tuple[str | None, str | None]:
        """The range."""
        return self.after, self.through


def region_of(options: SourceOptions) -> str:
    """The name of the region."""
    assert options.region is not None
    return options.region


def partitions_of_snapshot(
    connection: Connection, options: SourceOptions, columns: RegionColumns
) -> list[InputPartition]:
    """Open a snapshot; returns the tasks that read it."""
    found = open_snapshot(connection, region_of(options), options.max_messages_per_partition)
    return [
        KeyRangePartition(options, columns, found.token, found.position, after, through)
        for after, through in pairwise([None, *found.splits, None])
    ]


def partitions_of_keys(
    connection: Connection, options: SourceOptions, columns: RegionColumns, version: int
) -> list[InputPartition]:
    """The tasks that read the keys that have not changed behind a version."""
    found = open_snapshot(connection, region_of(options), options.max_messages_per_partition)
    close_snapshot(connection, region_of(options), found.token)  # it was only divided
    return [
        KeyRangePartition(options, columns, None, version, after, through)
        for after, through in pairwise([None, *found.splits, None])
    ]


def read_key_range(partition: KeyRangePartition) -> Iterator[pa.RecordBatch]:
    """The keys of a range as Arrow batches; goes on where it was if the connection is lost.

    Raises:
        InvalidDestinationException: the snapshot is gone, and the region has changed since.
        StoreCorruptException: a value is damaged; not with ``failOnDataLoss=false``.
        JMSException: the broker stayed away for longer than ``retrySeconds``.
    """
    options = partition.options
    after = partition.after
    failing_since: float | None = None

    def on_damaged(keys: list[str]) -> None:
        _log.warning("keys of region %r are left out, whose values are damaged: %s", region_of(options), keys)

    while True:
        try:
            for keys, reached in read_keys(
                connection_for(options),
                region_of(options),
                partition.snapshot,
                after,
                partition.through,
                values=partition.columns.need_values,
                expression=options.key_pattern,
                selector=options.selector,
                max_bytes=options.fetch_bytes,
                on_damaged=None if options.fail_on_data_loss else on_damaged,
            ):
                wanted = _as_of(keys, partition)
                if wanted:
                    yield batch_of_keys(wanted, region_of(options), partition.columns)
                after = reached
                failing_since = None
            return
        except (ConnectionLostException, OperationTimedOutException) as error:
            drop_connection(options)
            now = time.monotonic()
            failing_since = failing_since or now
            if now - failing_since > options.retry_seconds:
                raise
            _log.warning("reading region %r goes on behind key %r: %s", region_of(options), after, error)
            time.sleep(0.2)


def _as_of(keys: list[RegionKey], partition: KeyRangePartition) -> list[RegionKey]:
    if partition.snapshot is not None:
        return keys
    return [each for each in keys if each.version <= partition.version]


@sentence_first
class JmsRegionReader(DataSourceReader):
    """Reads what a region had when the DataFrame was planned.

    Args:
        options: what to read, with a URL that any process can use.
        columns: of the rows.
    """

    def __init__(self, options: SourceOptions, columns: RegionColumns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """The snapshot: called once for each ``load()``."""
        options, columns = self._options, self._columns
        for kind, text in ((_EXPRESSION, options.key_pattern), (_SELECTOR, options.selector)):
            if text is not None:
                checked_interest(kind, text)  # one that is wrong is told of here, and not by each task
        return with_retries(options, lambda connection: partitions_of_snapshot(connection, options, columns))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, in an executor."""
        assert isinstance(partition, KeyRangePartition)
        return read_key_range(partition)
