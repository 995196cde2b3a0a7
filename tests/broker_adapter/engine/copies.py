"""Engines over a store and its copies, and requests to them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker_adapter.engine.broker import Broker
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, send


class Engines:
    """One engine after the other over a directory, which can be copied and put back."""

    def __init__(self, path: Path) -> None:
        self.path = path / "data"
        self._copy = path / "copy"

    @contextmanager
    def running(self, **options: Any) -> Iterator[Broker]:
        broker = Broker(EngineSettings(**options), str(self.path))
        try:
            yield broker
        finally:
            broker.close()

    def back_up(self) -> None:
        shutil.copytree(self.path, self._copy)

    def back_up_running(self, broker: Broker) -> None:
        self._copy.mkdir()
        broker.store._env.copy(str(self._copy))

    def swap(self) -> None:
        """Put the copy in the place of the store, and keep that."""
        other = self._copy.with_name("other")
        self.path.rename(other)
        self._copy.rename(self.path)
        other.rename(self._copy)

    def restore(self) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self._copy, self.path)


def ask(broker: Broker, operation: str, **arguments: Any) -> Any:
    return broker.request(operation, {"destination": "q", **arguments}, WAIT)


def fill(broker: Broker, count: int) -> dict[str, Any]:
    """Send messages; what the queue has then."""
    send(broker, connect(broker), "q", *["x"] * count)
    bounds: dict[str, Any] = ask(broker, "bounds")
    return bounds
