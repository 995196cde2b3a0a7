"""How tests are divided among workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import workers
from tests.workers import LONG, group, put_long_ones_first

HERE = Path(workers.__file__).parent


def item(file: str) -> Any:
    marks: list[Any] = []
    return SimpleNamespace(path=HERE / file, marks=marks, add_marker=marks.append)


def test_what_takes_longest_comes_first_and_all_else_keeps_its_order() -> None:
    spark, other, *_ = LONG[0]
    items = [item(file) for file in ("test_b.py", other, "test_a.py", LONG[-1][0], "test_b.py", spark)]
    put_long_ones_first(items)
    files = [str(each.path.relative_to(HERE)) for each in items]
    assert files == [other, spark, LONG[-1][0], "test_b.py", "test_a.py", "test_b.py"]


def test_the_tests_of_a_file_or_of_files_that_share_spark_run_in_one_worker() -> None:
    spark, other, *_ = LONG[0]
    items = [item(file) for file in (spark, other, "test_a.py", "sdk/test_a.py", "test_a.py")]
    group(items)
    first, second, third, fourth, fifth = [each.marks[0].kwargs or each.marks[0].args for each in items]
    assert first == second != third == fifth != fourth


def test_every_long_file_exists_once() -> None:
    files = [file for group in LONG for file in group]
    assert len(set(files)) == len(files)
    assert [file for file in files if not (HERE / file).exists()] == []


def test_the_tests_of_each_file_run_in_one_worker() -> None:
    """The plugin that divides them reads the marks in a hook of its own."""
    files = ["tests/broker_adapter/test_wording.py", "tests/broker_adapter/test_destination.py"]
    options = ["-v", "-v", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    program = [sys.executable, "-m", "pytest", *options, *files]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False, cwd=HERE.parent)
    assert done.returncode == 0, done.stdout
    passed = re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::.*@", done.stdout, re.MULTILINE)
    assert len(passed) > 10, done.stdout
    assert len(set(passed)) == len(files)
