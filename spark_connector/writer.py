"""Rows become messages: exactly once by staged transactions, or at least once on any broker.

Theory of operation
    Each attempt of a task writes a staged transaction of its own, which is invisible.  The driver's ``commit`` gets the
    attempts that count, and publishes them in one atomic call under (group, batch); a batch that was published before
    is dropped as a whole, which the driver says in its log.  Row numbers would not do as identities: a shuffle may give
    a retried task its rows in another order.

    A staged transaction has one target.  Where rows name their queues, an attempt has one for each of these, and all
    are published in the same call.

    What is staged by attempts that do not count is dropped as soon as that is known: by the attempt itself where it
    fails; by the next attempt of the task, or the next run of the query, where it was killed; with the batch, when that
    is published or aborted; and by the broker when a newer batch of the query begins.  With speculation two attempts of
    a task run at once, and either may count: then no attempt drops another's.

    What is staged waits for the last task of the batch, and the broker drops what is left of a query that was killed
    after a time-out.  So each attempt renews the batch as long as it runs: see :mod:`renewal`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar
from uuid import uuid4

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from broker_adapter import Destination, DestinationKind, Envelope, counted
from sdk import (
    Connection,
    JMSException,
    MessageFormatException,
    MessageProducer,
    ResourceAllocationException,
)
from sdk.range_reader import StagedTransaction, discard, is_too_large, publish, published, send_envelopes
from spark_connector.batches import (
    Attempt,
    all_of_batch,
    all_of_run,
    earlier_attempts,
    group_of,
    transaction_of,
)
from spark_connector.connections import connection_for, drop_connection, with_retries
from spark_connector.driver.engine_registry import DriverLog
from spark_connector.options import EXACTLY_ONCE, SinkOptions
from spark_connector.renewal import Renewal
from spark_connector.rows import RowError, destinations_of, envelopes_of, largest_cell, size_of
from spark_connector.sentences import sentence_first

_log = logging.getLogger(f"holdfast.{__name__}")
K = TypeVar("K")
V = TypeVar("V")

#: Most messages that are under way at once at least once, and their bytes, unless one has more.
_SENT_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 * 1024 * 1024
#: Longest time to live at least once, in milliseconds; a longer one is as good as none.
_LONGEST_LIFE_MS = 100 * 365 * 86_400_000
#: Longest wait for the broker to drop what is of no use any more, in seconds.
_DISCARD_SECONDS = 5.0

#: (group, URL) → the run of the query for which this process has dropped what an earlier run left.
_begun: dict[tuple[str, str], str] = {}
#: (group, URL) → the last batch that this process has published.
_published: dict[tuple[str, str], int] = {}
#: Groups that a process knows something of; beyond it all are forgotten, and asked for or dropped again.
MAX_GROUPS = 100


def _note(known: dict[K, V], key: K, value: V) -> None:
    if key not in known and len(known) >= MAX_GROUPS:
        known.clear()
    known[key] = value


@attrs.frozen
class Written(WriterCommitMessage):
    """What an attempt of a task wrote."""

    group: str  #: whose batches are published once each
    transactions: tuple[tuple[str, int], ...]  #: what it has staged, with the number of messages
    count: int
    dropped: bool = False  #: whether nothing is staged because the batch was published before


def destination_of(options: SinkOptions) -> Destination | None:
    """Return where the rows go; None: each names its queue."""
    if options.queue is not None:
        return Destination(options.queue)
    return None if options.topic is None else Destination(options.topic, DestinationKind.TOPIC)


class _Transactions:
    """The staged transactions of an attempt, one for each queue.

    Attributes:
        by_queue: in the order in which rows have named the queues.
        names: of the transactions, in the same order.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self.by_queue: dict[Destination, StagedTransaction] = {}
        self.names: list[str] = []
        self._connection = connection
        self._name = name

    def to(self, queue: Destination) -> StagedTransaction:
        """Return that of a queue."""
        found = self.by_queue.get(queue)
        if found is None:
            self.names.append(f"{self._name}.{len(self.names)}" if self.names else self._name)
            found = self.by_queue[queue] = StagedTransaction(self._connection, self.names[-1], queue)
        return found

    def written(self) -> tuple[tuple[str, int], ...]:
        """Return what is staged."""
        staged = zip(self.names, self.by_queue.values(), strict=True)
        return tuple((name, each.written) for name, each in staged if each.written)


