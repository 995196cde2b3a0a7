"""One real local Spark for all tests of the connector, with two cores and tasks that may fail three times."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_connector import close_engines, register
from spark_connector.worker_daemon import PRELOADED
from tests import forked_command
from tests.spark_connector.preloading import sitecustomize


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(3000))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with socket.socket(socket.AF_UNIX) as forks:
        name = f"holdfast-tests-{os.getpid()}"
        forks.bind(f"\0{name}")
        forks.listen()
        threading.Thread(target=hand_out, args=(forks,), daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:  # what Spark runs has the environment of its JVM
            path = [os.path.dirname(sitecustomize.__file__), str(Path(__file__).parents[2])]
            patch.setenv("PYTHONPATH", os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]))
            patch.setenv(sitecustomize.FORKS, name)
            session = started()
        session.sparkContext.setLogLevel("OFF")
        register(session)
        yield session
        session.stop()
        close_engines()


def hand_out(forks: socket.socket) -> None:
    """Give whoever connects the socket of a fork server that has loaded the connector, until the test run ends."""
    server = forked_command.server_for(dict(os.environ), sitecustomize.SOURCE, *PRELOADED)
    with suppress(OSError):
        while True:
            asked, _ = forks.accept()
            with asked:
                socket.send_fds(asked, [b"."], [server.fileno()])


def started() -> SparkSession:
    return (
        SparkSession.builder.master("local[2,4]")
        .appName("holdfast-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # Compiling a class for each query takes longer than the rows of a test.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.daemon.module", "spark_connector.worker_daemon")
        # A process that a busy machine starts late is no failure.
        .config("spark.python.authenticate.socketTimeout", "300s")
        .getOrCreate()
    )
