"""When a password is looked at: the rules that slow down guessing; no sockets, threads or clock.

Theory of operation
    A *claim* is a password, or a proof of one, that a client has sent for a user.  It is looked at when ``take()``
    gives it out, and ``judged()`` tells what came of it.

    The claims of one *pair* (origin, user name) are looked at one after the other.  After ``FREE_FAILURES`` wrong ones
    each further one waits for a pause that doubles with every failure, up to a limit.  A right one ends this.

    An origin that has failed for many user names is slowed down as a whole, except for pairs that have been right
    before: claims of its other pairs are let through at intervals.  One client with a wrong password thus never
    slows down others of its origin, and nothing that other origins do slows down a user: nobody can be locked out from
    elsewhere.

    What is known of a pair or an origin is forgotten when it has not failed for a while, and in any case where too many
    others are known; then it starts anew.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

import attrs

Claim = TypeVar("Claim")

#: Wrong passwords of a pair that cost no pause: slips of the hand.
FREE_FAILURES: Final = 3
#: User names for which an origin may fail before it is slowed down as a whole.
FREE_NAMES: Final = 20
#: Time without a failure after which what is known of a pair or an origin is forgotten, in seconds.
FORGET_SECONDS: Final = 600.0
#: Longest interval between two claims of an origin that is slowed down, in seconds.
MOST_INTERVAL: Final = 1.0
#: Most pairs, and most origins, of which something is known.
MAX_KNOWN: Final = 10_000
#: Where a pause stops growing in any case.
_MOST_DOUBLINGS: Final = 60


class Pair(NamedTuple):
    """A user name, as somebody at an origin claims it."""

    origin: str
    username: str


@attrs.define
class _Failures:
    """Those of a pair, or of an origin (the names that it failed for)."""

    count: int
    last: float
    next: float = 0.0  #: of an origin: when its next claim may be looked at


class LoginGate(Generic[Claim]):
    """The claims that wait, and what is known of pairs and origins.  All instants are seconds of one steady clock.

    Args:
        first_pause: in seconds, after the first failure that is not free; 0: there are no pauses.
        longest_pause: in seconds.
        is_gone: whether nobody waits for what becomes of a claim any more; it is then passed over.
        max_known: most pairs, and most origins, of which something is known.
    """

    def __init__(
        self,
        first_pause: float,
        longest_pause: float,
        *,
        is_gone: Callable[[Claim], bool] = lambda _claim: False,
        max_known: int = MAX_KNOWN,
    ) -> None:
        self._first_pause = first_pause
        self._is_gone = is_gone
        self._longest_pause = longest_pause
        self._max_known = max_known
        self._waiting: dict[Pair, deque[Claim]] = {}
        self._busy: set[Pair] = set()  #: a claim of theirs is being looked at
        self._ready: list[tuple[float, int, Pair]] = []  #: heap: when, in which order; once for each pair that waits
        self._order = count()
        self._pairs: OrderedDict[Pair, _Failures] = OrderedDict()
        self._origins: OrderedDict[str, _Failures] = OrderedDict()
        self._right: OrderedDict[Pair, None] = OrderedDict()  #: pairs that have been right, and not wrong since

    def __repr__(self) -> str:
        return f"<LoginGate waiting={len(self._waiting)} busy={len(self._busy)} failed={len(self._pairs)}>"

    def arrive(self, pair: Pair, claim: Claim, now: float) -> None:
        """A claim has come."""
        waiting = self._waiting.get(pair)
        if waiting is not None:
            waiting.append(claim)
            return
        self._waiting[pair] = deque((claim,))
        if pair not in self._busy:
            self._queue(pair, now)

    def take(self, now: float) -> tuple[Pair, Claim] | None:
        """The next claim to be looked at, if there is one whose time has come; ``judged`` has to follow."""
        while self._ready and self._ready[0][0] <= now:
            _, _, pair = heappop(self._ready)
            waiting = self._waiting[pair]
            while waiting and self._is_gone(waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._waiting[pair]
                continue
            allowed = self._allowed(pair, now)
            if allowed > now:  # others of its origin were let through meanwhile
                self._queue(pair, allowed)
                continue
            self._pass_origin(pair, now)
            claim = waiting.popleft()
            if not waiting:
                del self._waiting[pair]
            self._busy.add(pair)
            return pair, claim
        return None

    def next_at(self) -> float | None:
        """When ``take`` has to be asked next, where nothing else happens; None: not at all."""
        return self._ready[0][0] if self._ready else None

    def judged(self, pair: Pair, was_right: bool | None, now: float) -> None:
        """The claim of this pair that was taken was looked at; None: it was not, because its client has gone."""
        if was_right is not None:
            self._note(pair, was_right, now)
        self._busy.discard(pair)
        if pair in self._waiting:
            self._queue(pair, self._allowed(pair, now))

    def _queue(self, pair: Pair, at: float) -> None:
        heappush(self._ready, (at, next(self._order), pair))

    def _note(self, pair: Pair, was_right: bool, now: float) -> None:
        if was_right:
            self._pairs.pop(pair, None)
            _remember(self._right, pair, None, self._max_known)
            return
        self._right.pop(pair, None)
        known = self._pairs.get(pair)
        if known is None or now - known.last > FORGET_SECONDS:
            self._note_name(pair.origin, now)
            known = _Failures(0, now)
        known.count += 1
        known.last = now
        _remember(self._pairs, pair, known, self._max_known)

    def _note_name(self, origin: str, now: float) -> None:
        """An origin has failed for another user name."""
        known = self._origins.get(origin)
        if known is None or now - known.last > FORGET_SECONDS:
            known = _Failures(0, now)
        known.count += 1
        known.last = now
        _remember(self._origins, origin, known, self._max_known)

    def _allowed(self, pair: Pair, now: float) -> float:
        """When a claim of this pair may be looked at."""
        allowed = now
        failed = self._pairs.get(pair)
        if failed is not None and now - failed.last <= FORGET_SECONDS:
            allowed = max(allowed, failed.last + self._pause(failed.count - FREE_FAILURES, self._longest_pause))
        if self._interval(pair, now):
            allowed = max(allowed, self._origins[pair.origin].next)
        return allowed

    def _pass_origin(self, pair: Pair, now: float) -> None:
        interval = self._interval(pair, now)
        if interval:
            self._origins[pair.origin].next = now + interval

    def _interval(self, pair: Pair, now: float) -> float:
        """Between two claims of the pair's origin; 0 where it is not slowed down."""
        failed = self._origins.get(pair.origin)
        if failed is None or pair in self._right or now - failed.last > FORGET_SECONDS:
            return 0.0
        return self._pause(failed.count - FREE_NAMES, min(self._longest_pause, MOST_INTERVAL))

    def _pause(self, beyond: int, longest: float) -> float:
        """After so many failures beyond those that are free."""
        if beyond < 0:
            return 0.0
        return min(self._first_pause * 2.0 ** min(beyond, _MOST_DOUBLINGS), longest)


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _remember(known: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """As the newest; with too many the oldest is forgotten."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
