"""Readers and writers of regions against a server that is stopped and started; no Spark runs."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from sdk import ConnectionFactory, ConnectionLostException, InvalidDestinationException, JMSException, Region
from spark_connector.batches import Attempt
from spark_connector.options import SinkOptions
from spark_connector.regions import writer as region_writer
from spark_connector.regions.reader import JmsRegionReader
from spark_connector.regions.rows import region_projection
from spark_connector.regions.stream import JmsRegionStreamReader
from spark_connector.regions.writer import Changed, JmsRegionStreamWriter, RegionTaskWriter
from spark_connector.rows import RowError
from tests.server_process import ServerProcess
from tests.spark_connector.schemas import schema
from tests.spark_connector.served import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(Broker(EngineSettings(), str(tmp_path / "data")))
    yield made
    made.stop()


@pytest.fixture
def region(served: Served) -> Iterator[Region]:
    with ConnectionFactory(served.options.url).create_connection() as connection:
        yield connection.create_session().create_region("quotes")


def batch_reader(
    served: Served, text: str = "key string, version bigint, bid double", **changes: Any
) -> JmsRegionReader:
    options = attrs.evolve(served.options, queue=None, region="quotes", **changes)
    return JmsRegionReader(options, region_projection(schema(text)))


def rows(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


# Reading.


def test_all_tasks_read_one_moment_however_late_and_often(served: Served, region: Region) -> None:
    region.put_all({f"k{number:02}": {"bid": number} for number in range(10)})
    reader = batch_reader(served)
    partitions = reader.partitions()
    assert len(partitions) == 3
    first = rows(reader, partitions[:1])
    region.put_all({f"k{number:02}": {"bid": -1} for number in range(12)})
    region.destroy("k05")
    assert rows(reader, partitions[:1]) == first
    found = rows(reader, partitions)
    assert [(row["key"], row["bid"]) for row in found] == [(f"k{number:02}", float(number)) for number in range(10)]
    assert max(row["version"] for row in found) == 10


def test_only_what_is_asked_for_is_read(served: Served, region: Region) -> None:
    region.put_all({"a1": {"bid": 1}, "a2": {"bid": 2}, "b1": {"bid": 3}})
    reader = batch_reader(served, "key string, version bigint")
    assert len(rows(reader, reader.partitions())) == 3
    reader = batch_reader(served, key_pattern="a.*", selector="bid > 1")
    assert [row["key"] for row in rows(reader, reader.partitions())] == ["a2"]


def test_a_restart_of_the_server_shows_no_second_moment(served: Served) -> None:
    with ConnectionFactory(served.options.url).create_connection() as connection:
        connection.create_session().create_region("quotes").put_all({f"k{number}": {"bid": 1} for number in range(8)})
    reader = batch_reader(served, retry_seconds=10)
    partitions = reader.partitions()
    assert len(rows(reader, partitions[:1])) == 4
    served.start_often(1)
    assert len(rows(reader, partitions)) == 8  # nothing has happened
    with ConnectionFactory(served.options.url).create_connection() as connection:
        connection.create_session().create_region("quotes").put("k1", {"bid": 2})
    with pytest.raises(InvalidDestinationException, match="read the region again"):
        rows(reader, partitions)


def test_a_region_that_is_not_there_is_an_error_that_says_so(served: Served) -> None:
    with pytest.raises(InvalidDestinationException, match="no region 'quotes'"):
        batch_reader(served).partitions()


# Streaming.


def stream(
    served: Served, text: str = "key string, operation string, text string", **changes: Any
) -> JmsRegionStreamReader:
    options = attrs.evolve(served.options, queue=None, region="quotes", subscription="s", **changes)
    return JmsRegionStreamReader(options, region_projection(schema(text)))


def test_a_stream_makes_its_region_unless_what_is_missing_is_an_error(served: Served) -> None:
    with pytest.raises(InvalidDestinationException, match="no subscription"):
        stream(served, fail_on_missing=True).initialOffset()
    with ConnectionFactory(served.options.url).create_connection() as connection:
        assert connection.request("regions", {})["regions"] == []
        stream(served).initialOffset()
        assert [each["name"] for each in connection.request("regions", {})["regions"]] == ["quotes"]


def follow(reader: JmsRegionStreamReader, start: Any, limit: Any = None) -> tuple[list[tuple[Any, Any, Any]], Any]:
    end = json.loads(json.dumps(reader.latestOffset(start, limit or ReadAllAvailable())))
    found = [] if end == start else rows(reader, reader.partitions(start, end))
    return [(row["key"], row["operation"], row["text"]) for row in found], end


def test_a_stream_begins_with_the_keys_and_goes_on_with_the_events(served: Served, region: Region) -> None:
    reader = stream(served)
    reader.initialOffset()  # from here on there is a subscription
    region.put_all({"a": "1", "b": "1"})
    region.invalidate("b")
    start = reader.initialOffset()
    region.put("a", "2")
    region.destroy("b")
    found, end = follow(reader, start)
    # What has changed meanwhile comes as an event.
    assert found == []
    found, after = follow(reader, end)
    assert found == [("a", "update", "2"), ("b", "destroy", None)]
    assert follow(reader, after) == ([], after)
    reader.commit(after)
    assert follow(reader, after) == ([], after)
    assert region.put("c", {"bid": 1.5}) == 6
    with_fields = stream(served, "key string, operation string, version bigint, bid double, text string")
    new = with_fields.latestOffset(after, ReadAllAvailable())
    assert rows(with_fields, with_fields.partitions(after, new)) == [
        {"key": "c", "operation": "create", "version": 6, "bid": 1.5, "text": '{"bid": 1.5}'}
    ]


def test_the_first_batch_has_each_key_and_is_the_same_again(served: Served, region: Region) -> None:
    region.put_all({f"k{number}": str(number) for number in range(9)})
    region.invalidate("k3")
    reader = stream(served)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1))
    partitions = reader.partitions(start, end)
    assert len(partitions) == 3
    found = rows(reader, partitions)
    assert [(row["key"], row["operation"], row["text"]) for row in found] == [
        (f"k{number}", "invalidate" if number == 3 else "snapshot", None if number == 3 else str(number))
        for number in range(9)
    ]
    assert rows(reader, reader.partitions(start, end)) == found


def test_a_first_batch_that_is_repeated_leaves_out_what_follows_as_events(served: Served, region: Region) -> None:
    region.put_all({"a": "1", "b": "1", "c": "1"})
    reader = stream(served)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1))
    region.put("a", "2")
    region.destroy("b")
    region.put("d", "1")
    # The driver was killed: Spark asks again where the query begins, and has the end of the batch in its log.
    reader = stream(served)
    again = reader.initialOffset()
    assert again != start
    found = rows(reader, reader.partitions(again, json.loads(json.dumps(end))))
    assert [row["key"] for row in found] == ["c"]
    events, _ = follow(reader, end)
    assert events == [("a", "update", "2"), ("b", "destroy", None), ("d", "create", "1")]


def test_rows_and_events_together_are_the_region_whatever_happens_meanwhile(served: Served, region: Region) -> None:
    chosen = random.Random(7)
    region.put_all({f"k{number}": "0" for number in range(20)})
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"k{chosen.randrange(30)}"
            if chosen.random() < 0.2:
                region.destroy(key)
            else:
                region.put(key, str(number))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        reader = stream(served)
        at: Any = reader.initialOffset()
        copy: dict[str, str] = {}
        end = at
        for _ in range(8):
            end = json.loads(json.dumps(reader.latestOffset(at, ReadMaxRows(50))))
            if end != at:
                if chosen.random() < 0.5:  # it was killed after the end was logged
                    reader = stream(served)
                    at = reader.initialOffset() if "ahead" in at else at
                apply(copy, rows(reader, reader.partitions(at, end)))
                at = end
    finally:
        stop.set()
        changing.join()
    while (end := json.loads(json.dumps(reader.latestOffset(at, ReadAllAvailable())))) != at:
        apply(copy, rows(reader, reader.partitions(at, end)))
        at = end
    assert copy == region.get_all()


def apply(copy: dict[str, str], changes: list[dict[str, Any]]) -> None:
    for row in changes:
        if row["operation"] == "destroy":
            copy.pop(row["key"], None)
        else:
            copy[row["key"]] = row["text"]


def test_a_stream_may_begin_with_the_next_event_or_with_the_oldest(served: Served, region: Region) -> None:
    region.put("a", "1")
    earliest = stream(served, starting_position="earliest")
    earliest.initialOffset()
    region.put("a", "2")
    assert follow(earliest, earliest.initialOffset())[0] == [("a", "update", "2")]
    latest = stream(served, starting_position="latest", take_over=True)
    start = latest.initialOffset()
    assert follow(latest, start) == ([], start)
    region.put("a", "3")
    assert follow(latest, start)[0] == [("a", "update", "3")]


def test_a_first_batch_of_the_latest_events_is_repeated_after_a_kill(served: Served, region: Region) -> None:
    earlier = stream(served, starting_position="earliest")
    earlier.initialOffset()  # from here on there is a subscription
    region.put("a", "1")  # is passed over
    reader = stream(served, starting_position="latest")
    start = reader.initialOffset()
    region.put("a", "2")
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    region.put("a", "3")
    # The driver was killed: Spark asks again where the query begins, and has the end of the batch in its log.
    reader = stream(served, starting_position="latest")
    again = reader.initialOffset()
    assert again != start
    assert [row["text"] for row in rows(reader, reader.partitions(again, end))] == ["2"]
    found, after = follow(reader, end)
    assert found == [("a", "update", "3")]
    reader.commit(after)
    assert follow(reader, after) == ([], after)
    later = stream(served, starting_position="earliest", take_over=True)
    assert follow(later, later.initialOffset())[0] == []  # what was passed over is settled as well


@pytest.mark.parametrize("fails", [True, False])
def test_a_first_batch_of_the_latest_events_that_another_query_has_settled_is_told_as_lost(
    served: Served, region: Region, fails: bool
) -> None:
    reader = stream(served, starting_position="latest")
    start = reader.initialOffset()
    region.put("a", "1")
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    reader.commit(end)
    region.put("a", "2")
    older = stream(served, starting_position="latest", fail_on_data_loss=fails)  # with a copy of the checkpoint
    again = older.initialOffset()
    if fails:
        with pytest.raises(JMSException, match="lost"):
            older.partitions(again, end)
    else:
        assert rows(older, older.partitions(again, end)) == []


def test_a_query_of_the_latest_events_that_has_logged_nothing_begins_once_more(served: Served, region: Region) -> None:
    stream(served, starting_position="latest").initialOffset()
    region.put("a", "1")
    # The driver was killed before its first offset was in the checkpoint: only the next driver's question is known.
    reader = stream(served, starting_position="latest")
    start = reader.initialOffset()
    region.put("a", "2")
    assert follow(reader, start)[0] == [("a", "update", "2")]


def test_an_offset_of_another_source_is_refused(served: Served, region: Region) -> None:
    with pytest.raises(ValueError, match="not an offset"):
        stream(served).latestOffset({"incarnation": "i", "next": 1, "snapshot": "x"}, ReadAllAvailable())


# Writing.


def sink(served: Served, **changes: Any) -> SinkOptions:
    return SinkOptions(url=served.options.url, region="quotes", retry_seconds=10, **changes)


def write(options: SinkOptions, values: list[tuple[str, str | None]], batch: int = 0, word: str = "w") -> Changed:
    keys, texts = [key for key, _ in values], [text for _, text in values]
    operations = ["destroy" if text is None else None for text in texts]
    table = pa.RecordBatch.from_pydict(
        {"key": keys, "operation": pa.array(operations, pa.string()), "value": pa.array(texts, pa.string())}
    )
    attempt = Attempt("run", 0, 0, word)
    return RegionTaskWriter(options, "q", batch, attempt).write(iter([table]))


def test_rows_are_puts_and_destroys(served: Served, region: Region) -> None:
    assert write(sink(served), [("a", "1"), ("b", "1"), ("a", "2"), ("b", None)]).count == 4
    assert region.get_all() == {"a": "2"}


def test_what_is_written_again_brings_back_nothing(served: Served, region: Region) -> None:
    values: list[tuple[str, str | None]] = [("a", "1"), ("a", "2"), ("b", "1")]
    write(sink(served), values)
    region.put("a", "3")
    region.destroy("b")
    write(sink(served), values, word="another attempt")
    assert region.get_all() == {"a": "3"}
    # In another order the rows are others: all are written, for some may not have been.
    write(sink(served), values[::-1], word="another attempt")
    assert region.get_all() == {"a": "1", "b": "1"}
    write(sink(served, guarantee="at_least_once"), values, word="x")
    region.put("a", "3")
    write(sink(served, guarantee="at_least_once"), values, word="y")
    assert region.get_all() == {"a": "2", "b": "1"}


def test_an_attempt_that_was_killed_half_way_is_completed(
    served: Served, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_writer, "CHANGES_AT_ONCE", 3)
    values: list[tuple[str, str | None]] = [(f"k{number % 4}", str(number)) for number in range(10)]
    write(sink(served), values[:6])
    region.put("k0", "newer")
    write(sink(served), values)
    assert region.get_all() == {"k0": "8", "k1": "9", "k2": "6", "k3": "7"}
    region.put("k0", "newer")
    write(sink(served), values)
    assert region.get("k0") == "newer"


def test_a_task_has_so_many_bytes_of_rows_in_memory(
    served: Served, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_writer, "_CHUNK_BYTES", 1000)
    sizes: list[int] = []
    change_keys = region_writer.change_keys

    def noted(connection: Any, name: str, changes: Any) -> Any:
        sizes.append(len(changes))
        return change_keys(connection, name, changes)

    monkeypatch.setattr(region_writer, "change_keys", noted)
    values: list[tuple[str, str | None]] = [(f"k{number}", "x" * 300) for number in range(5)]
    write(sink(served), values)
    write(sink(served), values)
    assert sizes == [2, 2, 1] * 2
    assert region.get_message("k0") is not None


def test_a_batch_that_was_completed_is_not_written_again(
    served: Served, region: Region, caplog: pytest.LogCaptureFixture
) -> None:
    writer = JmsRegionStreamWriter(sink(served))
    written = write(sink(served), [("a", "1")], batch=5)
    writer.commit([written, None], 5)
    region.put("a", "2")
    dropped = write(sink(served), [("a", "other rows")], batch=5)
    assert dropped.dropped
    writer.commit([dropped], 5)
    assert "written to region 'quotes' before, so its 1 row was dropped" in caplog.text
    assert write(sink(served), [("a", "old")], batch=4).dropped
    assert region.get("a") == "2"
    assert not write(sink(served), [("a", "3")], batch=6).dropped
    assert not write(sink(served, producer_id="again"), [("a", "4")], batch=5).dropped
    assert region.get("a") == "4"


def test_a_row_that_is_too_large_is_named(tmp_path: Path) -> None:
    served = Served(Broker(EngineSettings(max_message_bytes=2000), str(tmp_path / "data")))
    try:
        with pytest.raises(RowError, match="partition 0, row 3: column 'key' has the value 'c'"):
            write(sink(served), [("a", "1"), ("b", "1"), ("c", "x" * 3000), ("d", "1")])
    finally:
        served.stop()


def test_a_killed_server_loses_and_repeats_no_change(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_writer, "CHANGES_AT_ONCE", 5)
    change_keys, calls = region_writer.change_keys, []

    def interrupted(*arguments: Any) -> Any:
        answer = change_keys(*arguments)
        calls.append(len(arguments[2]))
        if len(calls) == 2:
            served.start_often(1)  # the changes are made, and the answer is lost
            raise ConnectionLostException("lost")
        return answer

    monkeypatch.setattr(region_writer, "change_keys", interrupted)
    write(sink(served), [(f"k{number % 3}", str(number)) for number in range(20)])
    assert calls == [5, 5, 5, 5, 5]
    with ConnectionFactory(served.options.url).create_connection() as connection:
        region = connection.create_session().create_region("quotes")
        assert region.get_all() == {"k0": "18", "k1": "19", "k2": "17"}
        assert region.put("k0", "x") == 21


@pytest.mark.crash
def test_kills_of_the_server_lose_and_repeat_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_writer, "CHANGES_AT_ONCE", 100)
    values: list[tuple[str, str | None]] = [(f"k{number % 50}", str(number)) for number in range(6000)]
    with ServerProcess(tmp_path / "data") as server:
        options = SinkOptions(url=f"{server.url}?failover=nofailover", region="quotes", retry_seconds=60)
        writing = threading.Thread(target=lambda: done.append(write(options, values)))
        done: list[Changed] = []
        writing.start()
        for _ in range(3):
            time.sleep(0.2)
            server.kill()
            server.start()
        writing.join(120)
        assert done[0].count == 6000
        write(options, values, word="the next attempt")
        with ConnectionFactory(server.url).create_connection() as connection:
            region = connection.create_session().create_region("quotes")
            assert region.get_all() == {f"k{number % 50}": str(number) for number in range(5950, 6000)}
            assert region.put("k0", "x") == 6001  # each row was one event
