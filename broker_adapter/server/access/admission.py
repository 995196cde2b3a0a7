"""Which connections are admitted, counted from the moment when they are accepted: the rules; no sockets or clock.

Theory of operation
    A connection is *silent* (accepted, and nothing came of it yet), then *queued* (its first bytes are there, and
    were not read yet), then *logging in* (within its TLS handshake, its login and its open), then *open*.  A silent
    or queued connection costs a descriptor and next to no memory; one that logs in over TLS costs a third of a
    megabyte.  So few log in at once.  Those that are queued wait for their turn: origins take turns, and none has more
    than half of the places for logins.  A silent connection has no turn, since every client of AMQP speaks first.

    ``places`` limits all of them together.  ``per_origin`` limits those of one origin that are *pending*, that is
    silent, queued or logging in, so that one address alone cannot take all places.

    A pending connection can be evicted to make room for another one:

    - a login that has taken ``slow_seconds``, when a queued connection needs its place;
    - where its origin has as many pending connections as it may, or all places are taken, the silent connection of the
      same origin that came first: of all of them it has had the most time to speak; where none is silent, its oldest
      login, if that is slow;
    - before that, where all places are taken, a silent or queued connection or a slow login of the origin with the
      most pending connections, when a connection of an origin with fewer arrives.

    So silent connections, however many, from however many addresses, the own one included, do not keep out those that
    speak.  Those that begin a login and do not end it keep others out for no longer than a login may take, if these are
    of another origin.  An open connection is never evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from broker_adapter.server.workers.fair_queue import FairQueue

Connection = TypeVar("Connection")

#: Time after which a login may be evicted, in seconds.  A usual one takes a few round trips.
SLOW_SECONDS: Final = 2.0


class LoginAdmission(Generic[Connection]):
    """The places, and which connections have them.  All instants are seconds of one steady clock.

    Args:
        places: connections that there may be at once.
        logins: those of them that may be logging in at once.
        per_origin: those of one origin that may be pending at once.
        slow_seconds: time after which a login may be evicted.
    """

    def __init__(self, *, places: int, logins: int, per_origin: int, slow_seconds: float = SLOW_SECONDS) -> None:
        self.places = places
        self._logins = logins
        self._per_origin = per_origin
        self._slow_seconds = slow_seconds
        self._origins: dict[Connection, str] = {}  #: of all connections
        self._pending: dict[str, int] = {}  #: origin → number of its pending connections
        self._by_pending: dict[int, dict[str, None]] = {}  #: the same the other way round
        self._most_pending = 0  #: of one origin
        self._silent: dict[str, dict[Connection, None]] = {}  #: origin → its silent connections, the oldest first
        self._queue: FairQueue[str, Connection] = FairQueue(most_running=max(1, logins // 2), most_waiting=places)
        self._logging_in: OrderedDict[Connection, float] = OrderedDict()  #: since when, the oldest first
        self._open: set[Connection] = set()
        self._evicted: list[Connection] = []  #: since the last call of ``advance``

    def __repr__(self) -> str:
        return (
            f"<LoginAdmission {len(self)} of {self.places}: logging in {len(self._logging_in)}, open {len(self._open)}>"
        )

    def __len__(self) -> int:
        """The number of connections."""
        return len(self._origins)

    @property
    def open_connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def pending(self) -> list[Connection]:
        """Those that are silent, queued or logging in."""
        return [connection for connection in self._origins if connection not in self._open]

    def accepted(self, connection: Connection, origin: str, now: float) -> str | None:
        """A connection was accepted; ``advance`` has to follow.

        Returns:
            None where it has a place.  Otherwise the limit that is reached: it has to be dropped.
        """
        own = self._pending.get(origin, 0)
        other = None
        if own >= self._per_origin:
            other = self._oldest_silent(origin) or self._slow_login(origin, now)
            if other is None:
                return f"{own} connections of its address have not logged in"
        elif len(self._origins) >= self.places:
            other = self._dispensable(own, now) or self._oldest_silent(origin) or self._slow_login(origin, now)
            if other is None:
                return f"there are {self.places} connections already"
        if other is not None:
            self.closed(other)
            self._evicted.append(other)
        self._origins[connection] = origin
        self._count_pending(origin, 1)
        self._silent.setdefault(origin, {})[connection] = None
        return None

    def spoke(self, connection: Connection) -> None:
        """The first bytes of a silent connection are there: it is queued; ``advance`` has to follow."""
        origin = self._origins.get(connection)
        if origin is not None and self._end_silence(origin, connection):
            self._queue.put(origin, connection)

    def _end_silence(self, origin: str, connection: Connection) -> bool:
        """A connection is not silent any more; returns whether it was."""
        silent = self._silent.get(origin, {})
        if connection not in silent:
            return False
        del silent[connection]
        if not silent:
            del self._silent[origin]
        return True

    def _oldest_silent(self, origin: str) -> Connection | None:
        return next(iter(self._silent.get(origin, ())), None)

    def _dispensable(self, fewer: int, now: float) -> Connection | None:
        """One of the origin with the most pending connections, if an origin with so many fewer may have its place."""
        if self._most_pending <= fewer + 1:
            return None
        largest = next(iter(self._by_pending[self._most_pending]))
        return self._oldest_silent(largest) or self._queue.last_of(largest) or self._slow_login(largest, now)

    def _slow_login(self, origin: str, now: float) -> Connection | None:
        """The oldest login of an origin, if it is slow."""
        for connection, since in self._logging_in.items():
            if now - since < self._slow_seconds:
                break
            if self._origins[connection] == origin:
                return connection
        return None

    def advance(self, now: float) -> tuple[list[Connection], list[Connection]]:
        """The connections that begin to log in now, and those that were evicted and have to be dropped."""
        evicted, self._evicted = self._evicted, []
        starting = self._start(now)
        while (connection := self._in_the_way(now)) is not None:
            self.closed(connection)
            evicted.append(connection)
            starting += self._start(now)
        return starting, evicted

    def _start(self, now: float) -> list[Connection]:
        starting = []
        while len(self._logging_in) < self._logins and (taken := self._queue.take()) is not None:
            _, connection = taken
            self._logging_in[connection] = now
            starting.append(connection)
        return starting

    def _in_the_way(self, now: float) -> Connection | None:
        """The oldest login that is slow and has the place of a queued connection."""
        if not len(self._queue):
            return None
        for connection, since in self._logging_in.items():
            if now - since < self._slow_seconds:
                return None
            if self._queue.has_next or self._queue.waiting_of(self._origins[connection]):
                return connection
        return None

    def opened(self, connection: Connection) -> None:
        """A login is done, and the connection open; ``advance`` has to follow."""
        if self._logging_in.pop(connection, None) is not None:
            self._queue.done(self._origins[connection])
            self._count_pending(self._origins[connection], -1)
            self._open.add(connection)

    def closed(self, connection: Connection) -> bool:
        """A connection has ended, in whatever state it was; returns whether it was counted.

        ``advance`` has to follow.
        """
        origin = self._origins.pop(connection, None)
        if origin is None:
            return False
        if connection in self._open:
            self._open.remove(connection)
            return True
        if self._logging_in.pop(connection, None) is not None:
            self._queue.done(origin)
        elif not self._end_silence(origin, connection):
            self._queue.remove(origin, connection)
        self._count_pending(origin, -1)
        return True

    def _count_pending(self, origin: str, change: int) -> None:
        before = self._pending.pop(origin, 0)
        if before:
            others = self._by_pending[before]
            del others[origin]
            if not others:
                del self._by_pending[before]
        after = before + change
        if after:
            self._pending[origin] = after
            self._by_pending.setdefault(after, {})[origin] = None
        # A count changes by one, so where no origin has the greatest one any more, the next lower one is the greatest.
        if after > self._most_pending or self._most_pending not in self._by_pending:
            self._most_pending = after
