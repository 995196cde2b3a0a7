"""Restores what a connection had: temporary destinations, links, and the sends without an answer.

Theory of operation
    With a new connection, temporary destinations are made again, all links are attached (a hundred at a time cost one
    round trip), and the sends without an answer are repeated.

    A link that the broker closes while the connection lives is attached again by a thread of its own, with the pauses
    of reconnecting.  Where the reason of the broker is a lasting one, the link is gone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from broker_adapter.destination import Destination
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    JMSSecurityException,
    OperationTimedOutException,
    UnsupportedOperationException,
)
from broker_adapter.failover.current import CurrentTransport
from broker_adapter.failover.failures import without_thread
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.links import Attachment, Link, LinkState, LinkTable
from broker_adapter.failover.rules import AttemptFailed, Connected, GiveUp, Lost, Reconnect, State, Try
from broker_adapter.failover.unanswered import UnansweredSends
from broker_adapter.transport import LinkInterrupted, LinkLost, LinkRestored
from broker_adapter.urls.url import FailoverURL

#: Links, or temporary destinations, that are asked for at once when a connection is restored.
_AT_ONCE: Final = 100
#: Refusals that another attempt would not change.
_LASTING: Final = (
    InvalidDestinationException,
    InvalidSelectorException,
    JMSSecurityException,
    UnsupportedOperationException,
)

_T = TypeVar("_T")


class Reattacher:
    """Attaches the links of a connection again.  See the module's theory of operation.

    Attributes:
        temporaries: the temporary destinations of the connection, in the order in which they were made; under the lock.
    """

    def __init__(
        self,
        current: CurrentTransport,
        links: LinkTable,
        unanswered: UnansweredSends,
        url: FailoverURL,
        random: Callable[[], float],
    ) -> None:
        """The connection has no links yet.

        Args:
            current: the inner transport.
            links: the links of the connection.
            unanswered: the sends that a link repeats once it is attached again.
            url: the limits and pauses of attaching a link again.
            random: a number from 0 to below 1 at each call.
        """
        self.temporaries: dict[Destination, None] = {}
        self._current = current
        self._links = links
        self._unanswered = unanswered
        self._url = url
        self._random = random

    # With the connection.

    def restore(self, inner: Inner) -> None:
        """Make everything again on a new inner transport; links that the broker refuses are left interrupted.

        Raises:
            JMSException: the connection was lost again, or the broker does not answer.
        """
        with self._current.lock:
            temporaries = list(self.temporaries)
            self._links.detach_all()
            links = self._links.detached()
        for destinations in _batches(temporaries):
            inner.restore_temporaries(destinations, None)
        for batch in _batches(links):
            self._attach_all(inner, batch)
        self._unanswered.resend_restored(inner)

    def _attach_all(self, inner: Inner, links: Sequence[Link]) -> None:
        outcomes = inner.attach_all([(each.spec, each.sink) for each in links], None)
        for link, outcome in zip(links, outcomes, strict=True):
            if isinstance(outcome, JMSException):
                if inner.is_lost or isinstance(outcome, OperationTimedOutException):
                    raise outcome
                with self._current.lock:
                    self._links.interrupt(link, outcome)
                continue
            with self._current.lock:
                registered = self._links.register(link, (inner, outcome))
                closed = self._links.take_closed_early(outcome)
                if registered and closed is not None:
                    self._links.interrupt(link, closed)
            if not registered:
                inner.detach(outcome, None)  # closed meanwhile

    # A link by itself.

    def closed_by_broker(self, inner: Inner, event: LinkLost) -> None:
        """The broker has closed a link of an inner transport, in whose thread this is called."""
        current = self._current
        with current.events_lock:
            with current.lock:
                if inner is not current.last:
                    return
                link = self._links.closed_by_broker(event.link, event.error)
                if link is None:
                    return
                if current.state is not State.CONNECTED:
                    self._links.interrupt(link, event.error)
                    return
            self.reattach(inner, link, event.error)

    def reattach(self, inner: Inner, link: Link, error: JMSException) -> None:
        """Attach a link again that the broker has closed or refused, or announce that it is gone."""
        current = self._current
        with current.events_lock:
            with current.lock:
                if not self._links.is_registered(link) or inner is not current.connected:
                    return  # closed, or lost with the connection, with which it is restored
                tag_link = self._links.detach(link)
                self._links.interrupt(link, error)
            if link.browses or current.rules.method == "nofailover" or isinstance(error, _LASTING):
                self._link_gone(link, error, tag_link)
                return
            current.listener(LinkInterrupted(link.number, error, tag_link))
        attach = partial(self._reattach_with_backoff, inner, link)
        try:
            threading.Thread(target=attach, name="holdfast-failover-link", daemon=True).start()
        except RuntimeError as failure:  # the process has as many threads as it may
            self._link_gone(link, without_thread("the link is lost, and cannot be attached again", failure))

    def _reattach_with_backoff(self, inner: Inner, link: Link) -> None:
        current = self._current
        with current.lock:
            if not self._is_interrupted(inner, link) or link.error is None:
                return
            if link.rules is None:
                link.rules = Reconnect(self._url.addresses[:1], self._url.failover, self._random)
                link.rules.start(0.0)
                link.rules.process(Connected(), -math.inf)  # it held until now
            rules, closed, now = link.rules, link.error, current.clock()
        # Where it was closed as soon as it was attached, it does not count as attached.
        action = rules.process(Lost(closed) if rules.state is State.CONNECTED else AttemptFailed(closed), now)
        while isinstance(action, Try):
            with current.lock:
                while self._is_interrupted(inner, link) and (wait := action.at - current.clock()) > 0:
                    current.changed.wait(wait)
                if not self._is_interrupted(inner, link):
                    return  # closed, or restored with the connection
            try:
                attachment = self._attach(inner, link)
            except JMSException as error:
                if inner.is_lost:
                    return
                if isinstance(error, _LASTING):
                    self._link_gone(link, error)
                    return
                with current.lock:
                    if self._is_interrupted(inner, link):
                        self._links.interrupt(link, error)
                action = rules.process(AttemptFailed(error), current.clock())
                continue
            self._reattached(link, attachment)
            return
        assert isinstance(action, GiveUp)
        self._link_gone(link, action.error)

    def _is_interrupted(self, inner: Inner, link: Link) -> bool:
        return (
            inner is self._current.connected
            and link.state in (LinkState.INTERRUPTED, LinkState.REATTACHED)
            and self._links.is_registered(link)
        )

    def _attach(self, inner: Inner, link: Link) -> Attachment:
        attachment = inner, inner.attach(link.spec, link.sink, None)
        with self._current.lock:
            if inner is not self._current.connected:
                raise ConnectionLostException("the connection was lost meanwhile")
            registered = self._links.register(link, attachment)
        if not registered:
            inner.detach(attachment[1], None)  # closed meanwhile
        return attachment

    def _reattached(self, link: Link, attachment: Attachment) -> None:
        # What is sent meanwhile waits: the link is not ATTACHED before everything older is sent.
        if not self._unanswered.resend_of(link, attachment):
            return  # it is restored together with the connection, or was closed again
        current, (inner, number) = self._current, attachment
        with current.events_lock:
            with current.lock:
                if inner is not current.connected or link.attachment is not attachment:
                    return
                closed_again = self._links.take_closed_early(number)
                if closed_again is None:
                    self._links.attach(link)
                    if link.rules is not None:
                        link.rules.process(Connected(), current.clock())
                current.changed.notify_all()
            if closed_again is None:
                current.listener(LinkRestored(link.number))
        if closed_again is None:
            self._unanswered.resend_late()  # not under the lock of events, as with the connection
        else:
            self.reattach(inner, link, closed_again)

    def _link_gone(self, link: Link, error: JMSException, tag_link: int | None = None) -> None:
        """A link is not attached any more, and will not be; ``tag_link`` as in the event."""
        current = self._current
        with current.events_lock:
            with current.lock:
                if not self._links.is_registered(link):
                    return
                self._links.remove([link])
                unsent = self._unanswered.take_of([link])
                current.changed.notify_all()
            for send in unsent:
                send.on_settled(error)
            current.listener(LinkLost(link.number, error, tag_link))

    # Waiting.

    def wait_until_attached(self, number: int, deadline: float, what: str) -> Link:
        """A link of a connection that is there, once no attempt to attach the link again is under way.

        Raises:
            OperationTimedOutException: it was not attached in time.
            IllegalStateException: it is closed.
            JMSException: the connection is closed, or has failed.
        """
        link = self._links.get(number)
        if link is not None and link.error is not None:
            self._current.wait_for(partial(self._is_decided, link), deadline, what, link)
            link = self._links.get(number)
        if link is None or link.state is LinkState.ENDED:
            raise IllegalStateException(f"link {number} is closed")
        return link

    def _is_decided(self, link: Link) -> bool:
        return link.error is None or not self._links.is_registered(link)


def _batches(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """As many at a time as are asked for without waiting for answers."""
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))
