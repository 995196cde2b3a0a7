"""The subscriptions that the consumers of a client's connection use, and the link names by which brokers know them.

Pure.
"""

from __future__ import annotations

from typing import Final

from broker_adapter.amqp.events import Terminus
from broker_adapter.transport import Subscription

#: Subscriptions of a connection whose sources are remembered, so that they can be deleted; the oldest is removed.
MAX_SOURCES: Final = 1000


class Subscriptions:
    """Which links use which subscription."""

    def __init__(self, *, has_client_id: bool) -> None:
        """No subscriptions.

        Args:
            has_client_id: whether the application chose a client id, which is a part of a subscription's name.
        """
        self._has_client_id = has_client_id
        self._links: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}  # how many links a subscription had since it had none
        self._sources: dict[str, Terminus] = {}  # where a durable one was last consumed from

    def are_used(self, name: str) -> bool:
        """Whether a consumer of this connection uses this subscription."""
        return name in self._links

    def link_name(self, subscription: Subscription) -> str:
        """The name of one more link of a subscription (the convention of the reference client)."""
        # Numbers are used again only when no link is left: the others still have their names.
        name = subscription.name
        number = self._counts.get(name, 0) + 1
        self._counts[name] = number
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
        self._links.setdefault(name, []).append(link)
        if subscription.durable:
            self._sources.pop(name, None)
            self._sources[name] = source
            if len(self._sources) > MAX_SOURCES:
                del self._sources[next(iter(self._sources))]

    def remove(self, subscription: Subscription | None, link: int) -> None:
        """A link does not use its subscription any more, if it has one."""
        if subscription is not None:
            links = self._links.get(subscription.name, [])
            if link in links:
                links.remove(link)
            if not links:
                self._links.pop(subscription.name, None)
                self._counts.pop(subscription.name, None)

    def source(self, name: str) -> Terminus | None:
        """Where a durable subscription was last consumed from, so far as this is remembered."""
        return self._sources.get(name)

    def remove_source(self, name: str) -> None:
        """Remove what :meth:`source` returns: the subscription is deleted."""
        self._sources.pop(name, None)
