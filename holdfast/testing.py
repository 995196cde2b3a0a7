"""A plugin of pytest, which finds it by itself: queues for tests, in memory or on a server (docs/testing.md).

A test names the fixtures that it needs.  Nothing else of Holdfast is imported before one is used.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from sdk import Connection, Message

_numbers = itertools.count(1)
#: How long a server may take to start, in seconds.
_START_SECONDS = 60.0
#: How often ``wait_for_messages`` counts, in seconds.
_COUNT_SECONDS = 0.01
#: Messages that a failure shows.
_SHOWN = 10


@pytest.fixture
def holdfast_url() -> Iterator[str]:
    """The URL of an engine in memory, for this test and this process.

    It is closed behind the test, also where a connection is still open: such a one fails.
    """
    from broker_adapter import parse_url
    from broker_adapter.in_process import EngineLease

    url = f"embedded:?memory=holdfast.testing-{next(_numbers)}"
    lease = EngineLease(parse_url(url))  # type: ignore[arg-type]  # it is of an embedded engine
    yield url
    lease.close_engine()


@pytest.fixture
def holdfast_connection(holdfast_url: str) -> Iterator[Connection]:
    """A started connection to the engine of ``holdfast_url``."""
    from sdk import ConnectionFactory

    with ConnectionFactory(holdfast_url).create_connection() as connection:
        connection.start()
        yield connection


class WaitForMessages(Protocol):
    """What the fixture ``wait_for_messages`` is."""

    def __call__(
        self, queue: str, count: int, timeout: float = 10, *, connection: Connection | None = None
    ) -> list[Message]:
        """Wait until a queue has so many messages, those in the hands of consumers included; the test fails otherwise.

        Args:
            queue: its name.
            count: of messages; 0: all have been processed.
            timeout: longest wait in seconds.
            connection: to the broker of the queue; None: ``holdfast_connection``.

        Returns:
            The messages in their order, but those in the hands of consumers.  They stay in the queue.
        """


@pytest.fixture
def wait_for_messages(request: pytest.FixtureRequest) -> WaitForMessages:
    """Waits until a queue has so many messages, and returns them: see ``WaitForMessages``."""

    def wait(queue: str, count: int, timeout: float = 10, *, connection: Connection | None = None) -> list[Message]:
        from broker_adapter import counted

        used: Connection = connection or request.getfixturevalue("holdfast_connection")
        deadline = time.monotonic() + timeout
        while True:
            queues = used.statistics().queues
            found = sum(each.messages for each in queues if (each.name, each.kind) == (queue, "queue"))
            if found == count or time.monotonic() >= deadline:
                break
            time.sleep(_COUNT_SECONDS)
        with used.create_session() as session:
            messages = list(session.create_browser(session.create_queue(queue))) if found else []
        if found != count:
            shown = "".join(f"\n  {message.body!r:.200}" for message in messages[:_SHOWN])
            pytest.fail(f"the queue {queue!r} has {counted(found, 'message')} after {timeout:g} s, not {count}:{shown}")
        return messages

    return wait


class HoldfastServer:
    """``holdfast serve`` in a process of its own, on a free port of this machine.

    Attributes:
        url: of the server, the same after a restart.
    """

    def __init__(self, directory: Path) -> None:
        """Start it.

        Args:
            directory: gets its store and its log.
        """
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.url = "amqp://127.0.0.1:0"
        self.restart()

    def kill(self) -> None:
        """End it at once, as a power failure does (SIGKILL); legal twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def restart(self) -> None:
        """Kill it if it runs, and start it with the same store and port; returns when clients can connect.

        Raises:
            RuntimeError: it has not started; the text says why.
        """
        self.kill()
        log = self._directory / "server.log"
        listen = self.url.removeprefix("amqp://")
        command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(self._directory / "data")]
        with log.open("a") as errors:
            self._process = process = subprocess.Popen(
                [*command, "--listen", listen], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        late = threading.Timer(_START_SECONDS, process.kill)
        late.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        late.cancel()
        ready = re.search(r"ready on (amqp://[^\s,]+)", line)
        if ready is None:
            self.kill()
            raise RuntimeError(f"holdfast serve has not started on {listen}: {line}{log.read_text()[-1000:]}")
        self.url = ready[1]


@pytest.fixture(scope="session")
def holdfast_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HoldfastServer]:
    """A server for all tests of the session, which has ``url``, ``kill()`` and ``restart()``."""
    server = HoldfastServer(tmp_path_factory.mktemp("holdfast"))
    yield server
    server.kill()
