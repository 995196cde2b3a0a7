"""A process is killed that has given numbers to messages, and stamps to changes: none is given a second time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

HOUR_MS = 3_600_000


def given_by(directory: Path, behind_ms: int, *counts: int) -> tuple[int, int, int]:
    """What a process has given that ends as :mod:`number_giver` says: first and last number, and a stamp."""
    command = [sys.executable, "-m", "tests.crash.number_giver", str(directory), *map(str, (behind_ms, *counts))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    first, last, stamp = map(int, done.stdout.split())
    return first, last, stamp


def test_numbers_of_volatile_messages_and_stamps_are_not_given_again_after_a_kill(tmp_path: Path) -> None:
    number = stamp = 0
    for round_, counts in enumerate(((1,), (0, 1), (1, 1, 1), (0, 2, 70_000), (1,))):
        first, last, stamped = given_by(tmp_path, round_ * HOUR_MS, *counts)
        assert first > number
        assert last - first + 1 == sum(counts)
        assert stamped > stamp, "also where the clock is set back"
        number, stamp = last, stamped
