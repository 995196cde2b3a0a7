#!/bin/sh
# PySpark 4.3.0 calls stop() of a streaming data source in Python after a crash, and not after query.stop().
#
# Guess, written before the run: DataSourceStreamReader.stop(), "invoked when the streaming query terminates", is not
# called by query.stop(), because Spark first kills the process that runs the source.  It is called where the JVM is
# killed by SIGKILL, because that process then reads the end of its input.
#
# At query.stop() the process gets SIGTERM, twice, and the end of its input within some milliseconds.  So a source that
# handles the signal, if only by a note, has its stop() called.
. "$(dirname "$0")/common.sh"
cat >one.py <<'EOF'
import os
import signal

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


def note(path, what):
    with open(path, "a") as log:
        log.write(f"{what}\n")


class StreamReader(DataSourceStreamReader):
    def __init__(self, path, handles):
        self.path, self.handles = path, handles

    def initialOffset(self):
        if self.handles:
            signal.signal(signal.SIGTERM, lambda *_: note(self.path, "SIGTERM"))
        return {"end": 0}

    def latestOffset(self, start, limit):
        return {"end": 1}

    def partitions(self, start, end):
        note(self.path, f"runs {os.getpid()}")
        return [InputPartition(0)]

    def read(self, partition):
        yield (1,)

    def stop(self):
        note(self.path, "stop() called")


class One(DataSource):
    @classmethod
    def name(cls):
        return "one"

    def schema(self):
        return "n int"

    def streamReader(self, schema):
        return StreamReader(self.options["log"], self.options["handles"] == "true")
EOF
cat >run.py <<'EOF'
import os
import signal
import time
from pathlib import Path

from pyspark.sql import SparkSession

from one import One

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(One)


def noted(what, handles, end):
    """What the process that runs the source notes, once each, until it is gone after the end of the query."""
    path = Path.cwd() / what
    path.touch()
    source = spark.readStream.format("one").options(log=str(path), handles=handles)
    query = source.load().writeStream.format("noop").start()
    deadline = time.monotonic() + 120
    while not (begun := path.read_text()) or (query.lastProgress is None):
        assert time.monotonic() < deadline, query.exception()
        time.sleep(0.1)
    process = int(begun.split()[1])
    end(query)
    while Path(f"/proc/{process}/stat").exists() and Path(f"/proc/{process}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return sorted({each for each in path.read_text().splitlines() if not each.startswith("runs")})


def stop(query):
    query.stop()


def kill(query):
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)


found = [noted("a", "false", stop), noted("b", "true", stop), noted("c", "true", kill)]
words = ["query.stop()", "query.stop(), SIGTERM handled", "JVM killed"]
for what, each in zip(words, found):
    print(f"{what}: {', '.join(each) or 'stop() not called'}", flush=True)
os._exit(0)
EOF
pyspark
expect output <<'EOF'
query.stop(): stop() not called
query.stop(), SIGTERM handled: SIGTERM, stop() called
JVM killed: stop() called
EOF
