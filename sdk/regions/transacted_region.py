"""Regions of transacted sessions: what they change is held until the commit, and read over what the engine has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_adapter import Identity, RegionChange, unpack
from sdk.messages.envelopes import message_of
from sdk.messages.message import Message
from sdk.regions.events import ClientEvents
from sdk.regions.region import Region
from sdk.regions.state import DESTROY, INVALIDATE, PUT, RegionState
from sdk.session_state import SessionState


class TransactedRegion(Region):
    """A region of a transacted session.  Made by ``session.create_region``, which says what is other here."""

    __slots__ = ("_epoch", "_session")

    def __init__(
        self,
        connection: object,
        events: ClientEvents,
        state: RegionState,
        identity: Identity,
        session: SessionState,
        epoch: int,
    ) -> None:
        """Made by the session.

        Args:
            connection, events, state, identity: see ``Region``.
            session: holds the changes.
            epoch: of the connection by which the region was created.
        """
        super().__init__(connection, events, state, identity)
        self._session = session
        self._epoch = epoch

    def _ask_for(self, part: list[tuple[str, int, bytes]], messages: Any) -> Any:
        return self._session.in_one_call(self._hold, part)

    def _hold(self, part: list[tuple[str, int, bytes]]) -> list[tuple[int | None, int]]:
        """Hold changes; returns what stands for the answer of the engine."""
        session = self._session
        session.lifecycle.require_usable()
        self._events.require_usable()
        if self._epoch != session.epoch and not session.interrupted:
            epoch = session.epoch
            self._events.create(self._state)
            self._epoch = epoch
        ((key, change, _), *_) = part
        if change == DESTROY and not self._has(key):
            return [(None, 0)]
        if change == INVALIDATE and self._known([key]).get(key) is None:
            return [(None, 0)]
        session.hold_changes([RegionChange(self.name, *each) for each in part], self._state.committed)
        return [(each, 0) for _, each, _ in part]

    def _known(self, keys: list[str]) -> dict[str, Message | None]:
        held = self._session.changes.of(self.name)
        found = super()._known([key for key in keys if key not in held])
        found.update((key, _value(held[key])) for key in keys if key in held and held[key].change != DESTROY)
        return found

    def _all(self) -> Iterable[tuple[str, Message | None]]:
        held = dict(self._session.changes.of(self.name))
        found = {key: message for key, message in super()._all() if key not in held}
        found.update((key, _value(each)) for key, each in held.items() if each.change != DESTROY)
        return sorted(found.items(), key=lambda each: each[0].encode())

    def _names(self) -> list[str]:
        held = dict(self._session.changes.of(self.name))
        found = {key for key in super()._names() if key not in held}
        found.update(key for key, each in held.items() if each.change != DESTROY)
        return sorted(found, key=str.encode)

    def _has(self, key: str) -> bool:
        held = self._session.changes.of(self.name).get(key)
        return super()._has(key) if held is None else held.change != DESTROY


def _value(change: RegionChange) -> Message | None:
    """Return the value that a key has by a change."""
    return message_of(unpack(change.payload), 0) if change.change == PUT else None
