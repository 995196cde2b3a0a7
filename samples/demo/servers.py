"""The servers of the demos, which are killed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import Any

from rich.console import Console

console = Console()


def check(what: str, found: Any, wanted: Any) -> bool:
    """Compare a figure with what it should be."""
    console.print(f"{'[green]equal[/green]' if found == wanted else '[red]DIFFERENT[/red]'}  {what}")
    if found != wanted:
        console.print(f"  found {found}\n  wanted {wanted}")
    return bool(found == wanted)


class Server:
    """``holdfast serve`` in a process of its own.

    Args:
        data: directory of its store.
        arguments: further ones of ``holdfast serve``.
        port: that it listens on; 0: any.
    """

    def __init__(self, data: str, *arguments: str, port: int = 0) -> None:
        self._data = data
        self._arguments = arguments
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.kills = 0

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self._port}"

    def start(self, *more: str) -> None:
        """Start it; ``more``: arguments that hold this once."""
        command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", self._data]
        command += ["--listen", f"127.0.0.1:{self._port}", *self._arguments, *more]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"ready on amqp://[^:]+:(\d+)", line)
        if found is None:
            raise RuntimeError(f"the server did not start: {line!r}")
        self._port = int(found[1])

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.kills += 1

    def kill_and_start(self, why: str) -> None:
        self.kill()
        console.print(f"[red]server killed[/red] ({why}) ...", end=" ")
        time.sleep(0.5)
        started = time.monotonic()
        self.start()
        console.print(f"and ready again in {time.monotonic() - started:.2f} s")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
