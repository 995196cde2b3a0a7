"""Several queues as one stream: a reader for each, and one offset that has theirs.

Queues that a pattern finds later are read from their oldest message on; a limit of a batch is shared in proportion to
what waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sdk import (
    Connection,
    ConnectionLostException,
    InvalidDestinationException,
    JMSException,
    OperationTimedOutException,
)
from sdk.range_reader import Bounds, bounds_of_queues
from spark_connector.batch_reader import RangePartition, one_by_one, positions_per_task, read_range
from spark_connector.claims import end_claims, new_id, watch_for_end
from spark_connector.connections import drop_connection, with_retries
from spark_connector.driver.engine_registry import DriverLog
from spark_connector.offsets import PartCounts, beginning, has_positions, in_turn, is_due, offset_from, shares, span
from spark_connector.options import SourceOptions
from spark_connector.sentences import sentence_first
from spark_connector.stream_reader import JmsStreamReader

_log = logging.getLogger(f"holdfast.{__name__}")
T = TypeVar("T")

#: Shortest time between two questions for the names of the queues, in seconds.
LISTING_SECONDS: Final = 5.0
#: In an offset: the offsets of the queues.
_QUEUES: Final = "queues"


@sentence_first
class JmsQueuesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads several queues, batch by batch.

    Args:
        options: what to read, with a URL that any process can use.
        columns: of the rows.
        log: takes what is lost.
        application: of Spark, for the text that another query gets.
    """

    def __init__(
        self, options: SourceOptions, columns: tuple[str, ...], log: DriverLog | None = None, application: str = ""
    ) -> None:
        self._claim = new_id()
        self._application = application
        self._waits = False  #: as of ``JmsStreamReader``
        self._options = options
        self._columns = columns
        self._log = log or DriverLog()
        self._readers: dict[str, JmsStreamReader] = {}
        self._names: tuple[str, ...] | None = None  #: of the queues that are there
        self._listed = 0.0
        self._is_frozen = False
        self._last_served: str | None = None  #: the last queue in turn that the last batch has something of
        self._last_batch = time.monotonic()

    # In the driver.

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option ``maxMessagesPerTrigger``."""
        return JmsStreamReader(self._options, self._columns).getDefaultReadLimit()

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins, in each queue."""
        return _joined(self._of_each(JmsStreamReader.first_offset))

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what is there now, and no further."""
        self._names = tuple(self._of_each(JmsStreamReader.freeze))
        self._is_frozen = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch goes in each queue; settle up to ``start`` where nothing is new."""
        watch_for_end()
        starts = self._offsets(start)
        self._waits = False
        names = self._queues()
        self._tell_of_gone(starts, names)
        runs = {name: offset_from(starts[name]).run if name in starts else "" for name in names}
        found = self._current_bounds(runs, starts)
        # One that was found since then is read from its oldest message on.
        begins = {
            name: starts[name] if name in starts else beginning(bounds, self._claim).to_json()
            for name, bounds in found.items()
            if bounds is not None
        }
        waiting = {name: self._reader(name).waiting_in(begin, _known(found[name])) for name, begin in begins.items()}
        waited, least = time.monotonic() - self._last_batch, self._options.min_messages_per_trigger
        is_one = self._is_frozen or is_due(
            sum(waiting.values()), least, waited, self._options.max_trigger_delay_seconds
        )
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(waiting.values())
        given = shares(rows, waiting, self._last_served)
        ends = {name: starts[name] for name, bounds in found.items() if bounds is None and name in starts}
        for name, begin in begins.items():
            if waiting[name] and (not is_one or not given[name]):
                ends[name] = begin
            else:
                # Not more than was counted: where nothing waits this settles what is below, and takes nothing.
                most, bounds = ReadMaxRows(given[name]), _known(found[name])
                try:
                    ends[name] = self._reader(name).next_offset(begin, most, bounds)
                except InvalidDestinationException as error:
                    self._leave_out(name, error, is_known=name in starts)
        ends = {name: end for name, end in ends.items() if name in starts or end != begins[name]}
        if ends == starts:
            self._waits = True
            return start
        served = [name for name, end in ends.items() if given.get(name) and end != begins[name]]
        if served:
            self._last_served = in_turn(served, self._last_served)[-1]
        self._last_batch = time.monotonic()
        return _joined(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what the queues have, as of a single queue."""
        found = {name: reader.reportLatestOffset() for name, reader in self._readers.items()}
        return _joined({name: offset for name, offset in found.items() if offset is not None})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        begins, ends = _split(start), self._offsets(end)
        self._waits = False
        pairs = {name: (begins.get(name) or _begin_of(goal), goal) for name, goal in ends.items()}
        pairs = {name: pair for name, pair in pairs.items() if has_positions(*map(offset_from, pair))}
        found = self._current_bounds({name: offset_from(goal).run for name, (_, goal) in pairs.items()}, pairs)
        counts = {name: _count(*pairs[name], bounds) for name, bounds in found.items()}
        sizes = {
            name: positions_per_task(self._options, None if bounds is None else bounds.message_bytes)
            for name, bounds in found.items()
        }
        wanted = PartCounts(self._options.min_partitions, self._options.max_partitions).of_each(counts, sizes)
        tasks: list[InputPartition] = []
        for name, bounds in found.items():
            try:
                self._reader(name).claim.hold(offset_from(ends[name]))
                tasks += self._reader(name).tasks(*pairs[name], wanted[name], bounds)
            except InvalidDestinationException as error:
                self._leave_out(name, error, is_known=True)
        return tasks

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: take it out of the queues."""
        for name, offset in _split(end).items():
            self._reader(name).commit(offset)

    def stop(self) -> None:
        """The query has ended."""
        if self._waits:
            end_claims(reader.claim for reader in self._readers.values())
        drop_connection(self._options)

    def _offsets(self, fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the offset of each queue; they have the id of the query, with which a restart continues."""
        offsets = _split(fields)
        if offsets:
            self._claim = offset_from(next(iter(offsets.values()))).claim
        return offsets

    def _reader(self, name: str) -> JmsStreamReader:
        reader = self._readers.get(name)
        if reader is None:
            options = attrs.evolve(
                self._options, queue=name, queues=None, queue_pattern=None, min_messages_per_trigger=None
            )
            if self._options.queue_pattern is not None:
                options = attrs.evolve(options, fail_on_missing=True)  # one that was deleted is not made again
            reader = self._readers[name] = JmsStreamReader(options, self._columns, self._log, self._application)
        reader.claim.id = self._claim
        return reader

    def _of_each(self, ask: Callable[[JmsStreamReader, Bounds], T]) -> dict[str, T]:
        """Return what the readers answer, without those of queues that were deleted meanwhile."""
        found = self._current_bounds(dict.fromkeys(self._queues(), ""), (), must=True)
        answers = {}
        for name, bounds in found.items():
            try:
                answers[name] = ask(self._reader(name), _known(bounds))
            except InvalidDestinationException as error:
                self._leave_out(name, error, is_known=False)
        return answers

    def _current_bounds(
        self, runs: Mapping[str, str], known: Container[str], *, must: bool = False
    ) -> dict[str, Bounds | None]:
        """Return what queues have, as ``JmsStreamReader.current_bounds``, without those that were deleted.

        Args:
            runs: by the name of each queue: with which the broker is asked.
            known: the queues that the offset has, so that data is lost with them.
            must: whether the broker has to answer, now.

        Raises:
            InvalidDestinationException: data is lost; see ``failOnDataLoss``.
            JMSException: the broker is away for too long.
        """
        found: dict[str, Bounds | None] = {
            name: None if must else self._reader(name).known_bounds(run) for name, run in runs.items()
        }
        asked = {name: runs[name] for name, bounds in found.items() if bounds is None}
        seconds = None if must or self._is_frozen else 0
        try:
            answers = self._ask_for_bounds(asked, seconds, must=must)
        except (ConnectionLostException, OperationTimedOutException) as error:
            if seconds is None:
                raise
            for name in asked:
                self._reader(name).note_absence(error)
            _log.warning("the broker is away: %s", error)
            return found
        for name, run in asked.items():
            try:
                found[name] = self._bounds_of(name, run, answers.get(name), must=must)
            except InvalidDestinationException as error:
                del found[name]
                self._leave_out(name, error, is_known=name in known)
        return found

    def _ask_for_bounds(
        self, runs: Mapping[str, str], seconds: float | None, *, must: bool
    ) -> dict[str, Bounds | None]:
        """Return what the broker answers about these queues in one request; nothing where each is to be asked about
        alone.

        That is where it refuses the request: the user may not ask about one of them, or another query has claimed one.
        """
        if len(runs) < 2:
            return {}

        def ask(connection: Connection) -> dict[str, Bounds | None]:
            if not connection.is_holdfast:
                return {}
            if must:
                return bounds_of_queues(connection, runs, make=make)
            for name in runs:
                self._reader(name).claim.take_over(connection)
            return bounds_of_queues(connection, runs, make=make, claim=self._claim)

        make = self._options.queue_pattern is None and not self._options.fail_on_missing
        try:
            return with_retries(self._options, ask, seconds)
        except (ConnectionLostException, OperationTimedOutException):
            raise
        except JMSException as error:
            _log.debug("the queues are asked about one by one: %s", error)
            return {}

    def _bounds_of(self, name: str, run: str, answer: Bounds | None, *, must: bool) -> Bounds | None:
        """Return what a queue has, by this answer of the broker or, without one, by asking."""
        reader = self._reader(name)
        if answer is not None:
            reader.take_bounds(run, answer)
            return answer
        return reader.bounds_now() if must else reader.current_bounds(run)

    def _queues(self) -> tuple[str, ...]:
        """The queues that are read now."""
        now = time.monotonic()
        may_change = self._options.queue_pattern is not None and not self._is_frozen
        if self._names is None or (may_change and now - self._listed >= LISTING_SECONDS):
            self._listed = now
            try:
                self._names = self._list(None if self._names is None else 0)
                self._readers = {name: each for name, each in self._readers.items() if name in self._names}
            except (ConnectionLostException, OperationTimedOutException) as error:
                if self._names is None:
                    raise
                _log.warning("the broker does not tell its queues: %s", error)
        return self._names

    def _list(self, seconds: float | None) -> tuple[str, ...]:
        """The names of the queues, as the broker tells them now; ``seconds``: how long to try."""
        found = with_retries(self._options, lambda connection: one_by_one(connection, self._options), seconds)
        return tuple(each.queue or "" for each in found)

    def _leave_out(self, name: str, error: InvalidDestinationException, *, is_known: bool) -> None:
        """Go on without a queue that was deleted since its name was found; raise the error where data is lost.

        One that was made again meanwhile is found as a new one.

        Args:
            name: of the queue.
            error: with which the broker has answered.
            is_known: whether the offset has the queue, so that data is lost with it.
        """
        if self._options.queue_pattern is None:
            raise error
        if self._names is None or name in self._names:  # it is not among those that were found to be gone before
            there = self._list(None)
            if name in there and is_known and self._options.fail_on_data_loss:
                raise error
            if self._is_frozen:  # where it was made again since, that is for the next query
                there = tuple(each for each in there if each != name)
            self._names = there if self._names is None else tuple(each for each in self._names if each in there)
        self._readers.pop(name, None)
        if is_known:
            self._tell_of_gone((name,), ())

    def _tell_of_gone(self, known: Iterable[str], names: tuple[str, ...]) -> None:
        gone = sorted(set(known) - set(names))
        if not gone:
            return
        if self._options.fail_on_data_loss:
            raise InvalidDestinationException(
                f"data is lost: the queue {gone[0]!r}, which the checkpoint has, was deleted, or the options do not"
                " name it any more. To go on with the others, set failOnDataLoss=false; or start the query with a new"
                " checkpoint and takeOver=true"
            )
        self._log.warning(f"going on without the queues that were deleted: {', '.join(map(repr, gone))}")

    # In the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, RangePartition)
        return read_range(partition)


def _split(fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The offset of each queue.

    Raises:
        ValueError: it is no offset of several queues.
    """
    queues = fields.get(_QUEUES)
    if not isinstance(queues, dict):
        raise ValueError(
            f"{fields!r} is not an offset of several queues; was the checkpoint made with the option 'queue', or by"
            " another source?"
        )
    return queues


def _joined(offsets: dict[str, Any]) -> dict[str, Any]:
    return {_QUEUES: dict(sorted(offsets.items()))}


def _known(bounds: Bounds | None) -> Bounds:
    assert bounds is not None
    return bounds


def _begin_of(end: dict[str, Any]) -> dict[str, Any]:
    """Return where a queue began that was found in the batch that ends here."""
    goal = offset_from(end)
    return goal._replace(next=goal.base).to_json()


def _count(start: dict[str, Any], end: dict[str, Any], bounds: Bounds | None) -> int:
    """Return how many positions a batch has, of a queue that has this now."""
    first, stop = span(offset_from(start), offset_from(end))
    return max(0, stop - (first if bounds is None else max(first, bounds.first)))
