"""A queue of a broker without positions as a stream, as Spark asks for it; no Spark runs."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.messaging import incoming
from broker_adapter.envelope import AMQP_FORMAT, ENVELOPE_FORMAT
from sdk import InvalidDestinationException, InvalidSelectorException, JMSException
from spark_connector.spool import reader as spool_reader
from spark_connector.spool import spool
from spark_connector.spool.reader import JmsSpoolReader, Reach, reach_of
from spark_connector.spool.spool import Spool
from tests.contracts.transports import WAIT, eventually
from tests.spark_connector.foreign import Foreign

ALL = ReadAllAvailable()


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Foreign]:
    foreign = Foreign(tmp_path)
    yield foreign
    foreign.stop()


class Query(JmsSpoolReader):
    """A reader as the process of a query has it, with what such a query would have in its log."""

    def __init__(self, foreign: Foreign, columns: tuple[str, ...] = ("text",), **changes: Any) -> None:
        super().__init__(foreign.with_options(**changes), columns)

    def close(self) -> None:
        self.stop()


def rows(reader: JmsSpoolReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """What the tasks of a batch read, in processes that know only what Spark carries there."""
    carried = pickle.loads(pickle.dumps(reader))
    return [
        text
        for partition in reader.partitions(start, end)
        for batch in carried.read(pickle.loads(pickle.dumps(partition)))
        for text in batch.to_pydict()["text"]
    ]


def asked_for_ever(reader: JmsSpoolReader, start: dict[str, Any]) -> None:
    """Ask for what is new, as Spark does where nothing is."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        assert reader.latestOffset(start, ALL)["next"] == start["next"]


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def drained(reader: JmsSpoolReader, limit: Any = ALL) -> tuple[list[str], list[int]]:
    """What an AvailableNow query reads from a new checkpoint, and how many rows each batch has."""
    reader.prepareForTriggerAvailableNow()
    start, found, sizes = reader.initialOffset(), [], []
    while (end := reader.latestOffset(start, limit)) != start:
        batch = rows(reader, start, end)
        found += batch
        sizes.append(len(batch))
        start = end
    return found, sizes


def test_a_queue_is_read_in_batches_that_can_be_repeated_and_leaves_the_broker(foreign: Foreign) -> None:
    foreign.fill(0, 100)
    with closing(Query(foreign)) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        end = query.latestOffset(begin, ReadMaxRows(60))
        for _ in range(2):
            assert rows(query, begin, end) == numbers(60)
        last = query.latestOffset(end, ReadMaxRows(60))
        assert rows(query, end, last) == numbers(40, 60)


def test_available_now_reads_what_the_broker_has_in_batches_as_large_as_the_option_says(foreign: Foreign) -> None:
    foreign.fill(0, 100)
    with closing(Query(foreign)) as query:
        found, sizes = drained(query, ReadMaxRows(30))
        assert found == numbers(100)
        assert max(sizes) <= 30
        assert foreign.count() == 0


def test_available_now_ends_also_where_others_send_without_end(foreign: Foreign) -> None:
    foreign.fill(0, 50)
    with closing(Query(foreign, spool_max_messages=20)) as query:
        query.prepareForTriggerAvailableNow()
        start, count = query.initialOffset(), 0
        while (end := query.latestOffset(start, ALL)) != start:
            count += len(rows(query, start, end))
            query.commit(end)
            foreign.fill(0, 50)
            start = end
        assert 20 <= count < 200


def test_the_progress_says_what_the_spool_has(foreign: Foreign) -> None:
    foreign.fill(0, 10)
    with closing(Query(foreign)) as query:
        assert query.reportLatestOffset() is None
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        end = query.latestOffset(begin, ReadMaxRows(4))
        latest = query.reportLatestOffset()
        assert latest is not None
        assert latest["next"] - end["next"] == 6


