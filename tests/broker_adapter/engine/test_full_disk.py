"""An engine on a disk that is full: what is confirmed stays, consumers go on, and so does the engine.

Each scenario runs in a process with a mount name space of its own, on a file system of 96 MiB in memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker_adapter.errors import ResourceAllocationException
from sdk import AcknowledgeMode, ConnectionFactory
from tests.broker_adapter.engine.full_disk import SCENARIOS

WAIT = 120.0

_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def _may_mount() -> bool:
    try:
        return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_mount(), reason="this user may not make a mount name space (unshare --user --mount)")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_engine_survives_a_full_disk(scenario: str, tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=96m tmpfs "$1" && exec "$2" -m tests.broker_adapter.engine.full_disk "$3" "$1"'
    done = subprocess.run(
        [*_UNSHARE, "sh", "-c", script, "sh", str(tmp_path), sys.executable, scenario],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_transactions_that_take_as_much_as_they_put_go_on_in_a_full_store(tmp_path: Path) -> None:
    body = b"x" * 5000
    url = f"embedded:{tmp_path}?max_store_bytes={16 * 2**20}&blocked_send_timeout_seconds=2"
    with ConnectionFactory(url).create_connection() as connection:
        connection.start()
        session = connection.create_session(AcknowledgeMode.TRANSACTED)
        source, target = session.create_queue("source"), session.create_queue("target")
        with connection.create_session() as filling:
            producer = filling.create_producer(source)

            def fill() -> None:
                while True:
                    producer.send(body)

            with pytest.raises(ResourceAllocationException, match="is full"):
                fill()
        consumer, producer = session.create_consumer(source), session.create_producer(target)
        for _ in range(60):
            for _ in range(5):
                message = consumer.receive(WAIT)
                assert message is not None
                producer.send(message.body)
            session.commit()
        found = {each.name: each.messages for each in connection.statistics().queues}
        assert found["target"] == 300
        assert not found["DLQ"]
