"""Regions: keyed destinations whose last values the engine keeps, with a cache of them in the client."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from broker_adapter import (
    BodyKind,
    Envelope,
    Identity,
    IllegalStateException,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
    checked_interest,
    pack,
    parse_selector,
    topic,
    without_reserved,
)
from sdk.messages.envelopes import envelope_of, message_of, wrapped
from sdk.messages.message import DeliveryMode, Message
from sdk.regions.cache import KeyState
from sdk.regions.events import GIVE_CLIENT_ID, ClientEvents
from sdk.regions.listener import RegionListener, ResultPolicy
from sdk.regions.query import ContinuousQuery
from sdk.regions.state import (
    ALL_KEYS,
    DESTROY,
    EXPRESSION,
    INVALIDATE,
    KEY,
    KEYS_AT_ONCE,
    PUT,
    QUERY,
    SELECTOR,
    Interest,
    RegionState,
    Registered,
    cached_value,
)

#: Bytes of messages that are put with one request.
_BYTES_AT_ONCE = 1024 * 1024
#: Policies of interest that read into the cache which keys there are.
_FILLING = (ResultPolicy.KEYS, ResultPolicy.KEYS_VALUES)

Value = Message | str | bytes | dict[str, Any] | list[Any]


class Region:
    """A region, as one connection sees it.  Made by ``session.create_region``.

    The engine keeps the last value of each key, durably.  What happens to a key is an event: this client gets those
    that it has registered interest in, and each subscriber of the topic of the region's name gets them as messages.

    Reads are answered from the connection's cache where that has what the region has, which it is told of for all keys
    that an interest covers; else the engine is asked.  All regions of a connection with one name share a cache.  For
    any number of threads; a region works as long as its connection, also where the session is closed that made it.
    What a transacted session makes is told at ``session.create_region``.
    """

    # A misspelt attribute is an error.
    __slots__ = ("__weakref__", "_connection", "_events", "_identity", "_sequences", "_state")

    def __init__(self, connection: object, events: ClientEvents, state: RegionState, identity: Identity) -> None:
        """Made by the session.

        Args:
            connection: is kept as long as this.
            events: of the connection.
            state: what the connection knows of the region.
            identity: of a new producer.
        """
        self._connection = connection
        self._events = events
        self._state = state
        self._identity = identity
        self._sequences = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Region {self._state.name!r}>"

    @property
    def name(self) -> str:
        """Its name, which is also that of the topic on which others get its events."""
        return self._state.name

    # Changing keys.

    def put(self, key: str, value: Value, *, properties: Mapping[str, Any] | None = None) -> int:
        """Give a key a value; on disk when this returns, or with the commit of a transacted session.

        Args:
            key: 1 to 400 bytes of UTF-8.
            value: a str, bytes, dict or list, or a message that carries one.
            properties: of the message, for selectors.

        Returns:
            The version that the key has from now on; each change of a region has a greater one than those before it.
            Where the connection was lost and the server started again before the answer, and somebody else has changed
            the key in between, it is the version that the key has by then.  0 in a transacted session.

        Raises:
            UnconnectedException: the connection is being restored, and the session is not transacted.
            InvalidDestinationException: the key cannot be one.
            TypeError: the key is no string, or ``properties`` no mapping.
            MessageFormatException: the value cannot be carried, or is larger than the limit.
            ResourceAllocationException: a limit of the engine, or ``require_redundancy`` refuses it now.
            OperationTimedOutException: no answer within ``request_timeout_seconds``; it may have been done.
        """
        (version,) = self._put([(key, value)], properties)
        return version

    def put_all(self, values: Mapping[str, Value]) -> dict[str, int]:
        """Give several keys their values, in this order; much faster than one by one.

        Not as a whole, but in a transacted session.

        Args:
            values: by key.

        Returns:
            The version of each key.

        Raises:
            JMSException: as ``put``; some may have been done, the first ones first.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"put_all() takes a dict, or another mapping, of keys to values, not {values!r:.100}")
        return dict(zip(values, self._put(list(values.items()), None), strict=True))

    def _put(self, values: list[tuple[str, Value]], properties: Mapping[str, Any] | None) -> list[int]:
        if properties is not None and not isinstance(properties, Mapping):
            raise TypeError(f"properties={properties!r:.100} is not a dict, or another mapping, of names to values")
        versions: list[int] = []
        part: list[tuple[str, int, bytes]] = []
        messages: list[Message] = []
        size = 0
        now_ms = self._events.now_ms
        for number, (key, value) in enumerate(values, 1):
            if value is None:
                raise MessageFormatException(
                    f"the value of key {key!r:.100} cannot be None: call invalidate() to take the value of a key away,"
                    " or destroy() to take the key away"
                )
            message = wrapped(value)
            if properties is not None:
                message.properties.update(properties)
            message.destination = topic(self.name)
            message.delivery_mode = DeliveryMode.PERSISTENT
            message.sent_at_ms = now_ms
            identity = self._next_identity()
            message.message_id = f"ID:{identity.producer_id}:{identity.thread_id}-{identity.sequence}"
            envelope = envelope_of(message, identity, is_own=message is not value)
            envelope = without_reserved(envelope)  # as the engine keeps it, for the cache
            packed = pack(envelope)
            part.append((_checked(key), PUT, packed))
            messages.append(message_of(envelope, 0))
            size += len(packed)
            if len(part) == KEYS_AT_ONCE or size >= _BYTES_AT_ONCE or number == len(values):
                versions += self._change(part, messages)
                part, messages, size = [], [], 0
        return versions

    def destroy(self, key: str) -> bool:
        """Take a key away.

        Returns:
            Whether it was there, in a transacted session as that reads it now, which holds nothing where it was not.
            False as well where it was done, the connection was lost and the server started again before the answer, and
            somebody else has changed the key in between.

        Raises:
            JMSException: as ``put``.
            UnconnectedException: in a transacted session as ``get``.
        """
        return self._take(key, DESTROY)

    def invalidate(self, key: str) -> bool:
        """Take the value of a key away, and keep the key.

        Returns:
            Whether it had one; False as well as ``destroy`` returns it.

        Raises:
            JMSException: as ``put``.
        """
        return self._take(key, INVALIDATE)

    def __setitem__(self, key: str, value: Value) -> None:
        """Give a key a value, as ``put`` does."""
        self.put(key, value)

    def __delitem__(self, key: str) -> None:
        """Take a key away, as ``destroy`` does.

        Raises:
            KeyError: the region does not have the key.
            JMSException: as ``put``.
        """
        if not self.destroy(key):
            raise KeyError(key)

    def _take(self, key: str, change: int) -> bool:
        destination = topic(self.name)
        packed = pack(Envelope(destination, BodyKind.NONE, None, identity=self._next_identity()))
        (answer,) = self._ask_for([(_checked(key), change, packed)], [None])
        return answer[0] is not None

    def _change(self, part: list[tuple[str, int, bytes]], messages: list[Message]) -> list[int]:
        return [version for _, version in self._ask_for(part, messages)]

    def _ask_for(self, part: list[tuple[str, int, bytes]], messages: Any) -> Any:
        with self._state.asking() as cache:
            answers = self._events.change(self.name, part)
            for (key, _, _), message, (operation, version) in zip(part, messages, answers, strict=True):
                self._state.changed(cache, key, operation, version, message)
        return answers

    def _next_identity(self) -> Identity:
        producer_id, thread_id, _ = self._identity
        return Identity(producer_id, thread_id, next(self._sequences))

    # Reading.

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, as it was put.

        Args:
            key: the key.
            default: what is returned where the key is not there, or has no value.

        Raises:
            UnconnectedException: the connection is being restored, and the cache does not have the key; with interest
                in all keys it is not there then, and None is returned.
            InvalidDestinationException: the key cannot be one.
            TypeError: the key is no string.
            JMSException: as requests.
        """
        message = self.get_message(key)
        return default if message is None else message.body

    def get_message(self, key: str) -> Message | None:
        """The message that carries the value of a key, with its properties; None where there is no value.

        Raises:
            JMSException: as ``get``.
        """
        return self._known([_checked(key)]).get(key)

    def __getitem__(self, key: str) -> Any:
        """The value of a key, as ``get`` returns it; None where the key has no value.

        Raises:
            KeyError: the region does not have the key.
            JMSException: as ``get``.
        """
        message = self._known([_checked(key)])[key]
        return None if message is None else message.body

    def get_all(self, keys: str | Iterable[str] | None = None) -> dict[str, Any]:
        """The values of several keys, by key; keys without one are left out.

        Args:
            keys: a key, or several; None: all that the region has, which the cache answers while the connection is
                being restored, if it has them: by interest in all keys with their values.

        Raises:
            JMSException: as ``get``.
        """
        if keys is not None:
            known = self._known(_several(keys))
            return {key: each.body for key, each in known.items() if each is not None}
        return {key: each.body for key, each in self._all() if each is not None}

    def _all(self) -> Iterable[tuple[str, Message | None]]:
        """All keys with their values."""
        self._events.require_usable()
        state = self._state
        with state.lock:
            answers = self._answers_for_all(ResultPolicy.KEYS_VALUES)
            cached = {key: state.cache.get(key) for key in state.cache} if answers else {}
        if answers and not any(known is not None and known.state is KeyState.UNREAD for known in cached.values()):
            return [(key, cached_value(known)) for key, known in cached.items()]
        self._require_connected("all keys and values")
        return ((key, each) for key, _, _, each in self._state.read())

    def _known(self, keys: list[str]) -> dict[str, Message | None]:
        """The keys of these that the region has, with their values."""
        self._events.require_usable()
        state = self._state
        found: dict[str, Message | None] = {}
        unknown: list[str] = []
        with state.lock:
            for key in keys:
                known = state.cache.get(key)
                if known is None or known.state is KeyState.UNREAD:
                    unknown.append(key)
                elif known.state is not KeyState.DESTROYED:
                    found[key] = cached_value(known)
            # Else interest may be registered behind the answer, which is not true any more by then.
            kept = {key for key in unknown if state.registered_for(key) < sys.maxsize}
            if unknown and self._answers_for_all(*_FILLING):
                unknown = [key for key in unknown if state.cache.get(key) is not None]  # the others are not there
        if unknown:
            self._require_connected(repr(unknown[0]))
            with state.asking() as cache:
                for key, version, known_as, message in state.read(unknown):
                    found[key] = message
                    if key in kept:
                        state.add_result(cache, key, version, known_as, message)
        return found

    def keys(self) -> list[str]:
        """The keys that the region has, in the order of their bytes in UTF-8.

        While the connection is being restored, the cache answers, if it has them: by interest in all keys.

        Raises:
            UnconnectedException: the cache does not have them, and the connection is being restored.
            JMSException: as requests.
        """
        return self._names()

    def _names(self) -> list[str]:
        self._events.require_usable()
        with self._state.lock:
            if self._answers_for_all(*_FILLING):
                return sorted(self._state.cache, key=str.encode)
        self._require_connected("all keys")
        return [key for key, _, _, _ in self._state.read(values=False)]

    def _answers_for_all(self, *policies: ResultPolicy) -> bool:
        """Return whether the connection is away and the cache has all keys by one of these policies; under lock."""
        how = self._state.interests.get(Interest(ALL_KEYS, ""))
        has_all = how is not None and how.policy in policies and self._state.cache.is_whole
        return has_all and self._events.is_interrupted

    def _require_connected(self, what: str) -> None:
        """Raise UnconnectedException while the engine cannot be asked for what the cache does not have."""
        self._events.require_connected(f"the cache of region {self.name!r} does not have {what}")

    def __contains__(self, key: str) -> bool:
        """Return whether the region has a key, with or without a value."""
        return self._has(_checked(key))

    def _has(self, key: str) -> bool:
        self._events.require_usable()
        state = self._state
        with state.lock:
            known = state.cache.get(key)
            if known is not None or self._answers_for_all(*_FILLING):
                return known is not None and known.state is not KeyState.DESTROYED
        self._require_connected(repr(key))
        return any(True for _ in state.read([key], values=False))

    def __iter__(self) -> Iterator[str]:
        """The keys, as ``keys`` returns them."""
        return iter(self.keys())

    # Interest.

    def register_interest(
        self,
        keys: str | Iterable[str] | None = None,
        *,
        regex: str | None = None,
        all_keys: bool = False,
        selector: str | None = None,
        durable: bool = False,
        result_policy: ResultPolicy = ResultPolicy.KEYS_VALUES,
        receive_values: bool = True,
    ) -> None:
        """Have this client told what becomes of keys, and its cache hold them.

        Every change is in what is read into the cache by this, or comes as an event, or both; what comes as both is
        known by its version.  Listeners are not told of what is read.  One of the first four says what is wanted; what
        was registered before stays.

        Args:
            keys: a key, or several.
            regex: keys that match this regular expression (RE2) as a whole.
            all_keys: every key.
            selector: events whose message matches this selector, which may name ``key``, headers, properties, and the
                fields of a dict.  It chooses events, not keys: they are told to listeners and change no cache.
            durable: whether the engine queues the events while this client is away; needs a client id.
            result_policy: what is read into the cache at once.
            receive_values: False: an event with a value is told without it, as ``after_invalidate``.

        Raises:
            ValueError: not exactly one of the first four is given.
            TypeError: an argument has another type.
            IllegalStateException: ``durable`` without a durable client.
            InvalidDestinationException: a key or the expression cannot be one.
            InvalidSelectorException: the selector cannot be parsed.
            InvalidClientIDException: another connection is this durable client.
            ResourceAllocationException: more interests than the engine allows.
            JMSException: as requests.
        """
        if not isinstance(result_policy, ResultPolicy):
            raise TypeError(f"result_policy={result_policy!r} is not a ResultPolicy, such as ResultPolicy.KEYS")
        _require_flags(all_keys=all_keys, durable=durable, receive_values=receive_values)
        interests = _interests(keys, regex, selector, all_keys=all_keys)
        events, state = self._events, self._state
        if durable and not events.is_durable:
            raise IllegalStateException(f"durable interest needs a durable client: {GIVE_CLIENT_ID}")
        events.attach()
        how = Registered(durable, result_policy, receive_values)
        before: dict[Interest, Registered] = {}
        taken: list[Interest] = []
        with state.asking():
            try:
                with state.registering:
                    with state.lock:  # ahead: the first event may come before the answer
                        before = {each: state.interests[each] for each in interests if each in state.interests}
                        state.want(dict.fromkeys(interests, how))
                    position = events.register(self.name, interests, durable=durable, taken=taken)
                    state.registered(interests, position)
                state.fill(interests, result_policy)
            except BaseException as error:
                new = [each for each in interests if each not in before]
                with state.registering:
                    with state.lock:
                        state.want(before)
                        state.end(new)
                    # What the engine has refused is not ended: an earlier connection may have registered it.
                    taken = [each for each in taken if each not in before]
                    if isinstance(error, JMSException) and taken:
                        with suppress(JMSException):
                            events.unregister(self.name, taken)
                raise

    def unregister_interest(
        self,
        keys: str | Iterable[str] | None = None,
        *,
        regex: str | None = None,
        all_keys: bool = False,
        selector: str | None = None,
        keep_alive: bool = False,
    ) -> None:
        """End an interest; what was queued by then is still told.  What no other one covers leaves the cache.

        One that is not registered is ignored, as a listener that was not added is: an earlier connection of a durable
        client may have registered it, and the arguments have to be as they were then.  ``interests`` shows what this
        connection has registered.

        Args:
            keys, regex, all_keys, selector: as it was registered.
            keep_alive: whether the engine goes on queueing events of a durable interest for the next connection of this
                client; they are told to this one as well, and change no cache.

        Raises:
            ValueError: not exactly one of the first four is given.
            TypeError: an argument has another type.
            JMSException: as requests.
        """
        _require_flags(all_keys=all_keys, keep_alive=keep_alive)
        interests = _interests(keys, regex, selector, all_keys=all_keys)
        state = self._state
        with state.registering:
            with state.lock:
                here = {each: state.interests[each] for each in interests if each in state.interests}
            # What was not registered here is durable, if there is such interest: an earlier connection registered it.
            ended = [each for each in interests if not keep_alive or (each in here and not here[each].durable)]
            if ended:
                self._events.unregister(self.name, ended)
            with state.lock:
                state.end(interests)

    @property
    def interests(self) -> list[str]:
        """What was registered on this connection, in words."""
        with self._state.lock:
            return [checked_interest(*each).label for each in self._state.interests if each.kind != QUERY]

    # Queries.

    def create_query(self, name: str, selector: str, *, durable: bool = False) -> ContinuousQuery:
        """A continuous query, which is stopped until its ``execute()``.

        Args:
            name: 1 to 100 characters, that no other open query of this connection's region has; nor, as it is executed,
                one of the client's in another region.
            selector: what keys and values have to match; it may name ``key``, headers, properties, and the fields of a
                dict.
            durable: whether the engine queues its events while this client is away; needs a client id.

        Raises:
            InvalidSelectorException: the selector cannot be parsed, or name and selector are in each other's place.
            InvalidDestinationException: the name cannot be one.
            IllegalStateException: there is one of this name, or ``durable`` without a durable client.
            TypeError: an argument has another type.
        """
        _require_strings(name=name, selector=selector)
        _require_flags(durable=durable)
        checked_interest(QUERY, selector, name)
        if _seem_swapped(name, selector):
            raise InvalidSelectorException(
                f"{name!r} is given as the name of a query and {selector!r} as its selector: the name comes first:"
                f" create_query({selector!r}, {name!r})"
            )
        if durable and not self._events.is_durable:
            raise IllegalStateException(f"a durable query needs a durable client: {GIVE_CLIENT_ID}")
        state = self._state
        with state.lock:
            if name in state.created:
                raise IllegalStateException(f"there is a query {name!r}: close it, or give another name")
            made = ContinuousQuery(self._events, state, name, selector, durable=durable)
            state.created[name] = made
        return made

    @property
    def queries(self) -> list[ContinuousQuery]:
        """The queries of this connection's region that are not closed, in the order in which they were created."""
        with self._state.lock:
            return list(self._state.created.values())

    # Listeners.

    def add_listener(self, listener: RegionListener) -> None:
        """Have a listener called with each event of the region that comes to this connection; legal twice."""
        if not isinstance(listener, RegionListener):
            raise TypeError(f"{listener!r} is not a RegionListener: give an instance of a class derived from it")
        state = self._state
        with state.lock:
            if listener not in state.listeners:
                state.listeners = (*state.listeners, listener)

    def remove_listener(self, listener: RegionListener) -> None:
        """Call a listener no more; it may be in a call at this moment.  Unknown ones are ignored."""
        state = self._state
        with state.lock:
            state.listeners = tuple(each for each in state.listeners if each is not listener)


