"""The tokens of connections: a client that reconnects takes the place of its old connection.  Pure."""

from __future__ import annotations

import logging
from typing import Protocol

_log = logging.getLogger(f"holdfast.{__name__}")

#: The user, and the token that the client chose.
Token = tuple[str | None, str]


class Replaceable(Protocol):
    """A connection with a token."""

    name: str
    token: Token | None

    def end(self) -> None:
        """Give back what the client had, at once, and drop the connection."""


class ConnectionTokens:
    """Which connection has which token, for a client that reconnects before its old connection has ended."""

    def __init__(self) -> None:
        self._connections: dict[Token, Replaceable] = {}

    def __len__(self) -> int:
        """Return how many connections have one."""
        return len(self._connections)

    def __repr__(self) -> str:
        return f"<ConnectionTokens {len(self)}>"

    def take_over(self, connection: Replaceable, token: Token) -> None:
        """A client has reconnected, having lost the connection; the server may not have noticed that yet."""
        old = self._connections.pop(token, None)
        if old is not None and old is not connection:
            _log.info("%s takes the place of %s", connection.name, old.name)
            old.end()
        self._connections[token] = connection
        connection.token = token

    def gone(self, connection: Replaceable) -> None:
        """A connection has ended."""
        if connection.token is not None and self._connections.get(connection.token) is connection:
            del self._connections[connection.token]
