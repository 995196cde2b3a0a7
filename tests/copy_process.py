"""``holdfast serve --follow`` in a process of its own, for tests that kill it, and what says how far a copy is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from broker_adapter.connect import transport_for
from broker_adapter.engine.records.layout import COPY_OF, TABLES
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.group.copy_files import promoted
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Credentials
from sdk import ConnectionFactory
from tests import forked_command
from tests.server_process import HoldfastProcess

WAIT = 120.0


class CopyProcess(HoldfastProcess):
    """A copy that can be killed and started again.

    Args:
        data: its directory.
        url: of the server that it follows.
        arguments: further ones for ``holdfast serve``.
        log: file that gets what it logs; None: the standard error stream.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self, data: Path, url: str | None, *arguments: str, log: Path | None = None, **environment: str
    ) -> None:
        super().__init__(log)
        self.data = data
        self.url = url
        self.arguments = arguments
        self._environment = environment

    def __enter__(self) -> CopyProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start, and wait for the line that says so."""
        follow = ["--follow"] if self.url is None else ["--follow", self.url]
        arguments = ["serve", "--data", str(self.data), "--node", "copy", *self.arguments, *follow]
        environment = {**os.environ, **self._environment}
        line = self._spawn(lambda streams: forked_command.start(arguments, streams, environment))
        assert line.startswith("holdfast keeps a copy of amqp"), f"the copy said {line!r}"
        self.said = line

    def promote(self) -> None:
        """Make it a server, while it does not run."""
        assert self._process is None
        promoted(self.data, EngineSettings())

    def wait(self) -> int:
        """Wait until it ends by itself."""
        assert self._process is not None
        return self._process.wait(WAIT)


def asked(url: str, operation: str, **arguments: Any) -> Any:
    """Ask a server for an operation, over a connection of its own."""
    transport, _ = transport_for(url, restores=False)
    transport.open(Credentials(), lambda _event: None, None)
    try:
        return transport.request(operation, arguments, WAIT)
    finally:
        transport.close(1)


def caught_up(url: str, node: str = "copy") -> None:
    """Have a server commit something, and wait until a copy has it."""
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        session.create_producer(session.create_queue("markers")).send("marker")
    transport, _ = transport_for(url, restores=False)
    transport.open(Credentials(), lambda _event: None, None)
    deadline = time.monotonic() + WAIT
    try:
        wanted = transport.request("copies", {}, WAIT)["lsn"] or 1
        while True:
            found = transport.request("copies", {}, WAIT)["copies"]
            if [each for each in found if each["node"] == node and each["lsn"] >= wanted and each["image"] is None]:
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
    finally:
        transport.close(1)


def records(path: Path) -> dict[str, dict[bytes, bytes]]:
    """All records of a store that no process has open, but for those of the copy alone."""
    store = LmdbStore(path, EngineSettings())
    with store.snapshot() as tables:
        found = {table: dict(tables.items(table)) for table in TABLES}
    store.close()
    found["meta"].pop(COPY_OF, None)
    return found


def differences(server: Path, copy: Path) -> list[str]:
    """Where the records of a copy are not those of its server."""
    there, here = records(server), records(copy)
    first = max(min(here["tail"]), min(there["tail"]))  # a tail begins with an image, or is trimmed
    for each in (there, here):
        each["tail"] = {key: value for key, value in each["tail"].items() if key >= first}
    return [
        f"{table} {key.hex()}"
        for table in TABLES
        for key in here[table].keys() | there[table].keys()
        if here[table].get(key) != there[table].get(key)
    ]