@attrs.frozen
class TaskWriter:
    """Writes the rows of one attempt of a task, in an executor.

    Args:
        options: where to, with a URL that any process can use.
        writer: id of the query, or of the job.
        batch: number of the batch; 0 for a job.
        attempt: which one.
        speculation: whether another attempt of the same task may run at the same time, and may be the one that counts.
    """

    options: SinkOptions
    writer: str
    batch: int
    attempt: Attempt
    speculation: bool

    @property
    def group(self) -> str:
        """Whose batches are published once each."""
        return group_of(self.writer, self.options.queue or "", self.options.producer_id)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows.

        Raises:
            RowError: a row cannot be a message.
            JMSException: the broker stayed away for longer than ``retrySeconds``, or refuses.
        """
        try:
            if self.options.guarantee == EXACTLY_ONCE:
                return self._stage(batches)
            return Written(self.group, (), self._send(batches))
        except RowError as error:
            raise RowError(f"partition {self.attempt.partition}, {error}") from error

    def _stage(self, batches: Iterator[pa.RecordBatch]) -> Written:
        options, group = self.options, self.group
        default, known = destination_of(options), dict[str, Destination]()
        name = transaction_of(group, self.batch, self.attempt)
        own = all_of_run(group, self.batch, self.attempt.run)
        earlier = [] if self.speculation else earlier_attempts(group, self.batch, self.attempt)

        def begin(connection: Connection) -> Connection:
            if not connection.is_holdfast:
                raise ValueError(
                    "exactly once needs staged transactions, which only a Holdfast broker has: say"
                    " deliveryGuarantee=at_least_once for other brokers"
                )
            # What an earlier run of the query has left of this batch, which is the first one that this run writes.  Of
            # later ones it has none, unless it runs still: that goes when they are published.
            if _begun.get((group, options.url)) != self.attempt.run:
                discard(connection, prefixes=[all_of_batch(group, self.batch)], keep=[own])
                _note(_begun, (group, options.url), self.attempt.run)
            if earlier:
                discard(connection, prefixes=earlier)
            return connection

        def flush(staged: StagedTransaction, connection: Connection) -> None:
            staged.move_to(connection)
            staged.flush()

        transactions = _Transactions(with_retries(options, begin), name)
        count, was_published = 0, False
        try:
            with Renewal(options, group, self.batch) as renewal:
                for rows in batches:
                    first = count
                    count += rows.num_rows
                    if was_published:
                        continue
                    destination = destinations_of(rows, default, known, first)
                    envelopes = envelopes_of(rows, destination, options.priority, options.time_to_live, first)
                    for queue, places, some in _by_queue(envelopes, destination, rows.num_rows):
                        staged = transactions.to(queue)
                        before = staged.written
                        try:
                            staged.add(some)
                        except MessageFormatException as error:
                            _name_row(error, rows, places, staged.written - before, first)
                            raise
                        try:
                            with renewal.paused():
                                with_retries(options, partial(flush, staged))
                        except (MessageFormatException, ResourceAllocationException) as error:
                            _name_row(error, rows, places, staged.answered - before, first)
                            raise
                        was_published = was_published or staged.was_published
        except BaseException:
            # Spark tries the task again; what is staged would lie there until the batch ends.
            _discard_quietly(options, names=transactions.names)
            raise
        if was_published:
            return Written(group, (), count, dropped=True)
        return Written(group, transactions.written(), count)

    def _send(self, batches: Iterator[pa.RecordBatch]) -> int:
        """At least once: some rows are sent at a time, and confirmed; a task that is tried again repeats them."""
        options = self.options
        default, known = destination_of(options), dict[str, Destination]()
        count = 0
        waiting = Unsent()
        size = 0
        try:
            with with_retries(options, Connection.create_session) as session:
                producer = session.create_producer(default)
                for rows in batches:
                    destination = destinations_of(rows, default, known, count)
                    if isinstance(destination, list) and producer.destination is not None:
                        producer = session.create_producer()  # each message says where it goes
                    envelopes = envelopes_of(rows, destination, options.priority, options.time_to_live, count)
                    waiting.begin(rows, 0, count)
                    for index, envelope in enumerate(envelopes, 1):
                        waiting.envelopes.append(_without_late_expiry(envelope))
                        size += size_of(envelope)
                        if len(waiting.envelopes) == _SENT_AT_ONCE or size >= _BYTES_AT_ONCE:
                            _send_all(producer, waiting)
                            waiting, size = Unsent(), 0
                            waiting.begin(rows, index, count + index)
                    count += rows.num_rows
                _send_all(producer, waiting)
        except JMSException:
            drop_connection(options)  # the task that is tried next in this process starts with a new one
            raise
        return count


def _by_queue(
    envelopes: Iterator[Envelope], destination: Destination | list[Destination], count: int
) -> Iterable[tuple[Destination, Sequence[int], Iterable[Envelope]]]:
    """Messages of so many rows by their queues: (queue, places of its rows, their messages)."""
    if isinstance(destination, Destination):
        return [(destination, range(count), envelopes)]
    found: dict[Destination, tuple[list[int], list[Envelope]]] = {queue: ([], []) for queue in destination}
    for place, envelope in enumerate(envelopes):
        places, some = found[envelope.destination]
        places.append(place)
        some.append(envelope)
    return [(queue, places, some) for queue, (places, some) in found.items()]


def _name_row(error: JMSException, rows: pa.RecordBatch, places: Sequence[int], index: int, first: int) -> None:
    """Raise RowError where a message is too large, that of the row at a place; any other error is not one of a row."""
    if is_too_large(error) and 0 <= index < len(places):
        column, value = largest_cell(rows, places[index])
        raise RowError.of(first + places[index], column, value, str(error)) from error


class Unsent:
    """Rows of one task that are to be sent as messages together.

    Attributes:
        envelopes: of the rows.
    """

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self._parts: list[tuple[int, pa.RecordBatch, int, int]] = []

    def begin(self, rows: pa.RecordBatch, place: int, number: int) -> None:
        """What is added from here on is of these rows: the first is at this place in them, and has this number."""
        self._parts.append((len(self.envelopes), rows, place, number))

    def refusal(self, index: int, reason: JMSException) -> RowError:
        """Return what is told where one of the envelopes is refused for what is in it."""
        first, rows, place, number = next(each for each in reversed(self._parts) if each[0] <= index)
        column, value = largest_cell(rows, place + index - first)
        return RowError.of(number + index - first, column, value, str(reason))


def _send_all(producer: MessageProducer, waiting: Unsent) -> None:
    """Send rows, and wait until all are confirmed.

    Raises:
        RowError: the broker has refused a row.
        JMSException: rows could not be sent, for a reason that has nothing to do with what is in them.
    """
    try:
        send_envelopes(producer, waiting.envelopes)
    except JMSException as error:
        refused(error, waiting)
        raise


def refused(error: JMSException, waiting: Unsent) -> None:
    """Raise RowError where an error of ``send_envelopes`` is about one of these; any other is not one of a row.

    The first row that was too large is named, or cannot be encoded at all.
    """
    for index, failure in error.failures.items():
        if is_too_large(failure) or isinstance(failure, MessageFormatException):
            raise waiting.refusal(index, failure) from error


def _without_late_expiry(envelope: Envelope) -> Envelope:
    """The envelope; one that is to live for centuries never expires."""
    expires_at_ms, sent_at_ms = envelope.expires_at_ms, envelope.sent_at_ms
    if expires_at_ms is None or sent_at_ms is None or expires_at_ms - sent_at_ms <= _LONGEST_LIFE_MS:
        return envelope
    return envelope._replace(expires_at_ms=None)


class _Publishing:
    """The driver's part, the same for batches and streams."""

    _options: SinkOptions
    _driver_log: DriverLog

    def _publish(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        staged = [each for message in written for each in message.transactions]
        dropped = [message for message in written if message.dropped]
        if not staged and not dropped:
            return
        group = written[0].group
        # Asked before: afterwards an earlier publication could not be told from one whose answer was lost.
        last = _published.get((group, self._options.url))
        if last is None or dropped:
            last = with_retries(self._options, lambda connection: published(connection, group))
        answers: list[bool | None] = []
        if staged:
            names, counts = [name for name, _ in staged], [count for _, count in staged]

            def publish_it(connection: Connection) -> None:
                answers.append(None)  # until it is answered
                try:
                    answers[-1] = publish(connection, group, number, names, counts)
                except ResourceAllocationException:
                    answers.pop()
                    raise

            # A publication without room is refused at once: a query waits here for consumers that are slower.
            with_retries(self._options, publish_it, also=(ResourceAllocationException,))
            _note(_published, (group, self._options.url), number)
        # An answer to the first question is sure; one to a later question may tell of the first.
        is_sure = answers[:1] == [False] or (last is not None and number <= last)
        if dropped or (answers[-1:] == [False] and is_sure):
            count = sum(message.count for message in written)
            queue = self._options.queue
            where = "the queues of its rows" if queue is None else f"queue {queue!r}"
            self._driver_log.warning(
                f"batch {number} of the query was published to {where} before, so its"
                f" {counted(count, 'message', ('was', 'were'))} dropped now ({group}; the last batch published is"
                f" {last}). That is expected for the first batch after a restart. Any other time the checkpoint is"
                " older than the queue, or another query uses a copy of it: where its batches are to be written"
                " once more, set the option producerId to a new word"
            )

    def _abandon(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        groups = {message.group for message in messages if isinstance(message, Written)}
        if groups and self._options.guarantee == EXACTLY_ONCE:
            _discard_quietly(self._options, prefixes=[all_of_batch(group, number) for group in groups])


@sentence_first
class JmsBatchWriter(_Publishing, DataSourceArrowWriter):
    """Writes a DataFrame.

    Args:
        options: where to, with a URL that any process can use.
        speculation: whether Spark may run two attempts of a task at once.
    """

    def __init__(self, options: SinkOptions, speculation: bool = True) -> None:
        self._options = options
        self._driver_log = DriverLog()
        self._speculation = speculation
        self._job = str(uuid4())  # pickled with the writer: the same for all tasks and for the commit

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task, in an executor."""
        return TaskWriter(self._options, self._job, 0, attempt_of_task("job"), self._speculation).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: let the messages be seen."""
        self._publish(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed: drop what was staged.  Never raises."""
        if self._options.guarantee != EXACTLY_ONCE:
            return
        group = group_of(self._job, self._options.queue or "", self._options.producer_id)
        try:
            # Nothing is its number 0: so tasks that still run stage nothing any more.
            publish(connection_for(self._options), group, 0, [], timeout=_DISCARD_SECONDS)
        except Exception as error:  # also of a password; Spark would show it in place of why the job failed
            _log.warning("staged transactions are left to expire: %s", error)


@sentence_first
class JmsStreamWriter(_Publishing, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query.

    Args:
        options: where to, with a URL that any process can use.
        speculation: whether Spark may run two attempts of a task at once.
        log: takes what is dropped.
    """

    def __init__(self, options: SinkOptions, speculation: bool = True, log: DriverLog | None = None) -> None:
        self._options = options
        self._driver_log = log or DriverLog()
        self._speculation = speculation

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task, in an executor."""
        query, batch, run = streaming_batch()
        return TaskWriter(self._options, query, batch, attempt_of_task(run), self._speculation).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done: let its messages be seen, once."""
        self._publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch failed: drop what was staged.  Never raises."""
        self._abandon(messages, batchId)


def streaming_batch() -> tuple[str, int, str]:
    """(query, number of the batch, run of the query) of the task that this process runs."""
    context = TaskContext.get()
    assert context is not None
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    assert query is not None
    assert batch is not None
    return query, int(batch), str(context.getLocalProperty("spark.jobGroup.id"))  # the id of the query's run


def attempt_of_task(run: str) -> Attempt:
    """The attempt of a task that this process runs."""
    context = TaskContext.get()
    assert context is not None
    return Attempt(run, context.partitionId(), context.attemptNumber(), str(uuid4()))


def _discard_quietly(options: SinkOptions, names: Sequence[str] = (), prefixes: Sequence[str] = ()) -> None:
    try:
        discard(connection_for(options), names, prefixes, timeout=_DISCARD_SECONDS)
    except Exception as error:  # as in abort()
        _log.warning("staged transactions are left to expire: %s", error)
