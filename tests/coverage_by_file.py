"""Which lines of each source file its own tests execute: ``make coverage``.

A source file has a test file of its own, at the same place below ``tests``, or a contract: tests that state what it has
to do and live elsewhere, named in ``CONTRACTS``.  Only what these execute counts, not what some other test happens to
pass through.  A file below 90 % is named, and the command ends with status 1.

Lines that only another process executes (a server that a test starts, the workers of Spark) do not count.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import coverage

ROOT = Path(__file__).parent.parent
PACKAGES = ("ack_modes", "broker_adapter", "holdfast", "sdk", "spark_connector")
LEAST_PERCENT = 90

_ENGINE = "broker_adapter/engine"
#: Source files or folders whose tests are elsewhere, with these tests (files, or folders with all that is below).
CONTRACTS: dict[str, tuple[str, ...]] = {
    # Every mode, every event.
    "ack_modes": ("tests/ack_modes/test_policies.py",),
    "holdfast/__init__.py": ("tests/test_holdfast.py",),
    # One contract over both stores; what older versions wrote; damaged stores.
    **dict.fromkeys((f"{_ENGINE}/lmdb_store.py", f"{_ENGINE}/memory_store.py"), (f"tests/{_ENGINE}/test_store.py",)),
    f"{_ENGINE}/store_versions.py": (f"tests/{_ENGINE}/test_old_stores.py",),
    f"{_ENGINE}/records.py": tuple(f"tests/{_ENGINE}/test_{each}.py" for each in ("lmdb_store", "store", "old_stores")),
    **dict.fromkeys(
        (f"{_ENGINE}/check.py", f"{_ENGINE}/pages.py", f"{_ENGINE}/salvage.py"),
        (f"tests/{_ENGINE}/test_maintenance.py",),
    ),
}


def tests_of(source: str) -> tuple[str, ...]:
    """The test file of a source file, and the contracts of it and of the folders that it is in.

    Args:
        source: a path from the root of the project, such as ``sdk/session.py``.
    """
    path = Path(source)
    own = Path("tests", path.parent, f"test_{path.stem.lstrip('_')}.py")
    named = [each for place in (path, *path.parents) for each in CONTRACTS.get(place.as_posix(), ())]
    return (own.as_posix(), *named)


def covered_percent(statements: Iterable[int], executed: Iterable[int]) -> float:
    """How many of these lines were executed, in percent; 100 where there are none."""
    all_of_them = set(statements)
    return 100.0 if not all_of_them else 100 * len(all_of_them & set(executed)) / len(all_of_them)


def sources() -> list[str]:
    """All source files, as paths from the root."""
    return sorted(file.relative_to(ROOT).as_posix() for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def _executed(data: coverage.CoverageData, source: str) -> set[int]:
    """The lines of a file that its own tests execute, and those that run as it is imported."""
    data.set_query_contexts(["^$", *(f"^{each}(/|::)" for each in tests_of(source))])
    return set(data.lines(str(ROOT / source)) or ())


def main() -> int:
    """Run the tests, and print a line for each file."""
    parser = argparse.ArgumentParser(prog="coverage_by_file", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", default=["tests"], help="what is run; default: all tests")
    parser.add_argument("--workers", default="2", help="processes that run the tests")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory, "coveragerc")
        settings.write_text(f"[run]\ndata_file = {directory}/coverage\n", encoding="utf-8")
        status = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-n", options.workers, "--dist", "loadfile"),
                *(f"--cov={package}" for package in PACKAGES),
                *(f"--cov-config={settings}", "--cov-context=test", "--cov-report=", *options.tests),
            ],
            cwd=ROOT,
            check=False,
        ).returncode
        data = coverage.CoverageData(f"{directory}/coverage")
        data.read()
        analysis = coverage.Coverage(data_file=None)
        below = 0
        for source in sources():
            statements = analysis.analysis2(str(ROOT / source))[1]
            percent = covered_percent(statements, _executed(data, source))
            data.set_query_contexts(None)
            by_all = covered_percent(statements, data.lines(str(ROOT / source)) or ())
            below += percent < LEAST_PERCENT
            mark = "  <--" if percent < LEAST_PERCENT else ""
            print(f"{source:55} {len(statements):5} lines {percent:6.1f} % {by_all:6.1f} % by all tests{mark}")
    print(f"{below} files below {LEAST_PERCENT} %" if below else f"every file at {LEAST_PERCENT} % or above")
    return 1 if status or below else 0


if __name__ == "__main__":
    sys.exit(main())
