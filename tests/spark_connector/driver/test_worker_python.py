"""What register says where Spark would start its workers with a Python that cannot import the connector."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_connector import register
from spark_connector.driver import worker_python
from spark_connector.driver.worker_python import check_worker_python, import_failure, is_this_python


class Context:
    """What of a SparkContext counts."""

    def __init__(self, program: str, master: str = "local[2]", setting: str | None = None) -> None:
        self.pythonExec = program
        self.master = master
        self._setting = setting

    def getConf(self) -> Context:
        return self

    def get(self, name: str) -> str | None:
        assert name == "spark.pyspark.python"
        return self._setting


class Session:
    def __init__(self, *arguments: Any) -> None:
        self.sparkContext = Context(*arguments)


@pytest.fixture(autouse=True)
def same_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "spark" not in request.fixturenames:
        monkeypatch.setattr(worker_python, "_environment", lambda context: dict(os.environ))


def program(folder: Path, *lines: str) -> str:
    path = folder / "python3"
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """An interpreter without this project."""
    return program(tmp_path, f'exec "{sys.executable}" -I -S "$@"')


def check(*arguments: Any) -> None:
    check_worker_python(Session(*arguments))  # type: ignore[arg-type]


def test_the_python_of_this_program_is_accepted_and_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    check(sys.executable)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    check(os.path.basename(sys.executable))


def test_a_python_that_cannot_import_the_connector_is_refused_with_what_to_set(bare: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        check(bare)
    text = str(caught.value)
    assert f"workers with '{bare}' (as PYSPARK_PYTHON said when the session was made)" in text
    assert "cannot import spark_connector (ModuleNotFoundError: No module named 'spark_connector')" in text
    assert 'before the session is made, os.environ["PYSPARK_PYTHON"] = sys.executable, here ' in text
    assert repr(sys.executable) in text


def test_the_default_and_a_setting_without_effect_are_named(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(bare), prepend=os.pathsep)
    with pytest.raises(RuntimeError, match=r"'python3' \(the default, as PYSPARK_PYTHON was not set when"):
        check("python3")
    with pytest.raises(RuntimeError, match=r"spark\.pyspark\.python='/a/python' has an effect in spark-submit only"):
        check("python3", "local", "/a/python")


def test_another_python_that_can_import_it_is_accepted(tmp_path: Path) -> None:
    check(program(tmp_path, f'exec "{sys.executable}" "$@"'))


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="there is no such program"):
        check(str(tmp_path / "none"))


def test_on_a_cluster_nothing_is_refused(bare: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.spark_connector"):
        check(str(tmp_path / "none"), "yarn")
        assert caplog.records == []
        check(bare, "spark://host:7077")
    assert "cannot import spark_connector" in caplog.text
    assert "On a cluster it is the path of a Python on all machines" in caplog.text


def test_a_session_without_a_context_is_left_to_its_server() -> None:
    check_worker_python(object())  # type: ignore[arg-type]


def test_a_program_that_says_nothing_or_does_not_start_has_a_reason_too(tmp_path: Path) -> None:
    assert import_failure(program(tmp_path, "exit 3"), os.environ) == "it ends with status 3"
    (tmp_path / "python3").chmod(0o644)
    assert "Permission denied" in str(import_failure(str(tmp_path / "python3"), os.environ))


def test_a_program_that_does_not_answer_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_python, "_IMPORT_SECONDS", 0.05)
    assert import_failure(program(tmp_path, "exec sleep 60"), os.environ) is None


def test_the_python_that_a_virtual_environment_is_made_of_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/python", "a/python3", "b/python"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a" / "python"))
    assert is_this_python(str(tmp_path / "a" / "python3"))
    assert not is_this_python(str(tmp_path / "b" / "python"))
    monkeypatch.setattr(sys, "executable", "")
    assert not is_this_python(str(tmp_path / "a" / "python"))


def test_register_asks_the_python_that_a_real_session_has(
    spark: SparkSession, bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    with pytest.raises(RuntimeError, match=r"cannot import spark_connector \(ModuleNotFoundError"):
        register(spark)
    # With the paths that Spark gives to its workers, an interpreter that knows nothing finds PySpark.
    folder = tmp_path / "alone"
    folder.mkdir()
    alone = program(folder, f'exec "{sys.executable}" -S -c "import pyspark"')
    assert import_failure(alone, worker_python._environment(spark.sparkContext)) is None
