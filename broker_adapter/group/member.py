"""A node of a group at work: it carries out what the rules say, with a coordinator, a store, and other nodes.

Theory of operation
    The rules (:mod:`broker_adapter.group.rules`) are asked under one lock, by whichever thread something happens in.
    What they want is carried out behind that: at once where it takes no time, such as a release, by the thread
    ``holdfast-group`` where it does (the engine of a primary, the follower of another node), and by the thread
    ``holdfast-coordinator`` where the coordinator has to be asked.

    A node becomes primary once in a process.  One that is not any more ends, with all that waited for a release, and is
    started anew: nothing of its engine may be left.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands.callbacks import registered
from broker_adapter.engine.operations.copy_states import NodeThatAsks
from broker_adapter.engine.records.layout import STORE_VERSION
from broker_adapter.engine.store.lmdb_errors import is_damage
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.lmdb_tail import Tail
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    Redirect,
    ResourceAllocationException,
    StoreException,
)
from broker_adapter.group.coordinators import Coordinator
from broker_adapter.group.copy_files import CopyFiles
from broker_adapter.group.engine import GroupEngine
from broker_adapter.group.follower import Follower, unexpected
from broker_adapter.group.following import Standing
from broker_adapter.group.record import NodeRecord, decoded, encoded
from broker_adapter.group.rules import (
    Action,
    Follow,
    Lead,
    Node,
    Read,
    RefuseSends,
    Release,
    Serve,
    Stopped,
    Swap,
)
from broker_adapter.limited_log import LimitedLog
from broker_adapter.transport import Transport

_log = logging.getLogger(f"holdfast.{__name__}")

#: Ticks in a lease.
_TICKS: Final = 16
#: Questions of a node in a lease, at least: the primary serves while it hears from all that are in sync.
_QUESTIONS: Final = 8
#: How long a primary does not serve until it starts anew, so that its clients find the next one; in seconds.
_IDLE_SECONDS: Final = 5.0
#: Another node is there if it has asked within this time, in seconds.
_HEARD_SECONDS: Final = 1.0
#: Nodes of a group.
MOST_NODES: Final = 9
#: Longest wait for the end of a reign, in seconds.
_END_SECONDS: Final = 10.0


class GroupReplication:
    """The port :class:`broker_adapter.engine.store.replication.Replication`, of the primary of a group.

    Args:
        tail: of its store.

    Attributes:
        released: the commit up to which effects may leave.
        serves: whether commands are taken.
    """

    def __init__(self, tail: Tail) -> None:
        self.released = 0
        self.serves = False
        self._tail = tail
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def lsn(self) -> int:
        """The last commit of the store."""
        return self._tail.lsn

    def on_release(self, listener: Callable[[], None]) -> Callable[[], None]:
        """As the port."""
        return registered(listener, self._listeners)

    def release(self, lsn: int) -> None:
        """Let effects leave up to a commit; in any thread."""
        with self._lock:
            if lsn <= self.released:
                return
            self.released = lsn
        for each in tuple(self._listeners):
            each()


class Parts(Protocol):
    """What a node is made of beside its store."""

    def made_engine(self, store: LmdbStore, replication: GroupReplication) -> Broker:
        """Make the engine of a primary, and what belongs to it."""

    def connect(self, address: str) -> Transport:
        """Return what connects to another node; it is not open yet, and not restored."""

    def redirect(self, address: str) -> Redirect:
        """Where clients find a node."""

    def restart(self) -> None:
        """End this process at once, and start it anew."""

    def stopped(self, error: JMSException | None) -> None:
        """The node has ended: it was to stop, or has failed."""

    def announce(self, addresses: Sequence[str], redundancy: int) -> None:
        """Have clients told where all nodes are, and how many beside the primary have what it confirms."""


class Member:
    """A node at work.

    Args:
        rules: of the node.
        address: of the node, HOST:PORT.
        coordinator: has the record of the group.
        files: of the node's store.
        engine: what the listener has in place of an engine.
        parts: makes what else is needed.
        lease_seconds: as the rules have it.
        image_rate: bytes of an image a second, at most; None: as fast as it comes.
    """

    def __init__(
        self,
        rules: Node,
        address: str,
        coordinator: Coordinator,
        files: CopyFiles,
        engine: GroupEngine,
        parts: Parts,
        lease_seconds: float,
        image_rate: float | None = None,
    ) -> None:
        self._rules = rules
        self._address = address
        self._coordinator = coordinator
        self._files = files
        self._engine = engine
        self._parts = parts
        self._tick_seconds = lease_seconds / _TICKS
        self._ask_seconds = lease_seconds / _QUESTIONS
        self._image_rate = image_rate
        self._lock = threading.Lock()  # of the rules
        self._replication: GroupReplication | None = None
        self._idle_since: float | None = None  # by the clock that never goes back; None: this node serves
        self._announced: tuple[list[str], int] = [], 0
        self._heard: dict[str, tuple[float, str]] = {}  # when other nodes have asked last, and where they are
        self._released = 0  # also ahead of the engine
        self._follower: Follower | None = None
        self._is_stopping = self._forces = False
        self._has_stopped = threading.Event()
        self._wanted: SimpleQueue[Action | None] = SimpleQueue()  # what takes time; None: look at the clock
        self._questions: SimpleQueue[Read | Swap | None] = SimpleQueue()  # of the coordinator
        self._log = LimitedLog(_log)
        self._thread = threading.Thread(target=self._run, name="holdfast-group", daemon=True)
        self._coordinating = threading.Thread(target=self._ask_coordinator, name="holdfast-coordinator", daemon=True)

    def __repr__(self) -> str:
        return f"<Member {self._rules!r}>"

    def start(self, *, forces: bool = False) -> None:
        """Begin to be a node of the group; ``forces``: be its primary, in sync or not; see :meth:`Node.force`."""
        self._forces = forces
        self._coordinating.start()
        self._thread.start()

    def stop(self, *, has_failed: bool = False) -> None:
        """Hand over to another node in sync, if this one is the primary, and end.  Waits for some seconds at most.

        Args:
            has_failed: the store cannot be written any more.
        """
        self._is_stopping = True
        self._act(lambda now: self._rules.stop(now, has_failed))
        self._has_stopped.wait(_END_SECONDS)
        self._wanted.put(Stopped())
        self._questions.put(None)
        self._thread.join(_END_SECONDS)

    def hand_over(self, name: str) -> None:
        """Make another node primary; see :meth:`Node.hand_over`."""
        self._act(self._rules.hand_over, name)

    def leave(self, name: str) -> None:
        """Take another node out of the group; see :meth:`Node.leave`."""
        if name not in self.status().get("nodes", ()):
            raise IllegalStateException(f"{name!r} is no node of the group")
        if self._heard_at(name):
            raise IllegalStateException(f"{name} follows this node: stop it first, or it joins again")
        self._act(self._rules.leave, name)

    def gone(self, name: str) -> None:
        """Wait for another node no more, which has stopped; see :meth:`Node.gone`."""
        self._heard.pop(name, None)
        self._act(self._rules.gone, name)

    def has_failed(self, error: Exception) -> None:
        """Give way where the others cannot follow, since the store is damaged: they would be left out for that."""
        if is_damage(error) and self._gives_way():
            self._parts.stopped(
                StoreException(
                    f"the store is damaged: {error}; another node of the group takes over, and this one takes an image"
                    " when it is started again"
                )
            )

    def asks(self, asks: NodeThatAsks, lsn: int | None) -> None:
        """Note what another node has, see :meth:`Node.asked`; raises a JMSException where it may not ask."""
        record = self._rules.record
        nodes = {} if record is None else record.nodes
        if asks.node == self._rules.name or self._heard_at(asks.node) not in ("", asks.address):
            raise IllegalStateException(f"two nodes have the name {asks.node!r}: give one of them another name")
        if record is not None and asks.term < record.term:
            raise IllegalStateException(f"the group is in term {record.term}, not {asks.term}")
        if asks.node not in nodes and len(nodes) >= MOST_NODES:
            raise ResourceAllocationException(f"the group has {MOST_NODES} nodes, which is the limit")
        node = NodeRecord(asks.address, STORE_VERSION)  # it would be refused with another one
        self._heard[asks.node] = time.monotonic(), asks.address
        self._act(self._rules.asked, asks.node, node, asks.term, lsn)

    def status(self) -> dict[str, Any]:
        """What is known of the group: plain data."""
        with self._lock:
            record, reign = self._rules.record, self._rules.reign
        if record is None:
            return {}
        return {
            "term": record.term,
            "primary": record.primary,
            "in_sync": sorted(record.in_sync),
            "nodes": {name: each.address for name, each in sorted(record.nodes.items())},
            "min_in_sync": record.min_in_sync,
            "released": None if reign is None else reign.released,
        }

    # The rules.

    def _act(self, happened: Callable[..., list[Action]], *arguments: Any) -> None:
        """Tell the rules what has happened, and carry out what they want."""
        released = 0
        with self._lock:
            for each in happened(*arguments, time.monotonic()):
                match each:
                    case Release():
                        released = each.lsn
                    case Read() | Swap():
                        self._questions.put(each)
                    case _:
                        self._wanted.put(each)  # in the order in which the rules have said it
            self._released = max(self._released, released)
        if self._replication is not None:
            self._replication.release(released)

    def _run(self) -> None:
        """Carry out what takes time, and let time pass."""
        try:
            while True:
                self._act(self._rules.tick)
                self._engine.tell_held()
                wanted = None
                with contextlib.suppress(Empty):
                    wanted = self._wanted.get(timeout=self._tick_seconds)
                if isinstance(wanted, Stopped):
                    break
                if self._idle_since is not None and time.monotonic() - self._idle_since > _IDLE_SECONDS:
                    self._start_anew("neither the coordinator nor all nodes in sync answer, so it may confirm nothing")
                self._announce()  # ahead of what lets clients in
                self._carry_out(wanted)
        except JMSException as error:
            self._end(error)
        except Exception as error:
            self._end(unexpected(error))
        else:
            self._end(None)

    def _announce(self) -> None:
        """Tell where all nodes are, and how many are in sync, where that has changed."""
        record = self._rules.record
        if record is None:
            return
        addresses = [each.address for _, each in sorted(record.nodes.items())]
        announced = addresses, len(record.in_sync - {self._rules.name})
        if announced != self._announced:
            self._announced = announced
            self._parts.announce(*announced)

    def _end(self, error: JMSException | None) -> None:
        self._stop_following(says_so=self._is_stopping)
        self._has_stopped.set()
        self._parts.stopped(error)

    def _carry_out(self, action: Action | None) -> None:
        match action:
            case Lead():
                self._lead(action.term)
            case Follow():
                self._follow(action)
            case Serve():
                if self._replication is not None and self._engine.broker is not None:
                    self._replication.serves = action.allowed
                    self._idle_since = None if action.allowed else time.monotonic()
                    self._engine.broker.go_on()
            case RefuseSends():
                if self._engine.broker is not None:
                    self._engine.broker.store.refuses_sends = action.reason
                    if action.reason:
                        _log.warning("! sends are refused: %s", action.reason)

    # The coordinator.

    def _ask_coordinator(self) -> None:
        while True:
            try:
                wanted = self._questions.get(timeout=self._tick_seconds)
            except Empty:
                self._act(self._rules.tick)  # also while an engine starts, which may take longer than a lease lasts
                continue
            if wanted is None:
                return
            record, token = None, None
            try:
                if isinstance(wanted, Read):
                    found = self._coordinator.read()
                    if found.token and not found.data:
                        self._parts.stopped(IllegalStateException("the group is dissolved"))
                        return
                    record, token = decoded(found.data), found.token
                else:
                    token = self._coordinator.swap(wanted.token, encoded(wanted.record))
            except JMSException as error:
                self._log.write("coordinator", "! the coordinator of the group: %s", error)
            except Exception:
                _log.exception("! the coordinator of the group: unexpected error")
            if record is not None:
                self._act(self._rules.record_read, record, token)
                if self._forces:
                    self._force()
            elif token is not None:
                self._act(self._rules.swap_won, token)
                self._wanted.put(None)  # clients are told at once who is in sync
            else:
                self._act(self._rules.no_answer)

    def _force(self) -> None:
        self._forces = False
        try:
            self._act(self._rules.force)
        except IllegalStateException as error:
            self._parts.stopped(error)

    # A primary.

    def _lead(self, term: int) -> None:
        """Become primary: the store is an engine's from now on."""
        if self._replication is not None:
            return  # the same term once more, in the same process
        began = time.monotonic()
        self._stop_following()
        store = self._files.as_primary()
        store.gives_way = self._gives_way
        tail = store.tail
        assert tail is not None
        replication = GroupReplication(tail)
        tail.on_commit = lambda lsn: self._act(self._rules.committed, lsn)
        self._act(self._rules.committed, tail.lsn)
        self._replication = replication
        try:
            broker = self._parts.made_engine(store, replication)
        except StoreException as error:  # it goes on, to hand over
            store.close()
            self._parts.stopped(error)
            return
        broker.copies.group = self
        self._engine.lead(broker)
        replication.release(self._released)
        _log.info("= primary of term %d, %.0f ms after it was elected", term, 1000 * (time.monotonic() - began))

    def _gives_way(self) -> bool:
        """Whether another node in sync goes on where a record of this one's store is damaged, which is noted.

        Once only, until what was put aside is removed: what is damaged at all nodes would be passed on for ever.
        """
        record = self._rules.record
        others = frozenset() if record is None else record.in_sync - {self._rules.name}
        are_there = not self._heard or any(map(self._heard_at, others))  # or it has begun
        if not (others and are_there) or self._files.is_distrusted or self._files.has_put_aside:
            return False
        self._files.distrust()
        return True

    def _heard_at(self, name: str) -> str:
        """Where a node is that has asked lately; empty: none of that name has."""
        when, address = self._heard.get(name, (0.0, ""))
        return address if time.monotonic() - when < _HEARD_SECONDS else ""

    # Another one is.

    def _follow(self, action: Follow) -> None:
        if self._is_stopping:
            return
        if self._replication is not None:
            self._start_anew(f"the primary is {action.primary or 'not known'} now")
            return
        self._stop_following()
        record = self._rules.record
        node = None if record is None else record.nodes.get(action.primary)
        if node is None:
            return
        _log.info("= following %s, the primary of term %d", action.primary, action.term)
        redirect = (action.primary, self._parts.redirect(node.address))
        standing = Standing(
            *(self._rules.name, action.term, self._address, int(1000 * self._ask_seconds)),
            lambda lsn: self._act(self._rules.committed, lsn),
        )

        def heard(is_heard: bool) -> None:
            self._engine.follow(redirect if is_heard else None)
            if not is_heard:
                self._act(self._rules.told)

        def refused() -> None:
            self._act(self._rules.refused, action.term, action.primary)

        self._follower = Follower(
            *(self._files, standing, lambda: self._parts.connect(node.address), self._image_rate),
            *(self._fail, heard, refused),
        )
        self._follower.start()

    def _stop_following(self, *, says_so: bool = False) -> None:
        follower, self._follower = self._follower, None
        if follower is not None and not follower.stop(says_so=says_so):
            # What comes from an earlier primary may not be written any more.
            self._start_anew("its store takes longer than expected to write what came")
        self._engine.follow(None)

    def _start_anew(self, why: str) -> None:
        if not self._is_stopping:
            _log.info("= this node starts anew: %s", why)
            self._parts.restart()

    def _fail(self, error: JMSException) -> None:
        """The store of a node that follows has failed."""
        self._parts.stopped(error)
