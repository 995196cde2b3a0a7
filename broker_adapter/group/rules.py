"""Who is primary, who is in sync, and what is released: the rules of a node of a group.  Pure.

Theory of operation
    A :class:`Node` is told what happens, with the time of its own steady clock, and answers with what is to be done.
    Nothing here compares the clocks of two nodes, and safety rests on no clock.

    **The record** at the coordinator says who is primary and who is in sync.  It is changed by a swap, which fails
    where the record is not the one that was read.  A node has at most one request to the coordinator under way.
    Whatever is not an answer that the swap has won says nothing: the record is read again, and its ``writer`` and
    ``renewed`` tell.  A swap of which nothing is known may still be carried out until the record has changed.

    **The primary** renews the record each quarter of ``lease_seconds``.  What it counts is in
    :mod:`broker_adapter.group.reign`.  It is primary until it reads of another one.  One that was deposed and does not
    know it yet confirms nothing: who deposed it was in sync, and acknowledges nothing any more; and without a swap,
    which fails, it cannot be passed over.

    **The others** read the record each quarter of ``lease_seconds``, and follow the primary that it names.  A node may
    stand if it is in sync, for all those have what was ever confirmed.  It does so at once where the primary leaves,
    where nothing listens at the primary's address, or where the record names itself by another process: it was started
    again, or another one hands over to it.  Else it stands when it has read the same record four more times, a quarter
    of ``lease_seconds`` apart.  So a process that was stopped does not stand as it wakes, and a coordinator that was
    away for a while deposes nobody.  The first swap wins: the next term, without the primary before.  Who has most does
    not matter: the others take back what they have beyond it.

    **Serving** (commands are taken, messages are delivered) stops when the lease may have run out, unless all others in
    sync have asked within half of it: then none of them was primary.  So a group goes on whose coordinator is away, and
    one whose only node in sync is the primary.  (A primary that lives where a firewall refuses in its place may deliver
    until then; what it was told of that is not confirmed.)  It stops too while a hand-over is under way, so that the
    successor can get all that is committed.

    **Whoever drives this** takes an answer only to the last request that it has made, of the coordinator or of another
    node; finishes what is being written, and says so by ``committed``, before it leads; and makes one transaction of
    what a primary sends, however much it adds and takes back.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import attrs

from broker_adapter.errors import IllegalStateException
from broker_adapter.group.record import GroupRecord, NodeRecord
from broker_adapter.group.reign import Reign

#: The record is renewed and read so many times in ``lease_seconds``.
PARTS_OF_LEASE: Final = 4


class Read(NamedTuple):
    """Read the record; answer with ``record_read`` or ``no_answer``."""


class Swap(NamedTuple):
    """Swap the record that was read as ``token`` for this one; answer with ``swap_won`` or ``no_answer``."""

    record: GroupRecord
    token: Any


class Lead(NamedTuple):
    """Be the primary of a term.  What was asked for before is not taken any more, as by ``Follow``."""

    term: int


class Follow(NamedTuple):
    """Be no primary: stop without writing, confirm nothing more, and ask this one for changes.

    What comes from another one, or was asked for before, is not taken any more; only what is being written then is.
    """

    term: int
    primary: str  #: empty: wait


class Release(NamedTuple):
    """Let effects leave up to a lsn."""

    lsn: int


class Serve(NamedTuple):
    """Take commands and deliver messages, or neither."""

    allowed: bool


class RefuseSends(NamedTuple):
    """Refuse sends for this reason; empty: refuse none."""

    reason: str


class Stopped(NamedTuple):
    """The node may end."""


Action = Read | Swap | Lead | Follow | Release | Serve | RefuseSends | Stopped


class Node:
    """The rules of a node.

    Args:
        name: of the node.
        node: how the record should describe it.
        writer: a word of this process; no other one has it.
        lsn: the last one of its store; None: the store is empty or was restored, and an image is to be taken.
        lease_seconds: a primary that has not renewed the record for that time is replaced.
        timeout: after which a node that is behind is passed over (``replication_timeout_seconds``).

    Attributes:
        reign: what the primary counts; None: this node is not primary.
        record: the last one that was read or swapped in; None: none was.
    """

    def __init__(
        self, name: str, node: NodeRecord, writer: str, lsn: int | None, lease_seconds: float, timeout: float
    ) -> None:
        self.name = name
        self._nodes = {name: node}  # as the record should describe them; a primary's
        self._writer = writer
        self._lsn = lsn
        self._lease = lease_seconds
        self._timeout = timeout
        self._token: Any = None
        self._under_way: Read | Swap | None = None
        self._told = False  # that the record has changed, while a request was under way
        self._must_read = True  # what is known of the record may be wrong
        self._unchanged = 0  # how often it was read again, a part of the lease apart
        self._counted_at = 0.0
        self._due = 0.0  # when the record is to be renewed or read
        self._swapping_since: float | None = None  # when it was tried first to swap the record that is known
        self._lease_ends = 0.0
        self._awake_at: float | None = None
        self._successor: str | None = None  # to whom it hands over
        self._gives_up_at = 0.0  # to hand over
        self._ending = False
        self._deposes: int | None = None  # the term that an administrator ends by force
        self._refused: tuple[int, str] | None = None  # the term, and its primary that does not listen any more
        self._levels: dict[type[Action], Action] = {}  # what was said last
        self.reign: Reign | None = None
        self.record: GroupRecord | None = None

    def __repr__(self) -> str:
        return f"<Node {self.name}, {self.reign or 'follows'}, {self.record}>"

    # Time, and the coordinator.

    def tick(self, now: float) -> list[Action]:
        """Note the time; called several times in each part of the lease."""
        slept = 0.0 if self._awake_at is None else now - self._awake_at
        self._awake_at = now
        if self.reign and slept > self._lease / 2:
            self.reign.slept(slept)
        return self._act(now)

    def record_read(self, record: GroupRecord, token: Any, now: float) -> list[Action]:
        """Note what ``Read`` has found."""
        self._under_way = None
        self._must_read = False
        if self.record is None or record.renewed > self.record.renewed:
            self._take(record, token, now)
        elif self.reign is None:
            self._due, self._told = now + (0 if self._told else self._part), False
            if now - self._counted_at >= self._part:
                self._unchanged += 1
                self._counted_at = now
        return self._act(now)

    def swap_won(self, token: Any, now: float) -> list[Action]:
        """Note that the ``Swap`` under way was carried out, and what its record is to be swapped by."""
        swap, self._under_way = self._under_way, None
        assert isinstance(swap, Swap)
        self._take(swap.record, token, now)
        return self._act(now)

    def no_answer(self, now: float) -> list[Action]:
        """Note that the request under way has failed, was lost, or has lost: read again."""
        self._due = now + (self._part if isinstance(self._under_way, Read) else 0)
        self._under_way = None
        self._must_read = True
        return self._act(now)

    # Other nodes, and the store.

    def asked(self, name: str, node: NodeRecord, term: int, lsn: int | None, now: float) -> list[Action]:
        """Note that another node asks this one, as the primary of a term, for what is behind a lsn.

        Args:
            name: of the other node.
            node: how the record should describe it.
            term: that it knows.
            lsn: up to which it has this node's history on its disk; None: it is to take an image.
            now: the time.
        """
        if self.reign and term == self.reign.record.term:
            self._nodes[name] = node
            if self.reign.record.nodes.get(name) == node:
                self.reign.asked(name, lsn, now)
        return self._act(now)

    def refused(self, term: int, primary: str, now: float) -> list[Action]:
        """Note that nothing listens at the address of the primary of a term: its process has ended."""
        self._refused = term, primary
        return self._act(now)

    def gone(self, name: str, now: float) -> list[Action]:
        """Note that another node has stopped in good order."""
        if self.reign:
            self.reign.gone(name)
        return self._act(now)

    def told(self, now: float) -> list[Action]:
        """Note that the primary does not answer any more: the record is read now."""
        if self.reign is None:
            self._due = min(self._due, now)
            self._told = self._under_way is not None
        return self._act(now)

    def committed(self, lsn: int, now: float) -> list[Action]:
        """Note that the own disk has everything up to this lsn."""
        self._lsn = lsn
        if self.reign:
            self.reign.committed = lsn
        return self._act(now)

    # What an administrator wants.

    def hand_over(self, name: str, now: float) -> list[Action]:
        """Make another node primary; given up where it does not succeed within the time-out.

        Raises:
            IllegalStateException: this one is not primary, or that one is not in sync.
        """
        if self.reign is None:
            raise IllegalStateException(f"{self.name} is not the primary, which alone can hand over")
        others = self.reign.record.in_sync - {self.name}
        if name not in others:
            able = ", ".join(sorted(others)) or "none"
            raise IllegalStateException(f"{name} is the primary, or not in sync; nodes that can take over: {able}")
        self._successor, self._gives_up_at = name, now + self._timeout
        return self._act(now)

    def leave(self, name: str, now: float) -> list[Action]:
        """Take another node, which is stopped, out of the group.

        Raises:
            IllegalStateException: this one is not primary, or that one is.
        """
        if self.reign is None or name == self.name:
            raise IllegalStateException("the primary cannot leave: hand over first (holdfast group hand-over NODE)")
        self._nodes.pop(name, None)
        return self.gone(name, now)

    def force(self, now: float) -> list[Action]:
        """Become primary without being in sync, where there is none: what only others have is lost.

        Raises:
            IllegalStateException: it is primary, has an empty store, or has not read the record yet.
        """
        if self.reign or self.record is None:
            raise IllegalStateException(f"{self.name} is primary already, or has not read the group's record yet")
        if self._lsn is None:
            raise IllegalStateException(f"{self.name} has nothing: its store is empty, or was restored")
        self._deposes = self.record.term
        return self._act(now)

    def stop(self, now: float, failed: bool = False) -> list[Action]:
        """End, behind a hand-over to whichever node in sync stands first.

        Args:
            now: the time.
            failed: the own disk cannot be written any more.
        """
        self._ending = True
        if failed:
            self._lsn = None
        return self._act(now)

    # What follows.

    @property
    def _part(self) -> float:
        return self._lease / PARTS_OF_LEASE

    def _take(self, record: GroupRecord, token: Any, now: float) -> None:
        """Have a new record."""
        self.record, self._token = record, token
        self._unchanged, self._counted_at, self._due = 0, now, now + self._part
        tried, self._swapping_since = self._swapping_since, None
        is_own = record.primary == self.name and record.writer == self._writer and not record.leaves
        if not is_own or (self._lsn is None and not self.reign):
            self.reign = self._successor = None
            return
        self._lease_ends = (now if tried is None else tried) + self._lease
        if self.reign and self.reign.record.term == record.term:
            self.reign.swapped(record)
        else:
            assert self._lsn is not None
            self.reign = Reign(self.name, record, self._lsn, now, self._timeout)
            self._nodes = dict(record.nodes)

    def _act(self, now: float) -> list[Action]:
        """Return what is to be done: what is not as it was said last, and the next request to the coordinator."""
        actions = self._led(self.reign, now) if self.reign else self._followed()
        if self._ending and (self.reign is None or self.reign.record.in_sync == {self.name}):
            return [*actions, Stopped()]
        if self._under_way is None:
            wanted = None if self._must_read else self._wanted(now)
            if wanted:
                actions.append(self._swap(wanted, now))
            elif now >= self._due:
                self._under_way = Read()
                actions.append(self._under_way)
        return actions

    def _followed(self) -> list[Action]:
        if self.record is None:
            return []
        return self._said(Follow(self.record.term, "" if self.record.primary == self.name else self.record.primary))

    def _led(self, reign: Reign, now: float) -> list[Action]:
        in_sync, wanted = reign.record.in_sync, reign.record.min_in_sync
        if self._successor not in in_sync or now >= self._gives_up_at:
            self._successor = None
        hands_over = self._ending or self._successor
        serves = not hands_over and (now < self._lease_ends or reign.all_have_asked(now - self._lease / 2))
        return self._said(
            Lead(reign.record.term),
            RefuseSends(f"{len(in_sync)} of {wanted} nodes are in sync" if len(in_sync) < wanted else ""),
            Serve(serves),
            Release(reign.release(now)),
        )

    def _said(self, *levels: Action) -> list[Action]:
        """Return what is not as it was said last."""
        new = []
        for each in levels:
            if self._levels.get(type(each)) != each:
                if isinstance(each, Lead | Follow):
                    self._levels.clear()
                self._levels[type(each)] = each
                new.append(each)
        return new

    def _wanted(self, now: float) -> GroupRecord | None:
        """Return the record that should be there instead."""
        record, reign = self.record, self.reign
        if record is None:
            return None
        if reign is None:
            forced = self._deposes == record.term and self._unchanged >= PARTS_OF_LEASE
            others = frozenset() if forced else record.in_sync - {record.primary}
            return self._standing(record, others) if forced or self._may_stand(record) else None
        known = min(each.store_version for each in self._nodes.values())
        new = attrs.evolve(record, in_sync=reign.in_sync(now), nodes=self._nodes, store_version=known)
        if self._ending:
            leaves = self._lsn is None or any(map(reign.has_all, new.in_sync - {self.name}))
            new = attrs.evolve(new, leaves=leaves)
        elif self._successor in new.in_sync and reign.has_all(self._successor):
            # This one starts anew, and is not waited for.
            new = attrs.evolve(new, primary=self._successor, in_sync=new.in_sync - {self.name})
        return new if new != record or now >= self._due else None

    def _may_stand(self, record: GroupRecord) -> bool:
        may_be_primary = self.name in record.in_sync and self._lsn is not None and not self._ending
        has_gone = record.leaves or record.primary == self.name or (record.term, record.primary) == self._refused
        return may_be_primary and (has_gone or self._unchanged >= PARTS_OF_LEASE)

    def _standing(self, record: GroupRecord, others: frozenset[str]) -> GroupRecord:
        """Return the record of the next term, with this node as primary."""
        nodes = {**record.nodes, self.name: self._nodes[self.name]}
        in_sync = others | {self.name}
        return attrs.evolve(record, term=record.term + 1, primary=self.name, leaves=False, in_sync=in_sync, nodes=nodes)

    def _swap(self, record: GroupRecord, now: float) -> Swap:
        assert self.record
        record = attrs.evolve(record, renewed=self.record.renewed + 1, writer=self._writer)
        if self.reign:
            self.reign.proposed(record)
        if self._swapping_since is None:
            self._swapping_since = now
        self._under_way = swap = Swap(record, self._token)
        return swap
