"""A query on a broker without positions: driver and broker are killed with SIGKILL, and each message is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server_process import ServerProcess
from tests.spark_connector.queues import fill
from tests.spark_connector.spooled_query import SpooledQuery


@pytest.mark.interop
@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(3000)
def test_nothing_is_lost_or_doubled_where_the_driver_and_the_broker_are_killed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        fill(server.url, "in", [str(number) for number in range(3000)])
        options = {"url": f"{server.url}?envelope=false", "queue": "in", "maxMessagesPerTrigger": 400}
        query = SpooledQuery(tmp_path, options)

        def kill_the_broker() -> None:
            server.kill()
            server.start()
            fill(server.url, "in", [str(number) for number in range(3000, 5000)])

        query.killed(kill_the_broker)
        assert sorted(query.finished(), key=int) == [str(number) for number in range(5000)]
