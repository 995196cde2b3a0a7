"""Rows become changes of the keys of a region.

Theory of operation
    A row is a change of one key, and is done when it is written: there is no moment at which all changes of a batch are
    seen.  A put is idempotent by its key, so a task that is tried again ends with the same values.  But in between it
    would put back values that it has replaced itself, or that others have replaced since.  So with exactly once each
    change has an identity that is the same when the row is written again, and the broker rejects it then.

    The identity is that of a *chunk* of rows and of the row's place in it.  A chunk is named by the query, the region,
    the batch, the partition, and a digest of all rows of the task up to its end.  A task that gets the same rows in the
    same order, as each does whose plan has no shuffle, makes the same names, and nothing is done twice.  One that gets
    them in another order makes other names from there on, and all its further rows are written: some again, and none
    is left out.  Numbers of rows alone would leave out rows that were not written.

    A batch of a query that was completed is noted as published at the broker, in the commit.  Spark runs it again where
    its own log does not have it yet, or a checkpoint is older than the region: then no row is written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from uuid import uuid4

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from broker_adapter import Identity, counted, pack
from sdk import Connection, MessageFormatException, ResourceAllocationException
from sdk.range_reader import is_too_large, publish, published
from sdk.region_reader import CHANGES_AT_ONCE, change_keys, create_region
from spark_connector.batches import Attempt, group_of
from spark_connector.connections import with_retries
from spark_connector.driver.engine_registry import DriverLog
from spark_connector.options import EXACTLY_ONCE, SinkOptions
from spark_connector.regions.rows import Change, changes_of
from spark_connector.rows import RowError
from spark_connector.sentences import sentence_first
from spark_connector.writer import attempt_of_task, streaming_batch

_log = logging.getLogger(f"holdfast.{__name__}")

#: Bytes of messages of one request, and of one chunk, about, unless one message has more.
_REQUEST_BYTES = 2 * 1024 * 1024
_CHUNK_BYTES = 16 * 1024 * 1024


@attrs.frozen
class Changed(WriterCommitMessage):
    """What an attempt of a task has changed."""

    group: str  #: whose batches are noted as published
    count: int
    dropped: bool = False  #: whether nothing was written because the batch was published before


@attrs.frozen
class RegionTaskWriter:
    """Writes the rows of one attempt of a task, in an executor.

    Args:
        options: where to, with a URL that any process can use.
        writer: id of the query, or of the job.
        batch: number of the batch; 0 for a job.
        attempt: which one.
    """

    options: SinkOptions
    writer: str
    batch: int
    attempt: Attempt

    @property
    def group(self) -> str:
        """Whose batches are noted as published."""
        return group_of(self.writer, f"region {self.options.region}", self.options.producer_id)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Changed:
        """Write the rows.

        Raises:
            RowError: a row cannot be a change.
            JMSException: the broker stayed away for longer than ``retrySeconds``, or refuses.
        """
        try:
            return self._write(batches)
        except RowError as error:
            raise RowError(f"partition {self.attempt.partition}, {error}") from error

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Changed:
        options, group, region = self.options, self.group, self.options.region
        assert region is not None
        is_once = options.guarantee == EXACTLY_ONCE

        def begin(connection: Connection) -> int | None:
            create_region(connection, region)
            return published(connection, group) if is_once else None

        last = with_retries(options, begin)
        if last is not None and self.batch <= last:
            return Changed(group, sum(rows.num_rows for rows in batches), dropped=True)
        # What is sent again after a lost connection is done once in any case.
        word = "" if is_once else self.attempt.word
        chain = blake2b(f"{group}/{self.batch}/{self.attempt.partition}/{word}".encode(), digest_size=16)
        written = 0
        for chunk in _chunks(batches, region):
            for row, change in enumerate(chunk, written):
                chain.update(_content(change, row))
            self._send(chunk, f"spark/{chain.hexdigest()}", written)
            written += len(chunk)
        return Changed(group, written)

    def _send(self, chunk: Sequence[Change], producer: str, first_row: int) -> None:
        """Write a chunk, in as many requests as it takes."""
        region = self.options.region or ""
        room = _REQUEST_BYTES
        start = 0
        while start < len(chunk):
            part, size = _part(chunk, start, room, producer)

            def change(connection: Connection, part: Sequence[Change] = part) -> None:
                change_keys(connection, region, part)

            try:
                with_retries(self.options, change)
            except (MessageFormatException, ResourceAllocationException) as error:
                if not is_too_large(error):
                    raise
                if len(part) > 1:  # of several, one is to be named in the end; what was done is not done again
                    room = size // 2
                    continue
                raise RowError.of(first_row + start, "key", chunk[start].key, str(error)) from error
            start += len(part)


def _content(change: Change, row: int) -> bytes:
    """Return what a change says, without what is new each time; raises RowError where it has no form."""
    envelope = change.envelope._replace(message_id=None, sent_at_ms=None)
    try:
        content = pack(envelope)
    except MessageFormatException as error:
        raise RowError.of(row, "key", change.key, str(error)) from error
    return b"%d %d %s %d %s" % (change.wanted, len(change.key), change.key.encode(), len(content), content)


def _part(chunk: Sequence[Change], start: int, room: int, producer: str) -> tuple[list[Change], int]:
    """Changes of a chunk for one request, with their identities, and about how many bytes they have."""
    part: list[Change] = []
    size = 0
    for number in range(start, len(chunk)):
        change = chunk[number]
        more = _size_of(change)
        if part and size + more > room:
            break
        size += more
        part.append(change._replace(envelope=change.envelope._replace(identity=Identity(producer, 0, number + 1))))
    return part, size


def _size_of(change: Change) -> int:
    """About how many bytes a change has; the same for the same row."""
    body = change.envelope.body
    return 200 + (len(body) if isinstance(body, str | bytes) else 50 * len(body or ()))


def _chunks(batches: Iterator[pa.RecordBatch], region: str) -> Iterator[list[Change]]:
    """The rows of a task, so many rows and bytes at once, however Spark divides them."""
    chunk: list[Change] = []
    count = size = 0
    for rows in batches:
        for change in changes_of(rows, region, count):
            chunk.append(change)
            size += _size_of(change)
            if len(chunk) == CHANGES_AT_ONCE or size >= _CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        count += rows.num_rows
    if chunk:
        yield chunk


@sentence_first
class JmsRegionWriter(DataSourceArrowWriter):
    """Writes a DataFrame to a region.

    Args:
        options: where to, with a URL that any process can use.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = str(uuid4())  # pickled with the writer: the same for all tasks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task, in an executor."""
        return RegionTaskWriter(self._options, self._job, 0, attempt_of_task("job")).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done, and so are their changes."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed: what was changed stays changed."""
        _log.warning("a job that changes region %r has failed; what it has changed stays so", self._options.region)


@sentence_first
class JmsRegionStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query to a region.

    Args:
        options: where to, with a URL that any process can use.
        log: takes what is dropped.
    """

    def __init__(self, options: SinkOptions, log: DriverLog | None = None) -> None:
        self._options = options
        self._driver_log = log or DriverLog()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task, in an executor."""
        query, batch, run = streaming_batch()
        return RegionTaskWriter(self._options, query, batch, attempt_of_task(run)).write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done: it is not written again from now on."""
        if self._options.guarantee != EXACTLY_ONCE:
            return
        done = [message for message in messages if isinstance(message, Changed)]
        if not done:
            return
        group = done[0].group
        dropped = sum(message.count for message in done if message.dropped)
        if dropped:
            self._driver_log.warning(
                f"batch {batchId} of the query was written to region {self._options.region!r} before, so its"
                f" {counted(dropped, 'row', ('was', 'were'))} dropped now ({group}). That is expected for the first"
                " batch after a restart. Any other time the checkpoint is older than the region, or another query uses"
                " a copy of it: where its batches are to be written once more, set the option producerId to a new word"
            )
        with_retries(self._options, lambda connection: publish(connection, group, batchId, []))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch failed, and is written again: what is the same is not done twice."""
