"""Where a batch and a stream begin and end, over a real broker; no Spark runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from broker_adapter import Destination, Envelope, RangeBlock, block_of, pack
from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from sdk import Connection, ConnectionFactory, InvalidDestinationException, InvalidSelectorException
from sdk.range_reader import Bounds
from spark_connector import starts
from spark_connector.batch_reader import JmsBatchReader
from spark_connector.connections import drop_connection
from spark_connector.options import SourceOptions
from tests.spark_connector.served import Served

ALL = ReadAllAvailable()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(Broker(EngineSettings(), str(tmp_path)))
    yield served
    drop_connection(served.options)
    served.stop()


def batch(served: Served, column: str = "text", **changes: Any) -> list[Any]:
    """The rows of a batch."""
    reader = JmsBatchReader(attrs.evolve(served.options, **changes), (column,))
    return [
        value
        for partition in reader.partitions()
        for part in reader.read(partition)
        for value in part.to_pydict()[column]
    ]


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def test_a_batch_has_what_lies_between_two_positions(served: Served) -> None:
    served.fill(0, 10)
    positions = batch(served, "position")
    assert batch(served) == numbers(0, 10)
    assert batch(served, starting_position=str(positions[3])) == numbers(3, 10)
    assert batch(served, ending_position=str(positions[3])) == numbers(0, 3)
    assert batch(served, starting_position=str(positions[3]), ending_position=str(positions[5])) == numbers(3, 5)
    assert batch(served, starting_position="latest") == []
    assert batch(served, starting_position="0") == numbers(0, 10)
    assert batch(served, starting_position=f'{{"in": {positions[8]}}}') == ["8", "9"]


def test_a_batch_has_what_was_sent_between_two_instants(served: Served) -> None:
    served.fill(0, 5)
    between = batch(served, "timestamp")[-1]
    while True:
        served.fill(5, 1)
        last = batch(served, "timestamp")[-1]
        if last > between:
            break
    rest = batch(served, starting_position=last.isoformat())
    assert rest
    assert set(rest) == {"5"}
    before = batch(served, ending_position=last.isoformat())
    assert before[:5] == numbers(0, 5)
    assert len(before) + len(rest) == len(batch(served))
    assert batch(served, starting_position="1970-01-01T00:00:00Z") == batch(served)
    assert batch(served, starting_position="9000-01-01T00:00:00Z") == []


class Untimed:
    """A reader of a queue whose messages say no time, up to the one at a position; it counts what it is asked."""

    def __init__(self, timed: int) -> None:
        self._timed = timed
        self.asked = 0

    def read_answers(
        self, first: int, last: int, _: str, max_bytes: int, **__: Any
    ) -> Iterator[tuple[RangeBlock, int]]:
        while first <= last:
            self.asked += 1
            end = min(last, first + max(max_bytes, 1024) // 1024 - 1)
            payloads = [
                pack(Envelope(Destination("in"), sent_at_ms=5000 if position >= self._timed else None))
                for position in range(first, end + 1)
            ]
            yield block_of(tuple(range(first, end + 1)), (0,) * len(payloads), payloads, {}), end + 1
            first = end + 1


@pytest.mark.parametrize(("timed", "start"), [(4001, 4001), (3000, 3000), (1, 1)])
def test_an_instant_is_found_in_few_requests_where_messages_say_no_time(
    timed: int, start: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(starts, "_MANY", 100)
    reader: Any = Untimed(timed)
    options = SourceOptions(queue="in", starting_position="1970-01-01T00:00:05Z")
    bounds = Bounds("a", 1, 4001, "r", 4001, 0)
    found = starts.start_of(reader, options, "in", bounds)
    assert found <= start
    assert reader.asked < 100
    assert ("do not say when they were sent" in caplog.text) is (timed > 100)


def test_a_position_ahead_of_the_queue_is_an_error_that_says_where_the_queue_is(served: Served) -> None:
    served.fill(0, 3)
    ahead = batch(served, "position")[-1] + 1
    assert batch(served, starting_position=str(ahead)) == []
    with pytest.raises(ValueError, match=rf"={ahead + 1} is ahead of the queue 'in': its next .* position {ahead}"):
        batch(served, starting_position=str(ahead + 1))


def test_a_position_that_looks_like_a_time_is_told_as_the_instant_that_may_be_meant(served: Served) -> None:
    served.fill(0, 3)
    with pytest.raises(
        ValueError,
        match=r"^startingPosition=1764144000000 is ahead of the queue 'in': its next message gets position 4; if"
        r" milliseconds since 1970 are meant, write the instant: 2025-11-26T08:00:00Z$",
    ):
        batch(served, starting_position="1764144000000")
    with pytest.raises(ValueError, match=r"endingPosition=1764144000 .*; if seconds .*: 2025-11-26T08:00:00Z$"):
        batch(served, ending_position='{"in": 1764144000}')
    assert batch(served, starting_position="2025-11-26T08:00:00Z") == numbers(0, 3)


def test_a_stream_that_begins_later_leaves_what_it_has_passed_over(served: Served) -> None:
    served.fill(0, 5)
    reader = served.reader(starting_position="latest")
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ALL) == begin
    served.fill(5, 3)
    end = reader.latestOffset(begin, ALL)
    assert [v for p in reader.partitions(begin, end) for b in reader.read(p) for v in b.to_pydict()["text"]] == list(
        "567"
    )
    reader.commit(end)
    assert served.left() == list("01234")


def test_the_first_batch_keeps_its_rows_though_spark_asks_again_where_a_query_begins(served: Served) -> None:
    reader = served.reader(starting_position="latest")
    begin = reader.initialOffset()
    served.fill(0, 3)
    end = reader.latestOffset(begin, ALL)
    again = served.reader(starting_position="latest")
    served.fill(3, 3)
    later = again.initialOffset()
    assert later["next"] > end["next"]
    found = [v for p in again.partitions(later, end) for b in again.read(p) for v in b.to_pydict()["text"]]
    assert found == list("012")


def test_a_missing_queue_is_an_error_where_the_option_says_so(served: Served) -> None:
    with pytest.raises(InvalidDestinationException, match="nowhere"):
        batch(served, queue="nowhere", fail_on_missing=True)
    with pytest.raises(InvalidDestinationException, match="nowhere"):
        served.reader(queue="nowhere", fail_on_missing=True).initialOffset()
    with pytest.raises(InvalidDestinationException, match="none"):
        batch(served, queue=None, topic="none", subscription="none", fail_on_missing=True)
    assert batch(served, queue="nowhere") == []
    assert batch(served, queue="nowhere", fail_on_missing=True) == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"min_partitions": 3, "max_messages_per_partition": 100}, id="at least"),
        pytest.param({"max_partitions": 3, "max_messages_per_partition": 1}, id="at most"),
    ],
)
def test_there_are_as_many_tasks_as_the_options_say(served: Served, changes: dict[str, int]) -> None:
    served.fill(0, 8)
    options = attrs.evolve(served.options, **changes)
    assert len(JmsBatchReader(options, ("text",)).partitions()) == 3
    reader = served.reader(**changes)
    begin = reader.initialOffset()
    assert len(reader.partitions(begin, reader.latestOffset(begin, ALL))) == 3


def test_the_broker_applies_a_selector_and_a_stream_drops_what_it_did_not_choose(served: Served) -> None:
    with ConnectionFactory(served.options.url).create_connection() as connection:
        session = connection.create_session()
        producer = session.create_producer(session.create_queue("in"))
        for number in range(10):
            message = session.create_text_message(str(number))
            message.properties["n"] = number
            producer.send(message)
    assert batch(served, selector="n > 6 OR n = 2") == ["2", "7", "8", "9"]
    reader = served.reader(selector="n < 3")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(5))
    assert [v for p in reader.partitions(begin, end) for b in reader.read(p) for v in b.to_pydict()["text"]] == list(
        "012"
    )
    reader.commit(end)
    assert served.left() == numbers(5, 10)
    with pytest.raises(InvalidSelectorException):
        batch(served, selector="n >")


def test_a_batch_waits_for_enough_messages_or_for_a_time(served: Served) -> None:
    reader = served.reader(min_messages_per_trigger=5, max_trigger_delay_seconds=3600)
    begin = reader.initialOffset()
    served.fill(0, 4)
    assert reader.latestOffset(begin, ALL) == begin
    assert reader.waiting(begin) == 4
    served.fill(4, 1)
    assert reader.latestOffset(begin, ALL)["next"] == begin["next"] + 5
    reader = served.reader(min_messages_per_trigger=50, max_trigger_delay_seconds=0)
    assert reader.latestOffset(begin, ALL) != begin
    reader = served.reader(min_messages_per_trigger=50, max_trigger_delay_seconds=3600)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(begin, ALL) != begin


def test_the_progress_says_what_the_queue_has(served: Served) -> None:
    reader = served.reader()
    assert reader.reportLatestOffset() is None
    begin = reader.initialOffset()
    served.fill(0, 10)
    end = reader.latestOffset(begin, ReadMaxRows(4))
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest["next"] - end["next"] == 6


def test_options_for_positions_need_a_broker_that_has_some(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "is_holdfast", False)
    for change in ({"starting_position": "5"}, {"ending_position": "5"}, {"selector": "a = 1"}):
        with pytest.raises(ValueError, match="needs a Holdfast broker"):
            batch(served, **change)
    with pytest.raises(ValueError, match="queuePattern needs a Holdfast broker"):
        batch(served, queue=None, queue_pattern=".*")