def _checked(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key is a string, not {key!r:.100}")
    return checked_interest(KEY, key).text


def _several(keys: str | Iterable[str]) -> list[str]:
    if not isinstance(keys, Iterable):
        raise TypeError(f"keys={keys!r:.100} is neither a key, which is a string, nor several of them")
    return [_checked(each) for each in ([keys] if isinstance(keys, str) else keys)]


def _require_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r:.100} is neither True nor False")


def _require_strings(**strings: object) -> None:
    for name, value in strings.items():
        if not isinstance(value, str):
            raise TypeError(f"{name}={value!r:.100} is not a string")


def _seem_swapped(name: str, selector: str) -> bool:
    """Return whether a query's selector looks like a name, and its name is a selector that does not look like one."""
    if not selector.isidentifier() or name.isidentifier():
        return False
    try:
        parse_selector(name)
    except InvalidSelectorException:
        return False
    return True


def _interests(
    keys: str | Iterable[str] | None, regex: str | None, selector: str | None, *, all_keys: bool
) -> list[Interest]:
    given = [keys is not None, regex is not None, selector is not None, all_keys]
    if sum(given) != 1:
        raise ValueError("give one of keys, regex, all_keys=True and selector")
    if keys is not None:
        wanted = [(KEY, each) for each in dict.fromkeys(_several(keys))]
        if not wanted:
            raise ValueError("keys has no key; all_keys=True means all")
    elif regex is not None:
        if isinstance(regex, re.Pattern):
            raise TypeError(f"regex={regex!r:.100} is not a string; give its pattern, which is read as RE2")
        _require_strings(regex=regex)
        wanted = [(EXPRESSION, regex)]
    elif selector is not None:
        _require_strings(selector=selector)
        wanted = [(SELECTOR, selector)]
    else:
        wanted = [(ALL_KEYS, "")]
    return [Interest(kind, checked_interest(kind, text).text) for kind, text in wanted]
