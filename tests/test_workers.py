"""In which order tests begin, and which files one worker runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import workers
from tests.workers import LONG, SHARED, ByFile, load_share, put_long_ones_first

HERE = Path(workers.__file__).parent


def test_what_takes_longest_comes_first_and_all_else_keeps_its_order() -> None:
    files = ("test_b.py", LONG[1], "test_a.py", LONG[-1], "test_b.py", LONG[0])
    items: list[Any] = [SimpleNamespace(path=HERE / file) for file in files]
    put_long_ones_first(items)
    found = [str(each.path.relative_to(HERE)) for each in items]
    assert found == [LONG[0], LONG[1], LONG[-1], "test_b.py", "test_a.py", "test_b.py"]


def test_every_long_file_exists_once() -> None:
    assert len(set(LONG)) == len(LONG)
    assert [file for file in LONG if not (HERE / file).exists()] == []


def test_the_files_with_a_spark_session_are_those_that_workers_share() -> None:
    files = [
        path for path in (HERE / "spark_connector").rglob("test_*.py") if "spark: SparkSession" in path.read_text()
    ]
    assert {str(path.relative_to(HERE.parent)) for path in files} == set(SHARED)


def test_one_worker_runs_all_files_of_a_part_and_each_other_file_as_a_whole() -> None:
    part_of = ByFile.__new__(ByFile)._split_scope
    parts = {part_of(f"{file}::test_it[a::b]") for file in SHARED}
    assert parts == set(SHARED.values())
    assert part_of("tests/sdk/messages/test_message.py::TestIt::test_it[a::b]") == "tests/sdk/messages/test_message.py"


def test_each_worker_loads_a_share_and_all_of_them_load_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "shared_out"
    package.mkdir()
    (package / "__init__.py").touch()
    for number in range(5):
        (package / f"test_{number}.py").write_text("raise ImportError" if number == 1 else "")
    monkeypatch.setattr(workers, "_TESTS", package)
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = []
    for number in range(2):
        load_share([package], number, 2)
        loaded.append({name for name in sys.modules if name.startswith("shared_out.")} - set().union(*loaded))
    assert loaded == [{f"shared_out.test_{number}" for number in (0, 2, 4)}, {"shared_out.test_3"}]
