"""The arguments of the commands for a store that no server has open."""

from __future__ import annotations

from typing import Any

from broker_adapter.server.cli.on_demand import command
from broker_adapter.server.cli.tools import add_option, text_argument, url_argument

#: What the help says of ``--option``.
_AS_SERVER = ", as holdfast serve has them"


def add_store_commands(commands: Any) -> None:
    """Add the commands for a store to the parser.

    Args:
        commands: what ``add_subparsers`` has returned.
    """
    check = commands.add_parser(
        "check",
        help="check every page and record of a store, and repair it",
        description="Check every page and every record of a store against every other.  Exit status 1 where something"
        " is wrong, or where messages are lost that a repair cannot bring back.",
    )
    where = check.add_mutually_exclusive_group(required=True)
    where.add_argument("data", nargs="?", metavar="DIR", help="directory of a store that no server has open")
    where.add_argument(
        "--url", metavar="URL", type=url_argument, help="a running server: its records are checked, without its pages"
    )
    check.add_argument(
        "--username",
        type=text_argument,
        metavar="NAME",
        help="with --url: the password comes from $HOLDFAST_PASSWORD",
    )
    check.add_argument(
        "--repair",
        action="store_true",
        help="put right what is wrong; what cannot be trusted is set aside, nothing is lost that can be read",
    )
    check.add_argument("--json", action="store_true", help="the report as one JSON object")
    add_option(check, _AS_SERVER)
    check.set_defaults(run=command("store_commands", "check"))

    compact = commands.add_parser(
        "compact",
        help="rewrite a store without its free pages, so that its file becomes smaller",
        description="Rewrite a store that no server has open, without its free pages.  The disk needs room for both.",
    )
    compact.add_argument("data", metavar="DIR", help="directory of a store that no server has open")
    compact.add_argument("--json", action="store_true", help="the sizes as one JSON object")
    add_option(compact, _AS_SERVER)
    compact.set_defaults(run=command("store_commands", "compact"))

    aside = commands.add_parser(
        "quarantine",
        help="list records that could not be trusted, put messages back, or drop them",
        description="Records of a store that failed their checksum, or that nothing refers to, are set aside.",
    )
    actions = ["list", "show", "put-back", "drop"]
    aside.add_argument("action", choices=actions, metavar="|".join(actions))
    aside.add_argument("data", metavar="DIR", help="directory of a store that no server has open")
    aside.add_argument(
        "names",
        nargs="*",
        type=text_argument,
        default=[],
        metavar="RECORD",
        help="as listed; show, put-back, drop: or --all",
    )
    aside.add_argument("--all", action="store_true", help="show, put-back: all messages; drop: all records")
    aside.add_argument(
        "--queue",
        type=text_argument,
        metavar="NAME",
        help="put-back: the queue that the messages are put into; default: those to which they were sent",
    )
    aside.add_argument(
        "--topic",
        type=text_argument,
        metavar="NAME",
        help="put-back, with --subscription: the topic of the subscription that the messages are put into",
    )
    aside.add_argument("--subscription", type=text_argument, metavar="NAME", help="put-back, with --topic: its name")
    aside.add_argument(
        "--client-id", type=text_argument, metavar="ID", help="put-back: of the subscription, where it has one"
    )
    aside.add_argument(
        "--keep",
        action="store_true",
        help="put-back: leave the records in quarantine, so that others can be given the same messages",
    )
    aside.add_argument("--json", action="store_true", help="one JSON object a line")
    add_option(aside, _AS_SERVER)
    aside.set_defaults(run=command("store_commands", "quarantine"), late="names")
