"""Attempts of tasks that write, and the driver that publishes, over real brokers; no Spark runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import pyarrow as pa
import pytest

from broker_adapter import BodyKind, Destination, Envelope
from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.envelope import MAX_PROPERTIES
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from sdk import (
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    MessageProducer,
    ResourceAllocationException,
)
from sdk.range_reader import discard, renew, send_envelopes
from sdk.range_reader import publish as publish_staged
from spark_connector import rows as spark_rows
from spark_connector import writer as spark_writer
from spark_connector.batches import Attempt
from spark_connector.connections import connection_for, drop_connection
from spark_connector.options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from spark_connector.renewal import Renewal
from spark_connector.rows import RowError
from spark_connector.writer import JmsBatchWriter, JmsStreamWriter, TaskWriter, Unsent, Written, refused
from tests.spark_connector.queues import away_once, browse, fill, texts

WAIT = 120.0  #: seconds; longer than anything takes, so that a hanging test ends


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(max_message_bytes=100_000), str(tmp_path))
    yield broker
    broker.close()


def served(broker: Broker) -> Iterator[SinkOptions]:
    """For a fixture: what writes to a broker, which is served meanwhile."""
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    _, port = listener.start()
    options = SinkOptions(url=f"amqp://127.0.0.1:{port}", queue="out")
    yield options
    drop_connection(options)
    listener.stop()


@pytest.fixture
def options(broker: Broker) -> Iterator[SinkOptions]:
    yield from served(broker)


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def routed(**queues: str | None) -> pa.RecordBatch:
    """Rows with these values, and the queues to which they go."""
    return pa.RecordBatch.from_pydict({"value": list(queues), "queue": pa.array(queues.values(), pa.string())})


def writer(
    options: SinkOptions,
    attempt: int = 0,
    *,
    run: str = "run",
    batch: int = 0,
    partition: int = 0,
    speculation: bool = False,
) -> TaskWriter:
    return TaskWriter(options, "query", batch, Attempt(run, partition, attempt, str(uuid4())), speculation)


def staged(broker: Broker) -> list[str]:
    """The tasks that have staged something: ``BATCH/RUN.PARTITION.ATTEMPT``."""
    return sorted("/".join(name.split("/")[-2:]).rpartition(".")[0] for name in broker._state.directory.staged)


def publish(options: SinkOptions, number: int, *written: Written | None) -> None:
    JmsStreamWriter(options).commit(list(written), number)


class Running:
    """An attempt in a thread of its own, which has staged its first rows and waits with the others."""

    def __init__(self, task: TaskWriter, *batches: pa.RecordBatch) -> None:
        self.task = task
        self._batches = batches
        self._go = threading.Event()
        self._waiting = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._result = self._pool.submit(task.write, self._rows())
        assert self._waiting.wait(WAIT)

    def _rows(self) -> Iterator[pa.RecordBatch]:
        yield self._batches[0]
        self._waiting.set()
        assert self._go.wait(WAIT)
        yield from self._batches[1:]

    def finish(self) -> Written:
        """Let it go on to its end."""
        self._go.set()
        try:
            return self._result.result(WAIT)
        finally:
            self._pool.shutdown()


def test_a_batch_is_published_once_and_what_is_dropped_is_said(
    options: SinkOptions, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    publish(options, 7, writer(options, batch=7).write(iter([rows("a", "b")])), None)
    assert caplog.text == ""
    publish(options, 7, writer(options, batch=7).write(iter([rows("b"), rows(), rows("a")])))
    assert texts(options.url, "out") == ["a", "b"]
    assert "batch 7 of the query was published to queue 'out' before, so its 2 messages were dropped" in caplog.text
    assert "last batch published is 7" in caplog.text
    assert connection_for(options).statistics().duplicates_rejected == 1  # the others did not even come
    assert staged(broker) == []


def test_a_batch_without_rows_is_neither_staged_nor_published(options: SinkOptions, broker: Broker) -> None:
    written = writer(options).write(iter([rows(), rows()]))
    assert (written.transactions, written.count, staged(broker)) == ((), 0, [])
    publish(options, 0, written)
    publish(options, 0, writer(options).write(iter([rows("a")])))
    assert texts(options.url, "out") == ["a"]


def test_another_queue_or_producer_id_writes_the_same_batch_again(
    options: SinkOptions, caplog: pytest.LogCaptureFixture
) -> None:
    for target in (options, attrs.evolve(options, queue="other"), attrs.evolve(options, producer_id="again")):
        publish(target, 0, writer(target).write(iter([rows("a")])))
    assert (texts(options.url, "out"), texts(options.url, "other")) == (["a", "a"], ["a"])
    assert caplog.text == ""


def test_a_batch_that_another_driver_has_published_meanwhile_is_reported(
    options: SinkOptions, caplog: pytest.LogCaptureFixture
) -> None:
    publish(options, 1, writer(options, batch=1).write(iter([rows("one")])))
    written = writer(options, batch=2).write(iter([rows("two")]))
    publish_staged(connection_for(options), written.group, 2, [])  # this process knows nothing of it
    publish(options, 2, written)
    assert texts(options.url, "out") == ["one"]
    assert "batch 2 of the query was published to queue 'out' before, so its 1 message was dropped" in caplog.text


def test_a_broker_that_has_forgotten_what_this_process_has_published_takes_it_without_a_word(
    options: SinkOptions, caplog: pytest.LogCaptureFixture, broker: Broker
) -> None:
    written = writer(options, batch=2).write(iter([rows("two")]))
    spark_writer._published[written.group, options.url] = 5
    publish(options, 2, written)
    assert texts(options.url, "out") == ["two"]
    assert caplog.text == ""


def test_what_a_process_knows_of_groups_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_writer, "MAX_GROUPS", 2)
    known: dict[str, int] = {}
    for number, name in enumerate("abbc"):
        spark_writer._note(known, name, number)
    assert known == {"c": 3}


def test_a_publication_whose_answer_was_lost_is_not_taken_for_an_earlier_one(
    options: SinkOptions, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True])

    def lost_once(*arguments: object) -> bool:
        done = publish_staged(*arguments)  # type: ignore[arg-type]
        if next(answers, False):
            raise ConnectionLostException("the answer is lost")
        return done

    written = writer(options).write(iter([rows("a")]))
    monkeypatch.setattr("spark_connector.writer.publish", lost_once)
    publish(options, 0, written)
    assert texts(options.url, "out") == ["a"]
    assert "before" not in caplog.text


@pytest.mark.parametrize("error", [RuntimeError, EOFError, KeyboardInterrupt, SystemExit])
def test_an_attempt_that_fails_for_any_reason_drops_what_it_staged(
    options: SinkOptions, broker: Broker, error: type[BaseException]
) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows("a")
        assert staged(broker) == ["0/run.0.0"]
        raise error("failed")

    with pytest.raises(error):
        writer(options).write(failing())
    assert staged(broker) == []


def test_the_next_attempt_drops_what_a_killed_one_staged(options: SinkOptions, broker: Broker) -> None:
    killed = Running(writer(options), rows("a"), rows("b"))
    other = Running(writer(options, partition=10), rows("c"))
    written = writer(options, 1).write(iter([rows("b", "a")]))
    assert staged(broker) == ["0/run.0.1", "0/run.10.0"]
    with pytest.raises(IllegalStateException, match="superseded"):
        killed.finish()  # it was not dead after all, and does no harm
    publish(options, 0, written, other.finish())
    assert sorted(texts(options.url, "out")) == ["a", "b", "c"]
    assert staged(broker) == []


@pytest.mark.parametrize("speculation", [False, True])
def test_the_next_run_of_a_query_drops_what_the_one_before_staged_for_the_same_batch(
    options: SinkOptions, broker: Broker, speculation: bool
) -> None:
    for batch in (4, 5):
        writer(options, batch=batch, partition=batch).write(iter([rows("a")]))
    again = Running(writer(options, run="again", batch=5, speculation=speculation), rows("b"), rows("c"))
    writer(options, run="again", batch=5, partition=1, speculation=speculation).write(iter([rows("d")]))
    assert staged(broker) == ["5/again.0.0", "5/again.1.0"]
    assert again.finish().count == 2


@pytest.mark.parametrize("winner", [0, 1])
def test_of_two_attempts_that_run_at_once_either_may_count(options: SinkOptions, broker: Broker, winner: int) -> None:
    attempts = [Running(writer(options, number, speculation=True), rows("a"), rows("b")) for number in (0, 1)]
    written = [attempt.finish() for attempt in attempts]
    assert staged(broker) == ["0/run.0.0", "0/run.0.1"]
    publish(options, 0, written[winner])
    assert texts(options.url, "out") == ["a", "b"]
    assert staged(broker) == []


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Broker]:
    """A broker that keeps what is staged for four seconds."""
    broker = Broker(EngineSettings(staged_timeout_seconds=4), str(tmp_path / "hasty"))
    yield broker
    broker.close()


@pytest.fixture
def hasty_options(hasty: Broker) -> Iterator[SinkOptions]:
    yield from served(hasty)


def slow(*batches: pa.RecordBatch, silent: int = 0, seconds: float = 9.0) -> Iterator[pa.RecordBatch]:
    """Rows of a task that computes for long before one of its batches."""
    for number, batch in enumerate(batches):
        if number == silent:
            time.sleep(seconds)
        yield batch


def wait_until_nothing_is_staged(broker: Broker) -> None:
    deadline = time.monotonic() + WAIT
    while staged(broker):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("silent", [0, 1])
def test_a_batch_is_kept_for_as_long_as_one_of_its_tasks_computes(hasty_options: SinkOptions, silent: int) -> None:
    written = writer(hasty_options).write(iter([rows("a")]))
    last = writer(hasty_options, partition=1).write(slow(rows("b"), rows("c"), silent=silent))
    publish(hasty_options, 0, written, last)
    assert texts(hasty_options.url, "out") == ["a", "b", "c"]


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_what_is_staged_is_dropped_when_no_task_of_its_batch_runs_any_more(
    hasty_options: SinkOptions, hasty: Broker, error: type[Exception] | None
) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from slow(rows("b"), seconds=4)
        if error is not None:
            raise error("failed")

    writer(hasty_options).write(iter([rows("a")]))
    with suppress(RuntimeError):
        writer(hasty_options, partition=1).write(failing())
    assert "0/run.0.0" in staged(hasty)
    wait_until_nothing_is_staged(hasty)


def test_a_lost_connection_does_not_end_the_renewals(
    hasty_options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []

    def failing(connection: Connection, group: str, number: int) -> float | None:
        if len(lost) in (1, 2):
            lost.append(number)
            connection.close()
            raise ConnectionLostException("lost")
        lost.append(number)
        return renew(connection, group, number)

    monkeypatch.setattr("spark_connector.renewal.renew", failing)
    written = writer(hasty_options).write(iter([rows("a")]))
    lost.clear()
    last = writer(hasty_options, partition=1).write(slow(rows("b"), rows("c"), silent=1))
    publish(hasty_options, 0, written, last)
    assert texts(hasty_options.url, "out") == ["a", "b", "c"]


def test_a_password_that_cannot_be_read_does_not_end_the_renewals(
    options: SinkOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file may be about to be replaced by another one."""
    with Renewal(attrs.evolve(options, password_file=str(tmp_path / "none")), "group", 0) as renewal:
        deadline = time.monotonic() + WAIT
        while "a batch is still being written: passwordFile=" not in caplog.text:
            assert time.monotonic() < deadline
            assert renewal._thread.is_alive()
            time.sleep(0.01)
        assert renewal._thread.is_alive()


