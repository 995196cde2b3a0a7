"""Which connections get a place, counted from the moment when they are accepted: the rules; no sockets or clock.

Theory of operation
    A connection is *waiting* (accepted, and not looked at yet), then *logging in* (within its TLS handshake, its login
    and its open), then *inside*.  Waiting costs a descriptor and next to no memory, logging in over TLS a third of a
    megabyte.  So few log in at once, and the others wait for their turn: origins take turns, and none has more than
    half of the places for logins.

    All three have ``places`` together.  Of one origin no more than ``per_origin`` may be outside, that is waiting or
    logging in: then one address alone cannot keep all others out.

    Who holds a place for logins and says nothing can be put out: once it has had it for ``slow_seconds``, and somebody
    else needs it.  Where all places are taken, a newcomer gets that of one who waits, or whose login is slow, of the
    origin with the most outside, if its own origin has fewer.  So no number of silent connections, from however many
    addresses, keeps others out for longer than a login may take.  Who is inside is never put out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from broker_adapter.server.fair_queue import FairQueue

Visitor = TypeVar("Visitor")

#: Time after which a login may have to make room for another, in seconds.  A usual one takes a few round trips.
SLOW_SECONDS: Final = 2.0


class Door(Generic[Visitor]):
    """The places, and who has them.  All instants are seconds of one steady clock.

    Args:
        places: connections that may be here at once.
        logins: those of them that may be logging in at once.
        per_origin: those of one origin that may be outside at once.
        slow_seconds: time after which a login may be put out.
    """

    def __init__(self, *, places: int, logins: int, per_origin: int, slow_seconds: float = SLOW_SECONDS) -> None:
        self.places = places
        self._logins = logins
        self._per_origin = per_origin
        self._slow_seconds = slow_seconds
        self._origins: dict[Visitor, str] = {}  #: of all who are here
        self._outside: dict[str, int] = {}  #: origin → how many are outside
        self._by_outside: dict[int, dict[str, None]] = {}  #: the same the other way round
        self._most_outside = 0  #: of one origin
        self._put_out: list[Visitor] = []  #: by those who have arrived since the last ``advance``
        self._waiting: FairQueue[str, Visitor] = FairQueue(most_running=max(1, logins // 2), most_waiting=places)
        self._logging_in: OrderedDict[Visitor, float] = OrderedDict()  #: since when, the oldest first
        self._inside: set[Visitor] = set()

    def __repr__(self) -> str:
        return f"<Door {len(self)} of {self.places}: logging in {len(self._logging_in)}, inside {self.inside}>"

    @property
    def inside(self) -> int:
        """How many are inside."""
        return len(self._inside)

    def __len__(self) -> int:
        """How many are here."""
        return len(self._origins)

    def outside(self) -> list[Visitor]:
        """Those who wait or log in."""
        return [visitor for visitor in self._origins if visitor not in self._inside]

    def arrive(self, visitor: Visitor, origin: str, now: float) -> str | None:
        """Somebody was accepted; ``advance`` has to follow.

        Returns:
            None: it may stay.  Otherwise the limit that is reached, and it has to be dropped.
        """
        own = self._outside.get(origin, 0)
        if own >= self._per_origin:
            return f"{own} connections of its address have not logged in"
        if len(self._origins) >= self.places:
            other = self._dispensable(own, now)
            if other is None:
                return f"{self.places} connections are here already"
            self.left(other)
            self._put_out.append(other)
        self._origins[visitor] = origin
        self._count_outside(origin, 1)
        self._waiting.put(origin, visitor)
        return None

    def _dispensable(self, fewer: int, now: float) -> Visitor | None:
        """One of the origin with the most outside, if an origin with so many fewer outside may have its place."""
        if self._most_outside <= fewer + 1:
            return None
        largest = next(iter(self._by_outside[self._most_outside]))
        waiting = self._waiting.last_of(largest)
        if waiting is not None:
            return waiting
        for visitor, since in self._logging_in.items():
            if now - since < self._slow_seconds:
                break
            if self._origins[visitor] == largest:
                return visitor
        return None

    def advance(self, now: float) -> tuple[list[Visitor], list[Visitor]]:
        """Who is to begin to log in now, and who has been put out to make room."""
        put_out, self._put_out = self._put_out, []
        entering = self._enter(now)
        while (visitor := self._in_the_way(now)) is not None:
            self.left(visitor)
            put_out.append(visitor)
            entering += self._enter(now)
        return entering, put_out

    def _enter(self, now: float) -> list[Visitor]:
        entering = []
        while len(self._logging_in) < self._logins and (taken := self._waiting.take()) is not None:
            _, visitor = taken
            self._logging_in[visitor] = now
            entering.append(visitor)
        return entering

    def _in_the_way(self, now: float) -> Visitor | None:
        """The oldest login that is slow and has the place of somebody who waits."""
        if not len(self._waiting):
            return None
        for visitor, since in self._logging_in.items():
            if now - since < self._slow_seconds:
                return None
            if self._waiting.has_turn or self._waiting.waiting_of(self._origins[visitor]):
                return visitor
        return None

    def logged_in(self, visitor: Visitor) -> None:
        """Its login is done and its connection open; ``advance`` has to follow."""
        if self._logging_in.pop(visitor, None) is not None:
            self._waiting.done(self._origins[visitor])
            self._count_outside(self._origins[visitor], -1)
            self._inside.add(visitor)

    def left(self, visitor: Visitor) -> bool:
        """It has gone, from wherever it was; returns whether it was here.  ``advance`` has to follow."""
        origin = self._origins.pop(visitor, None)
        if origin is None:
            return False
        if visitor in self._inside:
            self._inside.remove(visitor)
            return True
        if self._logging_in.pop(visitor, None) is not None:
            self._waiting.done(origin)
        else:
            self._waiting.remove(origin, visitor)
        self._count_outside(origin, -1)
        return True

    def _count_outside(self, origin: str, change: int) -> None:
        before = self._outside.pop(origin, 0)
        if before:
            others = self._by_outside[before]
            del others[origin]
            if not others:
                del self._by_outside[before]
        after = before + change
        if after:
            self._outside[origin] = after
            self._by_outside.setdefault(after, {})[origin] = None
        # It changes by one at a time, so the next lower number is the greatest where this one is nobody's any more.
        if after > self._most_outside or self._most_outside not in self._by_outside:
            self._most_outside = after
