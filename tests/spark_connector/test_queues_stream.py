"""Several queues as one stream, as Spark asks for it, over a real broker; no Spark runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from sdk import (
    Connection,
    ConnectionFactory,
    ConnectionLostException,
    InvalidDestinationException,
    JMSSecurityException,
)
from sdk.range_reader import Bounds
from spark_connector import batch_reader, connections, queues_stream, stream_reader
from spark_connector.batch_reader import JmsBatchReader
from spark_connector.connections import drop_connection
from spark_connector.queues_stream import JmsQueuesStreamReader
from spark_connector.stream_reader import JmsStreamReader
from tests.spark_connector.queues import texts
from tests.spark_connector.served import Served

ALL = ReadAllAvailable()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(queues_stream, "LISTING_SECONDS", 0.0)
    served = Served(Broker(EngineSettings(), str(tmp_path)))
    yield served
    drop_connection(served.options)
    served.stop()


def reader_of(served: Served, **changes: Any) -> JmsQueuesStreamReader:
    return JmsQueuesStreamReader(attrs.evolve(served.options, queue=None, **changes), ("queue", "text"))


def rows(reader: JmsQueuesStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (row["queue"], row["text"])
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def fill(served: Served, name: str, count: int) -> list[tuple[str, str]]:
    bodies = [f"{name}{number}" for number in range(count)]
    served.fill_queue(name, bodies)
    return [(name, body) for body in bodies]


def delete(served: Served, name: str) -> None:
    with ConnectionFactory(served.options.url).create_connection() as connection:
        connection.request("delete", {"destination": name, "force": True})


def test_queues_are_read_as_one_and_settled_each(served: Served) -> None:
    expected = fill(served, "a", 3) + fill(served, "b", 2)
    reader = reader_of(served, queues="b, a")
    begin = reader.initialOffset()
    assert list(begin["queues"]) == ["a", "b"]
    end = reader.latestOffset(begin, ALL)
    for _ in range(2):
        assert sorted(rows(reader, begin, end)) == expected
    assert reader.latestOffset(end, ALL) == end
    assert (texts(served.options.url, "a"), texts(served.options.url, "b")) == ([], [])
    reader.stop()


def test_a_limit_is_shared_and_every_queue_comes_to_its_end(served: Served) -> None:
    expected = fill(served, "a", 40) + fill(served, "b", 4)
    reader = reader_of(served, queues="a,b")
    start = begin = reader.initialOffset()
    found: list[tuple[str, str]] = []
    while (end := reader.latestOffset(start, ReadMaxRows(11))) != start:
        part = rows(reader, start, end)
        assert len(part) == 11
        found += part
        reader.commit(end)
        start = end
    assert sorted(found) == sorted(expected)
    assert start != begin


def test_a_limit_below_the_number_of_the_queues_reads_each_of_them_in_turn(served: Served) -> None:
    for name in "abc":
        fill(served, name, 9)
    reader = reader_of(served, queues="a,b,c")
    start = reader.initialOffset()
    for _ in range(3):
        start = reader.latestOffset(start, ReadMaxRows(2))
    assert {name: each["next"] for name, each in start["queues"].items()} == dict.fromkeys("abc", 3)


def positions(start: dict[str, Any], end: dict[str, Any]) -> int:
    """How many positions a batch has."""
    return sum(each["next"] - start["queues"][name]["next"] for name, each in end["queues"].items())


def test_a_limit_holds_also_where_the_broker_was_away_for_a_moment(served: Served) -> None:
    fill(served, "a", 50)
    fill(served, "b", 50)
    reader = reader_of(served, queues="a,b", head_refresh_seconds=3600)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(10))
    assert positions(begin, end) == 10
    for each in reader._readers.values():
        each._refreshed = -3600.0  # what they know is too old
    served.listener.stop()
    assert reader.latestOffset(end, ReadMaxRows(10)) == end
    served.start()
    again = reader.latestOffset(end, ReadMaxRows(10))
    assert positions(end, again) == 10


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(3)])
def test_what_comes_after_the_waiting_messages_were_counted_is_for_the_next_batch(
    served: Served, monkeypatch: pytest.MonkeyPatch, limit: ReadLimit
) -> None:
    def counted(reader: JmsStreamReader, start: dict[str, Any], bounds: Bounds) -> int:
        found = count(reader, start, bounds)
        fill(served, "a", 9)
        return found

    fill(served, "b", 5)
    reader = reader_of(served, queues="a,b", min_messages_per_trigger=3, max_trigger_delay_seconds=3600)
    begin = reader.initialOffset()
    count = JmsStreamReader.waiting_in
    monkeypatch.setattr(JmsStreamReader, "waiting_in", counted)
    end = reader.latestOffset(begin, limit)
    assert end["queues"]["a"] == begin["queues"]["a"]
    assert positions(begin, end) == (5 if limit is ALL else 3)


def test_a_pattern_finds_queues_also_later_and_reads_them_from_their_beginning(served: Served) -> None:
    fill(served, "other", 1)
    expected = fill(served, "in.a", 2)
    reader = reader_of(served, queue_pattern=r"in\..*", starting_position="latest")
    begin = reader.initialOffset()
    assert list(begin["queues"]) == ["in.a"]
    assert reader.latestOffset(begin, ALL) == begin
    expected = fill(served, "in.b", 3)
    end = reader.latestOffset(begin, ALL)
    assert rows(reader, begin, end) == expected
    again = reader_of(served, queue_pattern=r"in\..*", starting_position="latest")
    assert rows(again, begin, end) == expected
    assert again.latestOffset(end, ALL) == end


@pytest.mark.parametrize("position", ["latest", "2999-01-01T00:00:00Z", "7"])
def test_available_now_reads_a_queue_that_was_made_since_its_last_run_from_its_beginning(
    served: Served, position: str
) -> None:
    changes = {"queue_pattern": r"in\..*", "starting_position": position}
    fill(served, "in.a", 9)
    first = reader_of(served, **changes)
    first.prepareForTriggerAvailableNow()
    begin = first.initialOffset()
    begin = first.latestOffset(begin, ALL)
    expected = fill(served, "in.b", 3)
    reader = reader_of(served, **changes)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(begin, ALL)
    assert rows(reader, begin, end) == expected
    assert reader.latestOffset(end, ALL) == end


def test_a_queue_that_was_deleted_and_made_again_is_read_from_its_beginning(served: Served) -> None:
    fill(served, "in.a", 1)
    fill(served, "in.b", 1)
    reader = reader_of(
        served, queue_pattern=r"in\..*", starting_position="latest", fail_on_data_loss=False, head_refresh_seconds=0
    )
    begin = reader.initialOffset()
    delete(served, "in.b")
    without = reader.latestOffset(begin, ALL)
    assert list(without["queues"]) == ["in.a"]
    expected = fill(served, "in.b", 3)
    assert rows(reader, without, reader.latestOffset(without, ALL)) == expected


def test_available_now_takes_no_queue_that_is_found_later(served: Served) -> None:
    expected = fill(served, "in.a", 2)
    reader = reader_of(served, queue_pattern=r"in\..*")
    reader.prepareForTriggerAvailableNow()
    fill(served, "in.a", 5)
    fill(served, "in.b", 5)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    assert rows(reader, begin, end) == expected
    assert reader.latestOffset(end, ALL) == end


def test_a_queue_that_was_deleted_is_a_loss_of_data(served: Served) -> None:
    fill(served, "in.a", 2)
    fill(served, "in.b", 2)
    begin = reader_of(served, queue_pattern=r"in\..*").initialOffset()
    delete(served, "in.b")
    with pytest.raises(InvalidDestinationException, match=r"the queue 'in\.b', which the checkpoint has, was deleted"):
        reader_of(served, queue_pattern=r"in\..*").latestOffset(begin, ALL)
    reader = reader_of(served, queue_pattern=r"in\..*", fail_on_data_loss=False)
    end = reader.latestOffset(begin, ALL)
    assert [queue for queue, _ in rows(reader, begin, end)] == ["in.a", "in.a"]
    assert list(end["queues"]) == ["in.a"]


def make(served: Served, name: str) -> None:
    with ConnectionFactory(served.options.url).create_connection() as connection, connection.create_session() as made:
        made.create_consumer(made.create_queue(name)).close()


def noted(
    monkeypatch: pytest.MonkeyPatch, refuse: Callable[[str, dict[str, Any]], None] = lambda operation, arguments: None
) -> list[tuple[str, dict[str, Any]]]:
    """What is asked of the broker from now on; ``refuse`` may raise."""

    def note(self: Connection, operation: str, arguments: dict[str, Any], *rest: Any) -> Any:
        asked.append((operation, arguments))
        refuse(operation, arguments)
        return request(self, operation, arguments, *rest)

    asked: list[tuple[str, dict[str, Any]]] = []
    request = Connection.request
    monkeypatch.setattr(Connection, "request", note)
    return asked


def bounds_asked(asked: list[tuple[str, dict[str, Any]]]) -> list[int]:
    """How many queues each request for bounds was about."""
    return [len(each.get("destinations", "1")) for operation, each in asked if operation.startswith("bounds")]


def test_a_poll_asks_about_all_queues_in_one_request(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [row for number in range(30) for row in fill(served, f"in.{number}", 2)]
    asked = noted(monkeypatch)
    reader = reader_of(served, queue_pattern=r"in\..*")
    reader.prepareForTriggerAvailableNow()
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    assert sorted(rows(reader, begin, end)) == sorted(expected)
    assert reader.latestOffset(end, ALL) == end
    assert bounds_asked(asked) == [30] * 5


def test_queues_that_were_deleted_together_are_found_out_by_one_listing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_stream, "LISTING_SECONDS", 3600.0)
    for number in range(9):
        fill(served, f"in.{number}", 1)
    reader = reader_of(served, queue_pattern=r"in\..*", fail_on_data_loss=False)
    begin = reader.initialOffset()
    for number in range(8):
        delete(served, f"in.{number}")
    asked = noted(monkeypatch)
    end = reader.latestOffset(begin, ALL)
    assert list(end["queues"]) == ["in.8"]
    assert [operation for operation, _ in asked].count("statistics") == 1
    assert reader.latestOffset(end, ALL) == end


def test_a_queue_that_the_user_may_not_read_is_an_error(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(operation: str, arguments: dict[str, Any]) -> None:
        if "b" in (arguments.get("destination"), *arguments.get("destinations", ())):
            raise JMSSecurityException("not 'b'")

    fill(served, "a", 2)
    fill(served, "b", 1)
    begin = reader_of(served, queues="a,b").initialOffset()
    noted(monkeypatch, refuse)
    with pytest.raises(JMSSecurityException, match="not 'b'"):
        reader_of(served, queues="a,b").initialOffset()
    reader = reader_of(served, queues="a,b")
    end = reader.latestOffset(begin, ALL)  # a right that is taken away while a query runs may come back
    assert {name: each["next"] for name, each in end["queues"].items()} == {"a": 3, "b": 1}
    monkeypatch.setattr(stream_reader, "OFFLINE_TOLERANCE_SECONDS", -1.0)
    with pytest.raises(JMSSecurityException, match="not 'b'"):
        reader.latestOffset(end, ALL)


def test_a_broker_that_is_away_is_asked_once_in_a_poll_and_for_as_long_as_a_query_tolerates(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        fill(served, f"in.{number}", 1)
    reader = reader_of(served, queues=",".join(f"in.{number}" for number in range(9)))
    begin = reader.initialOffset()
    opened: list[int] = []
    served.listener.stop()
    open_connection = connections.connection_for
    monkeypatch.setattr(connections, "connection_for", lambda options: opened.append(1) or open_connection(options))
    assert reader.latestOffset(begin, ALL) == begin
    assert len(opened) == 1
    monkeypatch.setattr(stream_reader, "OFFLINE_TOLERANCE_SECONDS", -1.0)
    with pytest.raises(ConnectionLostException):
        reader.latestOffset(begin, ALL)
    served.start()
    assert positions(begin, reader.latestOffset(begin, ALL)) == 9


def test_a_queue_that_was_found_and_has_no_message_is_not_asked_about_more_often_than_the_option_says(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(served, "in.a", 2)
    reader = reader_of(served, queue_pattern=r"in\..*", head_refresh_seconds=3600)
    begin = reader.initialOffset()
    make(served, "in.b")
    end = reader.latestOffset(begin, ALL)
    for _ in range(2):
        assert reader.latestOffset(end, ALL) == end
    asked = noted(monkeypatch)
    for _ in range(9):
        assert reader.latestOffset(end, ALL) == end
    assert {operation for operation, _ in asked} == {"statistics"}


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_a_query_that_has_found_an_empty_queue_waits_for_a_broker_that_is_away(
    served: Served, is_asked_before: bool
) -> None:
    fill(served, "in.a", 2)
    reader = reader_of(served, queue_pattern=r"in\..*")
    begin = reader.initialOffset()
    make(served, "in.b")
    end = reader.latestOffset(begin, ReadMaxRows(1))
    if not is_asked_before:
        del reader._readers["in.b"]
    served.listener.stop()
    for _ in range(3):
        assert reader.latestOffset(end, ALL) == end
    served.start()
    expected = fill(served, "in.b", 3)
    assert rows(reader, end, reader.latestOffset(end, ALL)) == [("in.a", "in.a1"), *expected]


@pytest.fixture
def rarely_listed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the queues are not asked for again while a test runs."""
    monkeypatch.setattr(queues_stream, "LISTING_SECONDS", 3600.0)


