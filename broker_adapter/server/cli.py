"""The command ``holdfast``: a server, and tools for people.

Exit status: 0 done, 1 it did not work (the error says why, and what to do), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import queue
import re
import signal
import ssl
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from broker_adapter.amqp.sasl import MAX_ITERATIONS, MIN_ITERATIONS, ServerLogin
from broker_adapter.amqp.tls_files import check_readable
from broker_adapter.destination import checked_name
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.maintenance import check_store
from broker_adapter.errors import JMSException, MessageFormatException, StoreCorruptException
from broker_adapter.selectors.language import checked_property_name
from broker_adapter.server.announcements import ANNOUNCE, servers_from
from broker_adapter.server.listener import Listener, check_address
from broker_adapter.server.message_commands import browse, receive, send
from broker_adapter.server.open_files import raise_soft_limit
from broker_adapter.server.origins import is_loopback
from broker_adapter.server.store_commands import add_commands, progress
from broker_adapter.server.terminal import PrintableFormatter, output_errors, printable, ready_streams
from broker_adapter.server.tools import (
    PASSWORD,
    asked_password,
    connected,
    decoded,
    given_password,
    say,
    text_argument,
    undecoded,
    url_argument,
    warn,
)
from broker_adapter.server.users import ITERATIONS, UsersFile
from broker_adapter.settings import EngineSettings, ServerSettings, options_of, renamed, settings_from
from broker_adapter.transport import Transport
from broker_adapter.urls.url import masked
from broker_adapter.version import own_version
from broker_adapter.wording import counted

_log = logging.getLogger(f"holdfast.{__name__}")

DEFAULT_URL = "amqp://127.0.0.1:5672"
DEFAULT_LISTEN = "127.0.0.1:5672"
#: The options of ``send`` that stand for headers of a message.
_OPTION_OF_HEADER = {
    "JMSDeliveryMode": "--non-persistent",
    "JMSDeliveryTime": "--delay",
    "JMSExpiration": "--ttl",
    "JMSPriority": "--priority",
}
_LOST = (
    "The addresses of a failover URL are tried when the command connects; a connection that is lost is not restored:"
    " the command fails."
)
#: Longest wait for something that takes its time, such as a check.
_LONG_SECONDS = 3600.0
#: Longest time that may be given, about 30 years.
_MOST_SECONDS = 1_000_000_000
#: Longest time that Python lets one thread run while another waits.  The default, 5 ms, makes the server's two threads
#: wait for each other longer than a message takes.
_SWITCH_SECONDS = 0.0005
#: How often a server looks whether it was told to stop.
_LOOK_SECONDS = 1.0


_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
#: What may have a password: from the scheme or the user of a URL to its last ``@``.
_PASSWORDS = re.compile(r":(//)?(?=\S).*@", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors hold no password of a URL."""

    def error(self, message: str) -> NoReturn:
        """See :class:`argparse.ArgumentParser`."""
        super().error(_PASSWORDS.sub(r":\1***@", message))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: without the program's name; None: those of the process.

    Returns:
        The exit status.
    """
    is_open = ready_streams()
    try:
        try:
            status = _run(arguments, is_open=is_open)
        except SystemExit:  # of argparse: help, the version, wrong usage
            _flush()
            raise
        _flush()
    except BrokenPipeError:
        _drop_output()  # who read it has gone
        return 1
    except (JMSException, ValueError, OSError) as error:
        warn(str(error))
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return 1
    except KeyboardInterrupt:
        _drop_output()  # whoever is to read it may be slow
        return 130
    return status


def _run(arguments: Sequence[str] | None, *, is_open: bool) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        _take_late(options, rest)
    if not is_open and options.run is not _serve:  # a server does not depend on who reads its output
        raise ValueError("the standard output is closed, so nothing was done; open it (>/dev/null discards the output)")
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    status: int = options.run(options)
    return status


def _take_late(options: argparse.Namespace, rest: Sequence[str]) -> None:
    """Take what stands behind an option and belongs to an argument that may be left out.

    ``argparse`` gives such an argument only what stands ahead of the option.
    """
    count = rest.index("--") if "--" in rest else len(rest)
    texts = [*rest[:count], *rest[count + 1 :]]  # what follows "--" is no option, whatever it looks like
    name: str = getattr(options, "late", "")
    given = getattr(options, name) if name else ""
    is_free = isinstance(given, list) or (given is None and len(texts) == 1)
    if not is_free or any(_is_like_an_option(text) for text in rest[:count]):
        options.parser.error(_unrecognized(rest, options.parser))
    try:
        texts = [text_argument(text) for text in texts]
    except argparse.ArgumentTypeError as error:
        (action,) = [each for each in options.parser._actions if each.dest == name]
        options.parser.error(str(argparse.ArgumentError(action, str(error))))
    setattr(options, name, [*given, *texts] if isinstance(given, list) else texts[0])


def _is_like_an_option(text: str) -> bool:
    """As ``argparse`` has it: neither a lone dash, nor a negative number, nor a text with a space."""
    return len(text) > 1 and text.startswith("-") and " " not in text and not _NEGATIVE.fullmatch(text)


def _unrecognized(rest: Sequence[str], parser: argparse.ArgumentParser) -> str:
    known = [each for action in parser._actions for each in action.option_strings if each.startswith("--")]
    texts = []
    for text in rest:
        similar = get_close_matches(text.partition("=")[0], known, 1) if text.startswith("--") else []
        texts.append(f"{text} (is it {similar[0]}?)" if similar else text)
    return f"unrecognized arguments: {' '.join(texts)}"


def _flush() -> None:
    """Write what waits in the buffer of the standard output now, where an error can still be told."""
    with output_errors():
        sys.stdout.flush()


def _drop_output() -> None:
    """What was not written is not tried again as the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="holdfast", description="Durable queues: a server, and tools for people.")
    parser.add_argument("--version", action="version", version=f"holdfast {own_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="serve a store to AMQP 1.0 clients")
    serve.add_argument("--data", required=True, metavar="DIR", help="directory of the store; made where there is none")
    serve.add_argument(
        "--listen", type=text_argument, default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}"
    )
    serve.add_argument("--users", metavar="FILE", help="who may log in; see: holdfast user add --help")
    serve.add_argument("--tls-certificate", metavar="PEM", help="certificate chain of the server, for amqps://")
    serve.add_argument("--tls-key", metavar="PEM", help="its private key")
    serve.add_argument(
        "--tls-client-ca",
        metavar="PEM",
        help="who signs the certificates of clients; a client with one is the user that it names (SASL EXTERNAL)",
    )
    serve.add_argument(
        "--failover-servers",
        type=text_argument,
        metavar="LIST",
        help="where clients are told to connect when this server is gone: HOST:PORT,HOST:PORT,...; see: announce",
    )
    serve.add_argument(
        "--insecure", action="store_true", help="listen beyond this machine without users and TLS all the same"
    )
    serve.add_argument(
        "--check",
        action="store_true",
        help="check every page and record of the store first, and do not serve one that is damaged",
    )
    serve.add_argument(
        "--option",
        type=text_argument,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the engine or the server (docs/options.md), several times",
    )
    serve.set_defaults(run=_serve)

    sending = _client(commands, "send", "send messages: the given texts, or each line of the standard input")
    sending.add_argument("body", nargs="*", type=text_argument, default=[], metavar="TEXT")
    sending.add_argument("--count", type=_positive, default=1, help="send each text so often")
    sending.add_argument(
        "--property",
        type=_pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of text, several times; its name is an identifier of the selector language",
    )
    sending.add_argument("--priority", type=int, default=4, choices=range(10), metavar="0..9")
    sending.add_argument(
        "--ttl", type=_time_to_live, metavar="SECONDS", help="time to live, from 0.001 on; default: for ever"
    )
    sending.add_argument("--delay", type=_seconds, metavar="SECONDS", help="deliver not before this time has passed")
    sending.add_argument("--non-persistent", action="store_true", help="need not survive a restart of the server")
    sending.set_defaults(run=send, late="body")

    receiving = _client(commands, "receive", "receive messages, acknowledging each when it is printed")
    receiving.add_argument("--count", type=_positive, help="stop after so many; default: when nothing more comes")
    receiving.add_argument(
        "--timeout", type=_seconds, default=1.0, metavar="SECONDS", help="longest wait for the next one; default 1"
    )
    receiving.add_argument(
        "--subscription", type=text_argument, metavar="NAME", help="of a topic: a durable shared subscription"
    )
    receiving.add_argument(
        "--selector", type=text_argument, metavar="TEXT", help="only these, such as \"colour = 'red'\""
    )
    receiving.set_defaults(run=receive)

    browsing = _client(commands, "browse", "show the messages of a queue, taking nothing", topics=False)
    browsing.add_argument(
        "--selector", type=text_argument, metavar="TEXT", help='only these, such as "JMSPriority > 5"'
    )
    browsing.add_argument("--count", type=_positive, help="stop after so many")
    browsing.set_defaults(run=browse)

    stat = _client(commands, "stat", "figures of the server and its queues", destination=False)
    stat.set_defaults(run=_stat)

    purge = _client(commands, "purge", "drop all waiting messages of a queue or a subscription")
    _add_subscription(purge, "with --topic: the subscription")
    purge.add_argument("--yes", action="store_true", help="do not ask")
    purge.set_defaults(run=_purge)

    delete = _client(commands, "delete", "delete a queue, a topic or a subscription, with its messages")
    _add_subscription(delete, "with --topic: only this subscription")
    delete.add_argument("--force", action="store_true", help="also while it is in use: its consumers end")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.set_defaults(run=_delete)

    announce = _client(
        commands,
        "announce",
        "tell a running server's clients where else to connect (failover=failover_exchange)",
        destination=False,
    )
    announce.add_argument(
        "servers", type=text_argument, metavar="LIST", help="HOST:PORT,HOST:PORT,...; an empty text: nowhere else"
    )
    announce.set_defaults(run=_announce)

    redrive = _client(
        commands,
        "redrive",
        "put dead letters, or what has expired, back into the queues they came from",
        destination=False,
    )
    redrive.add_argument(
        "destination",
        type=text_argument,
        metavar="QUEUE",
        nargs="?",
        help="default: the server's dead-letter queue",
    )
    redrive.add_argument(
        "--to",
        type=text_argument,
        metavar="QUEUE",
        help="put all of them into this queue instead; it is made, and that is told, where it does not exist",
    )
    redrive.add_argument("--count", type=_positive, metavar="N", help="at most so many, the oldest first")
    redrive.set_defaults(run=_redrive)

    add_commands(commands, _ask)

    user = commands.add_parser(
        "user",
        help="add, remove or list the users of a users file",
        description="Add, remove or list the users of a users file.  add: changes the password of a user that there is;"
        " it comes from $HOLDFAST_PASSWORD, or is asked for, or is the first line of a standard input that is no"
        " terminal.",
    )
    user.add_argument("action", choices=["add", "remove", "list"])
    user.add_argument("file", metavar="FILE", help="the users file, made where there is none; see: serve --users")
    user.add_argument("name", nargs="?", type=text_argument, metavar="NAME", help="add, remove: the name of the user")
    user.add_argument(
        "--iterations",
        type=_iterations,
        metavar="N",
        help=f"add: iterations of the password's hash, {MIN_ITERATIONS} to {MAX_ITERATIONS}; more of them make both"
        f" guessing the password from the file and each login slower; default {ITERATIONS}",
    )
    user.add_argument("--json", action="store_true", help="one JSON object a line")
    user.set_defaults(run=_user, late="name")
    for each in commands.choices.values():
        each.set_defaults(parser=each)  # for errors about arguments, with the usage of this command
    return parser


