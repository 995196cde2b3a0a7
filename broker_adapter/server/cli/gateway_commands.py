"""The actions of ``holdfast gateway``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, Final

from broker_adapter.engine.records.gateway_records import DESTINATION_KINDS
from broker_adapter.server.cli.gateway_arguments import REMOTE_URL
from broker_adapter.server.cli.tools import confirmed, connected, say, shown_age, table
from broker_adapter.transport import Transport
from broker_adapter.wording import counted, in_seconds

#: Time between two questions whether a batch is still under way, in seconds.
_LOOK_SECONDS: Final = 0.02
#: Options that are arguments of a request as they are.
_OPTIONS: Final = ("batch_messages", "batch_bytes", "group_transaction_events", "batch_conflation")
#: Columns of the table of gateways beside their names.
_COLUMNS: Final = ("url", "state", "trouble", "waiting", "oldest", "distributed", "refused", "expired")


def create(options: argparse.Namespace) -> int:
    """Make a gateway."""
    destinations = [f"{kind}:{name}" for kind in DESTINATION_KINDS for name in getattr(options, kind)]
    if not destinations:
        raise ValueError("nothing to send is named; give --queue, --topic, --region or --move")
    state = "running" if options.start else "created"
    arguments = {"name": options.name, "destinations": destinations, "state": state}
    if options.source is not None:
        options.to, arguments["fetches"] = options.source, True
    arguments |= _changes(options)
    with connected(options) as (transport, _):
        transport.request("create_gateway", arguments, None)
        return _shown(options, _one(transport, options.name), f"created gateway {options.name}")


def list(options: argparse.Namespace) -> int:
    """List the gateways."""
    with connected(options) as (transport, _):
        found = transport.request("gateways", {}, None)
    if options.json:
        for each in found:
            say(json.dumps(each))
        return 0
    if found:
        rows = [{**shown_age(each), "trouble": "yes" if each["trouble"] else "no"} for each in found]
        table(("gateway", *_COLUMNS), [[each["name"], *(each[name] for name in _COLUMNS)] for each in rows], texts=4)
    say(counted(len(found), "gateway"), sys.stderr)
    return 0


def status(options: argparse.Namespace) -> int:
    """Show one gateway."""
    with connected(options) as (transport, _):
        found = _one(transport, options.name)
    if options.json:
        say(json.dumps(found))
        return 0
    found = shown_age(found)
    batch, alert = in_seconds(found.pop("batch_ms") / 1000), found.pop("alert_ms")
    del found["first_message"]  # a number that says nothing to people
    shown = {
        "name": found.pop("name"),
        "url": found.pop("url"),
        "destinations": ", ".join(found.pop("destinations")),
        "copied": ", ".join(found.pop("copied")) or "-",
        "selector": found.pop("selector") or "-",
        "state": found.pop("state"),
        "trouble": found.pop("trouble") or "-",
        "waiting": found.pop("waiting"),
        "oldest": found.pop("oldest"),
        "batch": f"{found.pop('batch_messages')} messages, {found.pop('batch_bytes')} bytes or {batch}",
        "transactions": "kept whole" if found.pop("group_transaction_events") else "may be divided",
        "updates of a key": "the last of a batch" if found.pop("batch_conflation") else "all",
        "alert": f"after {in_seconds(alert / 1000)}" if alert else "-",
        **found,
    }
    for name, value in shown.items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        say(f"{name.replace('_', ' '):20} {value if value is not None else '-'}")
    return 0


def start(options: argparse.Namespace) -> int:
    """Start a gateway; with ``--clean`` from an empty queue."""
    if options.clean and not confirmed(options, f"drop what waits for gateway {options.name!r}?"):
        say("nothing dropped, and not started", sys.stderr)
        return 1
    return _changed(options, {"state": "running", "clean": options.clean}, "started gateway")


def resume(options: argparse.Namespace) -> int:
    """Let a gateway send again."""
    return _changed(options, {"state": "running"}, "resumed gateway")


def stop(options: argparse.Namespace) -> int:
    """Stop a gateway, and return when nothing more will leave."""
    return _changed(options, {"state": "stopped"}, "stopped gateway")


def pause(options: argparse.Namespace) -> int:
    """Pause a gateway, and return when nothing more will leave."""
    return _changed(options, {"state": "paused"}, "paused gateway")


def alter(options: argparse.Namespace) -> int:
    """Change a gateway."""
    changes = _changes(options)
    if options.forget:
        changes["forget"] = True
    if not changes:
        raise ValueError("nothing to change is given; see: holdfast gateway alter --help")
    return _changed(options, changes, "changed gateway")


def destroy(options: argparse.Namespace) -> int:
    """Remove a gateway."""
    if not confirmed(options, f"destroy gateway {options.name!r}, and drop what waits for it?"):
        say("nothing destroyed", sys.stderr)
        return 1
    with connected(options) as (transport, _):
        dropped = transport.request("destroy_gateway", {"name": options.name}, None)
    had = counted(dropped, "message", ("was", "were"))
    shown = f"destroyed gateway {options.name}; {had} waiting, and dropped"
    say(json.dumps({"dropped": dropped}) if options.json else shown)
    return 0


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The options of a gateway that are given, as arguments of a request."""
    url = os.environ.get(REMOTE_URL) if options.to == "-" else options.to
    if options.to == "-" and not url:
        raise ValueError(f"${REMOTE_URL} has no URL of the other site")
    given = {"url": url, "selector": options.selector}
    given |= {name: getattr(options, name) for name in _OPTIONS}
    for name in ("batch", "alert"):
        seconds = getattr(options, f"{name}_seconds")
        given[f"{name}_ms"] = None if seconds is None else round(seconds * 1000)
    return {name: value for name, value in given.items() if value is not None}


def _one(transport: Transport, name: str) -> dict[str, Any]:
    (found,) = transport.request("gateways", {"name": name}, None)
    return dict(found)


def _changed(options: argparse.Namespace, changes: dict[str, Any], done: str) -> int:
    with connected(options) as (transport, _):
        if changes.get("clean"):
            _change(transport, options.name, {"state": "stopped"})
        found = _change(transport, options.name, changes)
    return _shown(options, found, f"{done} {options.name}")


def _change(transport: Transport, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Change a gateway, and return what is known of it when nothing more will leave, unless it is running."""
    found: dict[str, Any] = transport.request("change_gateway", {"name": name, **changes}, None)
    while found["is_sending"] and found["state"] != "running":
        time.sleep(_LOOK_SECONDS)
        found = _one(transport, name)
    return found


def _shown(options: argparse.Namespace, found: dict[str, Any], done: str) -> int:
    waiting = counted(found["waiting"], "message", ("waits", "wait"))
    say(json.dumps(found) if options.json else f"{done}; {waiting}")
    return 0
