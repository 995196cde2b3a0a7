"""The registry in the driver's process that gives worker processes the way to an embedded engine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from sdk import ConnectionFactory, JMSException, JMSSecurityException
from spark_connector.driver import engine_host, engine_registry
from spark_connector.driver.engine_host import EngineHost
from spark_connector.driver.engine_registry import EngineRegistry, reachable
from spark_connector.options import SourceOptions
from tests.contracts.transports import eventually

WAIT = 120.0


@pytest.fixture
def host() -> Iterator[EngineHost]:
    host = EngineHost()
    yield host
    host.close()


def options(url: str) -> SourceOptions:
    return SourceOptions(url=url, queue="q")


def test_an_embedded_url_becomes_one_that_any_process_can_use(host: EngineHost, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    found = reachable(options(url), host.registry)
    assert found.url.startswith("amqp://spark:")
    assert found.queue == "q"
    assert reachable(options(url), host.registry).url == found.url  # one listener for each engine
    with (
        ConnectionFactory(url).create_connection() as driver,
        ConnectionFactory(found.url).create_connection() as worker,
    ):
        with driver.create_session() as session:
            session.create_producer(session.create_queue("q")).send("x")
        assert {queue.name: queue.messages for queue in worker.statistics().queues} == {"DLQ": 0, "q": 1}


def test_a_caller_without_the_password_is_refused(host: EngineHost, tmp_path: Path) -> None:
    address = reachable(options(f"embedded:{tmp_path}"), host.registry).url.rpartition("@")[2]
    for user in ("", "spark:guess@", "other:guess@"):
        with pytest.raises(JMSSecurityException):
            ConnectionFactory(f"amqp://{user}{address}").create_connection()


def test_a_caller_without_the_key_is_refused_and_the_registry_goes_on(host: EngineHost, tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="has not its key"):
        reachable(options(f"embedded:{tmp_path}"), EngineRegistry(host.registry.port, b"guess"))
    assert reachable(options(f"embedded:{tmp_path}"), host.registry)


@pytest.mark.parametrize("says", [b"", b"x", b"\x00" * 31, b"\xff" * 4, b"\x7f\xff\xff\xff" + b"x" * 200])
def test_a_silent_or_malformed_caller_blocks_no_other_caller(host: EngineHost, tmp_path: Path, says: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", host.registry.port), WAIT))
            caller.sendall(says)
        assert reachable(options(f"embedded:{tmp_path}"), host.registry)


def test_a_silent_caller_is_disconnected_in_time(
    host: EngineHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_registry, "CALLER_SECONDS", 0.2)
    for says in (b"", b"x" * 10):
        with socket.create_connection(("127.0.0.1", host.registry.port), WAIT) as caller:
            caller.sendall(says)
            assert len(caller.recv(100)) == 32
            assert caller.recv(100) == b""
    assert "it was silent for 0.2 s" in caplog.text


def test_callers_beyond_the_limit_are_refused_and_logged(
    host: EngineHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        for _ in range(engine_host.MAX_CALLERS):
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", host.registry.port), WAIT))
            assert len(caller.recv(100)) == 32
        late = stack.enter_context(socket.create_connection(("127.0.0.1", host.registry.port), WAIT))
        assert late.recv(100) == b""
        assert f"the engine registry answers at most {engine_host.MAX_CALLERS} callers at a time" in caplog.text
    eventually(lambda: host._callers == 0)
    assert reachable(options(f"embedded:{tmp_path}"), host.registry)


def test_little_is_read_of_a_caller_that_has_not_shown_the_key(host: EngineHost) -> None:
    with socket.create_connection(("127.0.0.1", host.registry.port), WAIT) as caller:
        caller.settimeout(0.5)
        caller.sendall(b"x" * 20)
        try:
            sent = 20
            while sent < 100_000_000:
                sent += caller.send(b"x" * 65536)
        except OSError:  # it was turned away, or takes no more
            pass
        assert sent < 50_000_000


def test_a_request_beyond_the_limit_is_refused(host: EngineHost, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"reset|turned"):
        reachable(options("embedded:" + "x" * 70_000), host.registry)
    assert reachable(options(f"embedded:{tmp_path}"), host.registry)


def test_many_ask_at_once_and_get_one_listener(host: EngineHost, tmp_path: Path) -> None:
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda _: reachable(options(f"embedded:{tmp_path}"), host.registry).url, range(40)))
    assert len(set(found)) == 1


def test_an_engine_that_cannot_be_opened_is_the_askers_error(host: EngineHost, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JMSException, match="cannot be opened"):
        reachable(options(f"embedded:{tmp_path / 'file'}"), host.registry)
