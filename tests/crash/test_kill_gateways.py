"""Two sites are killed while a gateway sends from one to the other: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.crash


def test_a_kill_ahead_of_any_commit_of_either_site_neither_loses_nor_doubles() -> None:
    kills = map(str, (*range(1, 8), 17, 26))
    command = [sys.executable, "-m", "tests.crash.gateway_killer", *kills]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
