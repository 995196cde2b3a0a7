"""The addresses that a server listens on."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

import pytest

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.engine.broker import Broker
from broker_adapter.errors import ConnectionLostException
from broker_adapter.server.listener import Listener
from broker_adapter.server.listening import check_address
from broker_adapter.settings import ServerSettings
from tests.broker_adapter.server.served import (
    Served,
)

#: No kernel has sockets of this family for TCP.
NO_FAMILY = (socket.AF_APPLETALK, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 0))


NOT_HERE = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("192.0.2.1", 0))


HERE = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 0))


def listens(broker: Broker, monkeypatch: pytest.MonkeyPatch, *found: tuple[Any, ...]) -> tuple[str, int]:
    """Where a listener listens whose name has these addresses."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: list(found))
    check_address("name", 0)
    listener = Listener(broker, "name", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    try:
        return listener.start()
    finally:
        listener.stop()


@pytest.mark.parametrize("others", [(NO_FAMILY,), (NOT_HERE,), (NO_FAMILY, NOT_HERE)])
def test_addresses_of_a_name_that_this_machine_does_not_have_are_passed_over(
    serve: Callable[..., Served],
    others: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        for found in ((*others, HERE), (HERE, *others)):
            host, port = listens(serve().broker, monkeypatch, *found)
            assert (host, port > 0) == ("127.0.0.1", True)
    for each in others:
        assert f"= not listening on {each[4][0]}: " in caplog.text


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ((NO_FAMILY,), "Address family not supported"),
        ((NO_FAMILY, NOT_HERE), "Address family not supported"),
        ((NOT_HERE, NO_FAMILY), "Cannot assign requested address"),
    ],
)
def test_a_name_of_which_no_address_is_left_is_refused(
    serve: Callable[..., Served], found: tuple[Any, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: list(found))
    listener = Listener(served.broker, "name", 0, ServerSettings(), lambda: ServerLogin(None, plain=True))
    for start in (lambda: check_address("name", 0), listener.start):
        with pytest.raises(ConnectionLostException, match=reason):
            start()
    listener.stop()


def test_an_address_that_another_process_has_is_not_passed_over(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    taken = (*HERE[:4], ("127.0.0.1", served.port))
    with pytest.raises(ConnectionLostException, match="choose another"):
        listens(served.broker, monkeypatch, HERE, taken)


def test_where_no_file_is_left_no_address_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_named: [HERE, (*HERE[:4], ("127.0.0.2", 0))])
    check_address("name", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        os.close(held.pop())
        with pytest.raises(ConnectionLostException, match="Too many open files"):
            check_address("name", 0)
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