def test_a_newer_batch_drops_what_an_older_one_left(options: SinkOptions, broker: Broker) -> None:
    left = Running(writer(options, batch=3), rows("a"), rows("b"))
    written = writer(options, batch=4).write(iter([rows("c")]))
    assert staged(broker) == ["4/run.0.0"]
    with pytest.raises(IllegalStateException):
        left.finish()
    publish(options, 4, written)
    assert texts(options.url, "out") == ["c"]


def test_an_aborted_batch_drops_what_all_its_attempts_staged(options: SinkOptions, broker: Broker) -> None:
    written = writer(options, batch=3).write(iter([rows("a")]))
    killed = Running(writer(options, batch=3, partition=1), rows("b"))
    JmsStreamWriter(options).abort([written, None], 3)
    assert staged(broker) == []
    JmsStreamWriter(options).abort([None, None], 3)
    assert killed.finish().count == 1


def test_an_aborted_job_drops_it_also_where_no_task_has_ended(options: SinkOptions, broker: Broker) -> None:
    job = JmsBatchWriter(options, speculation=False)
    killed = Running(TaskWriter(options, job._job, 0, Attempt("job", 0, 0, "w"), False), rows("a"), rows("b"))
    other = writer(options).write(iter([rows("b")]))
    job.abort([None])
    assert broker._state.directory.staged.keys() == dict(other.transactions).keys()
    assert killed.finish().dropped
    late = TaskWriter(options, job._job, 0, Attempt("job", 1, 3, "w"), False).write(iter([rows("c")]))
    assert (late.transactions, late.dropped) == ((), True)
    assert broker._state.directory.staged.keys() == dict(other.transactions).keys()