def test_a_batch_waits_for_as_many_messages_as_the_option_says(foreign: Foreign) -> None:
    foreign.fill(0, 9)
    with closing(Query(foreign, min_messages_per_trigger=10, max_trigger_delay_seconds=3600)) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        assert query.latestOffset(begin, ALL) == begin
        foreign.fill(9, 1)
        eventually(lambda: query.latestOffset(begin, ALL) != begin)
        assert rows(query, begin, query.latestOffset(begin, ALL)) == numbers(10)


@pytest.mark.parametrize("limit", [{"spool_max_messages": 5}, {"spool_max_bytes": 1}])
def test_what_waits_in_a_full_spool_is_a_batch_though_it_is_less_than_the_option_says(
    foreign: Foreign, limit: dict[str, Any]
) -> None:
    foreign.fill(0, 50)
    with closing(Query(foreign, min_messages_per_trigger=30, max_trigger_delay_seconds=3600, **limit)) as query:
        start = query.initialOffset()
        for _ in range(2):
            ends: list[dict[str, Any]] = []
            eventually(lambda start=start, ends=ends: ends.append(query.latestOffset(start, ALL)) or ends[-1] != start)
            assert rows(query, start, ends[-1])
            query.commit(ends[-1])
            start = ends[-1]


def test_available_now_waits_for_no_number_of_messages(foreign: Foreign) -> None:
    foreign.fill(0, 5)
    options = {"min_messages_per_trigger": 30, "max_trigger_delay_seconds": 3600, "spool_max_bytes": 1}
    with closing(Query(foreign, **options)) as query:
        found, _ = drained(query)
        assert found == numbers(5)


@pytest.mark.parametrize("stored", [(AMQP_FORMAT, b"\x00\x53\x77\xa1\x05x"), (ENVELOPE_FORMAT, b"H\x02cut")])
def test_a_message_of_our_own_server_that_cannot_be_decoded_is_a_row_and_no_dead_letter(
    foreign: Foreign, stored: tuple[int, bytes]
) -> None:
    foreign.fill(0, 1)
    client = foreign.broker.call(c.Connect(None), WAIT)
    foreign.broker.call(c.Enqueue(client, queue("in"), [incoming(*stored, 4, True, None, None, None, None)]), WAIT)
    foreign.fill(1, 1)
    with closing(Query(foreign, ("bodyType", "text", "_corrupt_record"), url=foreign.url)) as reader:
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        found: list[dict[str, Any]] = []
        while (end := reader.latestOffset(start, ALL)) != start:
            found += [
                row
                for part in reader.partitions(start, end)
                for batch in reader.read(part)
                for row in batch.to_pylist()
            ]
            start = end
    assert [(row["bodyType"], row["text"], row["_corrupt_record"]) for row in found] == [
        ("text", "0", None),
        ("undecodable", None, stored[1]),
        ("text", "1", None),
    ]
    queues = foreign.broker.request("statistics", {}, WAIT)["queues"]
    assert sum(each["messages"] for each in queues) == 0


def test_a_query_goes_on_from_its_checkpoint_with_what_the_spool_has(foreign: Foreign) -> None:
    foreign.fill(0, 10)
    with closing(Query(foreign)) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        end = query.latestOffset(begin, ReadMaxRows(4))
    foreign.fill(10, 10)
    with closing(Query(foreign)) as query:
        assert rows(query, begin, end) == numbers(4)
        eventually(lambda: foreign.count() == 0)
        assert rows(query, end, query.latestOffset(end, ALL)) == numbers(16, 4)


def test_what_the_query_has_processed_is_dropped_from_the_spool(foreign: Foreign) -> None:
    foreign.fill(0, 10)
    with closing(Query(foreign)) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        end = query.latestOffset(begin, ReadMaxRows(4))
        query.commit(end)
        assert query.initialOffset()["next"] == end["next"]


def test_a_reader_in_an_executor_does_not_know_the_password_of_the_broker(foreign: Foreign) -> None:
    foreign.fill(0, 1)
    with closing(Query(foreign, username="ada", password="t0p-secret")) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        carried = pickle.dumps((query, query.partitions(begin, query.latestOffset(begin, ALL))))
        assert b"t0p-secret" not in carried


