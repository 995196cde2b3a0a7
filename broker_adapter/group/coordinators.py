"""Where the record of a group is kept: the port, and a coordinator in memory.

A coordinator keeps one value and swaps it for another, if it is still the one that was read.  That is all that a group
needs of one.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

#: What ``read`` says of a version of the value, and ``swap`` compares; 0: there is no value yet.
Token = int


class Found(NamedTuple):
    """What a coordinator has."""

    token: Token
    data: bytes  #: empty: nothing


class Coordinator(Protocol):
    """The port.  Calls block, for at most the time-out that the coordinator was made with."""

    def read(self) -> Found:
        """Return the value.

        Raises:
            JMSException: the coordinator has not answered, or refuses; it says why.
        """

    def swap(self, token: Token, data: bytes) -> Token | None:
        """Replace the value, if it is the one of this token.

        Args:
            token: of what is to be replaced; 0: there must be nothing.
            data: what is to be there.

        Returns:
            The token of what is there now; None: it was another one, or this call has been carried out already and was
            repeated underway.  Only reading again tells.

        Raises:
            JMSException: there was no answer; the swap may have been carried out, or may still be.
        """

    def close(self) -> None:
        """End its connections."""


class MemoryCoordinator:
    """A coordinator for nodes of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found = Found(0, b"")

    def read(self) -> Found:
        """As the port."""
        return self._found

    def swap(self, token: Token, data: bytes) -> Token | None:
        """As the port."""
        with self._lock:
            if token != self._found.token:
                return None
            self._found = Found(token + 1, data)
            return token + 1

    def close(self) -> None:
        """Do nothing: the value stays."""
