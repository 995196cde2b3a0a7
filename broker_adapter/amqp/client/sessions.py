"""The AMQP sessions of a client's connection: one for each session number of the port, and one of our own; no I/O."""

from __future__ import annotations

from typing import Final

from broker_adapter.amqp.client.callbacks import Done
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.errors import JMSException

#: The number of the session that carries temporary destinations, ``unsubscribe`` and requests.
OWN_SESSION: Final = -1


class Sessions:
    """Which session of the peer carries which session of the port, and which of them are ending."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._begun: dict[int, int] = {}  # the port's number → the peer's
        self._ending: dict[int, Done] = {}  # the peer's number → told when the broker has answered

    def of(self, number: int) -> int:
        """The peer's session for a session of the port; begun here where there is none.

        Raises:
            IllegalStateException: there are as many as the limit, ours or the peer's.
        """
        session = self._begun.get(number)
        if session is None:
            session = self._begun[number] = self._peer.begin_session()
        return session

    def take(self, number: int) -> int | None:
        """The peer's session for a session of the port, which ends; None where none was begun."""
        return self._begun.pop(number, None)

    def end(self, session: int, done: Done) -> None:
        """End a session of the peer; done when the broker has answered."""
        self._ending[session] = done
        self._peer.end_session(session)

    def go_round(self, done: Done) -> None:
        """Done when the broker has read all that was sent before: a session of its own has begun and ended."""
        self.end(self._peer.begin_session(), done)

    def answered(self, session: int) -> Done | None:
        """Return what to tell now that the broker has ended a session of the peer; None where we did not end it."""
        return self._ending.pop(session, None)

    def closed(self, session: int) -> int | None:
        """The broker has ended a session of the peer by itself: the port's number; None where it has none any more."""
        number = next((each for each, begun in self._begun.items() if begun == session), None)
        if number is not None:
            del self._begun[number]
        return number

    def lost(self, error: JMSException) -> None:
        """The connection is gone, and its sessions with it."""
        ending, self._ending = self._ending, {}
        self._begun.clear()
        for done in ending.values():
            done(None, error)
