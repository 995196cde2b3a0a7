"""Spark's connectors side by side: ours with our server, and Kafka's with a broker of Kafka, in one run.

``make bench-kafka``, or ``python -m benchmarks.kafka [--json] [--rows N] [--warm-up N]``. Fetches a broker of Kafka and
Spark's connector for it with Maven into ``.interop`` where they are not there. Needs Maven and a JDK, and says in one
line which of their programs is missing (exit status 1).

Theory of operation: one session of Spark (``local[2]``) does the same with both, one side after the other, on the lines
of :mod:`benchmarks.spark`, after fewer rows to warm up. A queue is a topic of two partitions there. Kafka's broker is
one process that is broker and controller, as it comes: it confirms what it has handed to the system, and syncs
nothing. Ours syncs every commit. Kafka's sink writes at least once; ours is measured exactly once, and at least once.
The connector is that of Spark 4.2, since Maven has none of 4.3; that of 4.0 does not stream in 4.3.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.modes import OrderError
from benchmarks.programs import Failed, exit_when_terminated, lacks_java
from benchmarks.spark import (
    BODY_BYTES,
    PER_BATCH,
    READ,
    READ_TEXT,
    STREAM,
    WRITE,
    Cost,
    Meter,
    check,
    drain,
    frame_of,
    holdfast_lines,
    limit_lines,
    session,
    stream_through,
)
from tests.interop import install

_JAVA = Path(__file__).parent / "java"
#: What the connector needs beside what Spark has.
_JARS = ("spark-sql-kafka-*.jar", "spark-token-provider-kafka-*.jar", "kafka-clients-*.jar", "commons-pool2-*.jar")
_WAIT = 120.0
_PARTITIONS = 2
_CLUSTER = "holdfast-benchmarksAAA"
_HOLDFAST, _KAFKA, _LIMIT = "Holdfast", "Kafka", "API limit"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def kafka(libraries: Path, directory: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A broker of Kafka: its address, and its process.

    Args:
        libraries: folder of its jars.
        directory: for its data.

    Raises:
        Failed: it does not start; with what it said.
    """
    port, other = _free_ports(2)
    config = directory / "kafka.properties"
    config.write_text(
        "\n".join(
            (
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@127.0.0.1:{other}",
                f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{other}",
                f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
                "controller.listener.names=CONTROLLER",
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                f"log.dirs={directory / 'kafka'}",
                f"num.partitions={_PARTITIONS}",
                "offsets.topic.replication.factor=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
            )
        )
    )
    java = ["java", "-Xmx1g", "-cp", f"{libraries}/*"]
    format_it = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(config)]
    done = subprocess.run(format_it, capture_output=True, text=True, timeout=_WAIT, check=False)
    if done.returncode:
        raise Failed(f"Kafka's storage cannot be formatted:\n{(done.stdout + done.stderr)[-2000:]}")
    with (directory / "kafka.log").open("w+") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for(port, process, directory / "kafka.log")
            yield f"127.0.0.1:{port}", psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _WAIT
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise Failed(f"Kafka has not started:\n{log.read_text()[-2000:]}")


def kafka_lines(spark: SparkSession, servers: str, process: psutil.Process, rows: int, warm_up: int) -> dict[str, Cost]:
    """What Kafka's connector and broker do."""
    meter = Meter(process)
    to = {"kafka.bootstrap.servers": servers}

    def reader_of(topic: str) -> dict[str, str]:
        return {**to, "subscribe": topic, "startingOffsets": "earliest"}

    def all_of(name: str, number: int) -> dict[str, Cost]:
        writer = frame_of(spark, number).write.format("kafka").options(**to, topic=name)
        costs = {WRITE: meter.measured(number, writer.save)}
        found = spark.read.format("kafka").options(**reader_of(name)).load()
        text = found.selectExpr("cast(value as string) as text")
        check(text, "text", number)
        costs[READ] = meter.measured(number, lambda: drain(found))
        costs[READ_TEXT] = meter.measured(number, lambda: drain(text))
        source = spark.readStream.format("kafka").options(**reader_of(name), maxOffsetsPerTrigger=str(PER_BATCH))
        target = {**to, "topic": f"{name}-target"}
        values = source.load().select("value")
        costs[STREAM] = meter.measured(number, lambda: stream_through(values, "kafka", target))
        written = spark.read.format("kafka").options(**reader_of(f"{name}-target")).load()
        check(written.selectExpr("cast(value as string) as text"), "text", number)
        return costs

    all_of("warm", warm_up)
    return all_of("rows", rows)


