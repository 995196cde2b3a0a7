"""Spark standalone, a master and two workers, against a server with users and TLS; and where the password is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pyspark
import pytest

from broker_adapter.server.access.users import UsersFile
from sdk import AcknowledgeMode, ConnectionFactory
from tests.broker_adapter.server.served import server_context
from tests.server_process import ServerProcess

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(3000)]

#: Longest wait for anything, in seconds.
PATIENCE = 600.0
PASSWORD = "v3ry-s3cret-w0rd"
SPARK_HOME = Path(pyspark.__file__).parent
PROGRAM = textwrap.dedent(
    """
    import contextlib, io, json, sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    from spark_connector import register

    master, place, options, foreign = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.port", "0")
        .config("spark.executor.memory", "600m")
        .config("spark.executor.cores", "1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (place / "events").as_uri())
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "120s")
        .getOrCreate()
    )
    register(spark)
    explained = io.StringIO()

    def copied(source, name):
        stream = spark.readStream.format("jms").options(maxMessagesPerPartition=50, **source).load()
        writer = stream.selectExpr("text as value").writeStream.format("jms").options(queue=name, **options)
        writer = writer.option("checkpointLocation", str(place / f"checkpoint-{name}")).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        with contextlib.redirect_stdout(explained):
            query.explain(True)

    copied({**options, "queue": "in"}, "out")
    copied({**foreign, "queue": "far", "spool": str(place / "spool")}, "near")
    rows = spark.read.format("jms").options(queue="out", maxMessagesPerPartition=50, **options).load()
    with contextlib.redirect_stdout(explained):
        rows.explain(True)
    spark.sql("CREATE TEMPORARY VIEW v USING jms OPTIONS (%s)" % ", ".join(
        f"{name} '{value}'" for name, value in {**options, "queue": "out"}.items()))
    executors = rows.mapInArrow(lambda batches: batches, rows.schema).rdd.mapPartitions(
        lambda _: [__import__("os").environ["SPARK_EXECUTOR_DIRS"]]).collect()
    found = {"rows": rows.count(), "view": spark.table("v").count(), "executors": len(set(executors))}
    (place / "result").write_text(json.dumps(found))
    (place / "explained").write_text(explained.getvalue())
    spark.stop()
    """
)


@attrs.frozen
class Cluster:
    """A master with two workers; ``logs`` has what all of them and their executors say."""

    master: str
    logs: Path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    logs = tmp_path / "logs"
    logs.mkdir()
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.getcwd(),
        "HOLDFAST_PASSWORD": PASSWORD,
    }
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> None:
            log = stack.enter_context((logs / f"{name}.log").open("wb"))
            command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}"]
            process = subprocess.Popen([*command, *arguments[1:]], env=environment, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

        listening = ("--host", "127.0.0.1", "--webui-port", "0")
        start("master", "master.Master", *listening, "--port", str(port))
        for number in range(2):
            work = ("--cores", "1", "--memory", "700M", "--work-dir", str(logs / f"work{number}"), master)
            start(f"worker{number}", "worker.Worker", *listening, *work)
        deadline = time.monotonic() + PATIENCE
        while (logs / "master.log").read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline, (logs / "master.log").read_text()[-3000:]
            time.sleep(0.1)
        yield Cluster(master, logs)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server_context(tmp_path)
    UsersFile.open_or_make(tmp_path / "users").add("spark", PASSWORD)
    arguments = ("--users", tmp_path / "users", "--tls-certificate", tmp_path / "server.crt", "--tls-key")
    with ServerProcess(tmp_path / "data", *map(str, arguments), str(tmp_path / "server.key")) as server:
        yield server


def test_a_cluster_reads_and_writes_over_tls_and_tells_nobody_the_password(
    cluster: Cluster, server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    url = f"amqps://127.0.0.1:{server.port}?tls_ca_file={tmp_path / 'server.crt'}"
    factory = ConnectionFactory(url, "spark", PASSWORD)
    expected = [str(number) for number in range(300)]
    with factory.create_connection() as connection:
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        for name in ("in", "far"):
            session.create_producer(session.create_queue(name)).send_all(expected)
        session.commit()
    from_file = {"url": url, "username": "spark", "passwordFile": str(tmp_path / "password")}
    from_environment = {"url": f"{url}&envelope=false", "username": "spark", "passwordEnv": "HOLDFAST_PASSWORD"}
    (tmp_path / "job.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "job.py"), cluster.master, str(tmp_path)]
    with (cluster.logs / "driver.log").open("wb") as log:
        done = subprocess.run(
            [*command, json.dumps(from_file), json.dumps(from_environment)],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.getcwd(),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "HOLDFAST_PASSWORD": PASSWORD,
            },
            stdout=log,
            stderr=log,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, (cluster.logs / "driver.log").read_text(errors="replace")[-6000:]
    assert json.loads((tmp_path / "result").read_text()) == {"rows": 300, "view": 300, "executors": 2}
    with factory.create_connection() as connection, connection.create_session() as session:
        for name in ("out", "near"):
            found = [message.body for message in session.create_browser(session.create_queue(name))]
            assert sorted(found, key=int) == expected
        for name in ("in", "far"):
            assert list(session.create_browser(session.create_queue(name))) == []
    told = [path for place in ("events", "logs") for path in (tmp_path / place).rglob("*") if path.is_file()]
    events = [path for path in told if path.name.startswith("events_")]
    assert any(b"SparkListenerApplicationStart" in path.read_bytes() for path in events), "an event log that is text"
    assert {path.parents[2].name for path in told if path.name == "stderr"} == {"work0", "work1"}, "logs of executors"
    told += [tmp_path / "explained", *(path for path in tmp_path.glob("checkpoint-*/**/*") if path.is_file())]
    assert (tmp_path / "explained").read_text().count("jms") > 0
    assert [str(path) for path in told if PASSWORD.encode() in path.read_bytes()] == []
