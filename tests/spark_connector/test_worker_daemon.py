"""The daemon of Spark's Python workers that has loaded the connector; it is started and asked as Spark does it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_connector import worker_daemon

SECRET = "a word"
#: What the processes of the daemon have in memory that a new process of Python does not have.
LIBRARIES = ("/pyarrow/", "cproton")


def daemon(module: str, worker: str = "pyspark.worker") -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": SECRET, "SPARK_REUSE_WORKER": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", module, worker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )


def worker_of(running: subprocess.Popen[bytes]) -> tuple[socket.socket, int]:
    """A worker that the daemon has forked: the connection to it, and its process."""
    assert running.stdout is not None
    (port,) = struct.unpack(">i", running.stdout.read(4))
    connection = socket.create_connection(("127.0.0.1", port), timeout=300)
    (pid,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return connection, pid


def end(running: subprocess.Popen[bytes]) -> None:
    """End a daemon as Spark does."""
    assert running.stdin is not None
    running.stdin.close()
    running.wait(300)


@pytest.mark.parametrize(("module", "loaded"), [("spark_connector.worker_daemon", True), ("pyspark.daemon", False)])
def test_its_workers_have_the_connector_from_the_start(module: str, loaded: bool) -> None:
    with daemon(module) as running:
        connection, pid = worker_of(running)
        with connection:
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert [name in maps for name in LIBRARIES] == [loaded, loaded]
            word = SECRET.encode()
            connection.sendall(struct.pack(">i", len(word)) + word)
            assert connection.recv(6, socket.MSG_WAITALL) == b"\0\0\0\x02ok"
        end(running)


@pytest.mark.parametrize("error", ["ImportError", "ValueError", "OSError"])
def test_a_module_that_cannot_be_loaded_is_left_to_the_worker_that_needs_it(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that was built for another version of NumPy raises ValueError, for example."""
    (tmp_path / "of_another_build.py").write_text(f"raise {error}('it was built for another version')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with daemon("spark_connector.worker_daemon", "of_another_build") as running:
        connection, pid = worker_of(running)
        connection.close()
        assert pid > 0
        end(running)


#: The daemon, with the module of NumPy's random numbers in memory, which the package of NumPy 1 loads by itself.
TWO_WORKERS = """
import os
import numpy.random
from spark_connector import worker_daemon

def manager():
    for _ in range(2):
        if os.fork() == 0:
            print(numpy.random.random(), flush=True)
            os._exit(0)
        os.wait()

worker_daemon.manager = manager
worker_daemon.main()
"""


def test_each_worker_has_random_numbers_of_its_own() -> None:
    said = subprocess.run([sys.executable, "-c", TWO_WORKERS], capture_output=True, text=True, timeout=300, check=True)
    one, other = said.stdout.split()
    assert one != other


def test_what_the_workers_need_is_loaded_before_the_daemon_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(worker_daemon.importlib, "import_module", loaded.append)
    monkeypatch.setattr(os, "register_at_fork", lambda after_in_child: registered.append(after_in_child))
    monkeypatch.setattr(worker_daemon, "manager", lambda: loaded.append("manager"))
    monkeypatch.setattr(sys, "argv", ["worker_daemon", "pyspark.worker"])
    worker_daemon.main()
    assert loaded == ["pyspark.worker", *worker_daemon.PRELOADED, "manager"]
    for after_in_child in registered:
        after_in_child()
