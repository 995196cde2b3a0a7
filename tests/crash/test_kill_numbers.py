"""A process is killed that has given numbers to messages: none is given a second time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash


def numbers_of(directory: Path, *counts: int) -> tuple[int, int]:
    """The numbers of the first and the last message of a process that ends as :mod:`number_giver` says."""
    command = [sys.executable, "-m", "tests.crash.number_giver", str(directory), *map(str, counts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    first, last = map(int, done.stdout.split())
    return first, last


def test_the_number_of_a_volatile_message_is_not_given_again_after_a_kill(tmp_path: Path) -> None:
    given = 0
    for counts in ((1,), (0, 1), (1, 1, 1), (0, 2, 70_000), (1,)):
        first, last = numbers_of(tmp_path, *counts)
        assert first > given
        assert last - first + 1 == sum(counts)
        given = last
