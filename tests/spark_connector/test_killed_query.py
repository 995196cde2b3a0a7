"""A query killed with SIGKILL in mid-batch and started again from its checkpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.server_process import ServerProcess
from tests.spark_connector.queues import fill, texts

#: To twelve queues, to the first one by the option.
ROUTE = "if(text % 12 = 0, null, concat('out ', cast(text as int) % 12)) as queue"
QUEUES = [f"out {number}" for number in range(12)]
PROGRAM = f"ROUTE = {ROUTE!r}" + textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from pyspark.sql import SparkSession
    from spark_connector import register

    url, checkpoint, mark = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.daemon.module", "spark_connector.worker_daemon")
        .getOrCreate()
    )
    register(spark)

    def slowly(batches):
        for batch in batches:
            Path(mark).touch()
            time.sleep(0.3)
            yield batch

    stream = spark.readStream.format("jms").option("url", url).option("queue", "in")
    stream = stream.option("maxMessagesPerTrigger", 2000).option("maxMessagesPerPartition", 500).load()
    rows = stream.selectExpr("text as value", ROUTE).mapInArrow(slowly, "value string, queue string")
    writer = rows.writeStream.format("jms").option("url", url).option("queue", "out 0")
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()
    """
)


@pytest.mark.crash
def test_a_killed_query_goes_on_from_its_checkpoint_and_writes_to_all_queues_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        check_killed_query(spark, tmp_path, server.url)


def check_killed_query(
    spark: SparkSession, place: Path, url: str, as_it_is_killed: Callable[[], object] = lambda: None
) -> None:
    """Start a query, kill it in mid-batch, and see that it goes on from its checkpoint.

    Args:
        spark: where it goes on.
        place: for its files.
        url: of its broker.
        as_it_is_killed: is called at that moment.
    """
    program = place / "query.py"
    program.write_text(PROGRAM)
    checkpoint, mark = place / "checkpoint", place / "mark"
    expected = [str(number) for number in range(10_000)]
    fill(url, "in", expected)
    command = [sys.executable, str(program), url, str(checkpoint), str(mark)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd()}
    wait = random.choice((0.05, 1.0))  # one of the two: each start of Spark takes long on a busy machine
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not mark.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(wait)
    as_it_is_killed()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(120)
    done, left = written(url), texts(url, "in")
    assert len(done) == len(set(done))
    assert set(done) | set(left) == set(expected), "something was settled that was not processed"
    stream = spark.readStream.format("jms").option("url", url).option("queue", "in").load()
    other = stream.writeStream.format("noop").option("checkpointLocation", str(place / "other")).start()
    with pytest.raises(Exception, match="'in' is claimed by another streaming query"):
        other.awaitTermination(300)
    writer = stream.selectExpr("text as value", ROUTE).writeStream.format("jms").option("url", url)
    query = writer.option("queue", "out 0").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    assert query.start().awaitTermination(300)
    assert sorted(written(url), key=int) == expected
    assert texts(url, "in") == []


def written(url: str) -> list[str]:
    """What waits in the queues of the sink, each in that for its number."""
    found = {name: texts(url, name) for name in QUEUES}
    assert all(name == f"out {int(text) % 12}" for name, bodies in found.items() for text in bodies)
    return [text for bodies in found.values() for text in bodies]
