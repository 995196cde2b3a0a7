"""The commands of ``holdfast`` for a running server: stat, announce, purge, delete, redrive."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker_adapter.config_file import shown_value
from broker_adapter.destination import checked_name
from broker_adapter.server.announcements import ANNOUNCE
from broker_adapter.server.cli.tools import (
    check_subscription,
    confirmed,
    connected,
    listed,
    say,
    shown_age,
    table,
    warn,
)
from broker_adapter.transport import Transport
from broker_adapter.wording import counted

#: Figures of a queue that have no column in the table of all.
_NOT_IN_TABLE: Final = ("next_position", "client_id")


def stat(options: argparse.Namespace) -> int:
    """Print figures of a server and its queues, or of one queue."""
    with connected(options) as (transport, _):
        statistics = transport.request("statistics", {}, None)
        if options.destination is not None:
            found = [each for each in statistics["queues"] if each["name"] == options.destination]
            for each in found:
                if each["kind"] in ("queue", "topic"):
                    arguments = {"destination": each["name"], "kind": each["kind"]}
                    each["settings"] = transport.request("queue_settings", arguments, None)
            return _stat_of_one(options, found)
    if options.json:
        say(json.dumps(statistics))
        return 0
    queues = [shown_age(each) for each in statistics.pop("queues")]
    for name, value in statistics.items():
        if isinstance(value, dict):
            value = ", ".join(f"{count} {state}" for state, count in value.items()) or "0"
        _say_figure(name, value)
    if queues:
        columns = [name for name in queues[0] if name not in _NOT_IN_TABLE]
        if any(each.get("client_id") for each in queues):
            columns.append("client_id")
        cells_of = [[each[column] for column in columns] for each in queues]
        say("")
        table(columns, cells_of, texts=2)
    return 0


def _stat_of_one(options: argparse.Namespace, found: Sequence[dict[str, Any]]) -> int:
    """Print the figures of what has one name: subscriptions of several clients may have the same."""
    if not found:
        warn(f"there is no queue, topic or subscription {options.destination!r}; a subscription is TOPIC:NAME")
        return 1
    for number, each in enumerate(found):
        if options.json:
            say(json.dumps(each))
            continue
        if number:
            say("")
        settings = each.pop("settings", {})
        for name, value in shown_age(each).items():
            _say_figure(name, value)
        if settings:
            say("")
            table(("setting", "value", "from"), setting_rows(settings), texts=3)
    return 0


def setting_rows(settings: Mapping[str, Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The rows of a table of settings: name, value, and where it is from."""
    return [(name, shown_value(value), source) for name, (value, source) in settings.items()]


def _say_figure(name: str, value: Any) -> None:
    say(f"{name.replace('_', ' '):20} {value if value is not None else '-'}")


def announce(options: argparse.Namespace) -> int:
    """Tell a server's clients where else to connect."""
    servers = listed(options.servers)
    with connected(options) as (transport, _):
        count = transport.request(ANNOUNCE, {"servers": servers}, None)
    say(json.dumps({"servers": count}) if options.json else f"announced: {counted(count, 'server')}")
    return 0


def _named(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The queue, topic or subscription that the arguments name: in words, and as arguments of a request."""
    check_subscription(options, has_topic=options.topic)
    if options.subscription is not None:
        checked_name(options.subscription, "subscription")
    name, kind = options.destination, "topic" if options.topic else "queue"
    what = name if options.subscription is None else f"{name}:{options.subscription}"
    subscription = {"subscription": options.subscription, "client_id": options.client_id}
    return what, {"destination": name, "kind": kind, **subscription}


def purge(options: argparse.Namespace) -> int:
    """Drop the messages of a queue or a subscription."""
    what, arguments = _named(options)
    if options.topic and options.subscription is None:
        raise ValueError("a topic keeps no messages of its own; name a subscription of it with --subscription")
    if not confirmed(options, f"drop all messages of {what!r}?"):
        say("nothing dropped", sys.stderr)
        return 1
    with connected(options) as (transport, _):
        dropped = transport.request("purge", arguments, None)
    say(json.dumps({"dropped": dropped}) if options.json else f"dropped {dropped} from {what}")
    return 0


def delete(options: argparse.Namespace) -> int:
    """Delete a queue, a topic or a subscription."""
    what, arguments = _named(options)
    if not confirmed(options, f"delete {what!r} with all its messages?"):
        say("nothing deleted", sys.stderr)
        return 1
    with connected(options) as (transport, _):
        messages = transport.request("delete", {**arguments, "force": options.force}, None)
    had = counted(messages, "message")
    say(json.dumps({"messages": messages}) if options.json else f"deleted {what}, which had {had}")
    return 0


def redrive(options: argparse.Namespace) -> int:
    """Put messages back into the queues that they came from."""
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
    """Return whether there is a queue of this name."""
    queues = transport.request("statistics", {}, None)["queues"]
    return any(each["kind"] == "queue" and each["name"] == name for each in queues)


def _why_left(to: str | None) -> str:
    if to is None:
        return "their former queue is unknown, full or deleted; name a queue with --to"
    return (
        f"the queue {to!r} is full, or cannot have them (it is the one that they are in, it is temporary, or no queue"
        " can have this name); name another one with --to"
    )
