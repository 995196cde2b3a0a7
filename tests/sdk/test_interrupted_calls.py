"""Each call of a session, interrupted by the handler of a signal at a few places; ``make interrupts``: thousands."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sdk import Connection, ConnectionFactory
from tests.sdk.interrupted_calls import CASES, sweep
from tests.server_process import ServerProcess

#: Handlers that raise in each call.
HANDLERS = 3


@pytest.fixture(scope="module", params=["embedded", "amqp"])
def connection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    if request.param == "embedded":
        with ConnectionFactory("embedded:").create_connection() as connection:
            connection.start()
            yield connection
        return
    with (
        ServerProcess(tmp_path_factory.mktemp("data")) as server,
        ConnectionFactory(server.url).create_connection() as connection,
    ):
        connection.start()
        yield connection


@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_call_ends_its_session_and_nothing_else(connection: Connection, name: str) -> None:
    made = sweep(connection, name, HANDLERS, random.Random(1))
    assert made.ended <= made.handlers
