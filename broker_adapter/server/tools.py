"""What the tools of ``holdfast`` have in common: a connection, and lines on the terminal."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from broker_adapter.connect import open_transport
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.server.terminal import printable
from broker_adapter.settings import ClientSettings
from broker_adapter.transport import Credentials, Transport, TransportEvent


@contextmanager
def connected(
    options: argparse.Namespace, listener: Callable[[TransportEvent], None] = lambda _event: None
) -> Iterator[tuple[Transport, ClientSettings]]:
    """An open connection to what the arguments name; closed in every case."""
    password = None
    if options.username is not None:
        password = os.environ.get("HOLDFAST_PASSWORD") or getpass.getpass(f"password of {options.username}: ")
    credentials = Credentials(options.username, password)
    transport, _, settings = open_transport(options.url, credentials, listener, restores=False)
    try:
        yield transport, settings
    finally:
        transport.close(settings.close_timeout_seconds)


def destination_of(options: argparse.Namespace) -> Destination:
    """The queue or topic that the arguments name."""
    return Destination(options.destination, DestinationKind.TOPIC if options.topic else DestinationKind.QUEUE)


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line that may hold untrusted text."""
    print(printable(text), file=file)


def warn(text: str) -> None:
    """Print a line on the standard error stream that may hold untrusted text."""
    say(f"holdfast: {text}", sys.stderr)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the singular for one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
