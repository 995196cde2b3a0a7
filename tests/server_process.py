"""``holdfast serve`` in a process of its own, for tests that kill it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from broker_adapter.engine.maintenance import check_store
from broker_adapter.settings import EngineSettings


class ServerProcess:
    """A server that can be killed and started again on the same store and port.

    Args:
        data: directory of the store.
        arguments: further ones for ``holdfast serve``.
        log: file that gets what the server logs; None: the standard error stream.
    """

    def __init__(self, data: Path, *arguments: str, log: Path | None = None) -> None:
        self.data = data
        self._log = log
        self.port = 0
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        if kind is None and (self.data / "data.mdb").exists():
            report = check_store(self.data, EngineSettings())
            assert report.is_sound, (report.damages[:5], report.findings[:5])

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, by itself or by a signal."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and wait for the ready line."""
        command = [
            sys.executable,
            *("-m", "broker_adapter.server.cli", "serve", "--data", str(self.data)),
            *("--listen", f"127.0.0.1:{self.port}"),
            *self._arguments,
        ]
        with contextlib.ExitStack() as files:
            log = None if self._log is None else files.enter_context(self._log.open("a"))
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"ready on amqps?://[^:]+:(\d+)", line)
        assert found, f"the server said {line!r}"
        self.port = int(found[1])

    def signal(self, number: int) -> None:
        """Send it a signal, and do not wait for what becomes of it."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; legal twice."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        status = process.wait(120)
        assert process.stdout is not None
        process.stdout.close()
        return status
