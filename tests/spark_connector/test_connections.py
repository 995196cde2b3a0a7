"""The connections that a worker process keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sdk import IllegalStateException, JMSException
from spark_connector import connections
from spark_connector.connections import (
    MAX_CONNECTIONS,
    MAX_PASSWORD,
    connection_for,
    drop_connection,
    password_of,
    with_retries,
)
from spark_connector.options import ConnectionOptions


def _options(number: int) -> ConnectionOptions:
    return ConnectionOptions(url=f"embedded:?prefetch_messages={number + 10}")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    for number in range(MAX_CONNECTIONS + 2):
        drop_connection(_options(number))


def test_a_connection_is_kept_between_tasks() -> None:
    assert connection_for(_options(0)) is connection_for(_options(0))


def test_the_one_that_was_not_used_for_the_longest_time_is_closed_at_the_limit() -> None:
    kept = [connection_for(_options(number)) for number in range(MAX_CONNECTIONS)]
    assert connection_for(_options(0)) is kept[0]
    connection_for(_options(MAX_CONNECTIONS))
    with pytest.raises(IllegalStateException):
        kept[1].create_session()
    kept[0].create_session().close()
    assert len(connections._connections) == MAX_CONNECTIONS


def test_an_error_that_another_attempt_does_not_repair_is_raised_at_once_and_drops_the_connection() -> None:
    first = connection_for(_options(0))
    calls = []

    def act(connection: object) -> None:
        calls.append(connection)
        raise JMSException("no")

    with pytest.raises(JMSException, match="no"):
        with_retries(_options(0), act, 60)
    assert calls == [first]
    assert connection_for(_options(0)) is not first


def test_a_password_is_read_from_a_file_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    options = ConnectionOptions(url="amqp://h", username="u", password_file=str(file))
    for text in ("first", "second\n", "third\r\n", "with a blank at the end \n"):
        file.write_bytes(text.encode())
        assert password_of(options) == text.rstrip("\r\n")
    file.write_text("x" * MAX_PASSWORD)
    assert password_of(options) == "x" * MAX_PASSWORD


@pytest.mark.parametrize("content", [b"", b"\n", b"secret\nnote", b"secret" * 1000, b"secret\xff"])
def test_a_file_that_is_no_password_is_named_and_not_quoted(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(content)
    options = ConnectionOptions(url="amqp://h", password_file=str(tmp_path / "password"))
    with pytest.raises(
        ValueError, match=r"passwordFile='.*/password' (is to have one line|cannot be read: it is no)"
    ) as e:
        password_of(options)
    assert "secret" not in str(e.value)
    assert e.value.__cause__ is None


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = ConnectionOptions(url="amqp://h", password_file=str(tmp_path / "none"))
    with pytest.raises(
        ValueError, match=r"none' cannot be read: No such file .*; each machine of the cluster needs it"
    ):
        password_of(options)


def test_a_password_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ConnectionOptions(url="amqp://h", password_env="BROKER_PASSWORD")
    with pytest.raises(ValueError, match=r"'BROKER_PASSWORD': this process has no such environment variable"):
        password_of(options)
    monkeypatch.setenv("BROKER_PASSWORD", "p")
    assert password_of(options) == "p"
    assert password_of(ConnectionOptions(url="amqp://h", password="q")) == "q"
    assert password_of(ConnectionOptions(url="amqp://h")) is None