def test_an_attempt_that_comes_after_its_batch_was_published_stages_nothing(
    options: SinkOptions, broker: Broker
) -> None:
    late = Running(writer(options, 1, speculation=True), rows("a"), rows("b"), rows("c"))
    publish(options, 0, writer(options, speculation=True).write(iter([rows("a", "b", "c")])))
    assert late.finish() == Written(late.task.group, (), 3, dropped=True)
    assert (texts(options.url, "out"), staged(broker)) == (["a", "b", "c"], [])


def test_an_abort_after_the_batch_was_published_takes_nothing_back(options: SinkOptions) -> None:
    written = writer(options).write(iter([rows("a")]))
    publish(options, 0, written)
    JmsStreamWriter(options).abort([written], 0)
    assert texts(options.url, "out") == ["a"]


def test_a_batch_whose_staged_rows_are_gone_is_an_error_and_publishes_nothing(
    options: SinkOptions, broker: Broker
) -> None:
    first, second = (writer(options, partition=number).write(iter([rows("a", "b")])) for number in (0, 1))
    discard(connection_for(options), [name for name, _ in second.transactions])
    with pytest.raises(InvalidDestinationException, match="does not exist"):
        publish(options, 0, first, second)
    with pytest.raises(IllegalStateException, match="has 2 messages, not 3"):
        publish(options, 0, attrs.evolve(first, transactions=((first.transactions[0][0], 3),)))
    assert texts(options.url, "out") == []


