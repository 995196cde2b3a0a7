"""A query with a spool in a process of its own, that is killed with its broker and goes on; for any broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path

#: Longest wait for anything, in seconds: each start of Spark takes long on a busy machine.
PATIENCE = 600.0
PROGRAM = textwrap.dedent(
    """
    import json, sys, time
    from pathlib import Path
    from pyspark.sql import SparkSession
    from spark_connector import register

    place, options, until_empty = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "now"
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
            Path(place, "mark").touch()
            time.sleep(0.3)
            yield batch

    stream = spark.readStream.format("jms").options(**options, spool=str(place / "spool")).load()
    rows = stream.select("text").mapInArrow(slowly, "text string")
    writer = rows.writeStream.format("parquet").option("path", str(place / "out"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    if until_empty:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    found = [row.text for row in spark.read.parquet(str(place / "out")).collect()]
    (place / "result").write_text(json.dumps(found))
    """
)


class SpooledQuery:
    """A query that copies texts from a queue of a broker into Parquet.

    Args:
        place: directory for its spool, checkpoint and sink.
        options: of the source, as Spark takes them, without the spool.
    """

    def __init__(self, place: Path, options: Mapping[str, object]) -> None:
        self._place = place
        self._options = json.dumps(dict(options))
        (place / "query.py").write_text(PROGRAM)

    def _start(self, until: str) -> subprocess.Popen[bytes]:
        (self._place / "mark").unlink(missing_ok=True)
        log = (self._place / "log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, str(self._place / "query.py"), str(self._place), self._options, until],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd()},
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def _log(self) -> str:
        return (self._place / "log").read_text(errors="replace")[-5000:]

    def killed(self, meanwhile: Callable[[], None]) -> None:
        """Start it, do something while it runs a batch, and kill it with all its processes in a batch."""
        process = self._start("killed")
        try:
            self._until(process, (self._place / "mark").exists)
            meanwhile()
            (self._place / "mark").unlink()
            self._until(process, (self._place / "mark").exists)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(120)

    def _until(self, process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert process.poll() is None, self._log()
            assert time.monotonic() < deadline, self._log()
            time.sleep(0.02)

    def finished(self) -> list[str]:
        """Run it until the broker has no more; returns all that is in the sink."""
        process = self._start("now")
        try:
            assert process.wait(PATIENCE) == 0, self._log()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(120)
        found: list[str] = json.loads((self._place / "result").read_text())
        return found
