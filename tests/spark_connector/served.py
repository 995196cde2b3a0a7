"""A broker whose server can be stopped and started again, with a reader of its queue."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

import attrs

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from spark_connector.options import SourceOptions
from spark_connector.stream_reader import JmsStreamReader
from tests.spark_connector.queues import fill, texts


class Served:
    """A broker whose server can be stopped and started again at the same port, and what reads its queue ``in``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._port = 0
        self.start()
        self.options = SourceOptions(
            url=f"amqp://127.0.0.1:{self._port}?failover=nofailover&connect_timeout_seconds=1",
            queue="in",
            max_messages_per_partition=4,
            head_refresh_seconds=0,
            retry_seconds=0.3,
        )

    def start(self) -> None:
        login = lambda: ServerLogin(None, plain=True)  # noqa: E731
        self.listener = Listener(self._broker, "127.0.0.1", self._port, ServerSettings(), login)
        self._port = self.listener.start()[1]

    def start_often(self, times: int) -> None:
        """Start the engine again so many times, and have each start noted."""
        self.listener.stop()
        self._broker.close()
        path = str(self._broker.store.path)
        for _ in range(times - 1):
            with closing(Broker(EngineSettings(), path)) as broker:
                broker.store.note_run()
        self._broker = Broker(EngineSettings(), path)
        self._broker.store.note_run()
        self.start()

    @property
    def run(self) -> str:
        return self._broker.run

    @property
    def known(self) -> list[str]:
        return self._broker.store.runs()

    def stop(self) -> None:
        self.listener.stop()
        self._broker.close()

    def fill(self, first: int, count: int) -> None:
        fill(self.options.url, "in", [str(number) for number in range(first, first + count)])

    def fill_queue(self, name: str, bodies: Iterable[Any], **arguments: Any) -> None:
        fill(self.options.url, name, bodies, **arguments)

    def left(self) -> list[str]:
        return texts(self.options.url, "in")

    def reader(self, **changes: Any) -> JmsStreamReader:
        return JmsStreamReader(attrs.evolve(self.options, **changes), ("text",))
