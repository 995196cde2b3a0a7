"""What happens in a region as a stream: the keys that are there, then each event.

Theory of operation
    Events come over a durable subscription on the topic of the region's name: so offsets, what is settled when, and
    what is done about losses are those of any subscription (:mod:`stream_reader`).

    A query that begins with the *snapshot* has a first batch with a row for each key.  The broker tells at one moment
    the position ``P`` of the last event, and the next position ``Q`` of the subscription: the events up to P are below
    Q there, and those behind P are not.  The first batch has the keys whose version is at most P, as they are when it
    is read; a key that has changed behind P is left out, because its event follows from Q on.  So each key comes by the
    one or by the other, nothing older comes behind something newer, and no snapshot has to be kept: the batch may be
    read again at any time, after restarts of the driver and of the server too.  P is in each offset, since Spark asks
    again where a query begins if its first batch was not completed, and has the end of that batch in its log.

    A query that begins with the *latest* events passes over those that the subscription has, and settles them with the
    first batch.  Where it began is in each offset, for the same reason.  If the driver is killed before Spark's log has
    the first offset, nothing knows where that was: the query begins once more, with what is the latest then.

    The events of a batch are read by one task.  Tasks run at once, and what follows in Spark would get the events of a
    key in any order; a streaming query cannot sort them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from sdk import Connection
from sdk.range_reader import messages_of
from sdk.region_reader import create_region
from spark_connector.batch_reader import RangePartition, read_range
from spark_connector.connections import with_retries
from spark_connector.driver.engine_registry import DriverLog
from spark_connector.offsets import beginning, offset_from
from spark_connector.options import SourceOptions
from spark_connector.positions import EARLIEST, LATEST
from spark_connector.regions.reader import KeyRangePartition, partitions_of_keys, read_key_range, region_of
from spark_connector.regions.rows import RegionColumns, batch_of_events
from spark_connector.sentences import sentence_first
from spark_connector.stream_reader import JmsStreamReader

#: In an offset: the position of the last event that the first batch has; and that this batch was not read yet.
_POSITION = "snapshot"
_AHEAD = "ahead"
#: In an offset of a query that began with the events behind those that the subscription had: the first of them.
_FROM = "from"
#: Positions of one task: as many as a batch has, however many these are.
_ALL = 1 << 62


@sentence_first
class JmsRegionStreamReader(JmsStreamReader):
    """Reads a region's keys, and its events batch by batch.

    Args:
        options: what to read, with a URL that any process can use.
        columns: of the rows.
        log: takes what is lost.
        application: of Spark, for the text that another query gets.
    """

    def __init__(
        self, options: SourceOptions, columns: RegionColumns, log: DriverLog | None = None, application: str = ""
    ) -> None:
        self._region_columns = columns
        self._region_options = options
        topic = attrs.evolve(
            options,
            region=None,
            topic=region_of(options),
            max_messages_per_partition=_ALL,
            max_bytes_per_partition=None,
        )
        super().__init__(topic, columns.names, log, application)

    # In the driver.

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""

        def begin(connection: Connection) -> dict[str, Any]:
            if not self._region_options.fail_on_missing:
                create_region(connection, region_of(self._region_options))
            bounds = self._look(connection, None)
            start = beginning(bounds, self.claim.id)
            if self._region_options.starting_position == EARLIEST:
                return start.to_json()
            # What the subscription has by now is passed over, and settled with the rest.
            start = start._replace(next=bounds.next)
            if self._region_options.starting_position == LATEST:
                return {**start.to_json(), _FROM: bounds.next}
            return {**start.to_json(), _POSITION: bounds.events, _AHEAD: True}

        return with_retries(self._region_options, begin)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch goes: the first one ends where the events begin."""
        begin = _split(start)
        if begin.is_ahead:
            return _joined(begin.events, begin)
        found = super().latestOffset(begin.events, limit)
        return start if found == begin.events else _joined(found, begin)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        begin, goal = _split(start), _split(end)
        if begin.is_ahead and not goal.is_ahead:
            self.claim.hold(offset_from(goal.events))
            options, columns, position = self._region_options, self._region_columns, goal.position
            return with_retries(options, lambda connection: partitions_of_keys(connection, options, columns, position))
        return super().partitions(_begun_again(begin, goal), goal.events)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: take its events out of the subscription."""
        super().commit(_split(end).events)

    # In the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if isinstance(partition, KeyRangePartition):
            return read_key_range(partition)
        assert isinstance(partition, RangePartition)
        region, columns = region_of(self._region_options), self._region_columns
        return read_range(partition, lambda block: batch_of_events(messages_of(block), region, columns))


class _Parts(NamedTuple):
    """What an offset of a region's stream has."""

    events: dict[str, Any]  #: the offset of the subscription
    position: int  #: of the snapshot; 0: none
    is_ahead: bool  #: whether the snapshot was not read yet
    first: int | None  #: of the events, where the query began with the latest ones


def _split(fields: dict[str, Any]) -> _Parts:
    """The parts of an offset.

    Raises:
        ValueError: it is no offset of a region's stream.
    """
    rest = {name: value for name, value in fields.items() if name not in (_POSITION, _AHEAD, _FROM)}
    position, is_ahead, first = fields.get(_POSITION, 0), fields.get(_AHEAD, False), fields.get(_FROM)
    if type(position) is not int or type(is_ahead) is not bool or not (first is None or type(first) is int):
        raise ValueError(f"{fields!r} is not an offset of this source; was the checkpoint made by another one?")
    return _Parts(rest, position, is_ahead, first)


def _joined(offset: dict[str, Any], begin: _Parts) -> dict[str, Any]:
    offset = {**offset, _POSITION: begin.position} if begin.position else offset
    return offset if begin.first is None else {**offset, _FROM: begin.first}


def _begun_again(begin: _Parts, goal: _Parts) -> dict[str, Any]:
    """Return where a batch begins: if it is the first one, where its end says, since Spark may have asked again
    meanwhile.
    """
    events = begin.events
    if begin.first is None or goal.first is None or events["next"] != begin.first:
        return events
    # Not below what is still there: what has gone of the batch since is told as lost, or was consumed.
    return {**events, "next": max(goal.first, events["base"])}
