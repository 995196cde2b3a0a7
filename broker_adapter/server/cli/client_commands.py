"""The commands of ``holdfast`` for regions, durable clients and their queries."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from broker_adapter.server.cli.tools import confirmed, connected, say, table
from broker_adapter.transport import Transport
from broker_adapter.wording import counted, in_seconds

#: Rows that one request asks for.
_PAGE: Final = 1000
#: Columns of the table of clients beside their ids.
_CLIENT_COLUMNS: Final = ("state", "away", "size", "in_hand", "queued", "removed", "conflated", "dropped")


def clients(options: argparse.Namespace) -> int:
    """List the durable clients, and say how many events wait for all of them."""
    size, is_exact = 0, True

    def row(found: dict[str, Any]) -> list[Any]:
        nonlocal size, is_exact
        size, is_exact = size + found["size"], is_exact and found["is_exact"]
        shown = {**found, "size": _size(found), "queued": _bound(found, "queued"), "away": _away(found)}
        return [found["client_id"], *(shown[each] for each in _CLIENT_COLUMNS)]

    def waiting() -> str:
        events = counted(size, "event", ("waits", "wait"))
        return f", for which {'' if is_exact else 'at most '}{events} in all"

    with connected(options) as (transport, _):
        found = _all(transport, "clients", {})
        return _listed(options, found, ["client_id", *_CLIENT_COLUMNS], row, "durable client", 3, waiting)


def client(options: argparse.Namespace) -> int:
    """Show one durable client, what it wants, and what was counted of it."""
    with connected(options) as (transport, _):
        (found,) = transport.request("clients", {"client_id": options.id}, None)["clients"]
    if options.json:
        say(json.dumps(found))
        return 0
    interests = found.pop("interests")
    timeout = found.pop("timeout_ms")
    away, size, queued = _away(found), _size(found), _bound(found, "queued")
    del found["away_ms"], found["is_exact"], found["size"]
    shown = {
        "client_id": found.pop("client_id"),
        "state": found.pop("state"),
        "away": away,
        "durable_timeout": "for ever" if timeout is None else in_seconds(timeout / 1000),
        "conflation": found.pop("conflation"),
        "interests": found.pop("interest_count"),
        "size": size,
        "in_hand": found.pop("in_hand"),
        **found,
        "queued": queued,
    }
    for name, value in shown.items():
        say(f"{name.replace('_', ' '):20} {value}")
    if interests:
        say("")
        rows = [[each["region"], _wanted(each), _yes(each["durable"])] for each in interests]
        table(["region", "interest", "durable"], rows, texts=3)
    if len(interests) < shown["interests"]:
        say(f"and {shown['interests'] - len(interests)} more", sys.stderr)
    return 0


def regions(options: argparse.Namespace) -> int:
    """List the regions."""

    def row(found: dict[str, Any]) -> list[Any]:
        return [found["name"], _yes(found["conflates"]), found["keys"], found["clients"], found["events"]]

    with connected(options) as (transport, _):
        found = _all(transport, "regions", {})
        return _listed(options, found, ["region", "conflates", "keys", "clients", "events"], row, "region", 2)


def create_region(options: argparse.Namespace) -> int:
    """Make a region, unless there is one of this name."""
    with connected(options) as (transport, _):
        transport.request("create_region", {"region": options.name}, None)
    say(json.dumps({"region": options.name}) if options.json else f"region {options.name} is there")
    return 0


def queries(options: argparse.Namespace) -> int:
    """List the continuous queries of one durable client, or of all."""

    def row(found: dict[str, Any]) -> list[Any]:
        names = [found[each] for each in ("client_id", "state", "name", "region")]
        return [*names, _yes(found["durable"]), found["selector"]]

    columns = ["client_id", "state", "query", "region", "durable", "selector"]
    with connected(options) as (transport, _):
        found = _all(transport, "queries", {"client_id": options.id})
        return _listed(options, found, columns, row, "query", len(columns))


def queue_size(options: argparse.Namespace) -> int:
    """Show how many events wait for a durable client."""
    with connected(options) as (transport, _):
        found = transport.request("queue_size", {"client_id": options.id}, None)
    say(json.dumps(found) if options.json else _size(found))
    return 0


def close_client(options: argparse.Namespace) -> int:
    """Close a durable client that is away."""
    if not confirmed(options, f"close durable client {options.id!r}, and drop all events that wait for it?"):
        say("nothing closed", sys.stderr)
        return 1
    with connected(options) as (transport, _):
        found = transport.request("close_client", {"client_id": options.id}, None)
    had = counted(found["dropped"], "event")
    shown = f"closed {options.id}, for which {'' if found['is_exact'] else 'at most '}{had} waited"
    say(json.dumps(found) if options.json else shown)
    return 0


def close_query(options: argparse.Namespace) -> int:
    """Close a query of a durable client that is away."""
    question = f"close query {options.name!r} of {options.id!r}, and drop the events that wait for it only?"
    if not confirmed(options, question):
        say("nothing closed", sys.stderr)
        return 1
    with connected(options) as (transport, _):
        found = transport.request("close_query", {"client_id": options.id, "name": options.name}, None)
    shown = f"closed query {options.name} of {options.id}; dropped {counted(found['dropped'], 'event')}"
    say(json.dumps(found) if options.json else shown)
    return 0


def _all(transport: Transport, operation: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All rows of an operation that answers in pages."""
    after: Any = None
    while True:
        answer = transport.request(operation, {**arguments, "after": after, "limit": _PAGE}, None)
        yield from answer[operation]
        after = answer["next"]
        if after is None:
            return


def _listed(
    options: argparse.Namespace,
    found: Iterator[dict[str, Any]],
    columns: Sequence[str],
    row: Any,
    noun: str,
    texts: int,
    total: Callable[[], str] = str,
) -> int:
    """Print rows as a table, or each as an object of JSON.

    Args:
        options: of the command.
        found: the rows, as they were answered.
        columns: of the table.
        row: makes the cells of a row.
        noun: what a row is, for the line that says how many there are.
        texts: how many columns, from the first one on, are texts.
        total: what follows how many rows there are, where there are any; called once all are made.
    """
    if options.json:
        for each in found:
            say(json.dumps(each))
        return 0
    rows = [row(each) for each in found]
    if rows:
        table(columns, rows, texts=texts)
    more = total() if rows else ""
    plural = "queries" if noun == "query" else f"{noun}s"
    say((f"1 {noun}" if len(rows) == 1 else f"{len(rows)} {plural}") + more, sys.stderr)
    return 0


def _size(found: dict[str, Any]) -> str:
    return _bound(found, "size")


def _bound(found: dict[str, Any], name: str) -> str:
    """A number that is at most what it says, where the client's queue is not counted exactly."""
    return str(found[name]) if found["is_exact"] else f"<={found[name]}"


def _away(found: dict[str, Any]) -> str:
    return "no" if found["away_ms"] is None else in_seconds(found["away_ms"] / 1000)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _wanted(interest: dict[str, Any]) -> str:
    kind = interest["kind"].replace("_", " ")
    name = f" {interest['name']}" if interest["name"] else ""
    return f"{kind}{name}: {interest['text']}" if interest["text"] else f"{kind}{name}"