@pytest.mark.usefixtures("rarely_listed")
def test_a_query_goes_on_without_a_queue_that_was_deleted_since_the_names_were_asked_for(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    fill(served, "in.a", 2)
    fill(served, "in.b", 2)
    reader = reader_of(served, queue_pattern=r"in\..*", fail_on_data_loss=False)
    strict = reader_of(served, queue_pattern=r"in\..*")
    begin = strict.initialOffset()
    end = reader.latestOffset(begin, ALL)
    delete(served, "in.b")
    expected = fill(served, "in.a", 1)
    again = reader.latestOffset(end, ALL)
    assert rows(reader, end, again) == expected
    assert list(again["queues"]) == ["in.a"]
    assert reader.latestOffset(again, ALL) == again
    assert caplog.text.count("going on without the queues that were deleted: 'in.b'") == 1
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert list(latest["queues"]) == ["in.a"]
    with pytest.raises(InvalidDestinationException, match=r"the queue 'in\.b', which the checkpoint has, was deleted"):
        strict.latestOffset(end, ALL)


@pytest.mark.usefixtures("rarely_listed")
def test_the_deleted_queue_of_a_batch_that_was_not_completed_is_a_loss_of_data_or_has_no_rows(served: Served) -> None:
    expected = fill(served, "in.a", 2)
    fill(served, "in.b", 2)
    first = reader_of(served, queue_pattern=r"in\..*")
    begin = first.initialOffset()
    end = first.latestOffset(begin, ALL)
    delete(served, "in.b")
    reader = reader_of(served, queue_pattern=r"in\..*", fail_on_data_loss=False)
    assert rows(reader, begin, end) == expected
    with pytest.raises(InvalidDestinationException, match=r"data is lost: the queue 'in\.b'"):
        first.partitions(begin, end)


@pytest.mark.usefixtures("rarely_listed")
@pytest.mark.parametrize("available_now", [False, True])
def test_a_queue_that_was_found_and_deleted_before_it_was_read_is_no_loss(served: Served, available_now: bool) -> None:
    fill(served, "in.a", 2)
    begin = reader_of(served, queue_pattern=r"in\..*").initialOffset()
    fill(served, "in.b", 2)
    reader = reader_of(served, queue_pattern=r"in\..*")
    if available_now:
        reader.prepareForTriggerAvailableNow()
    else:
        assert reader.latestOffset(begin, ReadMaxRows(1)) != begin
    delete(served, "in.b")
    end = reader.latestOffset(begin, ALL)
    assert list(end["queues"]) == ["in.a"]
    assert len(rows(reader, begin, end)) == 2


@pytest.mark.usefixtures("rarely_listed")
@pytest.mark.parametrize("available_now", [False, True])
def test_a_queue_that_was_deleted_and_is_made_again_while_the_names_are_asked_for_ends_no_query(
    served: Served, monkeypatch: pytest.MonkeyPatch, available_now: bool
) -> None:
    def make_again(operation: str, arguments: dict[str, Any]) -> None:
        if operation == "statistics":
            fill(served, "in.b", 3)

    fill(served, "in.a", 1)
    fill(served, "in.b", 2)
    reader = reader_of(served, queue_pattern=r"in\..*", fail_on_data_loss=False)
    strict = reader_of(served, queue_pattern=r"in\..*")
    begin = strict.initialOffset()
    if available_now:
        reader.prepareForTriggerAvailableNow()
    else:
        assert reader.latestOffset(begin, ReadMaxRows(1)) != begin
    delete(served, "in.b")
    with monkeypatch.context() as patched:
        noted(patched, make_again)
        with pytest.raises(InvalidDestinationException):
            strict.latestOffset(begin, ALL)
        delete(served, "in.b")
        end = reader.latestOffset(begin, ALL)
    assert list(end["queues"]) == ["in.a"]
    assert rows(reader, begin, end) == [("in.a", "in.a0")]
    again = reader.latestOffset(end, ALL)
    made_again = [] if available_now else [("in.b", f"in.b{number}") for number in range(3)]
    assert rows(reader, end, again) == made_again


def test_a_queue_that_is_made_again_as_the_end_of_available_now_is_looked_for_is_for_the_next_query(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturb(operation: str, arguments: dict[str, Any]) -> None:
        if operation == "bounds_of_queues":
            delete(served, "in.b")
        elif operation == "bounds":
            asked_alone.append(arguments["destination"])
        elif operation == "statistics" and asked_alone:
            fill(served, "in.b", 3)

    asked_alone: list[str] = []
    expected = fill(served, "in.a", 2)
    fill(served, "in.b", 2)
    reader = reader_of(served, queue_pattern=r"in\..*")
    with monkeypatch.context() as patched:
        noted(patched, disturb)
        reader.prepareForTriggerAvailableNow()
    assert asked_alone == ["in.b"]
    begin = reader.initialOffset()
    assert rows(reader, begin, reader.latestOffset(begin, ALL)) == expected


def test_a_queue_that_is_deleted_while_the_start_of_another_one_is_looked_for_is_no_loss(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(operation: str, arguments: dict[str, Any]) -> None:
        if operation == "read_range" and arguments["destination"] == "in.a" and not lost:
            lost.append("in.b")
            delete(served, "in.b")

    lost: list[str] = []
    expected = fill(served, "in.a", 2)
    fill(served, "in.b", 2)
    noted(monkeypatch, lose)
    reader = reader_of(served, queue_pattern=r"in\..*", starting_position="2026-01-01T00:00:00Z")
    begin = reader.initialOffset()
    assert (list(begin["queues"]), lost) == (["in.a"], ["in.b"])
    assert rows(reader, begin, reader.latestOffset(begin, ALL)) == expected


def test_a_named_queue_that_is_missing_is_an_error_where_the_option_wants_it(served: Served) -> None:
    fill(served, "a", 1)
    with pytest.raises(InvalidDestinationException):
        reader_of(served, queues="a,b", fail_on_missing=True, fail_on_data_loss=False).initialOffset()


def test_a_batch_waits_for_enough_in_all_queues_together(served: Served) -> None:
    reader = reader_of(served, queues="a,b", min_messages_per_trigger=4, max_trigger_delay_seconds=3600)
    begin = reader.initialOffset()
    fill(served, "a", 3)
    assert reader.latestOffset(begin, ALL) == begin
    fill(served, "b", 1)
    end = reader.latestOffset(begin, ALL)
    assert len(rows(reader, begin, end)) == 4


def test_the_progress_says_what_each_queue_has(served: Served) -> None:
    fill(served, "a", 3)
    reader = reader_of(served, queues="a,b")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(1))
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert {name: each["next"] - end["queues"][name]["next"] for name, each in latest["queues"].items()} == {
        "a": 2,
        "b": 0,
    }


def test_the_offset_of_a_single_queue_is_refused(served: Served) -> None:
    with pytest.raises(ValueError, match="not an offset of several queues"):
        reader_of(served, queues="a,b").latestOffset(served.reader().initialOffset(), ALL)


def test_the_tasks_of_all_queues_together_are_at_least_as_many_as_the_option_says(served: Served) -> None:
    fill(served, "a", 30)
    fill(served, "b", 10)
    changes: dict[str, Any] = {"queues": "a,b", "min_partitions": 8, "max_messages_per_partition": 1000}
    reader = reader_of(served, **changes)
    begin = reader.initialOffset()
    assert len(reader.partitions(begin, reader.latestOffset(begin, ALL))) == 8
    options = attrs.evolve(served.options, queue=None, **changes)
    assert len(JmsBatchReader(options, ("text",)).partitions()) == 8


@pytest.mark.parametrize(("most", "expected"), [(8, 8), (1, 2)])
def test_the_tasks_of_all_queues_together_are_at_most_as_many_as_the_option_says(
    served: Served, most: int, expected: int
) -> None:
    """But each queue that has messages has one."""
    fill(served, "a", 30)
    fill(served, "b", 10)
    changes: dict[str, Any] = {"queues": "a,b", "max_partitions": most, "max_messages_per_partition": 1}
    reader = reader_of(served, **changes)
    begin = reader.initialOffset()
    assert len(reader.partitions(begin, reader.latestOffset(begin, ALL))) == expected
    tasks = JmsBatchReader(attrs.evolve(served.options, queue=None, **changes), ("text",)).partitions()
    assert len(tasks) == expected


def test_a_batch_does_not_make_a_queue_again_that_is_deleted_meanwhile(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(served, "in.a", 2)
    monkeypatch.setattr(batch_reader, "matching", lambda _pattern, names: (*(n for n in names if n == "in.a"), "in.b"))
    options = attrs.evolve(served.options, queue=None, queue_pattern=r"in\..*")
    assert [part.options.queue for part in JmsBatchReader(options, ("text",)).partitions()] == ["in.a"]
    with ConnectionFactory(served.options.url).create_connection() as connection:
        assert "in.b" not in {queue.name for queue in connection.statistics().queues}


def test_a_batch_reads_several_queues_as_well(served: Served) -> None:
    expected = fill(served, "in.a", 3) + fill(served, "in.b", 2)
    fill(served, "other", 1)
    for change in ({"queues": "in.a,in.b"}, {"queue_pattern": r"in\..*"}):
        reader = JmsBatchReader(attrs.evolve(served.options, queue=None, **change), ("queue", "text"))
        found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert [(row["queue"], row["text"]) for row in found] == expected
