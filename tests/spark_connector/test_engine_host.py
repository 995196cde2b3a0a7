"""The desk in the driver's process that gives worker processes the way to an embedded engine."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from sdk import ConnectionFactory, JMSException, JMSSecurityException
from spark_connector.engine_host import Desk, EngineHost, reachable
from spark_connector.options import SourceOptions


@pytest.fixture
def host() -> Iterator[EngineHost]:
    host = EngineHost()
    yield host
    host.close()


def options(url: str) -> SourceOptions:
    return SourceOptions(url=url, queue="q")


def test_an_embedded_url_becomes_one_that_any_process_can_use(host: EngineHost, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    found = reachable(options(url), host.desk)
    assert found.url.startswith("amqp://spark:")
    assert found.queue == "q"
    assert reachable(options(url), host.desk).url == found.url  # one listener for each engine
    with (
        ConnectionFactory(url).create_connection() as driver,
        ConnectionFactory(found.url).create_connection() as worker,
    ):
        with driver.create_session() as session:
            session.create_producer(session.create_queue("q")).send("x")
        assert [queue.messages for queue in worker.statistics().queues] == [1]


def test_who_has_not_the_password_is_refused(host: EngineHost, tmp_path: Path) -> None:
    address = reachable(options(f"embedded:{tmp_path}"), host.desk).url.rpartition("@")[2]
    for user in ("", "spark:guess@", "other:guess@"):
        with pytest.raises(JMSSecurityException):
            ConnectionFactory(f"amqp://{user}{address}").create_connection()


def test_who_has_not_the_key_is_refused_and_the_desk_goes_on(host: EngineHost, tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError):
        Client(("127.0.0.1", host.desk.port), authkey=b"guess")
    assert reachable(options(f"embedded:{tmp_path}"), host.desk)


def test_an_engine_that_cannot_be_opened_is_the_askers_error(host: EngineHost, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JMSException, match="cannot be opened"):
        reachable(options(f"embedded:{tmp_path / 'file'}"), host.desk)


def test_other_urls_stay_as_they_are_and_embedded_ones_need_a_desk() -> None:
    assert reachable(options("amqp://host"), None) == options("amqp://host")
    with pytest.raises(ValueError, match="register"):
        reachable(options("embedded:x"), None)
    with pytest.raises(OSError, match="refused"):
        reachable(options("embedded:x"), Desk(1, b"key"))
