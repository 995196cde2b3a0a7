"""Connections of a worker process: kept between tasks, made again where they fail."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sdk import Connection, ConnectionFactory, ConnectionLostException, OperationTimedOutException
from spark_connector.options import ConnectionOptions

_log = logging.getLogger(__name__)
T = TypeVar("T")

_Key = tuple[int, str, str | None, str | None]
_connections: dict[_Key, Connection] = {}
_lock = threading.Lock()
#: First and longest pause between two attempts, in seconds.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


def connection_for(options: ConnectionOptions) -> Connection:
    """This process's connection for these options; made where there is none.

    Raises:
        JMSException: see ``ConnectionFactory.create_connection``.
    """
    key = _key(options)
    with _lock:
        connection = _connections.get(key)
        if connection is None:
            connection = ConnectionFactory(options.url, options.username, options.password).create_connection()
            _connections[key] = connection
        return connection


def drop_connection(options: ConnectionOptions) -> None:
    """Close this process's connection for these options; the next one who asks gets a new one."""
    with _lock:
        connection = _connections.pop(_key(options), None)
    if connection is not None:
        connection.close()


def _key(options: ConnectionOptions) -> _Key:
    return os.getpid(), options.url, options.username, options.password


def with_retries(options: ConnectionOptions, act: Callable[[Connection], T], seconds: float | None = None) -> T:
    """Do something with the connection, again and again where the network or the broker fails.

    Args:
        options: which connection, and for how long to try.
        act: may be done twice without harm.
        seconds: how long to try; None: as the options say.

    Raises:
        JMSException: the last failure, or any other error at once.
    """
    deadline = time.monotonic() + (options.retry_seconds if seconds is None else seconds)
    pause = _FIRST_PAUSE
    while True:
        try:
            return act(connection_for(options))
        except (ConnectionLostException, OperationTimedOutException) as error:
            drop_connection(options)
            if time.monotonic() + pause > deadline:
                raise
            _log.warning("trying again in %g s: %s", pause, error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
