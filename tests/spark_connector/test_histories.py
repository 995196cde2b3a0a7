"""Histories at random of a query, its broker and its backups: nothing is settled unread, nothing is written twice.

Spark's part is played here, as it calls sources and sinks: so a history takes milliseconds instead of seconds.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyspark.sql.streaming.datasource import ReadMaxRows

from broker_adapter import Destination
from sdk import InvalidDestinationException
from sdk.range_reader import RangeReader
from spark_connector.batches import Attempt
from spark_connector.connections import connection_for, drop_connection
from spark_connector.options import SinkOptions, SourceOptions
from spark_connector.stream_reader import JmsStreamReader
from spark_connector.writer import JmsStreamWriter, TaskWriter, Written
from tests.spark_connector.queues import staged, texts

pytestmark = pytest.mark.timeout(3000)
HISTORIES = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def bodies(url: str, queue: str) -> list[str]:
    """What waits in a queue, by position."""
    reader = RangeReader(connection_for(SourceOptions(url=url, queue=queue)), Destination(queue))
    bounds = reader.bounds()
    return [each.envelope().body for chunk in reader.read(bounds.first, bounds.next - 1) for each in chunk]


class Source(RuleBasedStateMachine):
    """A query that reads a queue, batch by batch, over a broker that is restarted, backed up and restored."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.sent = 0
        self.unread: set[str] = set()  #: what the store has, or had, and the query has not read
        self.backup: tuple[Path, set[str]] | None = None
        self.restored = False
        self.checkpoint: dict[str, Any] | None = None  #: the end of the last batch that is done
        self.planned: tuple[dict[str, Any], dict[str, Any]] | None = None  #: a batch that is logged, and not done

    @initialize(fails=st.booleans())
    def begin(self, fails: bool) -> None:
        self.options = SourceOptions(
            url=f"embedded:{self.path / 'data'}",
            queue="in",
            fail_on_data_loss=fails,
            head_refresh_seconds=0.0,
            max_messages_per_partition=3,
            fetch_bytes=50,
        )
        self.reader = JmsStreamReader(self.options, ("text",))

    def teardown(self) -> None:
        if hasattr(self, "options"):
            self.stop_broker()
        shutil.rmtree(self.path)

    def stop_broker(self) -> None:
        drop_connection(self.options)

    @rule(count=st.integers(1, 8))
    def send(self, count: int) -> None:
        new = [str(number) for number in range(self.sent, self.sent + count)]
        self.sent += count
        with connection_for(self.options).create_session() as session:
            producer = session.create_producer(session.create_queue("in"))
            for text in new:
                producer.send(text)
        self.unread |= set(new)

    @rule()
    def restart_the_broker(self) -> None:
        self.stop_broker()

    @rule()
    def back_up(self) -> None:
        self.stop_broker()
        if self.backup is not None:
            shutil.rmtree(self.backup[0])
        copy = self.path / "copy"
        if (self.path / "data").exists():
            shutil.copytree(self.path / "data", copy)
            self.backup = copy, set(bodies(self.options.url, "in"))
            self.stop_broker()

    @precondition(lambda self: self.backup is not None)
    @rule(new=st.integers(0, 30), restarts=st.integers(0, 2))
    def restore(self, new: int, restarts: int) -> None:
        assert self.backup is not None
        self.stop_broker()
        shutil.rmtree(self.path / "data")
        shutil.copytree(self.backup[0], self.path / "data")
        had = self.backup[1]
        # What it had and the query has read may come once more, and may be taken; the rest is lost with the store.
        self.unread &= had
        self.restored = True
        self.send(new)
        for _ in range(restarts):
            bodies(self.options.url, "in")
            self.stop_broker()

    @rule()
    def restart_the_query(self) -> None:
        self.reader = JmsStreamReader(self.options, ("text",))

    @rule(most=st.integers(1, 10), dies=st.sampled_from([None, None, None, "planned", "read"]))
    def run_a_batch(self, most: int, dies: str | None) -> None:
        try:
            self.batch(most, dies)
        except InvalidDestinationException:
            self.is_told_of_loss()

    def batch(self, most: int, dies: str | None) -> bool:
        """As Spark does it; returns whether there was something to do."""
        reader = self.reader
        if self.planned is None:
            start = self.checkpoint or reader.initialOffset()
            end = reader.latestOffset(start, ReadMaxRows(most))
            if json.dumps(end) == json.dumps(start):
                return False
            self.planned = start, end
            if self.checkpoint is not None:
                reader.commit(self.checkpoint)
        start, end = self.planned
        if dies == "planned":
            self.reader = JmsStreamReader(self.options, ("text",))
            return True
        found = []
        for partition in reader.partitions(start, end):
            for _ in range(2):  # executors may read a range as often as they want
                rows = [row["text"] for batch in reader.read(partition) for row in batch.to_pylist()]
            found += rows
        if dies == "read":
            self.reader = JmsStreamReader(self.options, ("text",))
            return True
        assert len(found) == len(set(found))
        if not self.restored:
            assert set(found) <= self.unread, "read twice"
        self.unread -= set(found)
        self.checkpoint, self.planned = end, None
        return True

    @invariant()
    def nothing_is_gone_unread(self) -> None:
        if hasattr(self, "options"):
            assert self.unread <= set(bodies(self.options.url, "in"))

    @precondition(lambda self: hasattr(self, "options"))
    @rule()
    def run_until_it_is_idle(self) -> None:
        try:
            while self.batch(7, None):
                pass
        except InvalidDestinationException:
            self.is_told_of_loss()
            return
        assert not self.unread
        assert bodies(self.options.url, "in") == []

    def is_told_of_loss(self) -> None:
        assert self.options.fail_on_data_loss
        assert self.restored
        self.reader = JmsStreamReader(self.options, ("text",))  # as the query is started again


