"""Sends and requests whose answer was lost with their connection or link: they are repeated after the restore.

Theory of operation
    *Sends* without an answer are kept in the order in which they were made, and are sent again in that order before
    anything new.  They carry their identity, by which our own engine finds those that it has already; for other
    brokers they are marked, since one may become a second message.

    *Requests* are made again by the thread that waits for them.

    Where the broker itself ends the connection or link for what it was asked or sent, that is not repeated without end.
    A broker takes sends in order, so of several without an answer the oldest one is suspected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from broker_adapter.envelope import Envelope
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException
from broker_adapter.failover.current import CurrentTransport, SessionCall
from broker_adapter.failover.failures import says_why
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.links import Attachment, Link, LinkState, LinkTable
from broker_adapter.failover.rules import State
from broker_adapter.transport import OnSettled

#: Property of a message that was sent again to a broker that cannot tell whether it has it.
RESENT_PROPERTY: Final = "JMS_HOLDFAST_RESENT"
#: Ends of the connection for a reason, in the middle of the same request or send, after which it is not repeated.
_MOST_ENDS: Final = 2
#: The same for a send that was not the only one without an answer, and may have nothing to do with it.
_MOST_SHARED_ENDS: Final = 4

_ENDED: Final = (State.CLOSED, State.FAILED)

_T = TypeVar("_T")


class Send:
    """A message on its way, until its answer is there."""

    __slots__ = ("abandoned", "attachment", "ended_by", "ends", "envelope", "link", "on_settled", "owner", "serial")

    def __init__(
        self,
        owner: UnansweredSends,
        link: Link,
        attachment: Attachment,
        envelope: Envelope,
        on_settled: OnSettled,
        serial: int,
    ) -> None:
        self.owner = owner
        self.link = link
        self.attachment = attachment  #: of the link, by which it was last sent
        self.envelope = envelope
        self.on_settled = on_settled
        self.serial = serial
        self.abandoned = False  #: its sender waits no longer
        self.ended_by: JMSException | None = None  #: for what the broker has ended the last connection or link of it
        self.ends = 0  #: how often that was so, and it the suspect

    def __call__(self, error: JMSException | None) -> None:
        """The inner transport has an answer, or is lost."""
        if error is None or not self.owner.keep(self, error):
            self.on_settled(error)


class UnansweredSends:
    """The sends of a connection that are to be sent again.  See the module's theory of operation.

    Attributes:
        serials: gives the number of each new send, by which those that are sent again have their order.
    """

    def __init__(self, current: CurrentTransport, links: LinkTable) -> None:
        self.serials = itertools.count(1)
        self._current = current
        self._links = links
        self._unsent: list[Send] = []  #: under the lock

    def keep(self, send: Send, error: JMSException) -> bool:
        """A send has failed: returns whether that is because its connection or link was lost, so it is sent again."""
        current = self._current
        with current.lock:
            link = send.link
            attachment = link.attachment
            lost = send.attachment[0].is_lost or attachment is not send.attachment
            if not lost or send.abandoned or current.state in _ENDED:
                return False
            if current.rules.method == "nofailover" or not self._links.is_registered(link):
                return False
            if says_why(error):
                send.ended_by = error
            if link.state is not LinkState.ATTACHED or attachment is None or attachment[0].is_lost:
                self._unsent.append(send)
                return True
        # The answer of what was lost came after something new had taken its place.  What its producer has sent since
        # may be ahead of it; the engine takes identities in any order.
        self._resend(send)
        return True

    def take_all(self) -> list[Send]:
        """Under the lock: the connection has ended; returns the sends that are not sent again any more."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def take_of(self, links: Iterable[Link]) -> list[Send]:
        """Under the lock: these links have ended; returns their sends that are not sent again any more."""
        ended = set(links)
        unsent = [send for send in self._unsent if send.link in ended]
        self._unsent = [send for send in self._unsent if send.link not in ended]
        return unsent

    # Sending again.

    def resend_restored(self, inner: Inner) -> None:
        """Repeat the sends of all links that are attached again, in the order in which they were made.

        Raises:
            ConnectionLostException: the connection was lost again.
        """
        while sends := self._taken(lambda send: send.link.state is LinkState.REATTACHED):
            for send in sends:
                self._resend(send)
            if inner.is_lost:
                raise ConnectionLostException("the connection was lost again")

    def resend_of(self, link: Link, attachment: Attachment) -> bool:
        """Repeat the sends of a link that is attached again; returns False where the attachment was lost meanwhile."""
        while sends := self._taken(lambda send: send.link is link):
            for send in sends:
                self._resend(send)
            if attachment[0].is_lost or link.attachment is not attachment:
                return False
        return True

    def resend_late(self) -> None:
        """Repeat the sends that failed after they were last checked, and before their links took new messages."""
        for send in self._taken(lambda send: send.link.state is LinkState.ATTACHED):
            self._resend(send)

    def _taken(self, wanted: Callable[[Send], bool]) -> list[Send]:
        """Take the wanted sends out of those that are not sent, in the order in which they were made.

        One that the broker has refused in its way, by ending its connections or links, fails here.
        """
        with self._current.lock:
            taken = [send for send in self._unsent if wanted(send)]
            self._unsent = [send for send in self._unsent if not wanted(send)]
        taken.sort(key=lambda send: send.serial)
        refused = _refused_of(taken)
        if refused is not None:
            send, error = refused
            taken.remove(send)
            send.on_settled(error)
        return taken

    def _resend(self, send: Send) -> None:
        link = send.link
        if send.abandoned:
            return
        with self._current.lock:
            registered, attachment = self._links.is_registered(link), link.attachment
            has_ended = self._current.state in _ENDED
            if registered and attachment is None and not has_ended:
                self._unsent.append(send)  # lost again meanwhile
                return
        if registered and attachment is None:
            send.on_settled(ConnectionLostException("the connection has ended; the message may have been sent"))
            return
        if not registered or attachment is None:
            send.on_settled(IllegalStateException(f"link {link.number} is closed"))
            return
        send.attachment = attachment
        envelope = send.envelope
        peer = self._current.peer
        if peer is None or not peer.rejects_duplicates:
            properties = {**(envelope.properties or {}), RESENT_PROPERTY: True}
            envelope = envelope._replace(properties=properties)
        inner, number = attachment
        try:
            inner.send(number, envelope, send, None)
        except JMSException as error:
            send(error)


