"""What a primary counts: which nodes have what, who is in sync, up to where effects may leave.  Pure.

Theory of operation
    A node that follows asks for what is behind the last lsn that it has on its disk.  That is its acknowledgement: the
    lsn up to which it has *this* primary's history, taken back as far as it had another one.

    **What all have that count is released.**  Who counts is the rule on which safety rests: all that are in ``in_sync``
    before a swap, and all that are in it behind the swap, for as long as it may still be carried out.  So a node counts
    from before the swap that adds it, and one that is taken out counts until the swap that takes it out has won.

    A node is *up to date* at a moment if it has, by its next request, all that was committed then.  That is so under
    load too, where it never has all that is committed now.  A node that was not for ``replication_timeout_seconds`` is
    taken out; one that is begins to count, and is added as soon as it has all that was released before.
"""

from __future__ import annotations

from collections.abc import Set
from math import inf

import attrs

from broker_adapter.group.record import MEMBER, GroupRecord


@attrs.define
class _Follower:
    """What is known of a node that follows."""

    goal: int  #: what was committed at its last request
    asked: float  #: when that was
    up_to_date: float  #: when it was so last
    lsn: int = -1  #: what it has; -1: nothing of this history


class Reign:
    """The reign of a primary: one term.

    Args:
        name: of the primary.
        record: of the group, which names it.
        lsn: the last one of its store.
        now: the time, in seconds of a steady clock, as everywhere here.
        timeout: for how long a node may be behind, in seconds.

    Attributes:
        record: as it was when it was last known.
        committed: the last lsn that is on the disk here.
        released: the lsn up to which effects may leave.
    """

    def __init__(self, name: str, record: GroupRecord, lsn: int, now: float, timeout: float) -> None:
        self._name = name
        self._timeout = timeout
        self._followers = {each: _Follower(lsn, now, now) for each in record.in_sync - {name}}
        self._joining: set[str] = set()  # count already, and are to be added
        self._proposed: Set[str] = frozenset()  # in sync by swaps that may still be carried out
        self.record = record
        self.committed = lsn
        self.released = -1

    def __repr__(self) -> str:
        return f"<Reign of term {self.record.term}, {self.released} released of {self.committed}>"

    def asked(self, name: str, lsn: int | None, now: float) -> None:
        """Note that a node asks for what is behind this lsn; None: its store is empty, and it takes an image."""
        follower = self._followers.get(name)
        if follower is None:
            follower = self._followers[name] = _Follower(self.committed, now, -inf)
        follower.lsn = -1 if lsn is None else lsn
        if follower.lsn >= follower.goal:
            follower.up_to_date = follower.asked
            if name not in self.record.in_sync and self.record.nodes[name].role == MEMBER:
                self._joining.add(name)
        elif lsn is None:
            follower.up_to_date = -inf
        follower.goal, follower.asked = self.committed, now

    def gone(self, name: str) -> None:
        """Note that a node has stopped, or is to leave: it need not be waited for."""
        if name in self._followers:
            self._followers[name].up_to_date = -inf

    def slept(self, seconds: float) -> None:
        """Note that this process did not run for some time, so that nobody could reach it."""
        for each in self._followers.values():
            each.up_to_date += seconds

    def proposed(self, record: GroupRecord) -> None:
        """Note that this record is to be swapped in."""
        self._proposed |= record.in_sync

    def swapped(self, record: GroupRecord) -> None:
        """Note the record that is there now; no swap from an earlier one can be carried out any more."""
        self.record = record
        self._joining -= record.in_sync
        self._proposed = frozenset()

    def counted(self) -> Set[str]:
        """Return the nodes that must have what is released, without the primary."""
        return (self.record.in_sync | self._joining | self._proposed) - {self._name}

    def release(self, now: float) -> int:
        """Return the lsn up to which effects may leave."""
        self._joining = {each for each in self._joining if self.is_up_to_date(each, now)}
        least = min((self._followers[each].lsn for each in self.counted()), default=self.committed)
        self.released = max(self.released, min(least, self.committed))
        return self.released

    def is_up_to_date(self, name: str, now: float) -> bool:
        """Return whether a node was up to date lately."""
        return now - self._followers[name].up_to_date <= self._timeout

    def has_all(self, name: str) -> bool:
        """Return whether another node has all that is committed."""
        return self._followers[name].lsn >= self.committed

    def in_sync(self, now: float) -> frozenset[str]:
        """Return the nodes that should be in sync: all that count, are up to date, and have what was released."""
        others = {
            each
            for each in (self.record.in_sync | self._joining) - {self._name}
            if self.is_up_to_date(each, now)
            and (each in self.record.in_sync or self._followers[each].lsn >= self.released)
        }
        return frozenset(others | {self._name})

    def all_have_asked(self, since: float) -> bool:
        """Return whether all that count have asked since then: none of them was primary of a later term."""
        return all(self._followers[each].asked >= since for each in self.counted())
