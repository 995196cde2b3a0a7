"""Nodes of a group in this process, as ``holdfast serve --group`` makes them, without a network."""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from broker_adapter.amqp.management import ManagementAnswer, pack_answer, unpack_answer
from broker_adapter.destination import queue as queue_of
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.errors import ConnectionLostException, JMSException
from broker_adapter.group.coordinators import Coordinator, Found, MemoryCoordinator, Token
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.engine import GroupEngine
from broker_adapter.group.member import GroupReplication, Member
from broker_adapter.group.record import GroupRecord, decoded
from broker_adapter.server.cli.group_node import GroupNode
from broker_adapter.server.listener import Listener
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Credentials, Transport
from tests.broker_adapter.engine.driving import WAIT, drained, eventually, message, payloads

#: Of a record; long enough for a busy machine to renew it.
LEASE = 1.0


class Answered:
    """A callback that can be waited for."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, value: Any) -> None:
        self._answers.put(value)

    @property
    def has_come(self) -> bool:
        return not self._answers.empty()

    def value(self) -> Any:
        """The answer; raises it where it is an error."""
        found = self._answers.get(timeout=WAIT)
        if isinstance(found, JMSException):
            raise found
        return found


def asks_to_be_admitted(engine: GroupEngine, client_id: str | None = None) -> Answered:
    """Hand over what a client does first."""
    answered = Answered()
    engine.submit_all([c.Connect(client_id, reply=answered)])
    return answered


class Reached:
    """A coordinator, as one node or all of them reach it.

    Attributes:
        is_away: they do not.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.is_away = False

    def read(self) -> Found:
        """As the port."""
        self._look()
        return self._coordinator.read()

    def swap(self, token: Token, data: bytes) -> Token | None:
        """As the port."""
        self._look()
        return self._coordinator.swap(token, data)

    def close(self) -> None:
        """As the port."""

    def _look(self) -> None:
        if self.is_away:
            raise ConnectionLostException("the coordinator is away")


class _Link:
    """What connects to another node: the part of a transport that copies need."""

    def __init__(self, reach: Callable[[], GroupEngine]) -> None:
        self._reach = reach
        self._is_closed = threading.Event()

    def open(self, credentials: Credentials, *_: Any) -> None:
        """The other node admits this one, or says who is primary."""
        asks_to_be_admitted(self._reach(), credentials.client_id).value()

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """Ask it."""
        engine = self._reach()
        if engine.broker is None or self._is_closed.is_set():
            raise ConnectionLostException("the link is closed")
        answer = engine.broker.request(operation, arguments, timeout, self._is_cut)
        self._reach()
        return unpack_answer(pack_answer(ManagementAnswer(1, None, answer))).result

    def _is_cut(self) -> bool:
        with suppress(ConnectionLostException):
            self._reach()
            return self._is_closed.is_set()
        return True

    def close(self, _timeout: float | None) -> None:
        """Answer nothing more."""
        self._is_closed.set()


