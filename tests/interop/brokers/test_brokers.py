"""What starts the brokers leaves nothing behind, however the tests end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.interop.brokers.brokers import Process

#: A broker with a child; both hold the named pipe open for as long as they live.
_BROKER = "exec 9>{pipe}; sleep 600 & echo ready; wait"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe: reading it ends when no process holds it open any more."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_stop_kills_a_broker_and_what_it_started(pipe: Path) -> None:
    reader = threading.Thread(target=pipe.read_bytes)
    reader.start()
    process = Process(["/bin/sh", "-c", _BROKER.format(pipe=pipe)], {}, "ready")
    process.stop()
    reader.join(30)
    assert not reader.is_alive()


def test_a_broker_does_not_outlive_the_process_that_tests_it(pipe: Path) -> None:
    program = (
        "import os, sys; from tests.interop.brokers.brokers import Process; "
        "Process(['/bin/sh', '-c', sys.argv[1]], {}, 'ready'); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen([sys.executable, "-c", program, _BROKER.format(pipe=pipe)]) as tests:
        assert pipe.read_bytes() == b""
        assert tests.wait(30) == -9


def test_a_broker_that_ends_at_once_is_an_error_with_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="the broker does not start:\nno room"):
        Process(["/bin/sh", "-c", "echo no room"], {}, "ready")