TASKS = ["works", "fails", "is killed", "runs twice, the first counts", "runs twice, the second counts"]


class Sink(RuleBasedStateMachine):
    """A query that writes batches, whose attempts and drivers fail at any moment, beside another one.

    Each row names one of two queues, or leaves it to the option.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.options = SinkOptions(url=f"embedded:{self.path}", queue="out")
        self.runs = {"x": "run", "y": "run"}
        self.batches = {"x": 0, "y": 0}
        self.written: list[str] = []
        self.left: list[Iterator[None]] = []

    def teardown(self) -> None:
        drop_connection(self.options)
        shutil.rmtree(self.path)

    def attempt(self, query: str, partition: int, number: int, speculation: bool) -> TaskWriter:
        attempt = Attempt(self.runs[query], partition, number, str(uuid4()))
        return TaskWriter(self.options, query, self.batches[query], attempt, speculation)

    def rows(self, query: str, partition: int) -> list[str]:
        return [f"{query}{self.batches[query]}.{partition}.{number}" for number in range(3)]

    def write(self, query: str, partition: int, how: str) -> Written:
        """One task, with the attempts that it takes."""
        rows = self.rows(query, partition)
        number = 0
        if how == "fails":
            with pytest.raises(RuntimeError):
                self.attempt(query, partition, 0, False).write(self.batches_of(rows[:2], RuntimeError()))
            number = 1
        elif how == "is killed":
            killed = self.attempt(query, partition, 0, False)
            try:
                killed.write(self.stopping(self.batches_of(rows[:2], None)))
            except _KilledError:
                pass
            number = 1
        twice = how.startswith("runs twice")
        written = self.attempt(query, partition, number, twice).write(self.batches_of(rows, None))
        if twice:
            other = self.attempt(query, partition, number + 1, True).write(self.batches_of(rows, None))
            return written if "first" in how else other
        return written

    @staticmethod
    def queue_of(row: str) -> str:
        return "other" if row.endswith("1") else "out"

    @staticmethod
    def batches_of(rows: Any, error: Exception | None) -> Iterator[pa.RecordBatch]:
        for row in rows:
            queue = None if row.endswith("0") else Sink.queue_of(row)
            yield pa.RecordBatch.from_pydict({"value": [row], "queue": pa.array([queue], pa.string())})
        if error is not None:
            raise error

    def stopping(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Ends as SIGKILL ends a task: with no connection to clean up with."""
        yield from batches
        drop_connection(self.options)
        raise _KilledError

    @rule(
        query=st.sampled_from("xy"),
        hows=st.lists(st.sampled_from(TASKS), min_size=1, max_size=3),
        then=st.sampled_from(["goes on", "goes on", "dies", "dies published", "aborts"]),
    )
    def run_a_batch(self, query: str, hows: list[str], then: str) -> None:
        written = [self.write(query, partition, how) for partition, how in enumerate(hows)]
        driver = JmsStreamWriter(self.options)
        number = self.batches[query]
        if then == "aborts":
            driver.abort([*written[1:], None], number)
        elif then != "dies":
            driver.commit([*written], number)
            rows = [row for partition in range(len(hows)) for row in self.rows(query, partition)]
            if rows[0] not in self.written:
                self.written += rows
            assert not [name for name, _ in staged(self.options.url) if name.startswith(f"spark/{query}/")]
            if then == "goes on":
                self.batches[query] += 1
        if then != "goes on":
            self.runs[query] = str(uuid4())  # the query is started again, and runs the batch again

    @rule()
    def restart_the_broker(self) -> None:
        drop_connection(self.options)

    @invariant()
    def what_was_published_is_there_once(self) -> None:
        for queue in ("out", "other"):
            assert texts(self.options.url, queue) == [row for row in self.written if self.queue_of(row) == queue]


class _KilledError(BaseException):
    """A task that was killed."""


TestSource = Source.TestCase
TestSource.settings = HISTORIES
TestSink = Sink.TestCase
TestSink.settings = HISTORIES
