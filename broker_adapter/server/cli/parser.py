"""The arguments of ``holdfast``: its commands, their options, and the types of these."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from broker_adapter.errors import MessageFormatException
from broker_adapter.mechanisms import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS
from broker_adapter.selectors.language import checked_property_name
from broker_adapter.server.cli.client_arguments import add_client_commands
from broker_adapter.server.cli.copy_arguments import add_follow, add_group, add_group_command
from broker_adapter.server.cli.gateway_arguments import add_gateway_command
from broker_adapter.server.cli.on_demand import command
from broker_adapter.server.cli.store_arguments import add_store_commands
from broker_adapter.server.cli.tools import add_option, add_yes, seconds_argument, text_argument, url_argument
from broker_adapter.version import own_version

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

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
#: What may have a password: from the scheme or the user of a URL to its last ``@``.
_PASSWORDS = re.compile(r":(//)?(?=\S).*@", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors hold no password of a URL."""

    def error(self, message: str) -> NoReturn:
        """See :class:`argparse.ArgumentParser`."""
        super().error(_PASSWORDS.sub(r":\1***@", message))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a command; ``run`` is the function that carries it out.

    Args:
        arguments: without the program's name; None: those of the process.

    Raises:
        SystemExit: wrong usage, or help or the version was asked for; it is printed.
    """
    options, rest = _make_parser().parse_known_args(arguments)
    if rest:
        _take_late(options, rest)
    return options


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


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="holdfast", description="A server of durable message queues, and commands to use and maintain it."
    )
    parser.add_argument("--version", action="version", version=f"holdfast {own_version()}")
    parser.set_defaults(needs_output=True)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serving = commands.add_parser(
        "serve",
        help="serve a store to AMQP 1.0 clients",
        description=(
            "Serve the queues of a store to AMQP 1.0 clients, until SIGINT or SIGTERM. SIGHUP: read the users, the"
            " certificates and the settings of queues again. Without --users every client may"
            " log in. On an address that other machines can reach, users and TLS are required, or --insecure."
        ),
    )
    serving.add_argument(
        "--data", required=True, metavar="DIR", help="directory of the store; made where there is none"
    )
    serving.add_argument(
        "--listen", type=text_argument, default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}"
    )
    serving.add_argument("--users", metavar="FILE", help="users that may log in; see: holdfast user add --help")
    serving.add_argument("--tls-certificate", metavar="PEM", help="certificate chain of the server, for amqps://")
    serving.add_argument("--tls-key", metavar="PEM", help="its private key")
    serving.add_argument(
        "--tls-client-ca",
        metavar="PEM",
        help="issuers of the certificates of clients; a client with one is the user that it names (SASL EXTERNAL)",
    )
    serving.add_argument(
        "--failover-servers",
        type=text_argument,
        metavar="LIST",
        help="addresses that clients are told to use when this server ends: HOST:PORT,HOST:PORT,...; see: announce",
    )
    serving.add_argument(
        "--config",
        default=os.environ.get("HOLDFAST_CONFIG") or None,
        metavar="FILE",
        help="settings of single queues, see: config example; default: $HOLDFAST_CONFIG",
    )
    serving.add_argument(
        "--site",
        type=text_argument,
        metavar="N",
        help="number of this site, 1 to 255, for gateways between sites; see: gateway",
    )
    add_follow(serving)
    add_group(serving)
    serving.add_argument(
        "--insecure",
        action="store_true",
        help="listen on an address that other machines can reach, without users or TLS",
    )
    serving.add_argument(
        "--check",
        action="store_true",
        help="check every page and record of the store first, and do not serve one that is damaged",
    )
    add_option(serving)
    # Whether there is a reader of its output does not matter to a server.
    serving.set_defaults(run=command("serve", "serve"), needs_output=False)

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
    sending.add_argument(
        "--json-line",
        action="store_true",
        help="each text is a message as browse and receive print it with --json; it is sent as a new one with all that"
        " it carries, also the instant at which it expires, but for what other arguments say",
    )
    sending.add_argument("--priority", type=int, choices=range(10), metavar="0..9", help="default 4")
    sending.add_argument(
        "--ttl", type=_time_to_live, metavar="SECONDS", help="time to live, from 0.001 on; default: for ever"
    )
    sending.add_argument(
        "--delay", type=seconds_argument, metavar="SECONDS", help="deliver not before this time has passed"
    )
    sending.add_argument("--non-persistent", action="store_true", help="need not survive a restart of the server")
    sending.set_defaults(run=command("message_commands", "send"), late="body")

    receiving = _client(commands, "receive", "receive messages, acknowledging each when it is printed")
    receiving.add_argument("--count", type=_positive, help="stop after so many; default: when nothing more comes")
    receiving.add_argument(
        "--timeout",
        type=seconds_argument,
        default=1.0,
        metavar="SECONDS",
        help="longest wait for the next one; default 1",
    )
    receiving.add_argument(
        "--subscription", type=text_argument, metavar="NAME", help="of a topic: a durable shared subscription"
    )
    receiving.add_argument(
        "--selector", type=text_argument, metavar="TEXT", help="only these, such as \"colour = 'red'\""
    )
    receiving.add_argument(
        "--create", action="store_true", help="make the queue, or the subscription, if there is none"
    )
    receiving.set_defaults(run=command("message_commands", "receive"))

    browsing = _client(commands, "browse", "show the messages of a queue, taking nothing", topics=False)
    browsing.add_argument(
        "--selector", type=text_argument, metavar="TEXT", help='only these, such as "JMSPriority > 5"'
    )
    browsing.add_argument("--count", type=_positive, help="stop after so many")
    browsing.set_defaults(run=command("message_commands", "browse"))

    showing = _client(commands, "stat", "figures of the server and its queues, or of one queue", destination=False)
    showing.add_argument(
        "destination",
        type=text_argument,
        metavar="QUEUE",
        nargs="?",
        help="only this queue, topic, or subscription (TOPIC:NAME); default: the server and all of them",
    )
    showing.set_defaults(run=command("server_commands", "stat"), late="destination")

    purging = _client(commands, "purge", "drop all waiting messages of a queue or a subscription")
    _add_subscription(purging, "with --topic: the subscription")
    add_yes(purging)
    purging.set_defaults(run=command("server_commands", "purge"))

    deleting = _client(commands, "delete", "delete a queue, a topic or a subscription, with its messages")
    _add_subscription(deleting, "with --topic: only this subscription")
    deleting.add_argument("--force", action="store_true", help="also while it is in use: its consumers end")
    add_yes(deleting)
    deleting.set_defaults(run=command("server_commands", "delete"))

    announcing = _client(
        commands,
        "announce",
        "tell a running server's clients where else to connect (failover=failover_exchange)",
        destination=False,
    )
    announcing.add_argument(
        "servers", type=text_argument, metavar="LIST", help="HOST:PORT,HOST:PORT,...; an empty text: nowhere else"
    )
    announcing.set_defaults(run=command("server_commands", "announce"))

    redriving = _client(
        commands,
        "redrive",
        "put dead letters, or what has expired, back into the queues they came from",
        destination=False,
    )
    redriving.add_argument(
        "destination",
        type=text_argument,
        metavar="QUEUE",
        nargs="?",
        help="default: the server's dead-letter queue",
    )
    redriving.add_argument(
        "--to",
        type=text_argument,
        metavar="QUEUE",
        help="put all of them into this queue instead; it is made, and that is told, where it does not exist",
    )
    redriving.add_argument("--count", type=_positive, metavar="N", help="at most so many, the oldest first")
    redriving.set_defaults(run=command("server_commands", "redrive"))

    add_client_commands(lambda name, text: _client(commands, name, text, destination=False))
    gateway_actions = add_gateway_command(commands, _client)
    add_group_command(commands, _client)
    add_store_commands(commands)

    configuring = commands.add_parser(
        "config",
        help="check or show a file with the settings of single queues, or print an example",
        description="check: whether a server takes the file.  show: its policies, or with --queue what holds for that"
        " queue, and where it is from; options of the server are not known here.  example: a file with every setting"
        " as a comment.",
    )
    configuring.add_argument("action", choices=["check", "show", "example"])
    configuring.add_argument(
        "file",
        nargs="?",
        default=os.environ.get("HOLDFAST_CONFIG") or None,
        metavar="FILE",
        help="default: $HOLDFAST_CONFIG; see: serve --config",
    )
    configuring.add_argument("--queue", type=text_argument, metavar="QUEUE", help="show: the name of a queue")
    configuring.add_argument("--json", action="store_true", help="one JSON object a line")
    configuring.set_defaults(run=command("config_commands", "config"))

    managing = commands.add_parser(
        "user",
        help="add, remove or list the users of a users file",
        description="Add, remove or list the users of a users file.  add: changes the password of a user that there is;"
        " it comes from $HOLDFAST_PASSWORD, or is asked for, or is the first line of a standard input that is no"
        " terminal.",
    )
    managing.add_argument("action", choices=["add", "remove", "list"])
    managing.add_argument("file", metavar="FILE", help="the users file, made where there is none; see: serve --users")
    managing.add_argument(
        "name", nargs="?", type=text_argument, metavar="NAME", help="add, remove: the name of the user"
    )
    managing.add_argument(
        "--iterations",
        type=_iterations,
        metavar="N",
        help=f"add: iterations of the password's hash, {MIN_ITERATIONS} to {MAX_ITERATIONS}; more of them make both"
        f" guessing the password from the file and each login slower; default {ITERATIONS}",
    )
    managing.add_argument("--json", action="store_true", help="one JSON object a line")
    managing.set_defaults(run=command("user_commands", "user"), late="name")
    for each in (*commands.choices.values(), *gateway_actions.choices.values()):
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
        default=os.environ.get("HOLDFAST_URL") or DEFAULT_URL,
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


def _time_to_live(text: str) -> float:
    seconds = seconds_argument(text)
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