def _refused_of(sends: Sequence[Send]) -> tuple[Send, JMSException] | None:
    """Return which of these sends is not repeated any more, with its error; None: all are.

    Args:
        sends: those of a connection or link that has ended, the oldest first.
    """
    suspects = [send for send in sends if send.ended_by is not None]
    if not suspects:
        return None
    suspect = suspects[0]
    reason = suspect.ended_by
    for send in suspects:
        send.ended_by = None
    suspect.ends += 1
    if reason is None or suspect.ends < (_MOST_ENDS if len(suspects) == 1 else _MOST_SHARED_ENDS):
        return None
    text = f"the send failed: the broker ended its connection or link {suspect.ends} times meanwhile: {reason.reason}"
    return suspect, type(reason)(text, error_code=reason.error_code)


def repeated(
    current: CurrentTransport,
    what: str,
    limit: float,
    act: Callable[[Inner, float], _T],
    call: SessionCall | None = None,
) -> _T:
    """Do something that is done again where the connection is lost in the middle of it.

    Args:
        current: the inner transport.
        what: the operation, for the errors.
        limit: longest time for all of it, in seconds.
        act: does it, with an inner transport and the time that is left.
        call: of the session that asks for it; None: of none.

    Raises:
        OperationTimedOutException: the connection was not restored in time.
        IllegalStateException: the session of the call has ended.
        JMSException: what it raises while the connection is there; the connection is closed, or has failed; or the
            broker has ended the connection twice for what it was asked.
    """
    deadline = current.clock() + limit
    ends = 0
    while True:
        inner = current.wait_until_connected(deadline, what, call)
        try:
            return act(inner, max(0.0, deadline - current.clock()))
        except JMSException as error:
            if not inner.is_lost:
                raise
            ends += says_why(error)
            if ends >= _MOST_ENDS:
                raise type(error)(
                    f"{what} failed: the broker ended the connection {ends} times meanwhile: {error.reason}",
                    error_code=error.error_code,
                ) from error
        current.wait_until_lost(inner, deadline, what, call)
