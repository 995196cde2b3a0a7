"""One real local Spark for all tests of the connector, with two cores and tasks that may fail three times."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_connector import close_engines, register


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(3000))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    yield from running()


def running() -> Iterator[SparkSession]:
    """A Spark, until it is asked for the next one."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with pytest.MonkeyPatch.context() as patch:  # what Spark runs has the environment of its JVM
        preloading = str(Path(__file__).parent / "preloading")
        patch.setenv("PYTHONPATH", os.pathsep.join([preloading, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        session = started()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()
    close_engines()


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
