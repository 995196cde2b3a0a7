"""The commands of copies and groups: ``holdfast serve --follow``, ``promote``, ``group status``, ``dissolve`` ..."""

from __future__ import annotations

import argparse
import json
import platform
import queue
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from broker_adapter.connect import transport_for
from broker_adapter.engine.store.deltas import IMAGE_TABLES
from broker_adapter.engine.store.lmdb_store import beside
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException
from broker_adapter.group.comparing import MOST_DIFFERENCES, Comparison
from broker_adapter.group.coordinators import Coordinator, Token
from broker_adapter.group.copy_files import CopyFiles, promoted
from broker_adapter.group.follower import Follower
from broker_adapter.group.following import Standing
from broker_adapter.group.record import GroupRecord, decoded
from broker_adapter.server.cli.group_node import coordinator_of
from broker_adapter.server.cli.serve import Told, ignore_signals, say_line, tell_signals, wait_for_end
from broker_adapter.server.cli.store_commands import progress
from broker_adapter.server.cli.tools import connected, say, settings_of, table
from broker_adapter.transport import Transport
from broker_adapter.urls.url import EmbeddedURL, masked, parse_url
from broker_adapter.wording import in_seconds

#: Longest wait for the etcd, in seconds.
_ETCD_SECONDS: Final = 5.0
#: Longest wait for the digest of a range, in seconds: pages of the copy are kept meanwhile.
_ANSWER_SECONDS: Final = 10.0


def follow(options: argparse.Namespace) -> int:
    """Keep a copy of a server until a signal comes, or the store of the copy fails."""
    if isinstance(parse_url(options.follow), EmbeddedURL):
        raise ValueError("--follow takes the URL of a server: amqp://HOST:PORT")
    engine_settings, _ = settings_of(options.option)
    node = options.node or platform.node()
    files = CopyFiles(options.data, engine_settings, masked(options.follow))
    told: Told = queue.SimpleQueue()
    failed: list[JMSException] = []

    def ended(error: JMSException) -> None:
        failed.append(error)
        told.put(None)

    def connect() -> Transport:
        return transport_for(options.follow, restores=False)[0]

    follower = Follower(files, Standing(node), connect, options.image_rate, ended)
    try:
        tell_signals(told)
        follower.start()
        say_line(f"holdfast keeps a copy of {masked(options.follow)} in {options.data}, as {node}")
        wait_for_end(told, lambda *, reloads: None)
        if failed:
            raise failed[0]
        say_line("holdfast stopping")
    finally:
        follower.stop()
        files.close()
        ignore_signals()
    return 0


def promote(options: argparse.Namespace) -> int:
    """Make the store of a copy that of a server."""
    engine_settings, _ = settings_of(options.option)
    found = promoted(options.data, engine_settings)
    if options.json:
        say(json.dumps({"copy_of": found.copy_of, "lsn": found.lsn}))
    else:
        command = f"holdfast serve --data {options.data}"
        say(f"{options.data} was a copy of {found.copy_of}, up to commit {found.lsn}; serve it: {command}")
    return 0


def verify(options: argparse.Namespace) -> int:
    """Compare the store of a copy, or of a node that follows, with that of the server; both may work meanwhile."""
    engine_settings, _ = settings_of(options.option)
    shown = progress()
    with connected(options) as (transport, _), beside(Path(options.data), engine_settings) as snapshot:
        comparison = Comparison(lambda operation, given: transport.request(operation, given, _ANSWER_SECONDS), snapshot)

        def show(table: str) -> None:
            shown(table, IMAGE_TABLES.index(table) + 1, len(IMAGE_TABLES))

        found = list(islice(comparison.differences(show), MOST_DIFFERENCES))
    if options.json:
        differences = [{"table": each.table, "key": each.key.hex()} for each in found]
        say(json.dumps({"records": comparison.records, "commit": comparison.commit, "differences": differences}))
    else:
        for each in found:
            say(f"table {each.table}, key {each.key.hex()}: not as at the server")
        end = f"differ{'' if len(found) < MOST_DIFFERENCES else ', at least'}: {len(found)}" if found else "all equal"
        say(f"{comparison.records} records compared, commit {comparison.commit}; {end}")
    return 1 if found else 0