@pytest.fixture
def full(tmp_path: Path) -> Iterator[SinkOptions]:
    """For a broker whose queue "out" has room for one message more."""
    broker = Broker(EngineSettings(max_queue_messages=2), str(tmp_path / "full"))
    for options in served(broker):
        fill(options.url, "out", ["first"])
        yield options
    broker.close()


def take(options: SinkOptions, *expected: str) -> None:
    """Take messages from the queue."""
    with ConnectionFactory(options.url).create_connection() as connection, connection.create_session() as session:
        connection.start()
        consumer = session.create_consumer(session.create_queue("out"))
        received = [consumer.receive(WAIT) for _ in expected]
        assert [message.body for message in received if message is not None] == list(expected)


def test_a_batch_that_finds_no_room_fails_with_the_reason_and_is_published_once_when_there_is(
    full: SinkOptions, caplog: pytest.LogCaptureFixture
) -> None:
    written = writer(full).write(iter([rows("a", "b")]))
    with pytest.raises(ResourceAllocationException, match=r"'out' .*; a publication does not wait for room"):
        publish(attrs.evolve(full, retry_seconds=0.0), 0, written)
    assert texts(full.url, "out") == ["first"]
    take(full, "first")
    publish(full, 0, written)
    publish(full, 0, written)
    assert texts(full.url, "out") == ["a", "b"]
    assert "trying again" not in caplog.text


def test_the_driver_waits_for_room(full: SinkOptions) -> None:
    class Consumer(logging.Handler):
        """Makes room after the second attempt."""

        def __init__(self) -> None:
            super().__init__(logging.WARNING)
            self.refusals: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.refusals.append(record.getMessage())
            if len(self.refusals) == 2:
                take(full, "first")

    log = logging.getLogger("holdfast.spark_connector.connections")
    consumer = Consumer()
    log.addHandler(consumer)
    try:
        publish(attrs.evolve(full, retry_seconds=WAIT), 0, writer(full).write(iter([rows("a", "b")])))
    finally:
        log.removeHandler(consumer)
    assert texts(full.url, "out") == ["a", "b"]
    assert len(consumer.refusals) == 2


