"""What a connection knows of one region: the cache, what was registered, and who is told of events.

Theory of operation
    Two kinds of threads come here: those of the application, with operations and registrations, and the connection's
    thread for events.  What they share is under a lock that no thread holds while it waits for the server.  Another
    one is held while interest is registered or ended at the server: so what the server knows is what is known here,
    also where the thread for events registers all of it again with a new connection.

    The cache holds the keys that an interest covers, for only of these the server tells what becomes of them.  A
    selector chooses events and not keys: that a key has left it is no event, so what only a selector covers is told to
    the listeners and not kept.

    Before the marker of a durable client, events are *history*: they are told to listeners, and do not change the
    cache, which may have newer values from a registration.  Where history is newer than the cache, the key is read
    again as the marker comes, so that the cache is that of the server from then on.

    Where events were missed, or the server is another one, a new cache takes the place of the old one.  An answer that
    was asked for before goes into the old one, and so nowhere: its version may be one of another server.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import attrs

from broker_adapter import (
    ConnectionLostException,
    EventDelivery,
    JMSException,
    MessageFormatException,
    decode_payload,
    key_expression,
    unpack,
)
from sdk.messages.envelopes import message_of
from sdk.messages.message import Message
from sdk.regions.cache import CachedKey, KeyState, RegionCache, RegionOperation
from sdk.regions.listener import RegionEvent, RegionListener, ResultPolicy
from sdk.session_state import log

#: What is wanted of a key, as ``change_keys`` has it.
PUT: Final = 0
INVALIDATE: Final = 1
DESTROY: Final = 2
#: Kinds of interest, as ``register_interest`` has them.
KEY: Final = 0
ALL_KEYS: Final = 1
EXPRESSION: Final = 2
SELECTOR: Final = 3
QUERY: Final = 4
#: Kinds by which the server tells of each change of a key, which is kept in the cache therefore.
_COVERING: Final = (KEY, ALL_KEYS, EXPRESSION)
#: Regions of a connection, and queries of a region, that are named in a warning because their events reach no listener.
MOST_UNKNOWN: Final = 100
#: Keys that are asked for at once.
KEYS_AT_ONCE: Final = 1000

#: Asks the engine: operation and arguments.
Ask = Callable[[str, Mapping[str, Any]], Any]


class Interest(NamedTuple):
    """What is wanted of a region."""

    kind: int
    text: str
    name: str = ""  #: of a query


class Registered(NamedTuple):
    """How an interest was registered."""

    durable: bool
    policy: ResultPolicy
    receives_values: bool
    #: Behind which event; earlier ones may come by a former registration, and not all of them.
    after: int = sys.maxsize


class RegionState:
    """One region of one connection.  See the module's theory of operation.

    Attributes:
        name: of the region.
        conflates: what was said of that as it was created.
        cache: what is known of its keys; under the lock.
        interests: what was registered, running queries included; changed by ``want`` and ``end``; under the lock.
        created: by name, the queries that were created and are not closed; under the lock.
        queries: by name, what is called with each event of one and its operation; under the lock.
        listeners: those that are told; replaced, and never changed.
        lock: of what is shared.
        registering: held while interest is registered or ended at the engine; taken before ``lock``.
    """

    def __init__(self, name: str, ask: Ask) -> None:
        """A region of which nothing is known.

        Args:
            name: of the region.
            ask: asks the engine.
        """
        self.name = name
        self.conflates: bool | None = None
        self.cache = RegionCache()
        self.interests: dict[Interest, Registered] = {}
        self._expressions: dict[Interest, Callable[[str], bool]] = {}  #: those of them that are regular expressions
        self.queries: dict[str, Callable[[RegionEvent], None]] = {}
        self.created: dict[str, Any] = {}
        self.listeners: tuple[RegionListener, ...] = ()
        self.lock = threading.RLock()
        self.registering = threading.RLock()
        self._ask = ask
        self._through = 0  #: position up to which events were processed
        self._touched: dict[str, None] = {}  #: keys of which history is newer than the cache
        self._unknown: set[str] = set()  #: queries that do not run here, of which replayed events have come
        #: what was registered as the link was lost, and whether its events are queued since; None: it was not lost
        self._before: dict[Interest, bool] | None = None

    def __repr__(self) -> str:
        return f"<RegionState {self.name!r}: {self.cache}>"

    # What the engine is asked.

    def read(
        self,
        keys: Sequence[str] | None = None,
        *,
        values: bool = True,
        expression: str | None = None,
        selector: str | None = None,
        positions: list[int] | None = None,
    ) -> Iterator[tuple[str, int, KeyState, Message | None]]:
        """(key, version, state, value) of keys that are there, as the server has them; asked page by page.

        Args:
            keys: which; None: all.
            values: whether their values are wanted.
            expression: of all keys, those that match this regular expression; None: all.
            selector: of those, the ones whose values match it; None: all.
            positions: gets, for each page, the position of an event up to which the page has everything.

        Raises:
            JMSException: as requests.
        """
        parts: Iterable[Sequence[str] | None] = [None]
        if keys is not None:
            parts = (keys[first : first + KEYS_AT_ONCE] for first in range(0, len(keys), KEYS_AT_ONCE))
        for part in parts:
            after: str | None = None
            rest = part
            while True:
                arguments = {
                    "region": self.name,
                    "keys": rest,
                    "after": None if keys is not None else after,
                    "values": values,
                    "expression": expression,
                    "selector": selector,
                }
                answer = self._ask("read_keys", arguments)
                if positions is not None:
                    positions.append(answer["position"])
                for key, version, state, form, payload in answer["entries"]:
                    if form is not None:
                        yield key, version, KeyState.VALID, _message(form, payload)
                    elif state == 0:
                        yield key, version, KeyState.UNREAD, None
                    else:
                        yield key, version, KeyState.INVALID, None
                after = answer["next"]
                if after is None:
                    break
                if rest is not None:
                    rest = rest[list(rest).index(after) + 1 :]

    # Keys.

    def covers(self, key: str) -> bool:
        """Return whether the server tells of each change of a key; under the lock."""
        return self._is_covered(key, self.interests)

    def _is_covered(self, key: str, interests: Collection[Interest]) -> bool:
        """Return whether one of some interests covers a key, of those that there are; under the lock."""
        if Interest(ALL_KEYS, "") in interests or Interest(KEY, key) in interests:
            return True
        return any(each in interests and matches(key) for each, matches in self._expressions.items())

    def registered_for(self, key: str) -> int:
        """Behind which event the server tells of each change of a key, at least; under the lock."""
        found = [self.interests.get(each) for each in (Interest(ALL_KEYS, ""), Interest(KEY, key))]
        found += [self.interests.get(each) for each, matches in self._expressions.items() if matches(key)]
        return min([how.after for how in found if how is not None], default=sys.maxsize)

    def changed(
        self, cache: RegionCache, key: str, operation: int | None, version: int, message: Message | None
    ) -> None:
        """The application has changed a key; what the server answered comes into the cache.

        Not where interest in the key is registered behind the change: that reads it, unless it has ended by then.

        Args:
            cache: as ``asking`` gave it when the change was asked for.
            key: the key.
            operation: what has happened to it; None: nothing.
            version: that it has from then on.
            message: with its value.
        """
        with self.lock:
            if operation is not None and (cache.get(key) is not None or version > self.registered_for(key)):
                cache.change(key, RegionOperation(operation), version, message)

    def add_result(
        self, cache: RegionCache, key: str, version: int, state: KeyState, message: Message | None = None
    ) -> None:
        """What was read of the server comes into the cache that ``asking`` gave, if an interest covers it.

        Else that has ended meanwhile: nothing would tell when it is not true any more.
        """
        with self.lock:
            if self.covers(key):
                cache.add_result(key, version, state, message)

    def committed(self, keys: Collection[str]) -> None:
        """A commit has changed keys, or may have: those that an interest covers are read again into the cache.

        Where they cannot be read, the cache does not have them.
        """
        with self.lock:
            kept = [key for key in keys if self.cache.get(key) is not None or self.registered_for(key) < sys.maxsize]
            values = any(how.policy is ResultPolicy.KEYS_VALUES for how in self.interests.values())
        try:
            self._read_again(kept, values=values)
        except JMSException as error:
            self._drop(kept, error)

    def asking(self) -> _Asking:
        """While the server is asked for what comes into the cache; entering it gives the cache."""
        return _Asking(self)

    # Interest.

    def want(self, interests: Mapping[Interest, Registered]) -> None:
        """Interests are registered, or are about to be; under the lock."""
        self.interests.update(interests)
        self._expressions.update({each: key_expression(each.text) for each in interests if each.kind == EXPRESSION})

    def registered(self, interests: Iterable[Interest], position: int) -> None:
        """The engine has registered interests, behind an event; what is read from now on has all until there."""
        with self.lock:
            for each in interests:
                if each in self.interests:
                    self.interests[each] = self.interests[each]._replace(after=position)

    def end(self, interests: Iterable[Interest]) -> None:
        """Interests are no more: what no other one covers is not known any more; under the lock."""
        may_cover = False
        for each in interests:
            if self._before is not None:
                self._before.pop(each, None)
            may_cover = (self.interests.pop(each, None) is not None and each.kind in _COVERING) or may_cover
            self._expressions.pop(each, None)
        if may_cover:
            for key in self.cache.known():
                if not self.covers(key):
                    self.cache.drop(key)

    def fill(self, interests: Sequence[Interest], policy: ResultPolicy) -> None:
        """Read what interests cover into the cache; again, where another one has taken its place meanwhile.

        Args:
            interests: which.
            policy: whether keys or values are read, or nothing.
        """
        while policy is not ResultPolicy.NONE:
            with self.asking() as cache:
                self._fill(cache, interests, policy)
            if cache is self.cache:
                return

    def _fill(self, cache: RegionCache, interests: Sequence[Interest], policy: ResultPolicy) -> None:
        values = policy is ResultPolicy.KEYS_VALUES
        keys = [each.text for each in interests if each.kind == KEY]
        sources = [self.read(keys, values=values)] if keys else []
        if any(each.kind == ALL_KEYS for each in interests):
            sources = [self.read(values=values)]
        else:
            expressions = [each.text for each in interests if each.kind == EXPRESSION]
            sources += [self.read(values=values, expression=each) for each in expressions]
        for source in sources:
            for key, version, state, message in source:
                self.add_result(cache, key, version, state, message)
        if any(each.kind == ALL_KEYS for each in interests):
            cache.is_whole = True

    def lost(self) -> None:
        """The link for events is lost: what is queued from now on is for durable interests that the engine has."""
        with self.lock:
            if self._before is None:  # else all that was missed by the loss before is still to be read
                self._before = {each: how.durable and how.after < sys.maxsize for each, how in self.interests.items()}

    def restored(self) -> None:
        """All is registered again, and what was missed is read."""
        with self.lock:
            self._before = None

    def kept(self) -> frozenset[Interest]:
        """The interests by which no event was missed since the link was lost."""
        with self.lock:
            before = self._before or {}
            return frozenset([each for each, how in self.interests.items() if how.durable and before.get(each)])

    def refresh(self, kept: Collection[Interest] = ()) -> None:
        """Events may have been missed: nothing is known any more but what is read now.

        Args:
            kept: interests by which no event was missed: what they cover stays known.
        """
        with self.lock:
            registered = {each: how for each, how in self.interests.items() if each not in kept}
            before, touched, through = self.cache, self._touched, self._through
            self._start_over()
            if kept:
                self.cache.is_whole = before.is_whole and Interest(ALL_KEYS, "") in kept
                self._touched = {key: None for key in touched if self._is_covered(key, kept)}
                self._through = through
                for key in before.known():
                    if self._is_covered(key, kept):
                        self.cache.take(key, before)
            for query in self.created.values():  # the results of one that was executed since the loss are of now
                if query.interest not in kept and (self._before is None or query.interest in self._before):
                    query._drop_results()
        for policy in (ResultPolicy.KEYS, ResultPolicy.KEYS_VALUES):
            self.fill([each for each, how in registered.items() if how.policy is policy], policy)

    def _start_over(self) -> None:
        """Under the lock: nothing is known any more."""
        self.cache = RegionCache()
        self._touched = {}
        self._through = 0

    # Events, in the thread for events.

    def process(self, delivery: EventDelivery, *, is_live: bool) -> None:
        """An event has come, which is told to the listeners and, if it is live, to the cache.

        Args:
            delivery: the event.
            is_live: whether the marker has come before it.
        """
        operation, key, position = RegionOperation(delivery.operation), delivery.key, delivery.position
        has_value = operation in (RegionOperation.CREATE, RegionOperation.UPDATE)
        message = None
        with self.lock:
            matched = [Interest(*each) for each in delivery.interests]
            known = [self.interests[each] for each in matched if each in self.interests]
            covering = [self.interests[each] for each in matched if each.kind != SELECTOR and each in self.interests]
            receives = not known or any(each.receives_values for each in known)
            listeners = self.listeners
            queries = [(self.queries[name], operation) for name, operation in delivery.queries if name in self.queries]
            not_told = [name for name, _ in delivery.queries if name not in self.queries] if delivery.is_history else ()
        for query in not_told:
            if query not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
                self._unknown.add(query)
                log.warning(
                    "! region %r: what was queued for durable query %r reaches no listener: it does not run here;"
                    " create and execute durable queries, and add their listeners, before ready_for_events()",
                    *(self.name, query),
                )
        if has_value and (receives or queries):
            try:
                message = message_of(delivery.envelope, 0)
            except MessageFormatException as error:
                log.error("! the value of key %r of region %r cannot be read: %s", key, self.name, error)
        with self.lock:
            found = self.cache.get(key)
            old = self.cache.value_before(key, position)
            # Else what was read behind a registration would know of the key, unless it was destroyed by then.
            keeps = bool(covering) and (found is not None or any(position > each.after for each in covering))
            if is_live and keeps:
                is_kept = message is not None and receives
                state = KeyState.VALID if is_kept else KeyState.UNREAD
                self.cache.apply(key, operation, position, message if is_kept else None, state)
            elif keeps and (found is None or found.version < position):
                self._touched[key] = None
            self._through = position
        event = RegionEvent(self.name, key, operation, position, delivery.is_history, message, old)
        for tell, of_query in queries:
            tell(attrs.evolve(event, query_operation=RegionOperation(of_query)))
        if not matched:
            return  # it is only for queries
        if has_value and not receives:
            event = attrs.evolve(event, operation=RegionOperation.INVALIDATE, message=None)
        for listener in listeners:
            self._tell(listener, _METHODS[event.operation], event)

    def catch_up(self) -> None:
        """The marker has come: keys of which history is newer than the cache are read again.

        Raises:
            ConnectionLostException: the keys could not be read; this may be called again.
        """
        with self.lock:
            touched, self._touched = self._touched, {}
            policies = {how.policy for how in self.interests.values()}
            values = ResultPolicy.KEYS_VALUES in policies
            keys = [key for key in touched if self.cache.get(key) is not None or policies - {ResultPolicy.NONE}]
        try:
            self._read_again(keys, values=values)
        except ConnectionLostException:
            with self.lock:
                self._touched = {**touched, **self._touched}
            raise
        except JMSException as error:
            self._drop(keys, error)

    def tell_live(self) -> None:
        """The marker has come: tell the listeners."""
        for listener in self.listeners:
            self._tell(listener, "after_region_live", self.name)

    def link_lost(self) -> None:
        """The link for events is lost: the server sends no events of this region any more."""
        with self.lock:
            self.interests.clear()
            self._expressions.clear()
            self.queries.clear()
            self._before = None
            self._start_over()

    def _read_again(self, keys: Sequence[str], *, values: bool) -> None:
        if not keys:
            return
        with self.asking() as cache:
            gone, positions = dict.fromkeys(keys), list[int]()
            for key, version, state, message in self.read(keys, values=values, positions=positions):
                del gone[key]
                self.add_result(cache, key, version, state, message)
            with self.lock:
                for key in gone:  # marked, since events that are on their way may be older
                    cache.change(key, RegionOperation.DESTROY, min(positions))

    def _drop(self, keys: Iterable[str], error: JMSException) -> None:
        """Keys have changed, and cannot be read."""
        log.error("! region %r: keys that have changed cannot be read: %s; they leave the cache", self.name, error)
        with self.lock:
            self.cache.is_whole = False
            for key in keys:
                self.cache.drop(key)

    def _tell(self, listener: RegionListener, method: str, argument: object) -> None:
        try:
            getattr(listener, method)(argument)
        except BaseException:  # whatever it is, it is the application's; the thread for events must go on
            log.exception("! a listener of region %r raised in %s", self.name, method)


_METHODS: Final = {
    RegionOperation.CREATE: "after_create",
    RegionOperation.UPDATE: "after_update",
    RegionOperation.INVALIDATE: "after_invalidate",
    RegionOperation.DESTROY: "after_destroy",
}


class _Asking:
    """While the server is asked for what comes into the cache, what is destroyed stays marked there."""

    def __init__(self, state: RegionState) -> None:
        self._state = state
        self._cache = state.cache

    def __enter__(self) -> RegionCache:
        with self._state.lock:
            self._cache.begin_request()
        return self._cache

    def __exit__(self, *_: object) -> None:
        with self._state.lock:
            self._cache.end_request(self._state._through)


def cached_value(found: CachedKey | None) -> Message | None:
    """The value that the cache has of a key."""
    return None if found is None or found.state is not KeyState.VALID else found.message


def _message(form: int, payload: bytes) -> Message:
    envelope = decode_payload(payload) if form == 0 else unpack(payload)
    return message_of(envelope, 0)
