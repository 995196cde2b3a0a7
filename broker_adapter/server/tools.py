"""What the tools of ``holdfast`` have in common: a connection, and lines on the terminal."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from broker_adapter.connect import open_transport
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.maintenance import existing_store
from broker_adapter.errors import ConnectionLostException
from broker_adapter.server.terminal import output_errors, printable
from broker_adapter.settings import ClientSettings
from broker_adapter.transport import Credentials, Transport, TransportEvent
from broker_adapter.url import EmbeddedURL, parse_url

#: Variable of the environment that has the password.
PASSWORD: Final = "HOLDFAST_PASSWORD"


@contextmanager
def connected(
    options: argparse.Namespace,
    listener: Callable[[TransportEvent], None] = lambda _event: None,
    *,
    makes_store: bool = False,
) -> Iterator[tuple[Transport, ClientSettings]]:
    """An open connection to what the arguments name; closed in every case.

    Args:
        options: the arguments.
        listener: gets the events of the connection.
        makes_store: whether an embedded store that does not exist is made.
    """
    url = parse_url(options.url)
    if isinstance(url, EmbeddedURL) and url.path is not None and not makes_store:
        existing_store(url.path)
    password = None
    if options.username is not None:
        password = os.environ.get(PASSWORD) or asked_password(options.username)
    transport, settings = _opened(options.url, Credentials(options.username, password), listener)
    try:
        yield transport, settings
    finally:
        transport.close(settings.close_timeout_seconds)


def _opened(
    url: str, credentials: Credentials, listener: Callable[[TransportEvent], None]
) -> tuple[Transport, ClientSettings]:
    try:
        transport, _, settings = open_transport(url, credentials, listener, restores=False)
    except ConnectionLostException as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise ConnectionLostException(
                f"{error.reason}; it was refused, so nothing listens there; start a server (holdfast serve), or say"
                " where it is (--url, $HOLDFAST_URL)"
            ) from error
        raise
    return transport, settings


def asked_password(username: str, question: str | None = None) -> str:
    """The password that somebody at the terminal gives; raises ValueError where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)  # it would be shown as it is typed
        try:
            return getpass.getpass(question or f"password of {username}: ")
        except (getpass.GetPassWarning, EOFError):
            raise ValueError(
                f"the password of {username!r} cannot be asked for without a terminal; give it in ${PASSWORD}"
            ) from None


def destination_of(options: argparse.Namespace) -> Destination:
    """The queue or topic that the arguments name."""
    return Destination(options.destination, DestinationKind.TOPIC if options.topic else DestinationKind.QUEUE)


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line that may hold untrusted text.

    Args:
        text: the line.
        file: where it is printed; None: the standard output.

    Raises:
        OSError: the standard output cannot be written.
    """
    if file is not None:
        print(printable(text), file=file)
        return
    with output_errors():
        print(printable(text))


def warn(text: str) -> None:
    """Print a line on the standard error stream that may hold untrusted text."""
    say(f"holdfast: {text}", sys.stderr)