def table(found: Mapping[str, Mapping[str, Cost]]) -> Table:
    """A row for each line and side; the ratio is that to Kafka's connector."""
    shown = Table()
    shown.add_column("what")
    shown.add_column("who")
    for column in ("rows/s", "ratio", "µs of CPU a row", "JVM", "Python", "broker"):
        shown.add_column(column, justify="right")
    for row in rows_of(found):
        cpu = [row[name] for name in ("CPU", "JVM", "Python", "broker")]
        ratio = row["ratio"]
        shown.add_row(
            str(row["what"]),
            str(row["who"]),
            f"{row['rows/s']:,.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            *(f"{each:.1f}" for each in cpu),
        )
    return shown


def rows_of(found: Mapping[str, Mapping[str, Cost]]) -> list[dict[str, str | float | None]]:
    """The same as data."""
    lines = [WRITE, f"{WRITE}, at least once", READ, READ_TEXT, STREAM]
    base = found[_KAFKA]
    return [
        {
            "what": line,
            "who": who,
            "rows/s": cost.rate,
            "ratio": cost.rate / base[line.partition(", at least")[0]].rate,
            "CPU": (cost.jvm + cost.python + cost.broker) / cost.rows * 1e6,
            "JVM": cost.jvm / cost.rows * 1e6,
            "Python": cost.python / cost.rows * 1e6,
            "broker": cost.broker / cost.rows * 1e6,
        }
        for line in lines
        for who, costs in found.items()
        if (cost := costs.get(line)) is not None
    ]


def main() -> int:
    """Run, print, return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.kafka", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--rows", type=int, default=200_000, metavar="N", help="rows of each line (200,000)")
    parser.add_argument("--warm-up", type=int, default=20_000, metavar="N", help="the same before, once (20,000)")
    options = parser.parse_args()
    if options.rows < 1 or options.warm_up < 1:
        parser.error("rows are at least 1")
    if lacks_java():
        return 1
    exit_when_terminated()
    logging.disable(logging.WARNING)
    progress = Console(stderr=True)
    counts = options.rows, options.warm_up
    try:
        with (
            progress.status("Kafka and its connector are fetched ...") as status,
            tempfile.TemporaryDirectory() as name,
        ):
            libraries = install.java_libraries(_JAVA / "kafka" / "pom.xml", "kafka")
            connector = install.java_libraries(_JAVA / "kafka_connector" / "pom.xml", "kafka_connector")
            jars = ",".join(str(jar) for name in _JARS for jar in sorted(connector.glob(name)))
            directory = Path(name)
            spark = session(spark_jars=jars)
            try:
                status.update("the API limit ...")
                found = {_LIMIT: limit_lines(spark, *counts)}
                status.update("Kafka ...")
                with kafka(libraries, directory) as (servers, process):
                    found[_KAFKA] = kafka_lines(spark, servers, process, *counts)
                status.update("Holdfast ...")
                found[_HOLDFAST] = holdfast_lines(spark, directory / "holdfast", *counts)
            finally:
                spark.stop()
    except (install.CannotInstall, Failed, OrderError, subprocess.SubprocessError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if options.json:
        print(json.dumps(rows_of(found), indent=1))
    else:
        print(f"{options.rows:,} rows of {BODY_BYTES:,} bytes; streams with {PER_BATCH:,} rows a batch.")
        Console(width=150).print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
