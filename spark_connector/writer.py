"""Rows become messages: exactly once by staged transactions, or at least once on any broker.

Theory of operation
    Each attempt of a task writes a staged transaction of its own, which nobody sees.  The driver's ``commit`` gets the
    attempts that count, and publishes them in one atomic call under (query, batch); a batch that was published before
    is dropped as a whole.  Other attempts are never named, and expire.  Row numbers would not do as identities: a
    shuffle may give a retried task its rows in another order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from uuid import uuid4

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from broker_adapter import Destination, DestinationKind, Envelope
from sdk import AcknowledgeMode, Connection, JMSException
from sdk.message import message_of
from sdk.range_reader import StagedTransaction, discard, publish
from spark_connector.connections import connection_for, drop_connection, with_retries
from spark_connector.options import EXACTLY_ONCE, SinkOptions
from spark_connector.rows import envelopes_of

_log = logging.getLogger(__name__)

#: Messages of one transaction where each task commits by itself.
_COMMIT_MESSAGES = 1000


@attrs.frozen
class Written(WriterCommitMessage):
    """What an attempt of a task wrote."""

    group: str  #: whose batches are published once each
    transaction: str | None  #: its staged transaction; None where there were no rows, or nothing is staged
    count: int


def destination_of(options: SinkOptions) -> Destination:
    """Where the rows go."""
    if options.queue is not None:
        return Destination(options.queue)
    return Destination(options.topic or "", DestinationKind.TOPIC)


def write_rows(options: SinkOptions, group: str, batch: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write the rows of one attempt of a task, in an executor."""
    if options.guarantee == EXACTLY_ONCE:
        return _stage(options, group, batch, batches)
    return _send(options, group, batches)


def _stage(options: SinkOptions, group: str, batch: str, batches: Iterator[pa.RecordBatch]) -> Written:
    connection = with_retries(options, _holdfast_only)
    destination = destination_of(options)
    context = TaskContext.get()
    task = "0" if context is None else f"{context.partitionId()}.{context.attemptNumber()}"
    name = f"spark/{group}/{batch}/{task}/{uuid4()}"
    staged = StagedTransaction(connection, name, destination)

    def flush(connection: Connection) -> None:
        staged.move_to(connection)
        staged.flush()

    try:
        for rows in batches:
            staged.add(envelopes_of(rows, destination, options.priority, options.time_to_live))
            with_retries(options, flush)
    except JMSException:
        # Spark tries the task again; what is staged would only lie there until it expires.
        _discard_quietly(options, [name])
        raise
    return Written(group, name if staged.written else None, staged.written)


def _holdfast_only(connection: Connection) -> Connection:
    if not connection.is_holdfast:
        raise ValueError(
            "exactly once needs staged transactions, which only a Holdfast broker has: say"
            " deliveryGuarantee=at_least_once for other brokers"
        )
    connection.statistics()  # the connection is kept between tasks: is it alive?
    return connection


def _send(options: SinkOptions, group: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """At least once: each thousand rows are committed by themselves, and a task that is tried again sends them anew."""
    destination = destination_of(options)
    count = 0
    try:
        with (
            connection_for(options).create_session(AcknowledgeMode.TRANSACTED) as session,
            session.create_producer(destination) as producer,
        ):
            for rows in batches:
                for envelope in envelopes_of(rows, destination, options.priority, options.time_to_live):
                    producer.send(
                        message_of(envelope, 0), priority=envelope.priority, time_to_live=_seconds_left(envelope)
                    )
                    count += 1
                    if count % _COMMIT_MESSAGES == 0:
                        session.commit()
            session.commit()
    except JMSException:
        drop_connection(options)  # the task that is tried next in this process starts with a new one
        raise
    return Written(group, None, count)


def _seconds_left(envelope: Envelope) -> float | None:
    if envelope.expires_at_ms is None:
        return None
    return max(0.001, envelope.expires_at_ms / 1000 - time.time())


class _Publishing:
    """The driver's part, the same for batches and streams."""

    _options: SinkOptions

    def _publish(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        written = [message for message in messages if isinstance(message, Written) and message.transaction is not None]
        if not written:
            return
        transactions = [message.transaction for message in written if message.transaction is not None]
        if not with_retries(
            self._options, lambda connection: publish(connection, written[0].group, number, transactions)
        ):
            _log.warning(
                "batch %d of %s was published before; written once more, it is dropped", number, written[0].group
            )

    def _abandon(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        names = [
            message.transaction
            for message in messages
            if isinstance(message, Written) and message.transaction is not None
        ]
        if names:
            _discard_quietly(self._options, names)


class JmsBatchWriter(_Publishing, DataSourceArrowWriter):
    """Writes a DataFrame.

    Args:
        options: where to, with a URL that any process can use.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = str(uuid4())  # pickled with the writer: the same for all tasks and for the commit

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task, in an executor."""
        return write_rows(self._options, self._job, "0", iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: let the messages be seen."""
        self._publish(messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed: drop what was staged.  Never raises."""
        self._abandon(messages)


class JmsStreamWriter(_Publishing, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query.

    Args:
        options: where to, with a URL that any process can use.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task, in an executor."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        return write_rows(self._options, str(query), str(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done: let its messages be seen, once."""
        self._publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch failed: drop what was staged.  Never raises."""
        self._abandon(messages)


def _discard_quietly(options: SinkOptions, names: list[str]) -> None:
    try:
        discard(connection_for(options), names)
    except JMSException as error:
        _log.warning("staged transactions are left to expire: %s", error)
