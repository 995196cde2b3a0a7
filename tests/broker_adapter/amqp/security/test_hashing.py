"""The hash of a password is computed where it blocks neither the loop of all connections nor a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.amqp.client.transport import AmqpTransport
from broker_adapter.amqp.sasl import SCRAM_SHA_256, ClientLogin, ServerLogin
from broker_adapter.amqp.security import hashing
from broker_adapter.amqp.security.hashing import hash_elsewhere
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import ConnectionLostException, OperationTimedOutException
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings, ServerSettings
from broker_adapter.transport import Credentials
from broker_adapter.urls.url import AmqpURL, FailoverURL, parse_url

WAIT = 120.0
ALICE = Credentials("alice", "secret")


class GatedLogin(ClientLogin):
    """A login whose hash waits at a gate."""

    def __init__(self, gate: threading.Event, begun: threading.Event) -> None:
        super().__init__([SCRAM_SHA_256], "alice", "secret")
        self._gate = gate
        self._begun = begun

    def _suspend(self, username: str, compute: Callable[[], Any], then: Callable[[Any], None], **others: Any) -> None:
        def gated() -> Any:
            self._begun.set()
            assert self._gate.wait(WAIT)
            return compute()

        super()._suspend(username, gated, then, **others)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[AmqpURL]:
    """Of a server on which alice may log in by SCRAM."""
    users = UsersFile.open_or_make(tmp_path / "users")
    users.add("alice", "secret")
    broker = Broker(EngineSettings())
    listener = Listener(broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(users, plain=False))
    parsed = parse_url(f"amqp://127.0.0.1:{listener.start()[1]}")
    assert isinstance(parsed, FailoverURL)
    yield parsed.addresses[0]
    listener.stop()
    broker.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def opened(url: AmqpURL, login: ClientLogin, timeout: float) -> bool:
    transport = AmqpTransport(url, make_login=lambda _url, _credentials: login)
    transport.open(ALICE, lambda _event: None, timeout)
    transport.close(WAIT)
    return True


def test_other_connections_go_on_while_a_hash_is_computed(
    url: AmqpURL, threads: ThreadPoolExecutor, gate: threading.Event
) -> None:
    begun = threading.Event()
    waiting: Future[bool] = threads.submit(opened, url, GatedLogin(gate, begun), WAIT)
    assert begun.wait(WAIT)
    assert opened(url, ClientLogin([SCRAM_SHA_256], "alice", "secret"), WAIT)
    assert not waiting.done()
    gate.set()
    assert waiting.result(WAIT)


def test_a_deadline_holds_while_a_hash_is_computed(url: AmqpURL, gate: threading.Event) -> None:
    begun = threading.Event()
    with pytest.raises(OperationTimedOutException):
        opened(url, GatedLogin(gate, begun), 0.5)
    assert begun.wait(WAIT)
    gate.set()
    ended = threading.Event()
    for _ in range(2):  # both threads
        hash_elsewhere(lambda: None, lambda _result: ended.set())
    assert ended.wait(WAIT), "what came too late does no harm"
    assert opened(url, ClientLogin([SCRAM_SHA_256], "alice", "secret"), WAIT)


def test_the_network_may_be_cut_while_a_hash_is_computed(
    url: AmqpURL, threads: ThreadPoolExecutor, gate: threading.Event
) -> None:
    begun = threading.Event()
    login = GatedLogin(gate, begun)
    transport = AmqpTransport(url, make_login=lambda _url, _credentials: login)
    waiting = threads.submit(transport.open, ALICE, lambda _event: None, WAIT)
    assert begun.wait(WAIT)
    transport._io.abort()
    with pytest.raises(ConnectionLostException):
        waiting.result(WAIT)
    gate.set()


def test_after_a_fork_there_are_threads_of_its_own() -> None:
    done = threading.Event()
    hash_elsewhere(lambda: None, lambda _result: done.set())
    assert done.wait(WAIT)
    parents = hashing._threads
    hashing._after_fork()
    try:
        again: list[int] = []
        done = threading.Event()
        hash_elsewhere(lambda: 7, lambda result: (again.append(result), done.set()))
        assert done.wait(WAIT)
        assert again == [7]
        assert hashing._threads is not parents
    finally:
        assert parents is not None
        parents.shutdown()
