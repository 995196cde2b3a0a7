"""What a time-out of a test ends, shown by runs of pytest in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Longer than any of these runs takes.
WAIT = 300.0
_CONFTEST = """
from tests.time_limits import TimeLimits

def pytest_configure(config):
    config.pluginmanager.register(TimeLimits(repeat_seconds=0.5, patience_seconds={patience}))
"""
#: Options of a run: those of this project that matter here, in the order of the file.
_OPTIONS = ("-v", "-p", "no:randomly", "-p", "no:cacheprovider", "-o", "timeout=600", "-o", "timeout_method=signal")


def run(directory: Path, tests: str, *, patience: float = WAIT) -> tuple[int, str, str]:
    """Run these tests; returns the exit status, and what pytest wrote to the two streams."""
    (directory / "conftest.py").write_text(_CONFTEST.format(patience=patience))
    (directory / "test_them.py").write_text("import collections, itertools, threading\nimport pytest\n" + tests)
    (directory / "pytest.ini").write_text("[pytest]\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    return ended.returncode, ended.stdout, ended.stderr


def outcomes(output: str) -> list[str]:
    """What became of each test, in order."""
    lines = [line.split("::")[1].split() for line in output.splitlines() if line.startswith("test_them.py::")]
    return [f"{words[0]} {words[1]}" for words in lines if len(words) > 1]


def test_a_test_that_hangs_fails_and_the_others_go_on(tmp_path: Path) -> None:
    status, output, _ = run(
        tmp_path,
        """
def test_before(): pass

@pytest.mark.timeout(3)
def test_hanging(): threading.Event().wait()

def test_after(): pass
""",
    )
    assert outcomes(output) == ["test_before PASSED", "test_hanging FAILED", "test_after PASSED"], output
    assert "Timeout (>3.0s) from pytest-timeout" in output
    assert status == pytest.ExitCode.TESTS_FAILED


def test_a_test_that_catches_a_time_out_and_hangs_again_fails_as_well(tmp_path: Path) -> None:
    status, output, _ = run(
        tmp_path,
        """
@pytest.mark.timeout(3)
def test_hanging():
    try:
        threading.Event().wait()
    except BaseException:
        pass
    threading.Event().wait()

def test_after(): pass
""",
    )
    assert outcomes(output) == ["test_hanging FAILED", "test_after PASSED"], output
    assert status == pytest.ExitCode.TESTS_FAILED


def test_a_teardown_that_hangs_fails_its_test_also_after_a_time_out(tmp_path: Path) -> None:
    status, output, _ = run(
        tmp_path,
        """
@pytest.fixture
def hanging():
    yield
    threading.Event().wait()

@pytest.mark.timeout(3)
def test_passing(hanging): pass

@pytest.mark.timeout(3)
def test_hanging(hanging): threading.Event().wait()

def test_after(): pass
""",
    )
    assert outcomes(output) == [
        *("test_passing PASSED", "test_passing ERROR"),
        *("test_hanging FAILED", "test_hanging ERROR", "test_after PASSED"),
    ], output
    assert status == pytest.ExitCode.TESTS_FAILED


def test_a_loop_in_c_ends_the_run_with_the_stacks_of_all_threads(tmp_path: Path) -> None:
    status, output, errors = run(
        tmp_path,
        """
def test_before(): pass

@pytest.mark.timeout(3)
def test_hanging(): collections.deque(itertools.repeat(None), maxlen=0)

def test_after(): pass
""",
        patience=3.0,
    )
    assert outcomes(output) == ["test_before PASSED"], output
    assert status == 1
    assert "Timeout (0:00:06)!" in errors
    assert "in test_hanging" in errors
