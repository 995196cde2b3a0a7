"""One streaming query for a queue: what a second one is told, and how a query ends its claim; no Spark runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from sdk import ConnectionFactory, QueueClaimedException
from spark_connector import claims
from spark_connector.connections import drop_connection
from spark_connector.options import SourceOptions
from spark_connector.queues_stream import JmsQueuesStreamReader
from spark_connector.regions.rows import RegionColumns
from spark_connector.regions.stream import JmsRegionStreamReader
from spark_connector.stream_reader import JmsStreamReader
from tests.spark_connector.served import Served

ALL = ReadAllAvailable()
Reader = JmsStreamReader | JmsQueuesStreamReader
IS_CLAIMED = "is claimed by another streaming query"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(Broker(EngineSettings(), str(tmp_path)))
    yield served
    drop_connection(served.options)
    served.stop()


@pytest.fixture
def ended() -> Iterator[None]:
    """As if Spark had sent the signal that ends a query."""
    claims._is_ended.set()
    yield
    claims._is_ended.clear()


def several(served: Served, **changes: Any) -> JmsQueuesStreamReader:
    options = attrs.evolve(served.options, queue=None, queue_pattern="in|other", **changes)
    return JmsQueuesStreamReader(options, ("text",))


def planned(reader: Reader) -> dict[str, Any]:
    """Have a reader plan its first batch, as Spark does; returns the end of it."""
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.partitions(reader.initialOffset(), end)
    return end


@pytest.mark.parametrize("make", [Served.reader, several])
def test_a_second_query_is_refused_and_takes_nothing_from_the_first(served: Served, make: Any) -> None:
    served.fill(0, 10)
    first, second = make(served), make(served)
    end = planned(first)
    with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
        planned(second)
    with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
        second.latestOffset(second.initialOffset(), ALL)
    assert len(served.left()) == 10
    first.commit(end)
    assert served.left() == []


def test_a_query_of_a_pattern_does_not_take_a_queue_of_another_query(served: Served) -> None:
    served.fill(0, 3)
    served.fill_queue("other", ["a"])
    end = planned(served.reader())
    with pytest.raises(QueueClaimedException, match=f"queue 'in' {IS_CLAIMED}"):
        planned(several(served))
    served.reader().commit(end)


def test_the_refusal_names_the_application_the_host_and_the_time(served: Served) -> None:
    served.fill(0, 1)
    planned(JmsStreamReader(served.options, ("text",), application="Spark application 'etl' (local-1)"))
    with pytest.raises(QueueClaimedException, match=r"Spark application 'etl' \(local-1\) on host .+, since 20\d\d-"):
        planned(served.reader())


def test_the_refusal_names_the_application_that_continues_a_query(served: Served) -> None:
    served.fill(0, 1)
    end = planned(JmsStreamReader(served.options, ("text",), application="the first one"))
    again = JmsStreamReader(served.options, ("text",), application="the second one")
    served.fill(1, 1)
    again.partitions(end, again.latestOffset(end, ALL))
    with pytest.raises(QueueClaimedException, match="the second one on host"):
        planned(served.reader())


@pytest.mark.parametrize("make", [Served.reader, several])
def test_the_restart_of_a_killed_query_goes_on(served: Served, make: Any) -> None:
    served.fill(0, 5)
    end = planned(make(served))
    again = make(served)
    served.fill(5, 5)
    last = again.latestOffset(end, ALL)
    again.partitions(end, last)
    again.commit(last)
    assert served.left() == []


@pytest.mark.parametrize("make", [Served.reader, several])
def test_a_query_that_was_killed_in_its_first_batch_goes_on_with_the_word_in_the_log(served: Served, make: Any) -> None:
    """Spark asks again where the query begins, and has the end of the batch."""
    served.fill(0, 5)
    end = planned(make(served))
    again = make(served)
    assert again.partitions(again.initialOffset(), end)
    assert again.latestOffset(end, ALL) == end
    assert served.left() == []


def test_a_query_that_has_read_nothing_yet_claims_nothing(served: Served) -> None:
    """Spark's log has no offset of it, so its restart would not know its word."""
    first, second = served.reader(head_refresh_seconds=0), served.reader()
    begin = first.initialOffset()
    assert first.latestOffset(begin, ALL) == begin
    served.fill(0, 2)
    second.commit(planned(second))
    assert served.left() == []


@pytest.mark.parametrize("make", [Served.reader, several])
def test_a_query_that_was_suspended_while_its_queue_was_taken_over_settles_nothing(served: Served, make: Any) -> None:
    served.fill(0, 3)
    suspended = make(served)
    end = planned(suspended)
    new = make(served, take_over=True)
    planned(new)
    served.fill(3, 3)
    for ask in (lambda: suspended.commit(end), lambda: suspended.latestOffset(end, ALL)):
        with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
            ask()
    assert len(served.left()) == 6


def test_a_queue_is_taken_over_also_where_nothing_is_to_be_read(served: Served) -> None:
    served.fill(0, 3)
    first = served.reader()
    end = planned(first)
    first.commit(end)
    new = served.reader(take_over=True)
    begin = new.initialOffset()
    assert new.latestOffset(begin, ALL) == begin
    with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
        first.latestOffset(end, ALL)


@pytest.mark.parametrize("make", [Served.reader, several])
def test_a_restart_takes_its_queue_over_ahead_of_all_that_may_be_refused(served: Served, make: Any) -> None:
    """With availableNow the bounds are known, and nothing new is there: what was read is settled."""
    served.fill(0, 3)
    first = make(served, head_refresh_seconds=60)
    end = planned(first)
    planned(make(served, take_over=True))
    again = make(served, take_over=True, head_refresh_seconds=60)
    again.prepareForTriggerAvailableNow()
    assert again.latestOffset(end, ALL) == end
    assert served.left() == []


