"""The data source by Spark Connect: a client without a JVM, and a server in another process, which carries it out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import ServerProcess

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(900)]

#: Run in a process of its own: one that has a session of the usual kind takes none of Spark Connect.
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from spark_connector import register

url, checkpoint = sys.argv[1:]
builder = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.connect.grpc.binding.address", "127.0.0.1").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
try:
    register(spark)
    rows = spark.range(20).selectExpr("cast(id as string) as value")
    rows.write.format("jms").mode("append").options(url=url, queue="in").save()
    stream = spark.readStream.format("jms").options(url=url, queue="in").load().selectExpr("text as value")
    writer = stream.writeStream.format("jms").options(url=url, queue="out").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(200) is not False
    found = spark.read.format("jms").options(url=url, queue="out").load().select("text").collect()
    print(sorted(int(row.text) for row in found) == list(range(20)))
finally:
    spark.stop()
"""


def test_a_client_of_spark_connect_writes_reads_and_streams(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    # SPARK_TESTING: the server listens at any port that is free.
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    with ServerProcess(tmp_path / "broker") as server:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, server.url, str(tmp_path / "checkpoint")],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "True"
