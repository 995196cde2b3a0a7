"""The subscriptions that the consumers of a client's connection use, and the link names by which brokers know them.

Pure.
"""

from __future__ import annotations

from typing import Final

from broker_adapter.amqp.events import Terminus
from broker_adapter.transport import Subscription

#: Subscriptions of a connection whose sources are remembered, so that they can be deleted; the oldest is removed.
MAX_SOURCES: Final = 1000

#: A name, and whether the subscription is durable: one that is and one that is not may have the same name.
_Key = tuple[str, bool]


class Subscriptions:
    """Which links use which subscription."""

    def __init__(self, *, has_client_id: bool) -> None:
        """No subscriptions.

        Args:
            has_client_id: whether the application chose a client id, which is a part of a subscription's name.
        """
        self._has_client_id = has_client_id
        self._used: dict[_Key, tuple[Subscription, list[int]]] = {}  # with their links
        self._counts: dict[_Key, int] = {}  # how many links a subscription had since it had none
        self._sources: dict[str, Terminus] = {}  # where a durable one was last consumed from

    def used(self, name: str) -> Subscription | None:
        """The durable subscription of this name, if a consumer of this connection uses it."""
        found = self._used.get((name, True))
        return None if found is None else found[0]

    def link_name(self, subscription: Subscription) -> str:
        """The name of one more link of a subscription (the convention of the reference client)."""
        # Numbers are used again only when no link is left: the others still have their names.
        name, key = subscription.name, _key(subscription)
        number = self._counts.get(key, 0) + 1
        self._counts[key] = number
        if not subscription.shared:
            return name
        suffix = "" if self._has_client_id else "global"
        if not subscription.durable:
            suffix = f"{suffix}-volatile{number}" if suffix else f"volatile{number}"
        elif number > 1:
            suffix = f"{suffix}{number}"
        return f"{name}|{suffix}" if suffix else name

    def durable_link_name(self, name: str) -> str:
        """The name of the link by which a durable subscription is deleted."""
        return name if self._has_client_id else f"{name}|global"

    def add(self, subscription: Subscription, link: int, source: Terminus) -> None:
        """A link uses a subscription."""
        name = subscription.name
        self._used.setdefault(_key(subscription), (subscription, []))[1].append(link)
        if subscription.durable:
            self._sources.pop(name, None)
            self._sources[name] = source
            if len(self._sources) > MAX_SOURCES:
                del self._sources[next(iter(self._sources))]

    def remove(self, subscription: Subscription | None, link: int) -> None:
        """A link does not use its subscription any more, if it has one."""
        if subscription is not None:
            key = _key(subscription)
            _, links = self._used.get(key, (subscription, []))
            if link in links:
                links.remove(link)
            if not links:
                self._used.pop(key, None)
                self._counts.pop(key, None)

    def source(self, name: str) -> Terminus | None:
        """Return where a durable subscription was last consumed from, so far as this is remembered."""
        return self._sources.get(name)

    def remove_source(self, name: str) -> None:
        """Remove what :meth:`source` returns: the subscription is deleted."""
        self._sources.pop(name, None)


def _key(subscription: Subscription) -> _Key:
    return subscription.name, subscription.durable
