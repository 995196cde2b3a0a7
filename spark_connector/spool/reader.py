"""A queue of any AMQP broker as a stream: what a spool has of it, by ranges.

Spark uses one reader in the process that runs the source of a query, which opens the spool, and another one, which it
only carries to the executors: these read what partitions say.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sdk import IllegalStateException
from spark_connector.claims import NO_CLAIM
from spark_connector.driver.engine_registry import DriverLog
from spark_connector.offsets import is_due
from spark_connector.options import SourceOptions
from spark_connector.sentences import sentence_first
from spark_connector.spool.progress import Progress
from spark_connector.stream_reader import OFFLINE_TOLERANCE_SECONDS, JmsStreamReader

if TYPE_CHECKING:
    from spark_connector.spool.spool import Spool

#: Pause between two looks at a spool that is being filled, in seconds.
_LOOK_SECONDS = 0.05


@attrs.frozen
class Reach:
    """How executors reach the machine of the driver.

    Attributes:
        host: its name or address.
        bound: the address that the driver listens on; None: the same.
    """

    host: str = "127.0.0.1"
    bound: str | None = None


def reach_of(conf: Callable[[str, str | None], str | None]) -> Reach:
    """Return how executors reach the driver, by Spark's configuration."""
    if (conf("spark.master", None) or "local").startswith("local"):
        return Reach()
    return Reach(conf("spark.driver.host", None) or "127.0.0.1", conf("spark.driver.bindAddress", None))


@sentence_first
class JmsSpoolReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue, or a subscription, of a foreign broker, batch by batch.

    Args:
        options: what to read, and where the spool is.
        columns: of the rows.
        log: takes what is lost.
        reach: how executors reach the spool.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        log: DriverLog | None = None,
        reach: Reach | None = None,
    ) -> None:
        self._options = options
        self._columns = columns
        self._log = log or DriverLog()
        self._reach = reach or Reach()
        self._open: tuple[Spool, JmsStreamReader] | None = None
        self._since: Progress | None = None  #: of an AvailableNow query, where its end is not known yet
        self._is_available_now = False
        self._last_batch = time.monotonic()
        self._parent = 0  #: the process that had started this one when the spool was opened

    def __reduce__(self) -> tuple[Any, ...]:
        # Executors need nothing of it, and have no business with the password for the broker.
        return JmsSpoolReader, (SourceOptions(), self._columns)

    # In the driver.

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option ``maxMessagesPerTrigger``."""
        return JmsStreamReader(self._options, self._columns).getDefaultReadLimit()

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins: at the oldest message of the spool."""
        return self._opened()[1].initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what the broker has now, and no further than a moment."""
        self._since = self._opened()[0].progress
        self._is_available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch goes; see ``JmsStreamReader``.

        Where the trigger is AvailableNow it waits until there is something new, or the broker has no more.

        Raises:
            JMSException: there is nothing new, because of an error that does not pass.
            IllegalStateException: the program of Spark has ended while this waits; the spool is closed.
        """
        spool, reader = self._opened()
        while True:
            progress = spool.progress
            if self._since is not None and self._has_caught_up(spool, progress, self._since):
                self._since = None
                reader.prepareForTriggerAvailableNow()
            part = limit if self._may_begin(spool, reader, start) else ReadMaxRows(0)  # which settles what is below
            end = reader.latestOffset(start, part)
            if end != start:
                self._last_batch = time.monotonic()
                return end
            tolerance = OFFLINE_TOLERANCE_SECONDS if self._since is None else self._options.retry_seconds
            failure = progress.failure(time.monotonic(), tolerance)
            if failure is not None:
                raise failure
            if self._since is None:
                return end
            time.sleep(_LOOK_SECONDS)
            self._end_with_spark()

    def _end_with_spark(self) -> None:
        """Close the spool and raise where the process that has started this one is gone: nobody gets an answer.

        Only an answer that cannot be written would tell that otherwise, and the query that is started again needs the
        spool.
        """
        if os.getppid() != self._parent:
            self.stop()
            raise IllegalStateException("the program of Spark that ran the query has ended")

    def _may_begin(self, spool: Spool, reader: JmsStreamReader, start: dict[str, Any]) -> bool:
        """Return whether what waits is enough for a batch; a full spool never gets more, and AvailableNow is to end."""
        options = self._options
        if options.min_messages_per_trigger is None or self._is_available_now or spool.waits_for_room:
            return True
        waited = time.monotonic() - self._last_batch
        least, most = options.min_messages_per_trigger, options.max_trigger_delay_seconds
        return is_due(reader.waiting(start), least, waited, most)

    def _has_caught_up(self, spool: Spool, progress: Progress, since: Progress) -> bool:
        return progress.has_caught_up(since, self._options.spool_max_messages) and spool.is_confirmed()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what the spool has, as of a single queue."""
        return None if self._open is None else self._open[1].reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        return self._opened()[1].partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: drop it from the spool."""
        self._opened()[1].commit(end)

    def stop(self) -> None:
        """The query has ended: end the moving.  Waits a few seconds at most."""
        if self._open is not None:
            (spool, reader), self._open = self._open, None
            reader.stop()
            spool.close()

    def _opened(self) -> tuple[Spool, JmsStreamReader]:
        if self._open is None:
            # Not above: executors load this file, and need no engine.
            from spark_connector.spool.spool import Spool

            self._parent = os.getppid()
            spool = Spool(self._options, self._log, self._reach.host, self._reach.bound)
            options = attrs.evolve(
                self._options,
                url=spool.url,
                username=None,
                password=None,
                password_file=None,
                password_env=None,
                queue=spool.queue,
                topic=None,
                subscription=None,
                client_id=None,
                selector=None,
                min_messages_per_trigger=None,
            )
            # The lock of the spool sees to it that no other query has it.
            self._open = spool, JmsStreamReader(options, self._columns, self._log, claim=NO_CLAIM)
        return self._open

    # In the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return JmsStreamReader(self._options, self._columns).read(partition)
