"""Connections of a worker process: kept between tasks, made again where they fail.

Spark's workers are forked before anything of ours is connected, and do one thing at a time; so a process needs one
connection for each URL, and the one that was not used for the longest time is not in use.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sdk import Connection, ConnectionFactory, ConnectionLostException, JMSException, OperationTimedOutException
from spark_connector.options import ConnectionOptions

_log = logging.getLogger(f"holdfast.{__name__}")
T = TypeVar("T")

_Key = tuple[int | str | None, ...]
_connections: dict[_Key, Connection] = {}
_lock = threading.Lock()
#: Connections that a process keeps; beyond it the one that was not used for the longest time is closed.
MAX_CONNECTIONS = 16
#: Longest password in a file, in characters.
MAX_PASSWORD = 4096
#: First and longest pause between two attempts, in seconds.
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


def connection_for(options: ConnectionOptions) -> Connection:
    """This process's connection for these options; made where there is none.

    Raises:
        JMSException: see ``ConnectionFactory.create_connection``.
        ValueError: see ``password_of``.
    """
    key = _key(options)
    unused = None
    with _lock:
        connection = _connections.pop(key, None)
        if connection is None:
            factory = ConnectionFactory(options.url, options.username, password_of(options))
            connection = factory.create_connection()
            if len(_connections) >= MAX_CONNECTIONS:
                unused = _connections.pop(next(iter(_connections)))
        _connections[key] = connection  # the last: used last
    if unused is not None:
        unused.close()
    return connection


def drop_connection(options: ConnectionOptions) -> None:
    """Close this process's connection for these options; the next call opens a new one."""
    with _lock:
        connection = _connections.pop(_key(options), None)
    if connection is not None:
        connection.close()


def _key(options: ConnectionOptions) -> _Key:
    login = options.username, options.password, options.password_file, options.password_env
    return os.getpid(), options.url, *login


def password_of(options: ConnectionOptions) -> str | None:
    """The password, from where the options say; None where they say nothing.  Reads a file at most.

    Raises:
        ValueError: the file cannot be read or is no text, or there is no such environment variable in this process.
    """
    if options.password_env is not None:
        password = os.environ.get(options.password_env)
        if password is None:
            raise ValueError(
                f"passwordEnv={options.password_env!r}: this process has no such environment variable; start the"
                " driver's program and Spark's workers with it, or use passwordFile"
            )
        return password
    if options.password_file is None:
        return options.password
    try:
        with open(options.password_file, encoding="utf-8") as file:
            password = file.read(MAX_PASSWORD + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ValueError(
            f"passwordFile={options.password_file!r} cannot be read: {reason}; each machine of the cluster needs it,"
            " readable for the user that runs Spark"
        ) from None  # the error of a decoder has the text
    password = password.removesuffix("\n").removesuffix("\r")
    if not password or len(password) > MAX_PASSWORD or "\n" in password:
        raise ValueError(
            f"passwordFile={options.password_file!r} is to have one line of 1 to {MAX_PASSWORD} characters"
        )
    return password


def with_retries(
    options: ConnectionOptions,
    act: Callable[[Connection], T],
    seconds: float | None = None,
    also: tuple[type[JMSException], ...] = (),
) -> T:
    """Do something with the connection, again and again where the network or the broker fails.

    Args:
        options: which connection, and for how long to try.
        act: may be done twice without harm.
        seconds: how long to try; None: ``retrySeconds`` of the options.  The last try may take as long as its own
            time-outs allow.
        also: further errors after which to try again, with which nothing is wrong with the connection.

    Raises:
        JMSException: the last failure, or any other error at once.
    """
    deadline = time.monotonic() + (options.retry_seconds if seconds is None else seconds)
    pause = _FIRST_PAUSE
    while True:
        try:
            return act(connection_for(options))
        except JMSException as error:
            if not isinstance(error, also):
                # Whatever it was: the next one starts with a connection that nothing is wrong with.
                drop_connection(options)
            transient = isinstance(error, (ConnectionLostException, OperationTimedOutException, *also))
            if not transient or time.monotonic() + pause > deadline:
                raise
            _log.warning("trying again in %g s: %s", pause, error)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
