"""The arguments of the commands for regions, durable clients and their queries."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from broker_adapter.server.cli.on_demand import command
from broker_adapter.server.cli.tools import add_yes, text_argument


def add_client_commands(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the commands to the parser.

    Args:
        add: makes a command of a name and a help text, with the arguments of a connection.
    """
    add("clients", "list the durable clients and their queues").set_defaults(run=command("client_commands", "clients"))

    showing = add("client", "show one durable client: its queue, what was counted of it, and what it wants")
    showing.add_argument("id", type=text_argument, metavar="ID", help="client id of a durable client")
    showing.set_defaults(run=command("client_commands", "client"))

    add("regions", "list the regions").set_defaults(run=command("client_commands", "regions"))

    making = add("create-region", "make a region, unless there is one of this name")
    making.add_argument("name", type=text_argument, metavar="REGION", help="name of the region")
    making.set_defaults(run=command("client_commands", "create_region"))

    asking = add("queries", "list the continuous queries of one durable client, or of all")
    asking.add_argument("id", nargs="?", type=text_argument, metavar="ID", help="client id; default: of all clients")
    asking.set_defaults(run=command("client_commands", "queries"), late="id")

    measuring = add("queue-size", "show how many events wait for a durable client")
    measuring.add_argument("id", type=text_argument, metavar="ID", help="client id of a durable client")
    measuring.set_defaults(run=command("client_commands", "queue_size"))

    closing = add("close-client", "close a durable client that is away, and drop the events that wait for it")
    closing.add_argument("id", type=text_argument, metavar="ID", help="client id of a durable client")
    add_yes(closing)
    closing.set_defaults(run=command("client_commands", "close_client"))

    ending = add(
        "close-query", "close a query of a durable client that is away, and drop the events that wait for it only"
    )
    ending.add_argument("id", type=text_argument, metavar="ID", help="client id of a durable client")
    ending.add_argument("name", type=text_argument, metavar="QUERY", help="name of the query")
    add_yes(ending)
    ending.set_defaults(run=command("client_commands", "close_query"))
