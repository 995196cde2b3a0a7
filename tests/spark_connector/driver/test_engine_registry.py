"""How a process of Spark asks the registry in the driver's process, and what it loads for that."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from sdk import JMSException
from spark_connector.driver.engine_host import EngineHost
from spark_connector.driver.engine_registry import DriverLog, EngineRegistry, reachable
from spark_connector.options import SourceOptions

WAIT = 120.0

#: What no worker process needs for itself; it begins with each plan, read and write.
HEAVY = ("asyncio", "broker_adapter.engine.broker", "broker_adapter.server.listener", "proton", "ssl")


@pytest.fixture
def host() -> Iterator[EngineHost]:
    host = EngineHost()
    yield host
    host.close()


def options(url: str) -> SourceOptions:
    return SourceOptions(url=url, queue="q")


def test_a_registry_that_has_not_the_key_gets_no_answer_of_it_believed() -> None:
    """Who has taken the port of a driver that ended."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def listen() -> None:
            talking, _ = stranger.accept()
            with talking:
                talking.sendall(b"n" * 32)
                talking.recv(64, socket.MSG_WAITALL)
                talking.sendall(b"x" * 32)
                talking.recv(1)

        listening = threading.Thread(target=listen)
        listening.start()
        with pytest.raises(PermissionError, match="is not the driver"):
            reachable(options("embedded:x"), EngineRegistry(stranger.getsockname()[1], b"key"))
        listening.join(WAIT)


def test_other_urls_stay_as_they_are_and_embedded_ones_need_a_registry() -> None:
    assert reachable(options("amqp://host"), None) == options("amqp://host")
    with pytest.raises(ValueError, match="register"):
        reachable(options("embedded:x"), None)


def test_a_registry_that_does_not_answer_is_told_with_what_to_do() -> None:
    with pytest.raises(JMSException, match=r"refused.*: call register\(spark\) again .* from another machine use"):
        reachable(options("embedded:x"), EngineRegistry(1, b"key"))


def test_a_warning_comes_into_the_log_of_the_driver(host: EngineHost, caplog: pytest.LogCaptureFixture) -> None:
    DriverLog(host.registry).warning("something is lost " + "\N{SMILING FACE WITH SUNGLASSES}" * 10_000)
    assert "something is lost \N{SMILING FACE WITH SUNGLASSES}" in caplog.text
    (record,) = caplog.records
    assert record.threadName == "holdfast-spark-registry"


def test_a_warning_that_the_registry_does_not_take_comes_into_the_log_of_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for registry in (None, EngineRegistry(1, b"key")):
        DriverLog(registry).warning("said here")
    assert [record.getMessage() for record in caplog.records] == ["said here", "said here"]


def test_the_key_of_the_registry_does_not_go_to_the_executors(host: EngineHost) -> None:
    sent = pickle.dumps(DriverLog(host.registry))
    assert host.registry.key not in sent
    assert pickle.loads(sent) == DriverLog(None)


def test_a_worker_process_loads_no_engine_and_no_server() -> None:
    program = f"import sys, spark_connector\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.stdout == "[]\n", done.stderr
