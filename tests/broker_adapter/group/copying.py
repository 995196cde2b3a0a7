"""Copies of engines in this process, for tests: they ask without a network, and without threads or waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from broker_adapter.amqp.management import ManagementAnswer, pack_answer, unpack_answer
from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.records.layout import COPY_OF, TABLES
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.errors import JMSException
from broker_adapter.group.copy_files import CopyFiles, promoted
from broker_adapter.group.following import Following, NoAnswer, Standing
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, drained, message, payloads

URL = "amqp://primary"
#: What a copy is about to ask for: the operation and its arguments.
Before = Callable[[str, Mapping[str, Any]], None]


class Primary:
    """An engine that copies follow.

    Args:
        path: of its store.
        settings: of the engine.
    """

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self._settings = EngineSettings(**settings)
        self.start()

    def start(self) -> None:
        self.broker = Broker(self._settings, str(self.path))
        self.client = connect(self.broker)

    def restart(self) -> None:
        self.close()
        self.start()

    def close(self) -> None:
        self.broker.close()

    def send(self, *bodies: object, to: str = "q") -> None:
        """Send persistent messages, in one commit."""
        found = [(queue(to), message(body)) for body in bodies]
        self.broker.call(c.Commit(self.client, None, found, []), WAIT)

    def take(self, name: str = "q") -> list[bytes]:
        """Consume what a queue has."""
        return payloads(drained(self.broker, self.client, name, presettled=True))

    def look(self, name: str = "q") -> list[bytes]:
        """What a queue has."""
        return payloads(drained(self.broker, self.client, name))

    def copies(self) -> list[dict[str, Any]]:
        """What it says of its copies."""
        found: list[dict[str, Any]] = self.broker.request("copies", {}, WAIT)["copies"]
        return found


class Copy:
    """A copy.

    Args:
        path: its directory.
        settings: of its store.
    """

    def __init__(self, path: Path, url: str = URL, **settings: Any) -> None:
        self.path = path
        self._url = url
        self.settings = EngineSettings(**settings)
        self.asked: list[str] = []

    def catch_up(self, primary: Primary, before: Before | None = None) -> None:
        """Follow until there is nothing behind; ``before`` may raise NoAnswer, which breaks it off."""
        stopping = threading.Event()

        def ask(operation: str, arguments: Mapping[str, Any]) -> Any:
            self.asked.append(operation)
            if before is not None:
                before(operation, arguments)
            waits = arguments.get("wait_ms")
            if waits:
                arguments = {**arguments, "wait_ms": 0}
            try:
                result = primary.broker.request(operation, arguments, WAIT)
            except JMSException as error:
                raise NoAnswer(str(error)) from error
            if waits and result is not None and result["last"] == arguments["after"]:
                stopping.set()
            return unpack_answer(pack_answer(ManagementAnswer(1, None, result))).result

        self.asked.clear()
        files = CopyFiles(self.path, self.settings, self._url)
        try:
            Following(files, Standing("copy"), ask, None, stopping).run()
        finally:
            files.close()

    def follow(self, primary: Primary, before: Before | None = None) -> None:
        """Catch up, and be equal."""
        self.catch_up(primary, before)
        assert self.differences(primary) == []
        assert check_store(self.path, self.settings).is_sound

    @property
    def has_store(self) -> bool:
        return (self.path / "data.mdb").exists()

    @property
    def has_image(self) -> bool:
        return (self.path / "image").exists()

    def records(self) -> dict[str, dict[bytes, bytes]]:
        """All records, by table."""
        store = LmdbStore(self.path, self.settings)
        with store.snapshot() as records:
            found = {table: dict(records.items(table)) for table in TABLES}
        store.close()
        return found

    def differences(self, primary: Primary) -> list[str]:
        """Where its records are not those of the primary."""
        here = self.records()
        with primary.broker.store.snapshot() as records:
            there = {table: dict(records.items(table)) for table in TABLES}
        assert here["meta"].pop(COPY_OF, None) is not None
        first = min(here["tail"])  # the tail of a copy begins with its image
        there["tail"] = {key: value for key, value in there["tail"].items() if key >= first}
        return [
            f"{table} {key!r}"
            for table in TABLES
            for key in here[table].keys() | there[table].keys()
            if here[table].get(key) != there[table].get(key)
        ]

    def promote(self, **settings: Any) -> Primary:
        """Make it a primary."""
        promoted(self.path, self.settings)
        return Primary(self.path, **settings)


def break_off(after: int, operation: str | None = None) -> Before:
    """Lose the connection at the question behind so many, of one operation or of any."""
    left = after

    def before(asked: str, _arguments: Mapping[str, Any]) -> None:
        nonlocal left
        if operation in (None, asked):
            left -= 1
            if left < 0:
                raise NoAnswer("the connection is lost")

    return before
