"""Memory that a server keeps for its next answer."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from broker_adapter.server.kept_memory import keep_freed_memory

_PROGRAM = """
import resource, sys
from broker_adapter.server.kept_memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def work():
    blocks = [b"x" * (4 << 20) for _ in range(3)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_blocks_that_were_freed_are_used_again_without_the_system() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", _PROGRAM, how], check=True, capture_output=True).stdout)
        for how in ("kept", "not")
    }
    assert faults["kept"] < 2_000 < faults["not"]  # of 60 blocks of 1,024 pages each


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace())
    assert not keep_freed_memory()