def test_two_queries_write_to_one_queue_at_once(options: SinkOptions, broker: Broker) -> None:
    def of(query: str, batch: int) -> TaskWriter:
        return attrs.evolve(writer(options, batch=batch), writer=query)

    running = {query: Running(of(query, 0), rows(f"{query}0"), rows(f"{query}1")) for query in ("x", "y")}
    publish(options, 0, running["x"].finish())
    publish(options, 1, of("x", 1).write(iter([rows("x2")])))
    publish(options, 0, running["y"].finish())
    assert texts(options.url, "out") == ["x0", "x1", "x2", "y0", "y1"]
    assert staged(broker) == []


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_row_that_cannot_be_a_message_is_named_with_its_partition(
    options: SinkOptions, broker: Broker, guarantee: str
) -> None:
    good = pa.RecordBatch.from_pydict({"value": ["x"] * 5, "priority": [4] * 5})
    bad = pa.RecordBatch.from_pydict({"value": ["x"] * 2, "priority": [4, 11]})
    task = writer(attrs.evolve(options, guarantee=guarantee), partition=3)
    with pytest.raises(
        RowError, match=r"partition 3, row 7: column 'priority' has the value 11: it is not from 0 to 9"
    ):
        task.write(iter([good, bad]))
    assert staged(broker) == []
    assert texts(options.url, "out") == []


def test_a_row_that_is_too_large_is_named(options: SinkOptions, broker: Broker) -> None:
    large = pa.RecordBatch.from_pydict({"value": ["x", "y" * 200_000, "z"], "key": ["k", "k", "k"]})
    with pytest.raises(
        RowError, match=r"partition 0, row 3: column 'value' has the value 'yyy.* larger than the limit"
    ):
        writer(options).write(iter([rows("a"), large]))
    assert staged(broker) == []


def with_properties(*properties: dict[str, str]) -> pa.RecordBatch:
    kind = pa.map_(pa.string(), pa.string())
    maps = pa.array([list(each.items()) for each in properties], kind)
    return pa.RecordBatch.from_arrays([pa.array(["v"] * len(properties)), maps], ["value", "properties"])


MANY = {str(number): "v" for number in range(MAX_PROPERTIES + 1)}
TOO_LARGE_ROWS = {
    "a text above the limit of the broker": (rows("x", "y" * 200_000, "z"), 5, "value"),
    "a text above what a transfer may have": (rows("x", "y" * 20_000_000), 5, "value"),
    "a property above the limit": (with_properties({}, {}, {"p": "y" * 200_000}, {}), 6, "properties"),
    "too many properties": (with_properties({}, MANY, {}, MANY), 5, "properties"),
    "a row behind a thousand": (rows(*"x" * 1200, "y" * 200_000, *"x" * 10), 1204, "value"),
}


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
@pytest.mark.parametrize(("bad", "row", "column"), TOO_LARGE_ROWS.values(), ids=TOO_LARGE_ROWS)
def test_a_row_that_is_larger_than_a_message_may_be_is_named_under_each_guarantee(
    options: SinkOptions, broker: Broker, guarantee: str, bad: pa.RecordBatch, row: int, column: str
) -> None:
    task = writer(attrs.evolve(options, guarantee=guarantee), partition=2)
    with pytest.raises(RowError, match=rf"partition 2, row {row}: column '{column}' has the value .* limit"):
        task.write(iter([rows("a", "b"), rows("c"), bad]))
    assert staged(broker) == []
    written = texts(options.url, "out")
    assert not written or guarantee == AT_LEAST_ONCE  # others may be there, and are repeated with the task
    assert not [text for text in written if len(text) > 100_000]
    assert task.write(iter([rows("a")])).count == 1, "the connection can be used"


def unsent(*parts: tuple[pa.RecordBatch, int, int]) -> Unsent:
    """Rows (batch, place of the first one, its number) that are sent together, each batch to its end."""
    waiting = Unsent()
    for batch, place, number in parts:
        waiting.begin(batch, place, number)
        waiting.envelopes += [Envelope(Destination("q"), BodyKind.TEXT, None)] * (batch.num_rows - place)
    return waiting


@pytest.mark.parametrize(
    ("index", "row", "value"), [(0, 13, "cc"), (1, 14, "d"), (2, 15, "eee"), (3, 16, "f"), (4, 17, "g")]
)
def test_a_row_that_is_refused_is_named_in_whichever_batch_it_is(index: int, row: int, value: str) -> None:
    batches = rows("a", "b", "cc", "d"), rows("x").slice(1), rows("eee"), rows("f", "g")
    waiting = unsent((batches[0], 2, 12), (batches[1], 0, 14), (batches[2], 0, 14), (batches[3], 0, 15))
    error = waiting.refusal(index, ResourceAllocationException("too large"))
    assert f"row {row}: column 'value' has the value '{value}'" in str(error)


def test_a_row_behind_those_that_were_sent_at_the_end_of_a_batch_is_named() -> None:
    waiting = unsent((rows("a", "b"), 2, 7), (rows("c"), 0, 7))
    assert "row 8: column 'value' has the value 'c'" in str(waiting.refusal(0, ResourceAllocationException("no")))


