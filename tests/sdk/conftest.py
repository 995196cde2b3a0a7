"""A connection to a broker in memory, what its exception listener is told, and an engine with regions."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sdk import Connection, ConnectionFactory, JMSException, Region
from tests.sdk.region_connections import Connect
from tests.sdk.small_broker import SmallBroker
from tests.server_process import ServerProcess


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker(prefetch_messages=10)


@pytest.fixture
def told() -> queue.SimpleQueue[JMSException]:
    return queue.SimpleQueue()


@pytest.fixture
def connection(broker: SmallBroker, told: queue.SimpleQueue[JMSException]) -> Iterator[Connection]:
    with broker.connect() as connection:
        connection.exception_listener = told.put
        connection.start()
        yield connection


@pytest.fixture(params=["embedded", "amqp"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """Connects to one engine: options of the client, and of the engine, are those of the first connection."""
    made: list[Connection] = []
    with contextlib.ExitStack() as servers:
        url = f"embedded:{tmp_path / 'data'}"
        options = ""

        def connect(client_id: str | None = None, client: str = "", engine: str = "", **arguments: Any) -> Connection:
            nonlocal url, options
            if not made:
                if request.param == "amqp":
                    of_engine = [word for each in engine.split("&") if each for word in ("--option", each)]
                    url = servers.enter_context(ServerProcess(tmp_path / "data", *of_engine)).url
                    engine = ""
                options = "&".join(each for each in (client, engine) if each)
            whole = f"{url}?{options}".rstrip("?")
            made.append(ConnectionFactory(whole).create_connection(client_id=client_id, **arguments))
            return made[-1]

        yield connect
        for each in made:
            each.close()


@pytest.fixture
def quotes(connect: Connect) -> Region:
    """The region, as a connection without interest has it."""
    return connect().create_session().create_region("quotes")
