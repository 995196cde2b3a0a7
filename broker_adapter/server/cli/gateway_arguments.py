"""The arguments of ``holdfast gateway``: what sends to another site."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from broker_adapter.server.cli.on_demand import command
from broker_adapter.server.cli.tools import add_yes, seconds_argument, text_argument

#: Variable of the environment that has the URL of the other site, which may have a password.
REMOTE_URL = "HOLDFAST_GATEWAY_URL"


def add_gateway_command(commands: Any, client: Callable[..., argparse.ArgumentParser]) -> Any:
    """Add the command to the parser.

    Args:
        commands: takes it.
        client: makes an action of a name and a help text, with the arguments of a connection.

    Returns:
        The actions of the command.
    """
    parser = commands.add_parser(
        "gateway",
        help="send what queues, topics and regions take to another site (docs/gateways.md)",
        description="Send what queues, topics and regions take to another site, see docs/gateways.md.  All actions take"
        " --json.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    def add(
        name: str, text: str, *, names_one: bool = True, module: str = "gateway_commands"
    ) -> argparse.ArgumentParser:
        made = client(actions, name, text, destination=False)
        if names_one:
            made.add_argument("name", type=text_argument, metavar="NAME", help="name of the gateway")
        made.set_defaults(run=command(module, name))
        return made

    creating = add("create", "make a gateway; it queues from now on, and sends from its start on")
    _add_options(creating, is_new=True)
    for kind in ("queue", "topic", "region"):
        creating.add_argument(
            f"--{kind}",
            type=text_argument,
            action="append",
            default=[],
            metavar="NAME",
            help=f"a {kind} of which it sends a copy of what comes in; several times",
        )
    creating.add_argument(
        "--move",
        type=text_argument,
        action="append",
        default=[],
        metavar="NAME",
        help="a queue of which it sends what comes in, which then is in no queue here; several times",
    )
    creating.add_argument("--start", action="store_true", help="start it as well")

    add("list", "list the gateways", names_one=False)
    add("status", "show one gateway: what it sends where, its state and its counters")

    starting = add("start", "start to send, or resume")
    starting.add_argument("--clean", action="store_true", help="drop what waits first; asks, unless --yes is given")
    add_yes(starting)

    add("stop", "send and queue nothing more: what comes until the next start does not reach the other site")
    add("pause", "send nothing more, and go on to queue; returns when nothing more will leave")
    add("resume", "send again")

    altering = add("alter", "change a gateway, which may be running")
    _add_options(altering, is_new=False)
    altering.add_argument(
        "--forget",
        action="store_true",
        help="go on although the other site does not know what it has confirmed: its store is an older copy",
    )

    copying = add(
        "copy",
        "send what regions and queues had before the gateway; a later change of a key wins",
        module="gateway_copying",
    )
    for kind in ("region", "queue"):
        copying.add_argument(
            f"--{kind}",
            type=text_argument,
            action="append",
            default=[],
            metavar="NAME",
            help=f"a {kind} of the gateway, several times; default: all its regions and queues",
        )
    copying.add_argument(
        "--after", type=text_argument, metavar="PLACE", help="go on where a copy of one region or queue was interrupted"
    )
    copying.add_argument(
        "--again",
        action="store_true",
        help="also queues that were copied already: their messages may be there twice then",
    )
    copying.add_argument("--max-rate", type=int, metavar="N", help="most messages a second; default: no limit")

    comparing = add("verify", "compare regions with those of the other site", module="gateway_comparing")
    comparing.add_argument(
        "--region",
        type=text_argument,
        action="append",
        default=[],
        metavar="NAME",
        help="a region, several times; default: all those of the gateway",
    )
    comparing.add_argument(
        "--to",
        type=text_argument,
        default=os.environ.get(REMOTE_URL) or None,
        metavar="URL",
        help=f"the other site, as for create; default: as the gateway has it, if that has no user; or ${REMOTE_URL}",
    )
    comparing.add_argument(
        "--wait",
        type=seconds_argument,
        default=10.0,
        metavar="SECONDS",
        help="wait for so long for what waits for the gateway, before what differs is looked at again; default 10",
    )

    destroying = add("destroy", "remove a gateway, and drop what waits")
    add_yes(destroying)
    return actions


def _add_options(parser: argparse.ArgumentParser, *, is_new: bool) -> None:
    given = os.environ.get(REMOTE_URL) or None
    ends = parser.add_mutually_exclusive_group(required=is_new and given is None)
    ends.add_argument(
        "--to",
        type=text_argument,
        default=given if is_new else None,
        metavar="URL",
        help=f"the other site: amqp://, amqps:// or failover:(); with a password in it, better in ${REMOTE_URL}"
        if is_new
        else "the other site; a lone dash: $" + REMOTE_URL,
    )
    if is_new:
        ends.add_argument(
            "--from",
            dest="source",
            type=text_argument,
            metavar="URL",
            help=f"take messages of queues and topics from there, and send none; a lone dash: ${REMOTE_URL}",
        )
    parser.add_argument(
        "--selector",
        type=text_argument,
        metavar="TEXT",
        help="only these messages and events, such as \"colour = 'red'\"" + ("" if is_new else "; '': all"),
    )
    parser.add_argument(
        "--batch-messages",
        type=int,
        metavar="N",
        help="most messages of a batch, which is sent when so many wait; default 1,000",
    )
    parser.add_argument("--batch-bytes", type=int, metavar="N", help="the same in bytes; default 1,048,576")
    parser.add_argument(
        "--batch-seconds",
        type=seconds_argument,
        metavar="SECONDS",
        help="send after this time, however few wait; default 1",
    )
    parser.add_argument(
        "--alert-seconds",
        type=seconds_argument,
        metavar="SECONDS",
        help="log when messages wait for longer; 0, the default: never",
    )
    parser.add_argument(
        "--group-transaction-events",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="never divide a transaction, even if a batch gets larger by it: the other site has all of it at once, or"
        " nothing; the default is to divide",
    )
    parser.add_argument(
        "--conflate",
        action=argparse.BooleanOptionalAction,
        default=None,
        dest="batch_conflation",
        help="send of the updates of a key that are in one batch only the last; the default is to send all",
    )
