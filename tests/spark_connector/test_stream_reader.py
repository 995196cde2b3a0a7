"""What a stream reads of a queue and when it settles it, as Spark asks for it, over real brokers; no Spark runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.store.starts import AGING_STARTS, run_of
from broker_adapter.settings import EngineSettings
from sdk import InvalidDestinationException, JMSException
from spark_connector import stream_reader
from spark_connector.connections import connection_for, drop_connection
from spark_connector.stream_reader import JmsStreamReader
from tests.spark_connector.served import Served

ALL = ReadAllAvailable()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(), str(tmp_path))
    yield broker
    broker.close()


@pytest.fixture
def served(broker: Broker) -> Iterator[Served]:
    served = Served(broker)
    yield served
    drop_connection(served.options)
    served.stop()


def rows(reader: JmsStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """What the tasks of a batch read."""
    return [
        text
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for text in batch.to_pydict()["text"]
    ]


def test_batches_are_read_as_often_as_spark_wants_and_settled_when_the_next_one_begins(served: Served) -> None:
    served.fill(0, 10)
    reader = served.reader()
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadMaxRows(6))
    assert len(reader.partitions(begin, end)) == 2
    for _ in range(2):
        assert rows(reader, begin, end) == [str(number) for number in range(6)]
    last = reader.latestOffset(end, ReadMaxRows(6))
    assert rows(reader, end, last) == ["6", "7", "8", "9"]
    assert len(served.left()) == 10
    reader.commit(end)
    assert served.left() == ["6", "7", "8", "9"]
    reader.stop()


def test_the_tasks_of_a_batch_have_a_limit_of_bytes_as_well(served: Served) -> None:
    served.fill(0, 10)
    reader = served.reader(max_bytes_per_partition=1)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    assert len(reader.partitions(begin, end)) == 10
    assert len(rows(reader, begin, end)) == 10


def test_what_is_in_the_log_of_spark_is_settled_when_nothing_new_comes(served: Served) -> None:
    served.fill(0, 3)
    reader = served.reader()
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    assert len(served.left()) == 3
    for _ in range(2):
        assert reader.latestOffset(end, ALL) == end
        assert served.left() == []
    assert rows(reader, end, end) == []


def test_what_a_query_passed_over_is_read_by_a_later_one(served: Served) -> None:
    served.fill(0, 10)
    passing = served.reader(starting_position="latest")
    begin = passing.initialOffset()
    served.fill(10, 10)
    end = passing.latestOffset(begin, ALL)
    passing.commit(end)
    passing.stop()
    assert served.left() == [str(number) for number in range(10)]
    reader = served.reader()
    start = reader.initialOffset()
    found = []
    for _ in range(4):
        end = reader.latestOffset(start, ReadMaxRows(3))
        found += rows(reader, start, end)
        start = end
    assert found == [str(number) for number in range(10)]
    served.fill(20, 3)
    assert rows(reader, start, reader.latestOffset(start, ALL))[-3:] == ["20", "21", "22"]
    reader.stop()


def test_the_option_says_how_many_messages_a_batch_has(served: Served) -> None:
    assert isinstance(served.reader(max_messages_per_trigger=None).getDefaultReadLimit(), ReadAllAvailable)
    limit = served.reader(max_messages_per_trigger=7).getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 7


def test_a_query_that_waits_renews_the_run_of_its_offset_in_a_batch_without_rows(served: Served) -> None:
    served.fill(0, 3)
    reader = served.reader()
    offset = reader.latestOffset(reader.initialOffset(), ALL)
    for _ in range(3):
        served.start_often(AGING_STARTS)
        assert reader.latestOffset(offset, ALL) == offset
        served.start_often(1)
        again = reader.latestOffset(offset, ALL)
        assert again == {**offset, "run": again["run"]}
        assert run_of(again["run"]) == served.run
        assert reader.partitions(offset, again) == []
        reader.commit(again)
        assert reader.latestOffset(again, ALL) == again
        offset = again
    assert served.left() == []
    served.fill(3, 2)
    assert rows(reader, offset, reader.latestOffset(offset, ALL)) == ["3", "4"]


def test_a_query_of_available_now_renews_the_run_once_and_ends(served: Served) -> None:
    served.fill(0, 3)
    reader = served.reader()
    offset = reader.latestOffset(reader.initialOffset(), ALL)
    served.start_often(AGING_STARTS + 1)
    reader = served.reader()
    reader.prepareForTriggerAvailableNow()
    again = reader.latestOffset(offset, ALL)
    assert again != offset
    assert reader.partitions(offset, again) == []
    assert reader.latestOffset(again, ALL) == again


def test_what_comes_after_the_start_of_available_now_is_left_for_another_time(served: Served) -> None:
    served.fill(0, 3)
    reader = served.reader()
    begin = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    served.fill(3, 3)
    end = reader.latestOffset(begin, ALL)
    assert rows(reader, begin, end) == ["0", "1", "2"]
    assert reader.latestOffset(end, ALL) == end
    assert served.left() == ["3", "4", "5"]


def test_a_queue_that_was_made_again_is_an_error_or_read_from_its_beginning(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.fill(0, 5)
    first = served.reader()
    begin = first.initialOffset()
    end = first.latestOffset(begin, ALL)
    connection_for(served.options).request("delete", {"destination": "in", "force": True})
    served.fill(100, 2)
    with pytest.raises(InvalidDestinationException, match=r"data of 'in' is lost: .* set failOnDataLoss=false"):
        served.reader().latestOffset(end, ALL)
    with pytest.raises(InvalidDestinationException, match="data of 'in' is lost"):
        served.reader().partitions(begin, end)
    reader = served.reader(fail_on_data_loss=False)
    assert reader.partitions(begin, end) == []
    again = reader.latestOffset(end, ALL)
    assert reader.partitions(end, again) == []
    reader.commit(end)
    assert rows(reader, again, reader.latestOffset(again, ALL)) == ["100", "101"]
    assert caplog.text.count("going on with what 'in' has, though data is lost") == 1
    assert served.left() == ["100", "101"], "nothing of the new queue was settled for the old one"


def test_a_query_waits_for_a_broker_that_is_away_and_goes_on_then(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.fill(0, 3)
    reader = served.reader()
    begin = reader.initialOffset()
    served.listener.stop()
    assert reader.latestOffset(begin, ALL) == begin
    assert "the broker is away since 0 s" in caplog.text
    served.start()
    assert rows(reader, begin, reader.latestOffset(begin, ALL)) == ["0", "1", "2"]


def test_a_broker_that_is_away_for_too_long_ends_the_query(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "OFFLINE_TOLERANCE_SECONDS", -1.0)
    served.fill(0, 3)
    reader = served.reader()
    begin = reader.initialOffset()
    served.listener.stop()
    with pytest.raises(JMSException):
        reader.latestOffset(begin, ALL)
    served.start()


def test_available_now_does_not_take_a_broker_that_is_away_for_an_empty_queue(served: Served) -> None:
    served.fill(0, 3)
    reader = served.reader()
    begin = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    served.listener.stop()
    with pytest.raises(JMSException):
        reader.latestOffset(begin, ALL)
    served.start()


def test_what_could_not_be_settled_is_settled_later_and_not_tried_all_the_time(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.fill(0, 3)
    reader = served.reader()
    end = reader.latestOffset(reader.initialOffset(), ALL)
    served.listener.stop()
    for _ in range(3):
        reader.commit(end)
    assert caplog.text.count("positions below 4 are not settled yet") == 1
    served.start()
    reader._settle_after = 0.0  # the pause is over
    reader.commit(end)
    assert served.left() == []


def test_the_broker_is_not_asked_more_often_than_the_option_says(served: Served) -> None:
    served.fill(0, 3)
    reader = served.reader(head_refresh_seconds=1000)
    begin = reader.initialOffset()
    first = reader.latestOffset(begin, ALL)
    served.fill(3, 3)
    assert reader.latestOffset(begin, ALL) == first
    assert served.reader().latestOffset(begin, ALL)["next"] == 7
