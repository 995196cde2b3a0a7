"""What the tools of ``holdfast`` have in common: a connection, and lines on the terminal."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final, TextIO

from broker_adapter.connect import transport_for
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.store.files import existing_store
from broker_adapter.errors import ConnectionLostException, JMSSecurityException
from broker_adapter.mechanisms import GIVE_LOGIN
from broker_adapter.server.cli.terminal import output_errors, printable
from broker_adapter.settings import (
    ClientSettings,
    EngineSettings,
    ServerSettings,
    options_of,
    settings_from,
)
from broker_adapter.transport import Credentials, Transport, TransportEvent
from broker_adapter.urls.url import EmbeddedURL, masked, parse_url
from broker_adapter.wording import in_seconds

#: Longest wait for something that takes its time, such as a check.
_LONG_SECONDS: Final = 3600.0
#: Longest time that may be given, about 30 years.
_MOST_SECONDS: Final = 1_000_000_000
#: Variable of the environment that has the password.
PASSWORD: Final = "HOLDFAST_PASSWORD"
#: Bytes that were not decoded, as ``surrogateescape`` shows them.
UNDECODED: Final = re.compile("[\udc80-\udcff]")


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
        password = given_password() or asked_password(options.username)
    transport, settings = transport_for(options.url, restores=False)
    try:
        _open(transport, Credentials(options.username, password), listener)
        yield transport, settings
    finally:
        transport.close(settings.close_timeout_seconds)


def _open(transport: Transport, credentials: Credentials, listener: Callable[[TransportEvent], None]) -> None:
    try:
        transport.open(credentials, listener, None)
    except ConnectionLostException as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise ConnectionLostException(f"{error.reason} (--url or $HOLDFAST_URL names another server)") from error
        raise
    except JMSSecurityException as error:
        if not error.reason.endswith(GIVE_LOGIN):
            raise
        advice = f"give --username NAME, and its password in ${PASSWORD}"
        raise JMSSecurityException(error.reason.removesuffix(GIVE_LOGIN) + advice) from error


def ask(options: argparse.Namespace, operation: str, arguments: dict[str, Any]) -> Any:
    """Make a request of a running server."""
    with connected(options) as (transport, _):
        return transport.request(operation, arguments, _LONG_SECONDS)


def decoded(text: str, shown: str) -> str:
    """A text that is to be part of a request or of a message.

    Args:
        text: as the system has given it.
        shown: what the error calls it.

    Raises:
        ValueError: it has bytes that are no character in the encoding of the locale.
    """
    if UNDECODED.search(text):
        raise undecoded(shown)
    return text


def undecoded(shown: str) -> ValueError:
    """The error for a text with bytes that are no character in the encoding of the locale."""
    return ValueError(
        f"{shown} is not {sys.getfilesystemencoding().upper()}, the encoding of the locale; convert it (iconv), or set"
        " $LC_ALL to a locale with its encoding"
    )


def text_argument(text: str) -> str:
    """A type of arguments: texts, as opposed to names of files, which may have any bytes."""
    if UNDECODED.search(text):
        raise argparse.ArgumentTypeError(str(undecoded(repr(os.fsencode(masked(text)))[1:])))
    return text


def url_argument(text: str) -> str:
    """A type of arguments: connection URLs; the path in one may have any bytes."""
    return text if text.startswith("embedded:") else text_argument(text)


def seconds_argument(text: str) -> float:
    """A type of arguments: times in seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: seconds from 0 to {_MOST_SECONDS}")
    return seconds


def given_password() -> str | None:
    """The password in the environment; None where there is none.  Raises ValueError where it cannot be decoded."""
    return decoded(os.environ.get(PASSWORD, ""), f"${PASSWORD}") or None


def asked_password(username: str, question: str | None = None) -> str:
    """The password that is typed at the terminal; raises ValueError where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)  # it would be shown as it is typed
        try:
            return decoded(getpass.getpass(question or f"password of {username}: "), f"the password of {username!r}")
        except UnicodeDecodeError:
            raise undecoded(f"the password of {username!r}") from None
        except (getpass.GetPassWarning, EOFError):
            raise ValueError(
                f"the password of {username!r} cannot be asked for without a terminal; give it in ${PASSWORD}"
            ) from None


def listed(text: str | None) -> list[str]:
    """The servers of a list; raises ValueError where one has a user, whose password no client is to be told."""
    if text is not None and "@" in text:
        raise ValueError(f"{masked(text)!r} has a user; write HOST:PORT,HOST:PORT,...")
    return [each.strip() for each in (text or "").split(",") if each.strip()]


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


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: int) -> None:
    """Print a table whose cells may hold untrusted text.

    Args:
        columns: the names of its columns.
        rows: the cells of each row; None is shown as nothing.
        texts: how many columns, from the first one on, are texts, and not numbers.
    """
    shown = [["" if cell is None else printable(str(cell)) for cell in cells] for cells in rows]
    lines = [[column.replace("_", " ") for column in columns], *shown]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = [
            cell.ljust(width) if index < texts else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        say("  ".join(cells).rstrip())


def shown_age(found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a queue or gateway as they are shown: an age in seconds."""
    age_ms = found.pop("oldest_age_ms", None)
    return {**found, "oldest": None if age_ms is None else in_seconds(round(age_ms / 1000, 1))}


def confirmed(options: argparse.Namespace, question: str) -> bool:
    """Ask at the terminal, and return whether the answer is yes; with ``--yes`` it is, unasked.

    The question is no part of the output, which ``--json`` may send to a program.  Without a terminal the command ends
    with status 2, so that a script that forgets ``--yes`` drops nothing.
    """
    if options.yes:
        return True
    if not sys.stdin.isatty():
        options.parser.error(f"cannot ask without a terminal: {question} give --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes``, for :func:`confirmed`."""
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")


def add_option(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add ``--option``, for :func:`settings_of`; ``more``: of its help."""
    parser.add_argument(
        "--option",
        type=text_argument,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"an option of the engine or the server (docs/options.md), several times{more}",
    )


def settings_of(pairs: Sequence[str]) -> tuple[EngineSettings, ServerSettings]:
    """Return what was given with ``--option``.

    Args:
        pairs: NAME=VALUE each.

    Raises:
        ValueError: a name is not that of an option, or its value is out of its limits.
    """
    values = {}
    known = [info.name for info in options_of(EngineSettings, ServerSettings)]
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or name not in known:
            similar = get_close_matches(name, known, 1)
            names = [f"{each} (the most similar)" for each in similar] + [each for each in known if each not in similar]
            raise ValueError(f"--option {pair!r} is not NAME=VALUE with one of the names {', '.join(names)}")
        values[name] = value
    return settings_from(EngineSettings, values), settings_from(ServerSettings, values)


def check_subscription(options: argparse.Namespace, *, has_topic: bool) -> None:
    """Raises ValueError where ``--subscription`` or ``--client-id`` has nothing that it belongs to.

    Args:
        options: what was given.
        has_topic: whether a topic was named.
    """
    if options.subscription is not None and not has_topic:
        raise ValueError("--subscription needs --topic: a queue has none")
    if options.client_id is not None and options.subscription is None:
        raise ValueError("--client-id needs --subscription: it tells subscriptions of one name apart")
