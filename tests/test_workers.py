"""In which order tests begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import workers
from tests.workers import LONG, put_long_ones_first

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
