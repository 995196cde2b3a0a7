"""Programs that do what the lines of their input say, in processes of their own, for a benchmark that measures them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

_WAIT = 600.0
_OF_JAVA = ("mvn", "java", "javac")


class Failed(Exception):
    """A program did something else than it was told."""


def answer_of(line: str) -> list[str] | None:
    """What a program answers in a line; None where the line is something else, such as a record of its log."""
    first, *words = line.split() or [""]
    return words if first == "done" else None


class Program:
    """A program that answers each line of its input with a line, and one line when it is ready."""

    def __init__(self, name: str, command: Sequence[str], directory: Path | None = None) -> None:
        """Start it.

        Args:
            name: for errors.
            command: program and arguments.
            directory: in which it works; None: that of this process.
        """
        self.name = name
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.process = psutil.Process(self._process.pid)

    def tell(self, *words: object) -> None:
        """Send a line."""
        with suppress(BrokenPipeError):  # its output says why
            print(*words, file=self._input, flush=True)

    def ask(self, *words: object) -> list[str]:
        """Send a line; its answer."""
        self.tell(*words)
        return self.answer()

    def answer(self) -> list[str]:
        """The next answer, for which it has 600 seconds.

        Raises:
            Failed: it has ended; with what it said.
        """
        said = []
        limit = threading.Timer(_WAIT, self._process.kill)
        limit.start()
        try:
            for line in self._output:
                answer = answer_of(line)
                if answer is not None:
                    return answer
                said.append(line)
        finally:
            limit.cancel()
        raise Failed(f"{self.name} has ended:\n{''.join(said[-40:])}")

    def stop(self) -> None:
        """Kill it, and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()


def cpu_of(processes: Iterable[psutil.Process]) -> float:
    """Seconds of CPU that processes have used, for themselves and in the system."""
    return sum(float(times.user + times.system) for times in (process.cpu_times() for process in processes))


def lacks_java() -> bool:
    """Say in one line which programs are missing that fetch, compile and run programs of Java; whether any are."""
    missing = [program for program in _OF_JAVA if shutil.which(program) is None]
    if missing:
        print(f"benchmarks: missing: {', '.join(missing)}; get Maven and a JDK with javac", file=sys.stderr)
    return bool(missing)


def exit_when_terminated() -> None:
    """Make SIGTERM an exit that ends the programs, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _ended)


def _ended(*_: Any) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)
