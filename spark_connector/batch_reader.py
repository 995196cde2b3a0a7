"""A queue as a DataFrame: a snapshot between two positions, taking nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker_adapter import Destination, DestinationKind, Envelope, RangeBlock, key_expression
from broker_adapter.destination import TEMPORARY_QUEUE_PREFIX
from sdk import Connection, ConnectionLostException, InvalidDestinationException, Message, OperationTimedOutException
from sdk.range_reader import Bounds, RangeReader
from spark_connector.ahead import one_ahead
from spark_connector.block_rows import batch_of_block
from spark_connector.connections import connection_for, drop_connection, with_retries
from spark_connector.offsets import ANY_PARTS, PartCounts, positions_of_task, split
from spark_connector.options import SourceOptions, queues_of
from spark_connector.positions import EARLIEST, LATEST
from spark_connector.rows import Readable, batch_of
from spark_connector.sentences import sentence_first
from spark_connector.starts import end_of, start_of

_log = logging.getLogger(f"holdfast.{__name__}")

#: Messages that one batch of a browser has.
_BROWSED = 1000


@attrs.frozen
class RangePartition(InputPartition):
    """What one task reads: positions [first, last] of one incarnation of the queue, seen in one run of the broker."""

    options: SourceOptions
    columns: tuple[str, ...]
    incarnation: str
    run: str
    first: int
    last: int

    @property
    def value(self) -> tuple[int, int]:
        """The positions."""
        return self.first, self.last


@attrs.frozen
class BrowsePartition(InputPartition):
    """The one task that reads a queue of a broker that has no positions."""

    options: SourceOptions
    columns: tuple[str, ...]

    @property
    def value(self) -> str | None:
        """The queue."""
        return self.options.queue


def source_of(options: SourceOptions) -> Destination:
    """The queue, or the topic of the subscription."""
    if options.queue is not None:
        return Destination(options.queue)
    return Destination(options.topic or "", DestinationKind.TOPIC)


def range_reader(connection: Connection, options: SourceOptions, claim: str | None = None) -> RangeReader:
    """A reader for what the options name, with a claim; None: with none."""
    return RangeReader(connection, source_of(options), options.subscription, options.client_id, claim)


def bounds_of(
    connection: Connection, options: SourceOptions, run: str | None = None, claim: str | None = None
) -> Bounds:
    """Return what is there, and what of a run is still valid; make what is missing, but for an option."""
    make = not options.fail_on_missing
    if make and options.topic is not None and options.subscription is not None and options.client_id is None:
        with connection.create_session() as session:
            session.create_shared_durable_consumer(source_of(options), options.subscription).close()
    return range_reader(connection, options, claim).bounds(run, make=make)


def matching(pattern: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names of queues that a pattern chooses, in order; no temporary queue, which is for one program's replies.

    Raises:
        InvalidDestinationException: it is no expression.
    """
    is_wanted = key_expression(pattern)
    return tuple(sorted(name for name in names if is_wanted(name) and not name.startswith(TEMPORARY_QUEUE_PREFIX)))


def one_by_one(connection: Connection, options: SourceOptions) -> list[SourceOptions]:
    """The options for each of the queues; for a topic these.

    Raises:
        InvalidDestinationException: ``queuePattern`` is no expression.
        JMSSecurityException: the user may not ask for the names of the queues.
    """
    names = queues_of(options)
    if options.queue_pattern is not None:
        if not connection.is_holdfast:
            raise ValueError("queuePattern needs a Holdfast broker, which tells the names of its queues; say queues")
        found = [each.name for each in connection.statistics().queues if each.kind == "queue"]
        names = matching(options.queue_pattern, found)
    if names is None:
        return [options]
    # One that was deleted since the names were asked for is not made again.
    fails = options.fail_on_missing or options.queue_pattern is not None
    return [attrs.evolve(options, queue=name, queues=None, queue_pattern=None, fail_on_missing=fails) for name in names]


def positions_per_task(options: SourceOptions, message_bytes: int | None) -> int:
    """Return how many positions a task has at most, of messages of so many bytes on average (None: not known)."""
    return positions_of_task(options.max_messages_per_partition, options.max_bytes_per_partition, message_bytes)


def partitions_of(
    options: SourceOptions,
    columns: tuple[str, ...],
    incarnation: str,
    run: str,
    first: int,
    end: int,
    wanted: PartCounts = ANY_PARTS,
    message_bytes: int | None = None,
) -> list[InputPartition]:
    """Tasks for the positions [first, end): as many as are ``wanted``.

    Of messages of ``message_bytes`` on average (None: not known), as many as the options allow by number and bytes.
    """
    most = positions_per_task(options, message_bytes)
    return [
        RangePartition(options, columns, incarnation, run, low, high) for low, high in split(first, end, most, wanted)
    ]


