"""Which links of a client are attached, session by session."""

from __future__ import annotations

from typing import Any

from broker_adapter.amqp.conditions import error_for
from broker_adapter.amqp.events import LinkRemoteOpen
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.errors import JMSException
from broker_adapter.server.links.client import Client


class Links:
    """The sessions of one connection, and the links in them.

    Args:
        peer: the connection's AMQP.
        client: the client of the connection.
    """

    def __init__(self, peer: Peer, client: Client) -> None:
        self._peer = peer
        self._client = client
        self._sessions: dict[int, set[int]] = {}

    def __len__(self) -> int:
        """Return how many links are attached."""
        return sum(map(len, self._sessions.values()))

    def __repr__(self) -> str:
        return f"<Links sessions={len(self._sessions)} links={len(self)}>"

    def begin(self, session: int) -> None:
        """The client began a session."""
        self._sessions[session] = set()

    def end(self, session: int) -> set[int]:
        """The client ended a session; returns the links that were attached in it."""
        return self._sessions.pop(session, set())

    def add(self, event: LinkRemoteOpen) -> bool:
        """The client attached a link; returns whether the link is still there."""
        self._sessions.setdefault(event.session, set()).add(event.link)
        return self._peer.has_link(event.link)

    def remove(self, link: int) -> None:
        """The client detached a link."""
        for links in self._sessions.values():
            links.discard(link)

    def refused(self, event: LinkRemoteOpen, result: Any) -> bool:
        """Refuse a link where the engine did.

        Args:
            event: the attach.
            result: the engine's answer.

        Returns:
            Whether there is nothing more to do for the link: it was refused, or it is gone.
        """
        if self._client.has_ended or not self._is_attached(event):
            return True
        if isinstance(result, JMSException):
            self._peer.refuse_link(event.link, error_for(result))
            return True
        return False

    def _is_attached(self, event: LinkRemoteOpen) -> bool:
        """Return whether the link is still there: neither did the client end it, nor the server because it broke a
        rule.
        """
        return event.link in self._sessions.get(event.session, ()) and self._peer.has_link(event.link)

    def clear(self) -> None:
        """Drop everything."""
        self._sessions.clear()
