"""The copies that follow a store, and the group of its server: what an engine knows of them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import attrs

from broker_adapter.engine.store.lmdb_store import LmdbStore

#: Copies that are remembered: those that have asked last.
_MOST_COPIES: Final = 100


class FollowedEngine(Protocol):
    """What these operations need of the engine."""

    @property
    def store(self) -> LmdbStore:
        """The store on disk."""

    @property
    def copies(self) -> Copies:
        """Those that follow it."""


@attrs.define
class CopyState:
    """What is known of a copy; times are of the monotonic clock, in seconds.

    Attributes:
        lsn: it has all commits up to this one on its disk.
        seen_at: when it asked last.
        complete_at: it has all that was committed by then; None: that is not known yet.
        image: how much of an image it has, in thousandths; None: it takes none.
    """

    lsn: int
    seen_at: float
    complete_at: float | None = None
    image: int | None = None
    _asked: tuple[float, int] | None = None  #: a time, and the lsn of the store then

    def behind_ms(self, last: int, now: float) -> int | None:
        """How long ago it had everything."""
        if self.lsn >= last:
            return 0
        return None if self.complete_at is None else int(1000 * (now - self.complete_at))

    def asks(self, lsn: int, image: int | None, last: int, now: float) -> None:
        """It asks, and has these commits, where the store's last one is ``last``."""
        self.lsn, self.image, self.seen_at = lsn, image, now
        if lsn >= last:
            self.complete_at, self._asked = now, None
        elif self._asked is None:
            self._asked = now, last
        elif lsn >= self._asked[1]:
            self.complete_at, self._asked = self._asked[0], (now, last)


class NodeThatAsks(NamedTuple):
    """A node of the group of a server that asks."""

    node: str  #: its name
    address: str  #: HOST:PORT
    term: int  #: that it knows


class Group(Protocol):
    """The group of a server, of which its node is the primary."""

    def status(self) -> dict[str, Any]:
        """What is known of it: plain data."""

    def asks(self, asks: NodeThatAsks, lsn: int | None) -> None:
        """Note what another node has; raises a JMSException where it may not ask.

        Args:
            asks: the node.
            lsn: the commit up to which it has all on its disk; None: it has an image to take.
        """

    def hand_over(self, name: str) -> None:
        """Make another node primary; raises IllegalStateException where it cannot be."""

    def leave(self, name: str) -> None:
        """Take another node out; raises IllegalStateException where it cannot be."""

    def gone(self, name: str) -> None:
        """Another node has stopped in good order, and is not to be waited for."""

    def has_failed(self, error: Exception) -> None:
        """Reading for a copy has failed: where the store is damaged, another node should go on with its own."""


class Copies:
    """The copies that follow a store, as far as they have asked since the engine was started.

    Attributes:
        group: of the server; None: it is of none.
    """

    def __init__(self) -> None:
        self._states: dict[str, CopyState] = {}
        self.group: Group | None = None

    def asks(self, node: str, lsn: int, image: int | None, last: int, now: float) -> None:
        """A copy asks; see :meth:`CopyState.asks`."""
        state = self._states.get(node)
        if state is None:
            if len(self._states) >= _MOST_COPIES:
                del self._states[min(self._states, key=lambda each: self._states[each].seen_at)]
            state = self._states[node] = CopyState(lsn, now)
        state.asks(lsn, image, last, now)

    def has_waited(self, node: str, now: float) -> None:
        """A copy has waited for a commit, so that it had everything."""
        if node in self._states:
            self._states[node].complete_at = now

    def described(self, last: int, now: float) -> list[dict[str, Any]]:
        """What is known of each: plain data."""
        return [
            {
                "node": node,
                "lsn": each.lsn,
                "behind": max(0, last - each.lsn),
                "behind_ms": each.behind_ms(last, now),
                "seen_ms": int(1000 * (now - each.seen_at)),
                "image": each.image,
            }
            for node, each in sorted(self._states.items())
        ]
