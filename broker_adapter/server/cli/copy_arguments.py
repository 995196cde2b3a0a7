"""The arguments of copies of a server: ``serve --follow``, ``promote`` and ``group``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Final

from broker_adapter.server.cli.on_demand import command
from broker_adapter.server.cli.tools import add_option, seconds_argument, text_argument, url_argument

#: Variable of the environment that has the URL of the server to follow, which may have a password.
FOLLOW_URL: Final = "HOLDFAST_FOLLOW_URL"
#: Variable of the environment that has the URL with which nodes connect to each other, which may have a password.
PEER_URL: Final = "HOLDFAST_PEER_URL"
#: Variable of the environment that has the URL of the etcd, which may have a password.
COORDINATOR_URL: Final = "HOLDFAST_COORDINATOR_URL"
_MIB: Final = 1024 * 1024
#: Shortest lease in seconds: the etcd is asked four times in it by each node, and has to answer.
_LEAST_LEASE: Final = 0.1


def add_follow(serving: argparse.ArgumentParser) -> None:
    """Add what ``serve`` needs to keep a copy."""
    serving.add_argument(
        "--follow",
        type=url_argument,
        nargs="?",
        const=os.environ.get(FOLLOW_URL) or "",
        metavar="URL",
        help="listen to no clients, and keep a copy of the store of this server, until it is promoted; without URL:"
        f" ${FOLLOW_URL}, which others cannot see, if it has a password; docs/redundancy.md",
    )
    serving.add_argument(
        "--node",
        type=text_argument,
        metavar="NAME",
        help="with --group: name of the node; with --follow: of the copy, default: of this machine",
    )
    serving.add_argument(
        "--image-rate",
        type=_rate,
        metavar="MIB",
        help="with --follow: most MiB a second while the whole store is copied; default: no limit",
    )


def add_group(serving: argparse.ArgumentParser) -> None:
    """Add what ``serve`` needs to be a node of a group."""
    serving.add_argument(
        "--group", type=text_argument, metavar="NAME", help="be a node of this group of servers; docs/redundancy.md"
    )
    _add_coordinator(serving)
    serving.add_argument(
        "--advertise", type=text_argument, metavar="HOST:PORT", help="with --group: where clients find this node"
    )
    serving.add_argument(
        "--peer-url",
        type=url_argument,
        metavar="URL",
        help="with --group: scheme, user and options with which nodes connect to each other, such as"
        f" amqps://USER:PASSWORD@peer; its host is not used; default: ${PEER_URL}, or amqp:",
    )
    serving.add_argument(
        "--new-group", action="store_true", help="with --group: begin it, with the store of this node; once"
    )
    serving.add_argument(
        "--force",
        action="store_true",
        help="with --group: be the primary though this node is not in sync; what only others have is lost",
    )
    serving.add_argument(
        "--min-in-sync",
        type=int,
        choices=range(1, 10),
        default=1,
        metavar="N",
        help="with --new-group: nodes that must be in sync, else sends are refused; default 1; 2 for three nodes",
    )
    _add_lease(serving)
    serving.add_argument(
        "--replication-timeout-seconds",
        type=seconds_argument,
        default=3.0,
        metavar="SECONDS",
        help="with --group: a node that does not follow for so long is not waited for any more; default 3",
    )


def add_group_command(commands: Any, client: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to the parser.

    Args:
        commands: takes them.
        client: makes an action of a name and a help text, with the arguments of a connection.
    """
    parser = commands.add_parser(
        "group",
        help="show and change a group of servers, or show the copies of one (docs/redundancy.md)",
        description="Show and change a group of servers, or show the copies of one, see docs/redundancy.md.  All"
        " actions take --json.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    showing = client(actions, "status", "show the nodes of a group, and the copies of a server", destination=False)
    showing.set_defaults(run=command("copy_commands", "status"), parser=showing)
    showing.add_argument(
        "--group", type=text_argument, metavar="NAME", help="show its record at the coordinator, where no node answers"
    )
    _add_coordinator(showing)
    for name, text, function in (
        ("hand-over", "make another node of the group primary", "hand_over"),
        ("leave", "take another node, which is stopped, out of the group", "leave"),
    ):
        action = client(actions, name, text, destination=False)
        action.add_argument("name", type=text_argument, metavar="NODE", help="name of the other node")
        action.set_defaults(run=command("copy_commands", function), parser=action)

    verifying = client(
        actions,
        "verify",
        "compare the store of a node that follows, or of a copy, with that of its server; both may work",
        destination=False,
    )
    verifying.add_argument("data", metavar="DIR", help="directory of the node or the copy")
    add_option(verifying, ", as holdfast serve has them")
    verifying.set_defaults(run=command("copy_commands", "verify"), parser=verifying)
    dissolving = actions.add_parser(
        "dissolve",
        help="end a group, whose nodes are stopped",
        description="Remove the record of a group whose nodes are stopped.  holdfast promote then makes the store of"
        " one that was in sync that of a single server.",
    )
    dissolving.add_argument("--group", type=text_argument, required=True, metavar="NAME", help="its name")
    _add_coordinator(dissolving)
    _add_lease(dissolving)
    dissolving.add_argument("--json", action="store_true", help="which nodes were in sync, as JSON")
    dissolving.set_defaults(run=command("copy_commands", "dissolve"), parser=dissolving)

    promoting = commands.add_parser(
        "promote",
        help="make a copy of a server a server",
        description="Make the store of a copy that of a server, once the server that it followed is stopped: holdfast"
        " serve then serves it.  What that server has confirmed and the copy does not have is lost.",
    )
    promoting.add_argument("data", metavar="DIR", help="directory of a copy that no process has open")
    promoting.add_argument("--json", action="store_true", help="what it followed, and its last commit, as JSON")
    add_option(promoting, ", as holdfast serve has them")
    promoting.set_defaults(run=command("copy_commands", "promote"))


def _add_lease(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lease-seconds",
        type=_lease,
        default=2.0,
        metavar="SECONDS",
        help="with --group: a primary that is not heard of for so long is replaced; default 2",
    )


def _add_coordinator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--coordinator",
        type=text_argument,
        default=os.environ.get(COORDINATOR_URL),
        metavar="URL",
        help="with --group: the etcd that keeps its record, etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...], with TLS"
        f" etcds://...?ca_file=PEM; default: ${COORDINATOR_URL}",
    )


def _lease(text: str) -> float:
    seconds = seconds_argument(text)
    if seconds < _LEAST_LEASE:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: {_LEAST_LEASE} seconds at least")
    return seconds


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is invalid: MiB a second, above 0")
    return rate * _MIB