def test_a_queue_that_was_deleted_is_not_taken_over_but_made_again(served: Served) -> None:
    served.fill(0, 3)
    end = planned(served.reader())
    with ConnectionFactory(served.options.url).create_connection() as connection:
        connection.request("delete", {"destination": "in", "kind": "queue"})
    again = served.reader(take_over=True, fail_on_data_loss=False)
    begin = again.latestOffset(end, ALL)
    served.fill(3, 3)
    assert again.partitions(begin, again.latestOffset(begin, ALL))


def test_a_query_takes_a_queue_over_once(served: Served) -> None:
    served.fill(0, 3)
    first, second = served.reader(take_over=True), served.reader(take_over=True)
    end = planned(first)
    planned(second)
    with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
        first.latestOffset(end, ALL)
    with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
        first.partitions(end, {**end, "run": "x-1"})


def test_a_claim_is_made_again_at_a_broker_that_has_started_again(served: Served) -> None:
    """Its store may be a backup that does not have it."""
    served.fill(0, 3)
    reader = served.reader()
    end = planned(reader)
    with ConnectionFactory(served.options.url).create_connection() as connection:
        connection.request("end_claim", {"destination": "in", "claim": end["claim"]})
    served.start_often(1)
    served.fill(3, 3)
    assert reader.latestOffset(end, ALL) == end, "the connection was lost"
    last = reader.latestOffset(end, ALL)
    reader.partitions(end, last)
    with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
        planned(served.reader())


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("make", [Served.reader, several])
def test_a_query_that_spark_ends_while_it_waits_leaves_its_queue_to_others(served: Served, make: Any) -> None:
    served.fill(0, 3)
    first = make(served)
    end = planned(first)
    assert first.latestOffset(end, ALL) == end
    first.stop()
    served.fill(3, 3)
    planned(make(served))


@pytest.mark.usefixtures("ended")
def test_a_query_whose_first_queue_was_deleted_leaves_the_others_to_others(served: Served) -> None:
    served.fill(0, 3)
    served.fill_queue("deleted", ["a"])
    first = JmsQueuesStreamReader(
        attrs.evolve(served.options, queue=None, queue_pattern="deleted|in", fail_on_data_loss=False), ("text",)
    )
    assert first.latestOffset(end := planned(first), ALL) == end
    with ConnectionFactory(served.options.url).create_connection() as connection:
        connection.request("delete", {"destination": "deleted", "kind": "queue"})
    first.stop()
    served.fill(3, 3)
    planned(served.reader())


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("make", [Served.reader, several])
def test_a_restart_that_has_read_nothing_more_leaves_its_queue_to_others_too(served: Served, make: Any) -> None:
    served.fill(0, 3)
    end = planned(make(served))
    again = make(served)
    assert again.latestOffset(end, ALL) == end
    again.stop()
    served.fill(3, 3)
    planned(make(served))


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("make", [Served.reader, several])
def test_a_query_that_ends_in_a_batch_keeps_its_queue(served: Served, make: Any) -> None:
    served.fill(0, 3)
    for is_planned in (True, False):
        first = make(served, take_over=True)
        end = planned(first)
        if not is_planned:
            assert first.latestOffset(end, ALL) == end
            served.fill(3, 3)
            assert first.latestOffset(end, ALL) != end
        first.stop()
        with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
            planned(make(served))


def test_a_query_whose_program_was_killed_keeps_its_queue(served: Served) -> None:
    """Then the process of its source is not signalled."""
    served.fill(0, 3)
    first = served.reader()
    assert first.latestOffset(end := planned(first), ALL) == end
    first.stop()
    served.fill(3, 3)
    with pytest.raises(QueueClaimedException, match=IS_CLAIMED):
        planned(served.reader())


@pytest.mark.usefixtures("ended")
def test_a_claim_that_cannot_be_ended_is_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.fill(0, 3)
    first = served.reader()
    assert first.latestOffset(end := planned(first), ALL) == end
    served.listener.stop()
    first.stop()
    assert "'in' stays claimed by the query that has ended" in caplog.text
    served.start()


def test_a_subscription_of_a_region_is_claimed_from_the_snapshot_on(served: Served) -> None:
    def region() -> JmsRegionStreamReader:
        options = attrs.evolve(served.options, queue=None, region="prices", subscription="audit")
        return JmsRegionStreamReader(options, RegionColumns(("key",), {}))

    first = region()
    begin = first.initialOffset()
    first.partitions(begin, first.latestOffset(begin, ALL))
    second = region()
    begin = second.initialOffset()
    with pytest.raises(QueueClaimedException, match=f"subscription 'audit' on topic 'prices' {IS_CLAIMED}"):
        second.partitions(begin, second.latestOffset(begin, ALL))


def test_the_signal_that_ends_a_query_is_noted_in_a_worker_of_spark_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    claims.watch_for_end()
    assert signal.getsignal(signal.SIGTERM) is before
    program = (
        "import os, signal; from spark_connector import claims; claims.watch_for_end(); "
        "os.kill(os.getpid(), signal.SIGTERM); assert claims._is_ended.is_set(); assert signal.alarm(0) > 0"
    )
    environment = {**os.environ, "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)


def test_a_spool_claims_nothing(served: Served) -> None:
    served.fill(0, 3)
    options: SourceOptions = served.options
    for _ in range(2):
        planned(JmsStreamReader(options, ("text",), claim=claims.NO_CLAIM))