def test_an_error_of_no_row_names_none() -> None:
    waiting = unsent((rows("a", "bbb", "c"), 0, 6))
    full = ResourceAllocationException("the disk is full")
    refused(full, waiting)
    full.failures = {1: full}
    refused(full, waiting)
    too_large = ResourceAllocationException("too large", error_code="amqp:link:message-size-exceeded")
    several = ResourceAllocationException("2 of 3 messages failed")
    several.failures = {0: full, 1: too_large}
    with pytest.raises(RowError, match="row 8: column 'value' has the value 'bbb': too large"):
        refused(several, waiting)


def test_at_least_once_rows_keep_their_own_priority_and_expiration(options: SinkOptions) -> None:
    once = attrs.evolve(options, guarantee=AT_LEAST_ONCE, priority=2, time_to_live=3600.0)
    never = 253_402_300_799_000_000
    own = [0, 9, None, 5, None]
    expirations = pa.array([4_102_444_800_000_000, None, never, None, None], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(list("abcde")), pa.array(own), expirations], ["value", "priority", "expiration"]
    )
    now_ms = int(time.time() * 1000)
    assert writer(once).write(iter([batch])).count == 5
    found = {message.body: message for message in browse(options.url, "out")}
    assert {body: message.priority for body, message in found.items()} == {"a": 0, "b": 9, "c": 2, "d": 5, "e": 2}
    assert abs((found["a"].expires_at_ms or 0) - 4_102_444_800_000) < 60_000
    assert found["c"].expires_at_ms is None
    assert all(abs((found[body].expires_at_ms or 0) - now_ms - 3_600_000) < 600_000 for body in "bde")