def _client(
    commands: Any, name: str, text: str, *, destination: bool = True, topics: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text}.  {_LOST}")
    if destination:
        more = "; of the topic with --topic" if topics else ""
        parser.add_argument("destination", type=text_argument, metavar="QUEUE", help=f"name of the queue{more}")
    if destination and topics:
        parser.add_argument("--topic", action="store_true", help="the name is that of a topic, not of a queue")
    parser.add_argument(
        "--url",
        type=url_argument,
        default=os.environ.get("HOLDFAST_URL", DEFAULT_URL),
        help=f"default: $HOLDFAST_URL, or else {DEFAULT_URL}",
    )
    parser.add_argument(
        "--username",
        type=text_argument,
        metavar="NAME",
        help="the password comes from $HOLDFAST_PASSWORD, or is asked for",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def _add_subscription(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--subscription", type=text_argument, metavar="NAME", help=text)
    parser.add_argument("--client-id", type=text_argument, metavar="ID", help="of the subscription, where it has one")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: a whole number from 1 on")
    return int(text)


def _iterations(text: str) -> int:
    if not (text.isdecimal() and len(text) < 10 and MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is invalid: a whole number from {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: seconds from 0 to {_MOST_SECONDS}")
    return seconds


def _time_to_live(text: str) -> float:
    seconds = _seconds(text)
    if round(seconds * 1000) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is invalid: at least 0.001 seconds; without --ttl a message never expires"
        )
    return seconds


def _pair(text: str) -> tuple[str, str]:
    text_argument(text)
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    if name in _OPTION_OF_HEADER:
        raise argparse.ArgumentTypeError(f"{name!r} is a header, not a property; use {_OPTION_OF_HEADER[name]}")
    try:
        return checked_property_name(name), value
    except MessageFormatException as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# The server.


def _serve(options: argparse.Namespace) -> int:
    host, port = _address(options.listen)
    engine_settings, server_settings = _settings(options.option)
    servers = servers_from(_listed(options.failover_servers))
    users = UsersFile(options.users) if options.users else None
    tls = _tls(options)
    if not is_loopback(host) and not options.insecure and (users is None or tls is None):
        missing = " and ".join(
            name for name, value in (("users (--users)", users), ("TLS (--tls-certificate)", tls)) if value is None
        )
        raise ValueError(
            f"refusing to listen on {host}, which others can reach, without {missing}; give them, or say --insecure"
        )
    sys.setswitchinterval(_SWITCH_SECONDS)
    if options.check and os.path.exists(os.path.join(options.data, "data.mdb")):
        report = check_store(options.data, engine_settings, progress=progress())
        if not report.is_sound:
            raise StoreCorruptException(
                f"the store in {options.data!r} is damaged: {len(report.damages)} pages and"
                f" {sum(report.summary.problems.values())} records; run: holdfast check {options.data} --repair"
            )
    check_address(host, port)  # ahead of the store, which is made where there is none
    before, after = raise_soft_limit()
    if after > before:
        _log.info("= this process may have %d files open now, instead of %d", after, before)
    broker = Broker(engine_settings, options.data)
    stopped: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put() may be interrupted by another signal's
    plain = tls is not None or is_loopback(host)
    listener = Listener(
        *(broker, host, port, server_settings, lambda: ServerLogin(users, plain=plain), tls),
        servers=servers,
    )
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: stopped.put(None))
        _, bound = listener.start()
        broker.on_failure(lambda _error: stopped.put(None))  # behind the listener, which tells its clients first
        scheme = "amqps" if tls is not None else "amqp"
        _say(f"holdfast ready on {scheme}://{host}:{bound} with the store in {options.data}")
        if broker.failed is None:  # else it failed ahead of the line above
            _wait_for(stopped)
        if broker.failed is not None:
            raise broker.failed
        _say("holdfast stopping")
    finally:
        listener.stop()
        broker.close()
    return 0


def _wait_for(stopped: queue.SimpleQueue[None]) -> None:
    """Wait, and look now and then: a signal that comes just as Python begins to wait does not end the wait."""
    while True:
        with contextlib.suppress(queue.Empty):
            return stopped.get(timeout=_LOOK_SECONDS)


def _say(text: str) -> None:
    """Print a line for whoever reads it, if anybody does: the server does not depend on that."""
    try:
        print(text, flush=True)
    except OSError:
        _drop_output()


def _listed(text: str | None) -> list[str]:
    """The servers of a list; raises ValueError where one has a user, whose password no client is to be told."""
    if text is not None and "@" in text:
        raise ValueError(f"{masked(text)!r} has a user; write HOST:PORT,HOST:PORT,...")
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not host or "@" in host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {masked(text)!r} is not of the form HOST:PORT")
    return host.strip("[]"), int(port)


def _settings(pairs: Sequence[str]) -> tuple[EngineSettings, ServerSettings]:
    values = {}
    known = [info.name for info in options_of(EngineSettings, ServerSettings)]
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if (hint := renamed(name)) is not None:
            raise ValueError(hint)
        if not separator or name not in known:
            similar = get_close_matches(name, known, 1)
            names = [f"{each} (the most similar)" for each in similar] + [each for each in known if each not in similar]
            raise ValueError(f"--option {pair!r} is not NAME=VALUE with one of the names {', '.join(names)}")
        values[name] = value
    return settings_from(EngineSettings, values), settings_from(ServerSettings, values)


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    if options.tls_certificate is None:
        if options.tls_key is not None:
            raise ValueError("--tls-key needs --tls-certificate: without a certificate there is no TLS")
        if options.tls_client_ca is not None:
            raise ValueError("--tls-client-ca needs --tls-certificate: without TLS nobody shows a certificate")
        return None
    for name in ("--tls-certificate", "--tls-key", "--tls-client-ca"):
        path = getattr(options, name[2:].replace("-", "_"))
        check_readable(f"{name} {path!r}", path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_certificate, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        key = "the same file" if options.tls_key is None else repr(options.tls_key)
        raise ValueError(
            f"the certificate in {options.tls_certificate!r}, with its key in {key}, cannot be used: {error}; both are"
            " PEM files, and the key belongs to the certificate"
        ) from error
    if options.tls_client_ca is not None:
        try:
            context.load_verify_locations(options.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"--tls-client-ca {options.tls_client_ca!r} has no certificate: {error}") from error
        context.verify_mode = ssl.CERT_OPTIONAL  # who has none may log in with a password
    return context


# The tools.


def _ask(options: argparse.Namespace, operation: str, arguments: dict[str, Any]) -> Any:
    """Make a request of a running server."""
    with connected(options) as (transport, _):
        return transport.request(operation, arguments, _LONG_SECONDS)


def _stat(options: argparse.Namespace) -> int:
    with connected(options) as (transport, _):
        statistics = transport.request("statistics", {}, None)
    if options.json:
        say(json.dumps(statistics))
        return 0
    queues = statistics.pop("queues")
    for name, value in statistics.items():
        say(f"{name.replace('_', ' '):20} {value if value is not None else '-'}")
    if queues:
        columns = ["name", "kind", "messages", "bytes", "in_hand", "delayed", "consumers", "held_producers"]
        if any(each.get("client_id") for each in queues):
            columns.append("client_id")
        cells_of = [[each[column] for column in columns] for each in queues]
        rows = [["" if cell is None else printable(str(cell)) for cell in cells] for cells in cells_of]
        table = [[column.replace("_", " ") for column in columns], *rows]
        widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
        say("")
        for row in table:
            cells = [
                cell.ljust(width) if index < 2 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            say("  ".join(cells).rstrip())
    return 0


def _announce(options: argparse.Namespace) -> int:
    servers = _listed(options.servers)
    with connected(options) as (transport, _):
        count = transport.request(ANNOUNCE, {"servers": servers}, None)
    say(json.dumps({"servers": count}) if options.json else f"announced: {counted(count, 'server')}")
    return 0


def _confirmed(options: argparse.Namespace, question: str) -> bool:
    """Whether a person who is asked says yes; ``--yes`` and ``--json`` are a yes."""
    if options.yes or options.json:
        return True
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, OSError):
        raise ValueError("nobody answers the question; give --yes") from None


def _named(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The queue, topic or subscription that the arguments name: in words, and as arguments of a request."""
    if options.subscription is not None and not options.topic:
        raise ValueError("--subscription needs --topic: a queue has none")
    if options.client_id is not None and options.subscription is None:
        raise ValueError("--client-id needs --subscription: it tells subscriptions of one name apart")
    if options.subscription is not None:
        checked_name(options.subscription, "subscription")
    name, kind = options.destination, "topic" if options.topic else "queue"
    what = name if options.subscription is None else f"{name}:{options.subscription}"
    subscription = {"subscription": options.subscription, "client_id": options.client_id}
    return what, {"destination": name, "kind": kind, **subscription}


def _purge(options: argparse.Namespace) -> int:
    what, arguments = _named(options)
    if options.topic and options.subscription is None:
        raise ValueError("a topic keeps no messages of its own; name a subscription of it with --subscription")
    if not _confirmed(options, f"drop all messages of {what!r}?"):
        say("nothing dropped")
        return 1
    with connected(options) as (transport, _):
        dropped = transport.request("purge", arguments, None)
    say(json.dumps({"dropped": dropped}) if options.json else f"dropped {dropped} from {what}")
    return 0


def _delete(options: argparse.Namespace) -> int:
    what, arguments = _named(options)
    if not _confirmed(options, f"delete {what!r} with all its messages?"):
        say("nothing deleted")
        return 1
    with connected(options) as (transport, _):
        messages = transport.request("delete", {**arguments, "force": options.force}, None)
    had = counted(messages, "message")
    say(json.dumps({"messages": messages}) if options.json else f"deleted {what}, which had {had}")
    return 0


def _redrive(options: argparse.Namespace) -> int:
    arguments = {"to": options.to, "limit": options.count}
    if options.destination is not None:
        arguments["destination"] = options.destination
    with connected(options) as (transport, _):
        is_new = options.to is not None and not _is_queue(transport, options.to)
        result = transport.request("redrive", arguments, None)
    is_made = is_new and result["moved"] > 0
    if options.json:
        say(json.dumps(result if options.to is None else {**result, "made": is_made}))
    else:
        say(f"put back {result['moved']}")
        if is_made:
            say(f"the queue {options.to!r} did not exist, and was made", file=sys.stderr)
        if result["left"]:
            say(f"{result['left']} stay: {_why_left(options.to)}", file=sys.stderr)
    return 1 if result["left"] and not result["moved"] else 0


def _is_queue(transport: Transport, name: str) -> bool:
    """Whether there is a queue of this name."""
    queues = transport.request("statistics", {}, None)["queues"]
    return any(each["kind"] == "queue" and each["name"] == name for each in queues)


def _why_left(to: str | None) -> str:
    if to is None:
        return "where they were is unknown or full, or is gone; name a queue with --to"
    return (
        f"the queue {to!r} is full, or cannot have them (it is the one that they are in, it is temporary, or no queue"
        " can have this name); name another one with --to"
    )


def _user(options: argparse.Namespace) -> int:
    if options.action != "add" and options.iterations is not None:
        raise ValueError("--iterations is for add: the number belongs to a password, and changes with it")
    if options.action == "list":
        for name, iterations in UsersFile(options.file).iterations.items():
            user = {"user": name, "iterations": iterations}
            say(json.dumps(user) if options.json else f"{name}  {iterations} iterations")
        return 0
    if options.name is None:
        raise ValueError(f"holdfast user {options.action} needs a NAME")
    if options.action == "remove":
        UsersFile(options.file).remove(options.name)
        removed = {"user": options.name, "removed": True}
        say(json.dumps(removed) if options.json else f"removed {options.name} from {options.file}")
        return 0
    password = _new_password(options.name)
    iterations = ITERATIONS if options.iterations is None else options.iterations
    is_new = UsersFile.open_or_make(options.file).add(options.name, password, iterations)
    if options.json:
        say(json.dumps({"user": options.name, "is_new": is_new}))
    else:
        say(f"{'added' if is_new else 'changed the password of'} {options.name} in {options.file}")
    return 0


def _new_password(name: str) -> str:
    """From the environment, a person at the terminal, or the standard input."""
    given = given_password()
    if given is not None:
        return given
    if not sys.stdin.isatty():
        try:
            line = sys.stdin.readline().rstrip("\n")
        except OSError:
            line = ""
        except UnicodeDecodeError:
            raise undecoded(f"the password of {name!r}") from None
        if not line:
            raise ValueError(f"the password of {name!r} is missing; give it in ${PASSWORD}, or as a line of input")
        return decoded(line, f"the password of {name!r}")
    password = asked_password(name)
    if asked_password(name, "once more: ") != password:
        raise ValueError("the passwords differ; nothing was changed")
    return password


if __name__ == "__main__":
    sys.exit(main())