def test_a_query_fails_with_what_the_broker_refuses(foreign: Foreign) -> None:
    with closing(Query(foreign, selector="n >")) as query:
        begin = query.initialOffset()
        with pytest.raises(InvalidSelectorException):
            asked_for_ever(query, begin)


def test_a_query_that_waits_survives_the_absence_of_the_broker(foreign: Foreign) -> None:
    foreign.fill(0, 10)
    with closing(Query(foreign)) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        end = query.latestOffset(begin, ALL)
        foreign.stop()
        for _ in range(20):
            assert query.latestOffset(end, ALL)["next"] == end["next"]
        foreign.start()
        foreign.fill(10, 10)
        eventually(lambda: query.latestOffset(end, ALL)["next"] == 20 + begin["next"])
        assert rows(query, end, query.latestOffset(end, ALL)) == numbers(10, 10)


def test_a_query_that_has_nothing_else_to_do_fails_where_the_broker_stays_away(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_reader, "OFFLINE_TOLERANCE_SECONDS", 0.0)
    foreign.fill(0, 10)
    with closing(Query(foreign)) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        foreign.stop()
        assert len(rows(query, begin, query.latestOffset(begin, ALL))) == 10
        end = query.latestOffset(begin, ALL)
        with pytest.raises(JMSException):
            asked_for_ever(query, end)
        foreign.start()


def test_a_checkpoint_without_its_spool_is_a_loss_of_data(foreign: Foreign, tmp_path: Path) -> None:
    foreign.fill(0, 10)
    with closing(Query(foreign)) as query:
        begin = query.initialOffset()
        eventually(lambda: foreign.count() == 0)
        end = query.latestOffset(begin, ALL)
    with (
        closing(Query(foreign, spool=str(tmp_path / "other"))) as query,
        pytest.raises(InvalidDestinationException, match="data of 'in' is lost"),
    ):
        query.latestOffset(end, ALL)


def test_the_limit_of_the_option_is_that_of_other_streams(foreign: Foreign) -> None:
    limit = Query(foreign, max_messages_per_trigger=7).getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 7


def test_executors_reach_the_driver_by_the_address_that_spark_gives_it() -> None:
    def conf(**values: str) -> Any:
        return lambda name, default: values.get(name.replace(".", "_"), default)

    assert reach_of(conf(spark_master="local[2]", spark_driver_host="10.0.0.1")) == Reach()
    assert reach_of(conf()) == Reach()
    cluster = conf(spark_master="spark://m:7077", spark_driver_host="d", spark_driver_bindAddress="0.0.0.0")
    assert reach_of(cluster) == Reach("d", "0.0.0.0")


#: A process in the place of Spark's JVM, with the process of the source of an AvailableNow query, whose broker is away.
JVM = textwrap.dedent(
    """
    import os, subprocess, sys, time

    if len(sys.argv) == 3:
        subprocess.Popen([sys.executable, "-c", os.environ["JVM"], *sys.argv[1:], "source"])
        time.sleep(600)
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from spark_connector.options import parse_source
    from spark_connector.spool.reader import JmsSpoolReader

    options = {"url": sys.argv[1], "queue": "in", "spool": sys.argv[2], "retrySeconds": "3600"}
    reader = JmsSpoolReader(parse_source(options), ("text",))
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    print("open", flush=True)
    reader.latestOffset(start, ReadAllAvailable())
    time.sleep(600)
    """
)


@pytest.mark.crash
def test_a_process_whose_spark_was_killed_gives_the_spool_back_while_it_waits_for_the_broker(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LOCK_SECONDS", WAIT)
    foreign.stop()
    assert foreign.options.spool is not None
    with subprocess.Popen(
        [sys.executable, "-c", JVM, foreign.options.url, foreign.options.spool],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "JVM": JVM},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        process.send_signal(signal.SIGKILL)
        Spool(foreign.options).close()
