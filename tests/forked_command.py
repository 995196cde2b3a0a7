"""The command ``holdfast``, or a program, in a process of its own, which :mod:`tests.fork_server` forks.

Such a process takes a tenth of the time of a new one, and differs from it in what it has loaded already.  Tests of how
Python starts and ends, and of what a process loads or has in memory, use a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO

from tests import fork_server

#: The command line of a new process.
NEW = (sys.executable, "-m", fork_server.COMMAND)
_ROOT = Path(__file__).parent.parent
#: Beginnings of the names of variables that Python reads as it starts.
_READ_AT_START = ("PYTHON", "LANG", "LC_")
#: Variables for which a command gets a new process: coverage does not measure forked ones, and the encodings that tests
#: ask for are too many for a fork server each.
_NEEDS_NEW = ("COVERAGE_PROCESS_START", "PYTHONIOENCODING")


def is_possible(environment: dict[str, str]) -> bool:
    """Whether a command with this environment may be forked."""
    return not any(name in environment for name in _NEEDS_NEW)


def server_for(environment: dict[str, str]) -> socket.socket:
    """The socket of a fork server of this process, started with what Python reads of an environment."""
    return _server(frozenset((name, value) for name, value in environment.items() if name.startswith(_READ_AT_START)))


@functools.cache
def _server(read_at_start: frozenset[tuple[str, str]]) -> socket.socket:
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others = {name: value for name, value in os.environ.items() if not name.startswith(_READ_AT_START)}
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", fork_server.__name__, "server", str(its.fileno())],
            cwd=_ROOT,
            env={**others, **dict(read_at_start)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            start_new_session=True,  # the keys of a terminal are for the tests
        )

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return own


def stand_in(server: socket.socket) -> list[str]:
    """The beginning of a command line, for a process that inherits the socket: it is as if the command was run."""
    return [sys.executable, "-I", "-S", fork_server.__file__, "stand-in", str(server.fileno())]


class ForkedCommand:
    """What :class:`subprocess.Popen` is, as far as tests need it, for a process that the fork server forks.

    Args:
        arguments: of Python: ``-m`` and a module, or ``-c`` and a program, and its arguments.
        streams: descriptors for its standard input, output and error.
        environment: all of it.
        session: whether it gets a session of its own.
    """

    def __init__(self, arguments: list[str], streams: list[int], environment: dict[str, str], session: bool) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._answers = fork_server.request(server_for(environment), arguments, environment, [*streams], session)
        self._lock = threading.Lock()  #: so that one thread reads the status
        self.pid = fork_server.answer(self._answers)
        self._events = select.poll()
        self._events.register(self._answers, select.POLLIN)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, for so many seconds at most."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._events.poll(None if timeout is None else timeout * 1000):
            with self._lock:
                if self.returncode is None:
                    self.returncode = fork_server.answer(self._answers)
                    self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str],
    streams: Sequence[int],
    environment: dict[str, str] | None = None,
    *,
    session: bool = False,
    new: bool = False,
) -> ForkedCommand | subprocess.Popen[bytes]:
    """Start the command.

    Args:
        arguments: of ``holdfast``.
        streams: descriptors for its standard input, output and error.
        environment: all of it; None: that of this process.
        session: whether it gets a session of its own, and so no terminal.
        new: whether its process must be a new one.
    """
    arguments = ["-m", fork_server.COMMAND, *arguments]
    return start_python(arguments, streams, environment, session=session, new=new)


def start_python(
    arguments: Sequence[str],
    streams: Sequence[int],
    environment: dict[str, str] | None = None,
    *,
    session: bool = False,
    new: bool = False,
) -> ForkedCommand | subprocess.Popen[bytes]:
    """Start a program: see :func:`start`, with arguments of Python."""
    environment = dict(os.environ) if environment is None else environment
    if not new and is_possible(environment):
        return ForkedCommand([*arguments], [*streams], environment, session)
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        start_new_session=session,
    )


class Pipe:
    """A pipe whose one end a command gets, and the other one this process, as a text file."""

    def __init__(self, mode: str) -> None:
        reading, writing = os.pipe()
        self.theirs, own = (writing, reading) if mode == "r" else (reading, writing)
        self.file: IO[str] = os.fdopen(own, mode)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self.theirs)


def run(
    arguments: Sequence[str], text: str | None, environment: dict[str, str], timeout: float, *, stdin: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the command in a session without a terminal.

    Args:
        arguments: of ``holdfast``.
        text: its standard input; None: ``stdin``.
        environment: all of it.
        timeout: in seconds.
        stdin: the descriptor of its standard input.
    """
    return run_python(["-m", fork_server.COMMAND, *arguments], text, environment, timeout, stdin=stdin)


def run_python(
    arguments: Sequence[str],
    text: str | None = None,
    environment: dict[str, str] | None = None,
    timeout: float = 120,
    *,
    stdin: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a program: see :func:`run`, with arguments of Python."""
    with Pipe("w") as given, Pipe("r") as output, Pipe("r") as errors:
        stdin = stdin if text is None else given.theirs
        process = start_python(arguments, [stdin, output.theirs, errors.theirs], environment, session=True)
    with ThreadPoolExecutor(3) as pool, output.file, errors.file:
        written = pool.submit(_write, given.file, text or "")
        read = [pool.submit(each.file.read) for each in (output, errors)]
        try:
            process.wait(timeout)
        finally:
            process.kill()  # where it has not ended, the threads wait for it
            status = process.wait()
        written.result()
        return subprocess.CompletedProcess(arguments, status, *(each.result() for each in read))


def _write(file: IO[str], text: str) -> None:
    try:
        with file:
            file.write(text)
    except BrokenPipeError:
        pass  # it did not read everything