def dissolve(options: argparse.Namespace) -> int:
    """Remove the record of a group whose nodes are stopped."""
    with _coordinator(options) as coordinator:
        token, record = _read(options, coordinator)
        time.sleep(options.lease_seconds)
        if coordinator.read().token != token or coordinator.swap(token, b"") is None:
            raise IllegalStateException(f"the group {options.group!r} has a primary, {record.primary}: stop its nodes")
    names = sorted(record.in_sync)
    if options.json:
        say(json.dumps({"in_sync": names}))
    else:
        say(f"the group is dissolved; in sync: {', '.join(names)}; make one a server: holdfast promote DIR")
    return 0


@contextmanager
def _coordinator(options: argparse.Namespace) -> Iterator[Coordinator]:
    if options.coordinator is None:
        raise ValueError("--group needs --coordinator, the URL of the group's etcd")
    coordinator = coordinator_of(options.coordinator, options.group, _ETCD_SECONDS)
    try:
        yield coordinator
    finally:
        coordinator.close()


def _read(options: argparse.Namespace, coordinator: Coordinator) -> tuple[Token, GroupRecord]:
    found = coordinator.read()
    if not found.data:
        raise ValueError(f"there is no group {options.group!r} there")
    return found.token, decoded(found.data)


def _show_record(options: argparse.Namespace) -> int:
    """Show the record of a group, as its coordinator has it, where no node answers."""
    with _coordinator(options) as coordinator:
        _, record = _read(options, coordinator)
    nodes = {name: each.address for name, each in record.nodes.items()}
    shown = {"term": record.term, "primary": record.primary, "in_sync": sorted(record.in_sync), "nodes": nodes}
    if options.json:
        say(json.dumps(shown))
    else:
        _show_nodes(shown)
        say(f"term {record.term}; whether these nodes are there is not known here")
    return 0


def _show_nodes(group: dict[str, Any]) -> None:
    for name, address in sorted(group["nodes"].items()):
        role = "primary" if name == group["primary"] else "in sync" if name in group["in_sync"] else "not in sync"
        say(f"{name:20} {address:28} {role}")


def status(options: argparse.Namespace) -> int:
    """Show the nodes of a group, and the copies that follow a server."""
    if options.group is not None:
        return _show_record(options)
    with connected(options) as (transport, _):
        found = transport.request("copies", {}, None)
    if options.json:
        say(json.dumps(found))
        return 0
    copies, group = found["copies"], found["group"]
    if group is not None:
        _show_nodes(group)
        say(f"term {group['term']}, {group['min_in_sync']} in sync needed, confirmed up to commit {group['released']}")
    if copies:
        columns = ("copy", "commit", "commits behind", "complete as of", "asked", "image")
        table(columns, [_row(each) for each in copies], texts=1)
    say(f"{len(copies)} {'copy' if len(copies) == 1 else 'copies'}; the last commit is {found['lsn']}", sys.stderr)
    return 0


def hand_over(options: argparse.Namespace) -> int:
    """Make another node of the group primary."""
    # It may have handed over ahead of its answer, which its end cuts off.
    with connected(options) as (transport, _), suppress(ConnectionLostException):
        transport.request("hand_over", {"node": options.name}, None)
    return _done(options, f"handing over to {options.name}")


def leave(options: argparse.Namespace) -> int:
    """Take another node, which is stopped, out of the group."""
    with connected(options) as (transport, _):
        transport.request("leave_group", {"node": options.name}, None)
    return _done(options, f"{options.name} has left the group")


def _done(options: argparse.Namespace, text: str) -> int:
    say(json.dumps({"node": options.name}) if options.json else text)
    return 0


def _row(copy: dict[str, int | str | None]) -> list[object]:
    behind, image = copy["behind_ms"], copy["image"]
    return [
        copy["node"],
        copy["lsn"],
        copy["behind"],
        _ago(behind),
        _ago(copy["seen_ms"]),
        "" if image is None else f"{int(image) / 10:.0f} %",
    ]


def _ago(age_ms: int | str | None) -> str:
    return "never" if age_ms is None else f"{in_seconds(round(int(age_ms) / 1000, 1))} ago"
