"""A broker that looks foreign to the connector: ours, spoken to in plain AMQP, in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
from proton import Message
from proton.utils import BlockingConnection

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from spark_connector.options import SourceOptions
from tests.spark_connector.queues import fill


class Foreign:
    """A broker with the queue ``in``, which can be stopped and started again at its port.

    Args:
        place: directory of its store, and beside it of the spool.
    """

    def __init__(self, place: Path) -> None:
        self._path = str(place / "foreign")
        self._port = 0
        self.start()
        self.url = f"amqp://127.0.0.1:{self._port}"
        self.options = SourceOptions(
            url=f"{self.url}?envelope=false&prefetch_messages=20&allow_plain_without_tls=true",
            queue="in",
            spool=str(place / "spool"),
            head_refresh_seconds=0,
            retry_seconds=60,
        )

    def start(self) -> None:
        self.broker = Broker(EngineSettings(), self._path)
        login = lambda: ServerLogin(None, plain=True)  # noqa: E731
        self._listener = Listener(self.broker, "127.0.0.1", self._port, ServerSettings(), login)
        self._port = self._listener.start()[1]

    def stop(self) -> None:
        self._listener.stop()
        self.broker.close()

    def fill(self, first: int, count: int) -> None:
        fill(self.url, "in", [str(number) for number in range(first, first + count)])

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages of another client, just as they are."""
        connection = BlockingConnection(self.url, timeout=60)
        sender = connection.create_sender("in")
        for message in messages:
            sender.send(message)
        connection.close()

    def count(self) -> int:
        """How many messages are not acknowledged yet."""
        queues = self.broker.request("statistics", {}, 60)["queues"]
        return sum(each["messages"] for each in queues if each["name"] != "DLQ")

    def with_options(self, **changes: Any) -> SourceOptions:
        return attrs.evolve(self.options, **changes)