def read_range(
    partition: RangePartition, as_batch: Callable[[RangeBlock], pa.RecordBatch] | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages of a range as Arrow batches; goes on where it was if the connection is lost.

    Up to three times ``fetchBytes`` of messages are in memory, or as many messages where they are larger: those that
    Spark has got, the next ones, and an answer that comes in.

    Args:
        partition: the range.
        as_batch: makes a batch of messages; None: one with the partition's columns.

    Raises:
        InvalidDestinationException: the queue is gone, or its positions are those of other messages now; not with
            ``failOnDataLoss=false``.
        StoreCorruptException: a message is damaged; not with ``failOnDataLoss=false``.
        JMSException: the broker stayed away for longer than ``retrySeconds``.
    """
    options = partition.options
    source = source_of(options).name
    run = partition.run or None
    position = partition.first
    failing_since: float | None = None

    def on_damaged(positions: list[int]) -> None:
        _log.warning("damaged messages of %r are left out, and in the broker's quarantine: %s", source, positions)

    leave_out = None if options.fail_on_data_loss else on_damaged
    while position <= partition.last:
        try:
            reader = range_reader(connection_for(options), options)
            incarnation, size = partition.incarnation, options.fetch_bytes
            answers = reader.read_answers(position, partition.last, incarnation, size, run, leave_out, options.selector)
            with closing(one_ahead(answers)) as coming:
                for block, following in coming:
                    if block.length:
                        yield batch_of_block(block, source, partition.columns) if as_batch is None else as_batch(block)
                    position = following
                    failing_since = None
            return
        except InvalidDestinationException as error:
            if options.fail_on_data_loss:
                raise
            _log.warning("positions %d to %d of %r are lost: %s", position, partition.last, source, error)
            return
        except (ConnectionLostException, OperationTimedOutException):
            drop_connection(options)
            now = time.monotonic()
            failing_since = failing_since or now
            if now - failing_since > options.retry_seconds:
                raise
            time.sleep(0.2)


def browse(partition: BrowsePartition) -> Iterator[pa.RecordBatch]:
    """All that a browser shows, as Arrow batches.

    The connection is tried for again, what is read is not: a browser has no place to go on from.
    """
    options = partition.options
    source = source_of(options)
    found: list[Envelope] = []
    with with_retries(options, Connection.create_session) as session:
        for message in session.create_browser(source):
            found.append(_as_it_came(message))
            if len(found) == _BROWSED:
                yield _browsed(found, partition)
                found = []
    if found:
        yield _browsed(found, partition)


def _browsed(envelopes: list[Envelope], partition: BrowsePartition) -> pa.RecordBatch:
    nothing = [None] * len(envelopes)
    return batch_of(Readable(nothing, envelopes, nothing), source_of(partition.options).name, partition.columns)


def _as_it_came(message: Message) -> Envelope:
    """Return what a message says, also such as we could not send."""
    return Envelope(
        message.destination or Destination(""),
        message.body_kind,
        message.body,
        dict(message.properties),
        message.message_id,
        message.correlation_id,
        type=message.type,
        sent_at_ms=message.sent_at_ms,
        expires_at_ms=message.expires_at_ms,
        priority=message.priority,
        group_id=message.group_id,
    )


def _browsing(options: SourceOptions, columns: tuple[str, ...]) -> BrowsePartition:
    if options.queue is None:
        raise ValueError("only a Holdfast broker's subscriptions can be read; read a queue")
    for name, given in (
        ("startingPosition", options.starting_position not in (None, EARLIEST)),
        ("endingPosition", options.ending_position not in (None, LATEST)),
        ("selector", options.selector is not None),
    ):
        if given:
            raise ValueError(f"{name} needs a Holdfast broker; a batch of another one is all that its browser shows")
    return BrowsePartition(options, columns)


@sentence_first
class JmsBatchReader(DataSourceReader):
    """Reads what was there when the DataFrame was made.

    Args:
        options: what to read, with a URL that any process can use.
        columns: of the rows.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """The snapshot: called once for each ``load()``."""
        options = self._options

        def plan(connection: Connection) -> list[InputPartition]:
            each = one_by_one(connection, options)
            if not connection.is_holdfast:
                return [_browsing(one, self._columns) for one in each]
            ranges = []
            for one in each:
                name, reader = source_of(one).name, range_reader(connection, one)
                try:
                    bounds = bounds_of(connection, one)
                    first, end = start_of(reader, one, name, bounds), end_of(reader, one, name, bounds)
                except InvalidDestinationException:
                    if options.queue_pattern is None:
                        raise
                    continue  # it was deleted since the broker was asked for the names
                ranges.append((name, one, bounds, max(first, bounds.first), end))
            counts = {name: max(0, end - first) for name, _, _, first, end in ranges}
            sizes = {name: positions_per_task(one, bounds.message_bytes) for name, one, bounds, _, _ in ranges}
            wanted = PartCounts(options.min_partitions, options.max_partitions).of_each(counts, sizes)
            return [
                task
                for name, one, bounds, first, end in ranges
                for task in partitions_of(
                    *(one, self._columns, bounds.incarnation, bounds.run, first, end),
                    wanted[name],
                    bounds.message_bytes,
                )
            ]

        return with_retries(options, plan)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task, in an executor; None where there is nothing to read."""
        if isinstance(partition, RangePartition):
            return read_range(partition)
        if isinstance(partition, BrowsePartition):
            return browse(partition)
        return iter(())