class NodeHere(GroupNode):
    """A node.

    Attributes:
        is_away: it reaches neither the other nodes nor the coordinator.
        restarted: set where its process would have been started anew.
        takes_seconds: how long it takes to make an engine.
    """

    def __init__(self, others: Nodes, options: argparse.Namespace) -> None:
        self._others = others
        self.name = options.node
        self.coordinator = Reached(others.coordinator)
        self.told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.restarted = threading.Event()
        self.is_away = False
        self.takes_seconds = 0.0
        self.announced: list[str] = []
        settings = EngineSettings(blocked_send_timeout_seconds=0.1)
        files = CopyFiles(options.data, settings, "the primary of the group g", may_be_damaged=True)
        try:
            super().__init__(options, settings, Policies(settings, ()), self.told, self.coordinator, files)
        except BaseException:
            files.close()
            raise

    def cut_off(self, is_away: bool = True) -> None:
        """Have it reach nobody, and nobody reach it; or all of them again."""
        self.is_away = self.coordinator.is_away = is_away

    def connect(self, address: str) -> Transport:
        """As the node's parts; the network is this process."""

        def reach() -> GroupEngine:
            other = self._others.at(address)
            if self.is_away or (other is not None and other.is_away):
                raise ConnectionLostException(f"there is no way to {address}")
            if other is None:
                raise ConnectionLostException(f"nothing listens at {address}") from ConnectionRefusedError()
            return other.engine

        return cast(Transport, _Link(reach))

    def restart(self) -> None:
        """As the node's parts; this process stays."""
        self.restarted.set()

    def made_engine(self, store: LmdbStore, replication: GroupReplication) -> Broker:
        """As the node's parts."""
        time.sleep(self.takes_seconds)
        return super().made_engine(store, replication)

    def announce(self, addresses: Sequence[str], redundancy: int) -> None:
        """As the node's parts."""
        self.announced = list(addresses)

    @property
    def member(self) -> Member:
        """The node at work."""
        return self._member

    @property
    def is_alone(self) -> bool:
        """Whether it knows of no primary that works."""
        return self.engine.broker is None and self.engine._primary is None

    @property
    def leads(self) -> bool:
        """Whether it is the primary and takes commands."""
        return self.engine.broker is not None and self._others.record.primary == self.name

    def send(self, *bodies: object, timeout: float = WAIT) -> None:
        """Send to the queue ``q`` as a client does, one after the other."""
        broker = self.engine.broker
        assert broker is not None
        client = broker.call(c.Connect(None), timeout)
        try:
            for body in bodies:
                refused = broker.call(c.Enqueue(client, queue_of("q"), [message(body)]), timeout)
                if refused is not None:
                    raise refused[0]
        finally:
            broker.submit(c.Disconnect(client))

    def look(self) -> list[bytes]:
        """What the queue ``q`` has."""
        broker = self.engine.broker
        assert broker is not None
        client = broker.call(c.Connect(None), WAIT)
        return payloads(drained(broker, client, "q"))


class Nodes:
    """A group.

    Args:
        path: where its stores are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.coordinator = Reached(MemoryCoordinator())
        self._here: dict[str, NodeHere] = {}

    @property
    def record(self) -> GroupRecord:
        """What the coordinator has."""
        return decoded(self.coordinator.read().data)

    def at(self, address: str) -> NodeHere | None:
        """The node that has an address."""
        return self._here.get(address.partition(":")[0])

    def start(
        self,
        name: str,
        *,
        new: bool = False,
        force: bool = False,
        min_in_sync: int = 1,
        timeout: float = LEASE,
        lease: float = LEASE,
    ) -> NodeHere:
        """Start a node; where it is not ``new``, the group has to be there."""
        options = argparse.Namespace(
            group="g",
            node=name,
            data=str(self.path / name),
            advertise=f"{name}:5672",
            peer_url=None,
            new_group=new,
            force=force,
            min_in_sync=min_in_sync,
            image_rate=None,
            lease_seconds=lease,
            replication_timeout_seconds=timeout,
        )
        node = self._here[name] = NodeHere(self, options)
        node.start(cast(Listener, None))
        return node

    def start_three(self, timeout: float = LEASE, lease: float = LEASE) -> tuple[NodeHere, NodeHere, NodeHere]:
        """Start three nodes, and wait until all are in sync; the first one is primary."""
        first = self.start("n1", new=True, timeout=timeout, lease=lease)
        eventually(lambda: first.leads)
        second, third = (self.start(each, timeout=timeout, lease=lease) for each in ("n2", "n3"))
        self.wait_for_sync("n1", "n2", "n3")
        return first, second, third

    def here(self, name: str) -> NodeHere:
        """A node that was started."""
        return self._here[name]

    def primary(self) -> NodeHere:
        """The node that the record names."""
        return self._here[self.record.primary]

    def wait_for_sync(self, *names: str) -> None:
        """Wait until these nodes are in sync, and no others."""
        eventually(lambda: self.record.in_sync == {*names})

    def stop(self, name: str) -> None:
        """End a node in good order."""
        node = self._here.pop(name)
        node.stop()
        node.close()


@contextmanager
def nodes(path: Path) -> Iterator[Nodes]:
    """A group whose nodes end with the block; those that nobody reaches do not hand over."""
    made = Nodes(path)
    try:
        yield made
    finally:
        for name in sorted(made._here, key=lambda each: each == made.record.primary):
            made.stop(name)
