"""What counts as the tests of a source file."""

from __future__ import annotations

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
