"""What counts as the tests of a source file."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import coverage_by_file
from tests.coverage_by_file import CONTRACTS, PACKAGES, ROOT, covered_percent, sources


def test_a_source_file_has_the_test_file_at_its_place_and_the_contracts_named_for_it_or_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contracts = {"sdk/session.py": ("tests/contracts/a.py",), "sdk": ("tests/b",), "sdk/other.py": ("tests/c",)}
    monkeypatch.setattr(coverage_by_file, "CONTRACTS", contracts)
    assert coverage_by_file.tests_of("sdk/session.py") == (
        "tests/sdk/test_session.py",
        "tests/contracts/a.py",
        "tests/b",
    )
    assert coverage_by_file.tests_of("ack_modes/mode.py") == ("tests/ack_modes/test_mode.py",)


def test_lines_that_are_no_statements_do_not_count() -> None:
    assert covered_percent([1, 2, 5, 6], [1, 2, 3, 4, 5]) == 75.0
    assert covered_percent([], []) == 100.0


def test_contracts_name_files_and_tests_that_exist() -> None:
    for source, tests in CONTRACTS.items():
        assert (ROOT / source).exists(), source
        assert [each for each in tests if not (ROOT / each).exists()] == []
    assert {source.split("/")[0] for source in sources()} == set(PACKAGES)


@pytest.mark.parametrize(
    ("test", "is_measured"),
    [
        ("tests/broker_adapter/server/cli/test_serve.py::test_a", True),
        ("tests/broker_adapter/server/test_listener.py::test_a", False),
    ],
)
def test_processes_count_that_a_test_of_the_command_starts_and_no_others(
    test: str, is_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_COVERAGE_OF_PROCESSES", "settings")
    monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)
    item = cast(Any, SimpleNamespace(nodeid=test))
    running = cast(Generator[None, None, None], coverage_by_file.pytest_runtest_protocol(item))
    next(running)
    assert os.environ.get("COVERAGE_PROCESS_START") == ("settings" if is_measured else None)
    with pytest.raises(StopIteration):
        running.send(None)
    assert "COVERAGE_PROCESS_START" not in os.environ
