"""What a client knows of the keys of a region, and which of several sources says it.

Three sources change the cache at the same time: results of interest registrations, the application's own operations,
and events of the server.  Each says the *version* that it has the key from, which only grows, so the cache never goes
back: what is not newer than what it has is left out.

So the application's operations stand before results of registrations that were read earlier (seed *Durable
Client/Server Event Messaging*, "Application Operations During Interest Registration"):

===================  =================================================================================================
the cache has        a result with a value
===================  =================================================================================================
a valid value        is left out, unless it is newer
no valid value       is put into the cache, unless the value ended after the result was read
destroyed            is left out, unless it is newer; marks are forgotten after the last request that runs
nothing              is put into the cache
===================  =================================================================================================

A key that the server does not have is in no result, and nothing is done for it.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from sdk.messages.message import Message


class RegionOperation(IntEnum):
    """What has happened to a key of a region."""

    CREATE = 0  #: it is there, with a value, and was not
    UPDATE = 1  #: it has another value, or has one again that it had lost by an invalidation
    INVALIDATE = 2  #: it is there, without a value
    DESTROY = 3  #: it is not there any more

    def __str__(self) -> str:
        return self.name.lower()


class KeyState(Enum):
    """What the cache knows of a key."""

    VALID = "valid"  #: its value
    UNREAD = "unread"  #: that it is there; its value was not asked for
    INVALID = "invalid"  #: that it is there and has no value
    DESTROYED = "destroyed"  #: that it is not there


class CachedKey(NamedTuple):
    """A key as it is in the cache."""

    state: KeyState
    version: int  #: from which this is known
    message: Message | None = None  #: with the value, where it is valid


_AFTER: Final = {
    RegionOperation.CREATE: KeyState.VALID,
    RegionOperation.UPDATE: KeyState.VALID,
    RegionOperation.INVALIDATE: KeyState.INVALID,
    RegionOperation.DESTROY: KeyState.DESTROYED,
}


class RegionCache:
    """The keys of one region that a client knows.  For one thread at a time.

    Attributes:
        requests: how many requests run whose answers are still to come into the cache.
        is_whole: whether all keys were read into it: one that it does not have is not there, while all are covered.
    """

    __slots__ = ("_destroyed", "_keys", "_told", "is_whole", "requests")

    def __init__(self) -> None:
        self._keys: dict[str, CachedKey] = {}
        self._destroyed: dict[str, None] = {}  #: those of them that are marked so
        #: what the events have told of keys that the application has changed ahead of its own event
        self._told: dict[str, CachedKey] = {}
        self.requests = 0
        self.is_whole = False

    def __repr__(self) -> str:
        return f"<RegionCache of {len(self)} keys>"

    def __len__(self) -> int:
        """Return how many keys are there."""
        return len(self._keys) - len(self._destroyed)

    def __iter__(self) -> Iterator[str]:
        """The keys that are there."""
        return (key for key in list(self._keys) if key not in self._destroyed)

    def known(self) -> list[str]:
        """The keys of which something is known: those that are there, and those that are marked as destroyed."""
        return list(self._keys)

    def get(self, key: str) -> CachedKey | None:
        """Return what is known of a key; None: nothing."""
        return self._keys.get(key)

    def value_before(self, key: str, version: int) -> Message | None:
        """Return the value that a key had before a version, as far as the cache has it; never that one or a newer."""
        found = self._keys.get(key)
        if found is not None and found.version >= version:
            found = self._told.get(key)
        return None if found is None or found.version >= version else found.message

    # Answers of requests.

    def begin_request(self) -> None:
        """Something is asked of the server; until the answer has come, what is destroyed meanwhile stays marked."""
        self.requests += 1

    def end_request(self, through: int) -> None:
        """The answer has come: after the last one, what is marked as destroyed is forgotten.

        Args:
            through: the position up to which events were processed.  A mark behind it stays until its event comes.
        """
        self.requests -= 1
        if not self.requests:
            for key in [each for each in self._destroyed if self._keys[each].version <= through]:
                self._remove(key)

    # The application's operations, events, and what is read again.

    def change(self, key: str, operation: RegionOperation, version: int, message: Message | None = None) -> None:
        """The application has changed a key.

        Args:
            key: the key.
            operation: what has happened to it.
            version: that it has from then on.
            message: with its value.
        """
        found = self._keys.get(key)
        if self._know(key, CachedKey(_AFTER[operation], version, message)) and found is not None:
            self._told.setdefault(key, found)

    def apply(
        self, key: str, operation: RegionOperation, version: int, message: Message | None, state: KeyState
    ) -> None:
        """An event of the server.

        Args:
            key: the key.
            operation: what has happened to it.
            version: that it has from then on, which is the position of the event.
            message: with its value.
            state: what is known of a key that was created or updated: its value, or that it was not asked for.
        """
        after = _AFTER[operation]
        known = CachedKey(state if after is KeyState.VALID else after, version, message)
        self._know(key, known)
        found = self._keys[key]
        if version >= found.version:
            self._told.pop(key, None)
        elif key in self._told:
            self._told[key] = known
        # Its own event is the last one that could bring back what was destroyed.
        if found.state is KeyState.DESTROYED and found.version <= version and not self.requests:
            self._remove(key)

    def add_result(self, key: str, version: int, state: KeyState, message: Message | None = None) -> bool:
        """Add what was read of the server, for a registration or again; return whether the cache has taken it.

        Args:
            key: the key.
            version: that it had.
            state: valid, unread or invalid.
            message: with the value, where it is valid.
        """
        return self._know(key, CachedKey(state, version, message))

    def take(self, key: str, other: RegionCache) -> None:
        """Know of a key what another cache knows of it, unless this one knows something newer."""
        known = other.get(key)
        if known is not None:
            self._know(key, known)

    def drop(self, key: str) -> None:
        """Nothing is known of a key any more."""
        if key in self._keys:
            self._remove(key)

    def _know(self, key: str, known: CachedKey) -> bool:
        found = self._keys.get(key)
        if found is not None and known.version <= found.version:
            is_more = found.state is KeyState.UNREAD and known.version == found.version
            if not is_more:
                return False
        self._keys[key] = known
        if known.state is KeyState.DESTROYED:
            self._destroyed[key] = None
        else:
            self._destroyed.pop(key, None)
        return True

    def _remove(self, key: str) -> None:
        del self._keys[key]
        self._destroyed.pop(key, None)
        self._told.pop(key, None)
