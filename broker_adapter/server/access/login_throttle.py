"""When the password of a login is verified: the rules that slow down guessing; no sockets, threads or clock.

Theory of operation
    An *attempt* is a password, or a proof of one, that a client has sent for a user.  It is verified when ``take()``
    gives it out, and ``finished()`` tells the result.

    The attempts of one *pair* (origin, user name) are verified one after the other.  After ``FREE_FAILURES`` failures
    each further attempt waits for a pause that doubles with every failure, up to a limit.  A success ends this.

    An origin that has failed for many user names is slowed down as a whole: its attempts are verified at intervals,
    except those of pairs that have succeeded before.  So one client with a wrong password never slows down others of
    its origin, and what other origins do never slows down a user: no user can be locked out from another address.

    The failures of a pair or an origin are removed when there was none for a while, and in any case where too many
    others are known.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

import attrs

Attempt = TypeVar("Attempt")

#: Failures of a pair that cost no pause: typing errors.
FREE_FAILURES: Final = 3
#: User names for which an origin may fail before it is slowed down as a whole.
FREE_NAMES: Final = 20
#: Time without a failure after which those of a pair or an origin are removed, in seconds.
REMOVE_SECONDS: Final = 600.0
#: Longest interval between two attempts of an origin that is slowed down, in seconds.
MAX_INTERVAL_SECONDS: Final = 1.0
#: Most pairs, and most origins, of which something is known.
MAX_KNOWN: Final = 10_000
#: Where a pause stops growing in any case.
_MOST_DOUBLINGS: Final = 60


class Pair(NamedTuple):
    """A user name, as a client at an origin gives it."""

    origin: str
    username: str


@attrs.define
class _Failures:
    """Those of a pair; of an origin, the user names that it failed for."""

    count: int
    last: float
    next: float = 0.0  #: of an origin: when its next attempt may be verified


class LoginThrottle(Generic[Attempt]):
    """The attempts that wait, and the failures of pairs and origins.  All instants are seconds of one steady clock.

    Args:
        first_pause: in seconds, after the failures that are free; 0: there are no pauses.
        longest_pause: in seconds.
        is_abandoned: whether the client of an attempt has gone; the attempt is then skipped.
        max_known: most pairs, and most origins, of which something is known.
    """

    def __init__(
        self,
        first_pause: float,
        longest_pause: float,
        *,
        is_abandoned: Callable[[Attempt], bool] = lambda _attempt: False,
        max_known: int = MAX_KNOWN,
    ) -> None:
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._is_abandoned = is_abandoned
        self._max_known = max_known
        self._waiting: dict[Pair, deque[Attempt]] = {}
        self._verifying: set[Pair] = set()
        self._ready: list[tuple[float, int, Pair]] = []  #: heap: when, in which order; once for each pair that waits
        self._order = count()
        self._pairs: OrderedDict[Pair, _Failures] = OrderedDict()
        self._origins: OrderedDict[str, _Failures] = OrderedDict()
        self._succeeded: OrderedDict[Pair, None] = OrderedDict()  #: pairs whose last attempt has succeeded

    def __repr__(self) -> str:
        waiting, verifying = len(self._waiting), len(self._verifying)
        return f"<LoginThrottle waiting={waiting} verifying={verifying} failed={len(self._pairs)}>"

    def submit(self, pair: Pair, attempt: Attempt, now: float) -> None:
        """Add an attempt."""
        waiting = self._waiting.get(pair)
        if waiting is not None:
            waiting.append(attempt)
            return
        self._waiting[pair] = deque((attempt,))
        if pair not in self._verifying:
            self._schedule(pair, now)

    def take(self, now: float) -> tuple[Pair, Attempt] | None:
        """The next attempt to verify, where there is one whose time has come; ``finished`` has to follow."""
        while self._ready and self._ready[0][0] <= now:
            _, _, pair = heappop(self._ready)
            waiting = self._waiting[pair]
            while waiting and self._is_abandoned(waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._waiting[pair]
                continue
            allowed = self._allowed(pair, now)
            if allowed > now:  # another attempt of its origin was taken meanwhile
                self._schedule(pair, allowed)
                continue
            self._space_out(pair, now)
            attempt = waiting.popleft()
            if not waiting:
                del self._waiting[pair]
            self._verifying.add(pair)
            return pair, attempt
        return None

    def next_at(self) -> float | None:
        """Return when to call ``take`` next, where nothing else happens; None: not at all."""
        return self._ready[0][0] if self._ready else None

    def finished(self, pair: Pair, succeeded: bool | None, now: float) -> None:
        """The attempt of this pair that was taken has its result; None: it was not verified."""
        if succeeded is not None:
            self._note(pair, succeeded, now)
        self._verifying.discard(pair)
        if pair in self._waiting:
            self._schedule(pair, self._allowed(pair, now))

    def _schedule(self, pair: Pair, at: float) -> None:
        heappush(self._ready, (at, next(self._order), pair))

    def _note(self, pair: Pair, succeeded: bool, now: float) -> None:
        if succeeded:
            self._pairs.pop(pair, None)
            _remember(self._succeeded, pair, None, self._max_known)
            return
        self._succeeded.pop(pair, None)
        known = self._pairs.get(pair)
        if known is None or now - known.last > REMOVE_SECONDS:
            self._note_name(pair.origin, now)
            known = _Failures(0, now)
        known.count += 1
        known.last = now
        _remember(self._pairs, pair, known, self._max_known)

    def _note_name(self, origin: str, now: float) -> None:
        """An origin has failed for another user name."""
        known = self._origins.get(origin)
        if known is None or now - known.last > REMOVE_SECONDS:
            known = _Failures(0, now)
        known.count += 1
        known.last = now
        _remember(self._origins, origin, known, self._max_known)

    def _allowed(self, pair: Pair, now: float) -> float:
        """Return when an attempt of this pair may be verified."""
        allowed = now
        failed = self._pairs.get(pair)
        if failed is not None and now - failed.last <= REMOVE_SECONDS:
            allowed = max(allowed, failed.last + self._pause(failed.count - FREE_FAILURES, self._longest_pause))
        if self._interval(pair, now):
            allowed = max(allowed, self._origins[pair.origin].next)
        return allowed

    def _space_out(self, pair: Pair, now: float) -> None:
        """The next attempt of the origin keeps its interval from this one."""
        interval = self._interval(pair, now)
        if interval:
            self._origins[pair.origin].next = now + interval

    def _interval(self, pair: Pair, now: float) -> float:
        """Between two attempts of the pair's origin; 0 where it is not slowed down."""
        failed = self._origins.get(pair.origin)
        if failed is None or pair in self._succeeded or now - failed.last > REMOVE_SECONDS:
            return 0.0
        return self._pause(failed.count - FREE_NAMES, min(self._longest_pause, MAX_INTERVAL_SECONDS))

    def _pause(self, beyond: int, longest: float) -> float:
        """After so many failures beyond those that are free."""
        if beyond < 0:
            return 0.0
        return min(self._first_pause * 2.0 ** min(beyond, _MOST_DOUBLINGS), longest)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _remember(known: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """As the newest; with too many the oldest is removed."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
