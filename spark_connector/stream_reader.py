"""A queue as a stream: pinned ranges, settled when Spark's log has them.

Theory of operation
    A batch is a range of positions.  Executors read it, as often as Spark wants, and take nothing.  Spark calls
    ``commit(end)`` of a batch only when the next one has data; but ``latestOffset(start)`` gets, as its start, the end
    of the last batch that is in Spark's log.  So what is below ``start`` may be settled whenever there is nothing new:
    nothing stays behind on a quiet queue, or after the last batch of AvailableNow.

    A query owns its queue: while it runs nothing else may consume it, and no other query may settle it, which the
    broker sees to (:mod:`claims`).  On a topic each query has its own subscription.

    Nothing is settled but what was read: a range of positions, of one incarnation of the queue, as it was seen in one
    run of the broker (:mod:`offsets`).  The broker checks it as well, since it may be replaced by an older copy of
    itself at any moment: after ``latestOffset``, in the middle of a task, before ``commit``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sdk import Connection, InvalidDestinationException, JMSException, QueueClaimedException
from sdk.range_reader import Bounds
from spark_connector.batch_reader import (
    RangePartition,
    bounds_of,
    partitions_of,
    range_reader,
    read_range,
    source_of,
)
from spark_connector.claims import Claim, end_claims, new_id, watch_for_end
from spark_connector.connections import drop_connection, with_retries
from spark_connector.driver.engine_registry import DriverLog
from spark_connector.offsets import (
    Loss,
    Offset,
    PartCounts,
    beginning,
    has_positions,
    is_due,
    latest,
    lost,
    offset_from,
    renewed,
    span,
)
from spark_connector.options import SourceOptions
from spark_connector.sentences import sentence_first
from spark_connector.starts import start_of

_log = logging.getLogger(f"holdfast.{__name__}")

#: How long the broker may be away before a query that waits for messages fails, in seconds.
OFFLINE_TOLERANCE_SECONDS = 600.0
#: Shortest pause after positions could not be settled: a query that waits for messages is asked all the time.
_SETTLE_PAUSE_SECONDS = 5.0


@sentence_first
class JmsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue, or a subscription, batch by batch.

    Args:
        options: what to read, with a URL that any process can use.
        columns: of the rows.
        log: takes what is lost.
        application: of Spark, for the text that another query gets.
        claim: the id of the query, where it begins; None: a new one.

    Attributes:
        claim: to what it reads.
    """

    def __init__(
        self,
        options: SourceOptions,
        columns: tuple[str, ...],
        log: DriverLog | None = None,
        application: str = "",
        claim: str | None = None,
    ) -> None:
        self.claim = Claim(options, application, new_id() if claim is None else claim)
        self._options = options
        self._columns = columns
        self._driver_log = log or DriverLog()
        self._waits = False  #: whether it waits for messages, so that Spark has no batch that it may run again
        self._bounds: Bounds | None = None
        self._asked: str | None = None  #: the run that the bounds were asked for with
        self._refreshed = 0.0
        self._offline_since: float | None = None
        self._frozen_head: int | None = None
        self._last_batch = time.monotonic()
        self._settled: tuple[Offset, str] | None = None  #: what is settled, and in which run of the broker
        self._unsettled: Offset | None = None  #: what could not be settled the last time
        self._settle_after = 0.0
        self._told: Offset | None = None  #: what was said to be lost
        self._void: Offset | None = None  #: what means nothing any more

    # In the driver.

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option ``maxMessagesPerTrigger``."""
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins: where the option says, by default at the oldest message that is there."""
        return self.first_offset(None)

    def first_offset(self, known: Bounds | None) -> dict[str, Any]:
        """The same, where the queue is known to have this; None: the broker is asked."""

        def begin(connection: Connection) -> dict[str, Any]:
            bounds, source = known or self._look(connection, None), source_of(self._options).name
            start = beginning(bounds, self.claim.id)
            first = start_of(range_reader(connection, self._options), self._options, source, bounds)
            # What is passed over stays in the queue: only what was read is ever settled.
            first = max(first, start.next)
            return start._replace(base=first, next=first).to_json()

        return with_retries(self._options, begin)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what the queue has, for the progress of the query: its lag is ``next`` less that of ``endOffset``."""
        bounds = self._bounds
        return None if bounds is None else beginning(bounds, self.claim.id)._replace(next=bounds.next).to_json()

    def waiting(self, start: dict[str, Any]) -> int:
        """Return how many positions, which may have messages, follow an offset; 0 while the broker is away."""
        bounds = self.current_bounds(offset_from(start).run)
        return 0 if bounds is None else self.waiting_in(start, bounds)

    def waiting_in(self, start: dict[str, Any], bounds: Bounds) -> int:
        """The same, of what the queue is known to have."""
        return max(0, self._head(bounds) - max(offset_from(start).next, bounds.first))

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what is there now, and no further."""
        self.freeze(self.bounds_now())

    def freeze(self, bounds: Bounds) -> None:
        """Read up to the end of these, and no further."""
        self._frozen_head = bounds.next

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch goes; settles what is below ``start`` where there is nothing new.

        Called all the time, so it asks the broker only every ``headRefreshSeconds``.
        """
        begin = offset_from(start)
        if begin.claim:
            watch_for_end()
        self.claim.id = begin.claim
        bounds = self.current_bounds(begin.run)
        end = start if bounds is None else self.next_offset(start, limit, bounds)
        self._waits = end == start
        return end

    def next_offset(self, start: dict[str, Any], limit: ReadLimit, bounds: Bounds) -> dict[str, Any]:
        """The same, where the queue is known to have this."""
        begin = offset_from(start)
        loss = lost(begin, begin, bounds)
        if loss is not None:
            self._tell(loss, begin)
            if loss.restart:
                self._void = begin
                return beginning(bounds, begin.claim).to_json()
        head = self._head(bounds)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = latest(begin, bounds, head, most)
        if end == begin or bounds.first >= end.next or not self._is_due(head - max(begin.next, bounds.first)):
            # Nothing new, or only positions that are not in use any more.
            self._settle(begin)
            return start if loss is not None else renewed(begin, bounds).to_json()
        self._last_batch = time.monotonic()
        return end.to_json()

    def _head(self, bounds: Bounds) -> int:
        return bounds.next if self._frozen_head is None else min(self._frozen_head, bounds.next)

    def _is_due(self, waiting: int) -> bool:
        waited, least = time.monotonic() - self._last_batch, self._options.min_messages_per_trigger
        return self._frozen_head is not None or is_due(waiting, least, waited, self._options.max_trigger_delay_seconds)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        goal = offset_from(end)
        self._waits = False
        self.claim.hold(goal)
        if not has_positions(offset_from(start), goal):
            return []
        bounds = self.current_bounds(goal.run)
        wanted = PartCounts(self._options.min_partitions, self._options.max_partitions)
        return self.tasks(start, end, wanted, bounds)

    def tasks(
        self, start: dict[str, Any], end: dict[str, Any], wanted: PartCounts, bounds: Bounds | None
    ) -> list[InputPartition]:
        """The tasks of a batch.

        Args:
            start: where the batch begins.
            end: where it ends.
            wanted: how many.
            bounds: what the queue has; None where the broker is away.
        """
        goal, begin = offset_from(end), offset_from(start)
        first, stop = span(begin, goal)
        if bounds is not None:
            loss = lost(begin, goal, bounds)
            if loss is not None:
                self._tell(loss, goal)
                if loss.restart:
                    return []
            first = max(first, bounds.first)  # what is below is gone: consumed, or expired
        return partitions_of(
            *(self._options, self._columns, goal.incarnation, goal.run, first, stop),
            wanted,
            None if bounds is None else bounds.message_bytes,
        )

    def _tell(self, loss: Loss, offset: Offset) -> None:
        """Raise what is lost, or say it once, as the option ``failOnDataLoss`` wants it."""
        name = source_of(self._options).name
        if self._options.fail_on_data_loss:
            raise InvalidDestinationException(
                f"data of {name!r} is lost: {loss.reason}. To go on with what is there, set failOnDataLoss=false (and,"
                " where the query writes with this source, producerId of the sink to a new word if the checkpoint is an"
                " older one); or start the query with a new checkpoint and takeOver=true"
            )
        if offset != self._told:
            self._told = offset
            self._driver_log.warning(f"going on with what {name!r} has, though data is lost: {loss.reason}")

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: take it out of the queue."""
        self._settle(offset_from(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._waits:
            end_claims([self.claim])
        drop_connection(self._options)

    def _look(self, connection: Connection, run: str | None, claim: str | None = None) -> Bounds:
        if not connection.is_holdfast:
            raise ValueError(
                "streaming needs positions that can be read again, which only a Holdfast broker has: for another one,"
                " name a directory of the driver's machine by the option 'spool', in which the query keeps what it has"
                " taken until it is processed"
            )
        if self._bounds is None:
            self._bounds = bounds_of(connection, self._options, run, claim)
        else:
            make = not self._options.fail_on_missing
            self._bounds = range_reader(connection, self._options, claim).bounds(run, make=make)
        self._asked = run
        self._refreshed = time.monotonic()
        return self._bounds

    def bounds_now(self) -> Bounds:
        """Return what the queue has; tries for ``retrySeconds``."""
        return with_retries(self._options, lambda connection: self._look(connection, None))

    def known_bounds(self, run: str) -> Bounds | None:
        """Return what the queue had, not longer than ``headRefreshSeconds`` ago; None where that is not known."""
        if self._bounds is None or self.claim.takes_over:
            return None
        if time.monotonic() - self._refreshed < self._options.head_refresh_seconds:
            if run == self._asked:
                return self._bounds
            if run == self._bounds.run:
                return attrs.evolve(self._bounds, kept=self._bounds.next, aging=False)
        return None

    def take_bounds(self, run: str, bounds: Bounds) -> None:
        """The queue has this now, as the broker was asked with this run."""
        self._bounds, self._asked = bounds, run
        self._refreshed, self._offline_since = time.monotonic(), None

    def note_absence(self, error: JMSException) -> None:
        """The broker does not answer; raises the error where it has not for :data:`OFFLINE_TOLERANCE_SECONDS`."""
        # An exception here would end the query; a broker that starts again is worth waiting for.
        now = time.monotonic()
        self._refreshed = now
        self._offline_since = self._offline_since or now
        if now - self._offline_since > OFFLINE_TOLERANCE_SECONDS:
            raise error

    def current_bounds(self, run: str) -> Bounds | None:
        """Return what the queue has, not older than ``headRefreshSeconds``; None while the broker is away."""
        known = self.known_bounds(run)
        if known is not None:
            return known

        def look(connection: Connection) -> Bounds:
            self.claim.take_over(connection)
            return self._look(connection, run, self.claim.id or None)

        if self._frozen_head is not None:
            # To answer "nothing new" would end an AvailableNow query before its end.
            return with_retries(self._options, look)
        try:
            bounds = with_retries(self._options, look, seconds=0)
        except (InvalidDestinationException, QueueClaimedException, ValueError):
            raise
        except JMSException as error:
            self.note_absence(error)
            assert self._offline_since is not None
            _log.warning("the broker is away since %.0f s: %s", time.monotonic() - self._offline_since, error)
            return None
        self._offline_since = None
        return bounds

    def _settle(self, offset: Offset) -> None:
        """Settle what an offset has read, once; what does not work now is made good by the next one."""
        now = time.monotonic()
        run = "" if self._bounds is None else self._bounds.run  # after a restart it may have it once more
        if offset == self._void or (offset, run) == self._settled or offset.next <= offset.base:
            return
        if offset == self._unsettled and now < self._settle_after:
            return
        try:
            with_retries(
                self._options,
                lambda connection: range_reader(connection, self._options, offset.claim or None).settle_through(
                    offset.next - 1, offset.incarnation, offset.base, offset.run or None
                ),
                seconds=1.0,
            )
            self._settled = offset, run
        except QueueClaimedException:
            raise
        except JMSException as error:
            self._unsettled, self._settle_after = offset, now + _SETTLE_PAUSE_SECONDS
            _log.warning("positions below %d are not settled yet: %s", offset.next, error)

    # In the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, RangePartition)
        return read_range(partition)
