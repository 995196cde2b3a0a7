"""Drains, and what waits for their answers before it ends: links and sessions of a client's connection; no I/O.

To a broker that is not ours, what comes after a link's end means nothing, or harm: Artemis answers a drain whose link
has ended on a channel that there is not, which ends the connection.  So there a link is detached once its deliveries
are settled and its drain is answered, and a session is ended once the drains of its links are answered.
"""

from __future__ import annotations

from typing import Final

from broker_adapter.amqp.client.callbacks import Done, ignore
from broker_adapter.amqp.client.links import Link, LinkTable
from broker_adapter.amqp.client.sessions import Sessions
from broker_adapter.amqp.client.subscriptions import Subscriptions
from broker_adapter.amqp.events import LinkRemoteClose
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.errors import JMSException
from broker_adapter.transport import Subscription

#: How long another broker may take to answer a drain before its link or session is ended all the same.
_MAX_ANSWER_MS: Final = 2000


class Drains:
    """The drains that a broker has not answered yet.

    Attributes:
        leaving: the links that wait for their last settlement, or for the answer to their drain.
        now_ms: the time of the last tick, on a clock that never goes back.
    """

    def __init__(self, peer: Peer, sessions: Sessions) -> None:
        self.leaving: dict[int, LeavingLink] = {}
        self.now_ms = 0
        self._peer = peer
        self._sessions = sessions
        self._asked_ms: dict[int, int] = {}  # link → when it was asked for a drain whose answer counts
        self._ending: dict[int, tuple[set[int], Done]] = {}  # the peer's session → the drains that it waits for

    def ask(self, link: int, *, is_awaited: bool) -> bool:
        """Ask for a drain.

        Args:
            link: the link's number.
            is_awaited: whether the link, and its session, may end only after the answer.

        Returns:
            whether there is an answer to wait for.
        """
        asked = self._peer.drain(link)
        if asked and is_awaited:
            self._asked_ms.setdefault(link, self.now_ms)
        return asked

    def is_awaited(self, link: int) -> bool:
        """Return whether a link, or its session, may end only after the answer to a drain."""
        return link in self._asked_ms

    def end_overdue(self) -> None:
        """Wait no more for answers that have not come in time."""
        now_ms = self.now_ms
        for link in [link for link, asked_ms in self._asked_ms.items() if now_ms - asked_ms >= _MAX_ANSWER_MS]:
            self.over(link)

    def over(self, link: int) -> None:
        """A drain was answered, or never will be: what was to end after it ends."""
        if self._asked_ms.pop(link, None) is None:
            return
        self.leave()
        for session, (links, done) in list(self._ending.items()):
            links.discard(link)
            if not links:
                del self._ending[session]
                self._sessions.end(session, done)

    def stop_waiting(self, link: int) -> None:
        """The session of a link has ended: a drain of it is not answered any more, and nothing waits for it."""
        self._asked_ms.pop(link, None)

    def link_closed(self, link: int) -> None:
        """The broker has closed a link: a drain of it is not answered any more."""
        self.leaving.pop(link, None)
        self.over(link)

    def leave(self) -> None:
        """Detach the links that waited for their last settlement, or for the answer to their drain."""
        for number, link in list(self.leaving.items()):
            if number not in self._asked_ms and not self._peer.unsettled(number):
                del self.leaving[number]
                link.leave()

    def end_session(self, session: int, links: set[int], done: Done) -> None:
        """End a session of the peer once the drains of these links are answered; done when that is answered."""
        if links:
            self._ending[session] = links, done
        else:
            self._sessions.end(session, done)

    def session_closed(self, session: int) -> Done | None:
        """The broker has ended a session of the peer.

        Returns:
            what to tell, where the session was waiting for drains.
        """
        if session not in self._ending:
            return None
        links, done = self._ending.pop(session)
        for link in links:
            self._asked_ms.pop(link, None)
        return done

    def lost(self, error: JMSException) -> None:
        """The connection is gone, and with it the answers."""
        ending, self._ending = self._ending, {}
        self.leaving.clear()
        self._asked_ms.clear()
        for _, done in ending.values():
            done(None, error)


class LeavingLink(Link):
    """A consumer's link that the application has closed, until it may be detached."""

    def __init__(
        self,
        table: LinkTable,
        number: int,
        session: int,
        drains: Drains,
        subscriptions: Subscriptions,
        subscription: Subscription | None,
        done: Done | None,
    ) -> None:
        """A link that is put into the table in place of a consumer's.

        Args:
            table: the connection's.
            number: the peer's number of the link.
            session: the number of its session, of the port.
            drains: tells when it may be detached.
            subscriptions: where its subscription, if any, is removed when it is detached.
            subscription: the one that it uses.
            done: called when it is detached; None where no caller waits for that.
        """
        super().__init__(table, number, session)
        self._drains = drains
        self._subscriptions = subscriptions
        self._subscription = subscription
        self._done = done
        table.by_number[number] = self
        drains.leaving[number] = self

    def leave(self) -> None:
        """Detach the link."""
        subscription = self._subscription
        self._subscriptions.remove(subscription, self.number)
        is_durable = subscription is not None and subscription.durable
        self._table.close(self, self._done or ignore, closed=not is_durable)

    def on_close(self, event: LinkRemoteClose) -> None:
        self._peer.close_link(self.number, closed=event.closed)
        self._has_left()

    def session_ended(self, error: JMSException) -> None:
        del self._drains.leaving[self.number]
        self._has_left()

    def lost(self, error: JMSException) -> None:
        if self._done is not None:
            self._done(None, error)

    def _has_left(self) -> None:
        self._leave_table()
        self._subscriptions.remove(self._subscription, self.number)
        if self._done is not None:
            self._done(None, None)
