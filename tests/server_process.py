"""``holdfast serve`` in a process of its own, for tests that kill it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.settings import EngineSettings
from tests import fork_server, forked_command
from tests.forked_command import ForkedCommand, Pipe


class HoldfastProcess:
    """``holdfast serve`` in a process that can be killed.

    Args:
        log: file that gets what it logs; None: the standard error stream.
    """

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | ForkedCommand | None = None
        self._output: IO[str] | None = None

    def _spawn(self, start: Callable[[Sequence[int]], subprocess.Popen[bytes] | ForkedCommand]) -> str:
        """Start it, with these standard streams; returns the first line that it says."""
        with contextlib.ExitStack() as files:
            output = files.enter_context(Pipe("r"))
            log = 2 if self._log is None else files.enter_context(self._log.open("a")).fileno()
            self._process = start([0, output.theirs, log])
        self._output = output.file
        return self._output.readline()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, by itself or by a signal."""
        return self._process is not None and self._process.poll() is None

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
        assert self._output is not None
        self._output.close()
        return status


class ServerProcess(HoldfastProcess):
    """A server that can be killed and started again on the same store and port.

    Args:
        data: directory of the store.
        arguments: further ones for ``holdfast serve``.
        log: file that gets what the server logs; None: the standard error stream.
        new: whether it is a process that has nothing of another one, not forked by :mod:`tests.fork_server`.
        module: what is run.
    """

    def __init__(
        self,
        data: Path,
        *arguments: str,
        log: Path | None = None,
        new: bool = False,
        module: str = fork_server.COMMAND,
    ) -> None:
        super().__init__(log)
        self.data = data
        self.port = 0
        self._arguments = arguments
        self._new = new
        self._module = module

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

    def start(self) -> None:
        """Start, and wait for the ready line."""
        arguments = ["serve", "--data", str(self.data), "--listen", f"127.0.0.1:{self.port}", *self._arguments]
        command = ["-m", self._module, *arguments]
        line = self._spawn(lambda streams: forked_command.start_python(command, streams, new=self._new))
        found = re.search(r"ready on amqps?://[^:]+:(\d+)", line)
        assert found, f"the server said {line!r}"
        self.port = int(found[1])

    def signal(self, number: int) -> None:
        """Send it a signal, and do not wait for what becomes of it."""
        assert self._process is not None
        self._process.send_signal(number)
