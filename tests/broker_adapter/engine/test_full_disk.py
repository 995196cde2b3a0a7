"""An engine on a disk that is full: what is confirmed stays, consumers go on, and so does the engine.

Each scenario runs in a process with a mount name space of its own, on a file system of 96 MiB in memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_adapter.engine.full_disk import SCENARIOS

_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def _may_mount() -> bool:
    try:
        return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_mount(), reason="this user may not make a mount name space (unshare --user --mount)")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_engine_on_a_full_disk(scenario: str, tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=96m tmpfs "$1" && exec "$2" -m tests.broker_adapter.engine.full_disk "$3" "$1"'
    done = subprocess.run(
        [*_UNSHARE, "sh", "-c", script, "sh", str(tmp_path), sys.executable, scenario],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
