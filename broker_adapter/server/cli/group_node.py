"""``holdfast serve --group``: a server that is a node of a group."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import attrs

from broker_adapter.connect import transport_for, transport_to_site
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.engine.records.layout import STORE_VERSION
from broker_adapter.engine.records.tail import is_address
from broker_adapter.engine.store.lmdb_errors import is_damage
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    OperationTimedOutException,
    Redirect,
    StoreException,
)
from broker_adapter.gateways.senders import Senders
from broker_adapter.group.coordinators import Coordinator, Found
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.engine import GroupEngine
from broker_adapter.group.member import GroupReplication, Member
from broker_adapter.group.record import GroupRecord, NodeRecord, check_name, decoded, encoded
from broker_adapter.group.rules import PARTS_OF_LEASE, Node
from broker_adapter.limited_log import LimitedLog
from broker_adapter.server.announcements import Announcement, servers_from
from broker_adapter.server.cli.copy_arguments import PEER_URL
from broker_adapter.server.cli.serve import Told
from broker_adapter.server.listener import Listener
from broker_adapter.server.open_files import soft_limit
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Transport
from broker_adapter.urls.url import FailoverURL, parse_url

_log = logging.getLogger(f"holdfast.{__name__}")

#: Highest number of an open file: a limit may be none.
_LAST_FILE: Final = 2**31 - 1
#: Pause ahead of the next question to a coordinator that is away, in seconds.
_PAUSE_SECONDS: Final = 0.5
_wait = time.sleep


def node(options: argparse.Namespace, settings: EngineSettings, policies: Policies, told: Told) -> GroupNode:
    """Return the node that the arguments describe; its store is opened, and the record of a new group is made."""
    missing = [
        f"--{name.replace('_', '-')}" for name in ("node", "coordinator", "advertise") if not vars(options)[name]
    ]
    if missing:
        raise ValueError(f"--group needs {' and '.join(missing)}")
    check_name(options.node)
    if not is_address(options.advertise):
        raise ValueError(f"--advertise {options.advertise!r} is not HOST:PORT, with a port from 1 to 65535")
    # An answer that comes later than a part of the lease is of no use.
    coordinator = coordinator_of(options.coordinator, options.group, options.lease_seconds / PARTS_OF_LEASE)
    files = CopyFiles(options.data, settings, f"the primary of the group {options.group}", may_be_damaged=True)
    try:
        return GroupNode(options, settings, policies, told, coordinator, files)
    except BaseException:
        files.close()
        coordinator.close()
        raise


def coordinator_of(url: str, group: str, seconds: float) -> Coordinator:
    """Return the etcd of a group.

    Args:
        url: of the etcd.
        group: its name.
        seconds: for how long a call may block.

    Raises:
        ValueError: the URL is none of an etcd, or what talks to one is not installed.
    """
    try:
        from broker_adapter.group.etcd import EtcdCoordinator, access_of
    except ImportError as error:
        raise ValueError(f"--group needs what talks to etcd: pip install '.[group]' ({error})") from error
    return EtcdCoordinator(access_of(url), f"holdfast/groups/{group}", seconds)


class GroupNode:
    """A node of a group, as :class:`~broker_adapter.server.cli.serve.Served`."""

    def __init__(
        self,
        options: argparse.Namespace,
        settings: EngineSettings,
        policies: Policies,
        told: Told,
        coordinator: Coordinator,
        files: CopyFiles,
    ) -> None:
        self._failed: JMSException | None = None
        self.engine = GroupEngine(settings, policies)
        self._settings = settings
        self._forces = options.force
        self._told = told
        self._coordinator = coordinator
        self._files = files
        self._peer = _peer_url(options.peer_url or os.environ.get(PEER_URL) or "amqp://peer")
        self._broker: Broker | None = None
        self._senders: Senders | None = None
        self._listener: Listener | None = None
        described = NodeRecord(options.advertise, STORE_VERSION)
        writer = secrets.token_hex(8)
        if options.new_group:
            self._make_group(options, described)
        else:
            record = decoded(_found(coordinator).data)
            if (files.is_distrusted or files.damage) and record.goes_on_without(options.node):
                files.put_aside()
            elif files.damage:
                raise files.damage
            if files.store is None and record.primary == options.node:
                _log.warning(
                    "! this node has no store, and the group names it as primary: it waits for another node in sync, or"
                    " for one that is started with --force"
                )
            if files.store is not None and (files.store.unique != record.store or not files.is_followed):
                raise StoreException(
                    f"the store in {options.data!r} is of another group, or of none: give a directory that does not"
                    " exist, and the node gets a copy"
                )
        lsn = None if files.store is None else files.store.lsn or None
        rules = Node(options.node, described, writer, lsn, options.lease_seconds, options.replication_timeout_seconds)
        self._member = Member(
            *(rules, options.advertise, coordinator, files, self.engine, self, options.lease_seconds),
            options.image_rate,
        )

    def _make_group(self, options: argparse.Namespace, node: NodeRecord) -> None:
        if self._files.damage:
            raise self._files.damage
        found = self._coordinator.read()
        if found.data:  # ahead of what notes in a store that it is of a group
            raise StoreException(f"there is a group {options.group!r} already: leave out --new-group to join it")
        store = self._files.store
        if store is not None and store.copy_of is not None and not self._files.is_followed:
            raise StoreException(
                f"the store in {options.data!r} is a copy of {store.copy_of}: once that is stopped, run holdfast"
                f" promote {options.data}, and start again"
            )
        record = GroupRecord(
            store=self._files.make_store().unique,
            term=0,
            primary=options.node,
            in_sync=frozenset({options.node}),
            nodes={options.node: node},
            renewed=1,
            writer="",  # of no process: this one stands at once
            store_version=STORE_VERSION,
            min_in_sync=options.min_in_sync,
        )
        if self._coordinator.swap(found.token, encoded(record)) is None:
            raise StoreException(f"another node has made the group {options.group!r} meanwhile: leave out --new-group")

    # What a server needs.

    @property
    def failed(self) -> JMSException | None:
        """Why it has stopped."""
        return self._failed or (None if self._broker is None else self._broker.failed)

    def start(self, listener: Listener) -> None:
        """Begin to be a node of the group."""
        self._listener = listener
        self._member.start(forces=self._forces)

    def stop(self) -> None:
        """Hand over to another node, if this one is the primary."""
        if self._senders is not None:
            self._senders.stop()
        if is_damage(self.failed):
            self._files.distrust()
            _log.error("! where another node is in sync, start this one again without a repair: it takes an image")
        self._member.stop(has_failed=self.failed is not None)

    def close(self) -> None:
        """Close the store.  What is not released has not left, and is not confirmed."""
        if self._broker is not None:
            self._broker.abandon(ConnectionLostException("this server is stopping; what was under way is not known"))
        self._files.close()
        self._coordinator.close()

    # What the node needs.

    def made_engine(self, store: LmdbStore, replication: GroupReplication) -> Broker:
        """Make the engine of a primary, and its gateways."""
        broker = self._broker = Broker(self._settings, store, self.engine.policies, replication=replication)
        self._senders = Senders(broker, transport_to_site)
        threading.Thread(target=self._senders.start, name="holdfast-senders", daemon=True).start()
        return broker

    def connect(self, address: str) -> Transport:
        """Return what connects to another node."""
        host, _, port = address.rpartition(":")
        (peer,) = self._peer.addresses
        return transport_for(
            attrs.evolve(self._peer, addresses=(attrs.evolve(peer, host=host.strip("[]"), port=int(port)),)),
            restores=False,
        )[0]

    def redirect(self, address: str) -> Redirect:
        """Where clients find a node."""
        host, _, port = address.rpartition(":")
        return Redirect(host.strip("[]"), int(port))

    def restart(self) -> None:
        """Start this process anew: nothing of a deposed primary's engine may be left, and nothing may leave it."""
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        threading.excepthook = lambda _: None  # other threads fail without their files
        os.closerange(3, min(soft_limit(), _LAST_FILE))  # the store's, which LMDB leaves open, among others
        os.execv(sys.executable, [sys.executable, *_arguments()])

    def announce(self, addresses: Sequence[str], redundancy: int) -> None:
        """Have clients told where all nodes are, and how many beside the primary have what it confirms."""
        if self._listener is not None:
            self._listener.announce_soon(Announcement(servers_from(list(addresses)), redundancy))

    def stopped(self, error: JMSException | None) -> None:
        """End the server."""
        self._failed = self._failed or error
        self._told.put(None)


def _found(coordinator: Coordinator) -> Found:
    """Return the record of the group, once the coordinator has it: the nodes may be started in any order."""
    log = LimitedLog(_log)
    while True:
        try:
            found = coordinator.read()
            if found.data:
                return found
            log.write("group", "! waiting for the group: the node that has the store begins it, with --new-group")
        except (ConnectionLostException, OperationTimedOutException) as error:
            log.write("coordinator", "! waiting for the coordinator of the group: %s", error)
        _wait(_PAUSE_SECONDS)


def _peer_url(text: str) -> FailoverURL:
    url = parse_url(text)
    if not isinstance(url, FailoverURL) or len(url.addresses) != 1:
        raise ValueError("--peer-url is a URL of one server, such as amqps://USER:PASSWORD@peer; its host is not used")
    return url


def _arguments() -> list[Any]:
    """The arguments of this process, without those of a new group or a forced reign, which hold once."""
    return [each for each in sys.orig_argv[1:] if not each.startswith(("--new", "--for"))]
