"""A queue as a stream: pinned ranges, settled when Spark's log has them.

Theory of operation
    A batch is a range of positions.  Executors read it, as often as Spark wants, and take nothing.  Spark calls
    ``commit(end)`` of a batch only when the next one has data; but ``latestOffset(start)`` gets, as its start, the end
    of the last batch that is in Spark's log.  So what is below ``start`` may be settled whenever there is nothing new:
    nothing stays behind on a quiet queue, or after the last batch of AvailableNow.

    A query owns its queue: while it runs nobody else may consume it.  On a topic each query has its own subscription.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sdk import Connection, InvalidDestinationException, JMSException
from sdk.range_reader import Bounds
from spark_connector.batch_reader import RangePartition, bounds_of, partitions_of, range_reader, read_range
from spark_connector.connections import drop_connection, with_retries
from spark_connector.offsets import Offset, latest, offset_from
from spark_connector.options import SourceOptions

_log = logging.getLogger(__name__)

#: How long the broker may be away before a query that waits for news fails, in seconds.
OFFLINE_TOLERANCE_SECONDS = 600.0


class JmsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue, or a subscription, batch by batch.

    Args:
        options: what to read, with a URL that any process can use.
        columns: of the rows.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._bounds: Bounds | None = None
        self._refreshed = 0.0
        self._offline_since: float | None = None
        self._frozen_head: int | None = None
        self._settled = 0

    # In the driver.

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option ``maxMessagesPerTrigger``."""
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: at the oldest message that is there."""
        bounds = with_retries(self._options, self._look)
        return Offset(bounds.incarnation, bounds.first).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what is there now, and no further."""
        self._frozen_head = with_retries(self._options, self._look).next

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes; settles what is below ``start`` where there is nothing new.

        Called all the time, so it asks the broker only every ``headRefreshSeconds``.
        """
        begin = offset_from(start)
        bounds = self._current_bounds()
        if bounds is None:
            return start
        if bounds.incarnation != begin.incarnation:
            raise InvalidDestinationException(
                f"the queue was deleted and made again since the checkpoint was written ({begin.incarnation!r}, now"
                f" {bounds.incarnation!r}): its positions mean nothing now. Start the query with a new checkpoint"
            )
        head = bounds.next if self._frozen_head is None else min(self._frozen_head, bounds.next)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = latest(begin, bounds.first, head, most)
        if end == begin or bounds.first >= end.next:
            # Nothing new, or only positions that nobody uses any more.
            self._settle(begin)
            return start
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        begin, stop = offset_from(start), offset_from(end)
        first = begin.next
        if self._bounds is not None and self._bounds.incarnation == begin.incarnation:
            first = max(first, min(self._bounds.first, stop.next))
        return partitions_of(self._options, self._columns, stop.incarnation, first, stop.next)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: take it out of the queue."""
        self._settle(offset_from(end))

    def stop(self) -> None:
        """The query has ended."""
        drop_connection(self._options)

    def _look(self, connection: Connection) -> Bounds:
        if not connection.is_holdfast:
            raise ValueError(
                "streaming needs positions that can be read again, which only a Holdfast broker has; read other brokers"
                " in batches, or consume them with the SDK"
            )
        self._bounds = bounds_of(connection, self._options)
        self._refreshed = time.monotonic()
        return self._bounds

    def _current_bounds(self) -> Bounds | None:
        """What the queue has, not older than ``headRefreshSeconds``; None while the broker is away."""
        now = time.monotonic()
        if self._bounds is not None and now - self._refreshed < self._options.head_refresh_seconds:
            return self._bounds
        if self._frozen_head is not None:
            # To answer "nothing new" would end an AvailableNow query before its end.
            return with_retries(self._options, self._look_again)
        try:
            bounds = with_retries(self._options, self._look_again, seconds=0)
        except (InvalidDestinationException, ValueError):
            raise
        except JMSException as error:
            # An exception here would end the query; a broker that starts again is worth waiting for.
            self._refreshed = now
            self._offline_since = self._offline_since or now
            if now - self._offline_since > OFFLINE_TOLERANCE_SECONDS:
                raise
            _log.warning("the broker is away since %.0f s: %s", now - self._offline_since, error)
            return None
        self._offline_since = None
        return bounds

    def _look_again(self, connection: Connection) -> Bounds:
        if self._bounds is None:
            return self._look(connection)
        self._bounds = range_reader(connection, self._options).bounds()
        self._refreshed = time.monotonic()
        return self._bounds

    def _settle(self, offset: Offset) -> None:
        """Settle below an offset, once; what does not work now is made good by the next one."""
        if offset.next <= self._settled:
            return
        try:
            with_retries(
                self._options,
                lambda connection: range_reader(connection, self._options).settle_through(
                    offset.next - 1, offset.incarnation
                ),
                seconds=1.0,
            )
            self._settled = offset.next
        except JMSException as error:
            _log.warning("positions below %d are not settled yet: %s", offset.next, error)

    # In the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, RangePartition)
        return read_range(partition)