def test_at_least_once_no_more_than_a_thousand_rows_or_four_mebibytes_are_under_way(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = attrs.evolve(options, guarantee=AT_LEAST_ONCE)
    parts: list[int] = []

    def noted(producer: MessageProducer, envelopes: list[Envelope]) -> None:
        parts.append(len(envelopes))
        send_envelopes(producer, envelopes)

    monkeypatch.setattr(spark_writer, "send_envelopes", noted)
    assert writer(once).write(iter([rows(*map(str, range(2500))), rows(*["x" * 90_000] * 100)])).count == 2600
    assert sum(parts) == 2600
    assert max(parts) == 1000
    assert parts[:2] == [1000, 1000]
    assert parts[2] == 500 + -(-(4 * 1024 * 1024 - sum(len(str(each)) for each in range(2000, 2500))) // 90_000)


@pytest.mark.parametrize("column", ["properties", "key"])
def test_at_least_once_what_a_row_has_beside_its_body_counts_as_well(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    once = attrs.evolve(options, guarantee=AT_LEAST_ONCE)
    parts: list[int] = []
    monkeypatch.setattr(spark_writer, "send_envelopes", lambda _, envelopes: parts.append(len(envelopes)))
    large = "x" * (1024 * 1024)
    row: dict[str, Any] = {"value": "v", "properties": [("p", large)]} if column == "properties" else {"key": large}
    schema = pa.schema(
        [("value", pa.string()), ("key", pa.string()), ("properties", pa.map_(pa.string(), pa.string()))]
    )
    batch = pa.RecordBatch.from_pylist([row] * 9, schema=schema)
    assert writer(once).write(iter([batch, batch])).count == 18
    assert parts == [4, 4, 4, 4, 2]


def test_a_broker_that_takes_less_at_once_than_a_batch_has_gets_it_in_parts(options: SinkOptions) -> None:
    values = [f"{number:05}" + "x" * 200 for number in range(5000)]
    publish(options, 0, writer(options).write(iter([rows(*values), rows("last")])))
    assert texts(options.url, "out") == [*values, "last"]


def test_at_least_once_a_task_that_is_tried_again_loses_nothing(options: SinkOptions) -> None:
    once = attrs.evolve(options, guarantee=AT_LEAST_ONCE)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(*map(str, range(1500)))
        raise RuntimeError("failed")

    with pytest.raises(RuntimeError):
        writer(once).write(failing())
    assert writer(once, 1).write(iter([rows(*map(str, range(1500)))])).count == 1500
    found = texts(options.url, "out")
    assert set(found) == set(map(str, range(1500)))
    assert len(found) == 1500 + 1000  # the first thousand was committed by itself


def test_at_least_once_a_task_waits_for_a_broker_that_is_away_as_it_begins(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        away = away_once(patch)
        once = attrs.evolve(options, guarantee=AT_LEAST_ONCE)
        assert writer(once).write(iter([rows("a", "b")])).count == 2
    assert next(away, None) is None
    assert texts(options.url, "out") == ["a", "b"]


def test_at_least_once_a_row_that_expires_in_centuries_is_written(options: SinkOptions) -> None:
    once = attrs.evolve(options, guarantee=AT_LEAST_ONCE)
    micros = pa.array([253_402_300_799_000_000, 4_102_444_800_000_000], pa.timestamp("us", tz="UTC"))
    writer(once).write(iter([pa.RecordBatch.from_arrays([pa.array(["a", "b"]), micros], ["value", "expiration"])]))
    never, soon = browse(options.url, "out")
    assert never.expires_at_ms is None
    assert abs((soon.expires_at_ms or 0) - 4_102_444_800_000) < 60_000


def test_the_end_of_a_job_that_failed_is_quiet_also_where_the_broker_is_away(
    options: SinkOptions, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    written = writer(options).write(iter([rows("a")]))
    away = attrs.evolve(options, url="amqp://127.0.0.1:1?failover=nofailover&connect_timeout_seconds=1")
    JmsBatchWriter(away).abort([written])
    JmsStreamWriter(away).abort([written], 0)
    assert caplog.text.count("staged transactions are left to expire: ") == 2
    assert staged(broker) == ["0/run.0.0"]
    JmsStreamWriter(options).abort([None, written], 0)
    assert staged(broker) == []


def test_the_end_of_a_job_that_failed_is_quiet_also_where_its_password_cannot_be_read(
    options: SinkOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of ``abort`` takes the place of the one that says why the job failed."""
    written = writer(options).write(iter([rows("a")]))
    for lacking in ({"password_file": str(tmp_path / "none")}, {"password_env": "HOLDFAST_TEST_NONE"}):
        without = attrs.evolve(options, **lacking)
        JmsBatchWriter(without).abort([written])
        JmsStreamWriter(without).abort([written], 0)
    assert caplog.text.count("staged transactions are left to expire: password") == 4


def test_what_was_written_at_least_once_is_not_taken_back_where_the_job_fails(
    options: SinkOptions, broker: Broker
) -> None:
    at_least_once = attrs.evolve(options, guarantee=AT_LEAST_ONCE)
    written = writer(at_least_once).write(iter([rows("a")]))
    JmsBatchWriter(at_least_once).abort([written])
    JmsStreamWriter(at_least_once).abort([written], 0)
    assert texts(options.url, "out") == ["a"]


def test_what_a_job_writes_is_seen_all_at_once_when_it_commits(options: SinkOptions, broker: Broker) -> None:
    job = JmsBatchWriter(options)
    tasks = [
        TaskWriter(options, job._job, 0, Attempt("job", number, 0, str(uuid4())), False).write(iter([rows(text)]))
        for number, text in enumerate("ab")
    ]
    assert texts(options.url, "out") == []
    job.commit([*tasks])
    assert texts(options.url, "out") == ["a", "b"]
    assert staged(broker) == []


# Rows that name their queues.


def test_rows_go_to_the_queues_that_they_name_and_are_seen_together(options: SinkOptions, broker: Broker) -> None:
    options = attrs.evolve(options, queue=None)
    tasks = [
        writer(options, batch=3).write(iter([routed(a="good", b="bad", c="good"), routed(), routed(d="bad", e="new")])),
        writer(options, batch=3, partition=1).write(iter([routed(f="good")])),
        writer(options, batch=3, partition=2).write(iter([routed()])),
    ]
    assert [written.count for written in tasks] == [5, 1, 0]
    assert [count for _, count in tasks[0].transactions] == [2, 2, 1]
    assert "good" not in [each.name for each in connection_for(options).statistics().queues]
    publish(options, 3, *tasks)
    assert {name: texts(options.url, name) for name in ("good", "bad", "new")} == {
        "good": ["a", "c", "f"],
        "bad": ["b", "d"],
        "new": ["e"],
    }
    assert staged(broker) == []


def test_rows_that_name_no_queue_go_to_that_of_the_option_or_are_named(options: SinkOptions, broker: Broker) -> None:
    for guarantee in (EXACTLY_ONCE, AT_LEAST_ONCE):
        ours = attrs.evolve(options, guarantee=guarantee, queue=f"out {guarantee}")
        written = writer(ours, batch=1).write(iter([routed(a=None, b=f"own {guarantee}"), routed(c=None)]))
        if guarantee == EXACTLY_ONCE:
            publish(ours, 1, written)
        assert texts(options.url, f"out {guarantee}") == ["a", "c"]
        assert texts(options.url, f"own {guarantee}") == ["b"]
        nowhere = attrs.evolve(options, guarantee=guarantee, queue=None)
        with pytest.raises(
            RowError, match=r"partition 0, row 2: column 'queue' has the value None: .* no option queue"
        ):
            writer(nowhere, batch=2).write(iter([routed(a="x", b=None)]))
        with pytest.raises(RowError, match=r"row 3: column 'queue' has the value ''"):
            writer(nowhere, batch=2).write(iter([routed(a="x", b="y"), routed(c="")]))
    assert staged(broker) == []


def test_the_queue_of_rows_that_were_read_is_not_where_they_go(options: SinkOptions) -> None:
    read = pa.RecordBatch.from_pydict({"value": ["a"], "queue": ["in"], "position": [1]})
    publish(options, 0, writer(options).write(iter([read])))
    assert texts(options.url, "out") == ["a"]
    anywhere = attrs.evolve(options, queue=None)
    publish(anywhere, 0, writer(anywhere).write(iter([read])))
    assert texts(options.url, "in") == ["a"]


def test_a_batch_for_several_queues_is_published_once_and_a_killed_attempt_leaves_nothing(
    options: SinkOptions, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    options = attrs.evolve(options, queue=None)
    killed = Running(writer(options, 0), routed(a="x", b="y"), routed(c="z"))
    assert len(staged(broker)) == 2
    drop_connection(options)
    written = writer(options, 1).write(iter([routed(a="x", b="y"), routed(c="z")]))
    assert len(staged(broker)) == 3
    publish(options, 0, written)
    with suppress(RowError, InvalidDestinationException, IllegalStateException):
        assert killed.finish().dropped
    again = writer(options, run="restarted").write(iter([routed(a="x", b="y"), routed(c="z")]))
    assert (again.dropped, again.count) == (True, 3)
    publish(options, 0, again)
    assert "was published to the queues of its rows before, so its 3 messages were dropped" in caplog.text
    assert [texts(options.url, name) for name in "xyz"] == [["a"], ["b"], ["c"]]
    assert staged(broker) == []


def test_an_attempt_that_fails_drops_what_it_staged_for_all_queues(options: SinkOptions, broker: Broker) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield routed(a="x", b="y")
        assert len(staged(broker)) == 2
        raise RuntimeError

    with pytest.raises(RuntimeError):
        writer(attrs.evolve(options, queue=None)).write(failing())
    assert staged(broker) == []


def test_a_batch_for_a_full_queue_is_seen_in_no_queue(full: SinkOptions) -> None:
    options = attrs.evolve(full, queue=None, retry_seconds=0.1)
    written = writer(options, batch=5).write(iter([routed(a="free", b="out", c="out")]))
    with pytest.raises(ResourceAllocationException):
        publish(options, 5, written)
    assert "a" not in texts(options.url, "free")


def test_a_row_of_several_queues_that_is_too_large_is_named(options: SinkOptions, broker: Broker) -> None:
    large = "x" * 200_000
    for guarantee in (EXACTLY_ONCE, AT_LEAST_ONCE):
        ours = attrs.evolve(options, queue=None, guarantee=guarantee)
        with pytest.raises(RowError, match=r"partition 0, row 5: column 'value' has the value 'xxx"):
            writer(ours).write(iter([routed(a="x", b="y"), routed(**{"c": "x", "d": "y", large: "x", "e": "y"})]))
    assert staged(broker) == []


def test_the_queues_of_a_task_have_a_limit(
    options: SinkOptions, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_rows, "MAX_QUEUES", 20)
    options = attrs.evolve(options, queue=None)
    names = [f"q{number}" for number in range(20)]
    many = routed(**dict(zip(names, names, strict=True)))
    publish(options, 0, writer(options).write(iter([many, many])))
    assert [texts(options.url, name) for name in names] == [[name] * 2 for name in names]
    with pytest.raises(RowError, match=r"row 41: column 'queue' has the value 'more': .* 20 queues at most"):
        writer(options, batch=1).write(iter([many, many, routed(one="more")]))
    assert staged(broker) == []
