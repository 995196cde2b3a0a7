"""The links of a connection, and how each is attached; no I/O, clock or thread.

Theory of operation
    A link has a number that stays for its life, and an *attachment* that does not: the inner transport that it is
    attached by, with its number there.

    ============  ============  ============  ===========  ============  =======================
    state         connection    reattached    closed or    connection    everything older is sent
                  lost                        refused      restored
    ============  ============  ============  ===========  ============  =======================
    ATTACHED      DETACHED      -             INTERRUPTED  -             -
    DETACHED      DETACHED      REATTACHED    INTERRUPTED  -             -
    INTERRUPTED   DETACHED      REATTACHED    INTERRUPTED  INTERRUPTED   -
    REATTACHED    DETACHED      -             INTERRUPTED  ATTACHED      ATTACHED
    ENDED         ENDED         -             -            -             -
    ============  ============  ============  ===========  ============  =======================

    Only an ATTACHED link takes new messages.  A link that is REATTACHED takes those first that had no answer.  The
    links of browsers are not restored: they are ENDED when the connection is lost.

    The broker may close a link before its number is known here; the reason is remembered until then.

    All methods but ``get`` are called under the lock of the connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from enum import Enum
from typing import Final

import attrs

from broker_adapter.destination import Destination
from broker_adapter.errors import JMSException
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.rules import Reconnect
from broker_adapter.transport import (
    LinkSink,
    LinkSpec,
    ReceiverSpec,
)

#: Most links that are remembered as closed by the broker before they were known here.
MAX_CLOSED_EARLY: Final = 1000

#: An inner transport, and the number of a link there.  Each attachment of a link is another object.
Attachment = tuple[Inner, int]


class LinkState(Enum):
    """How a link is attached.  See the module's theory of operation."""

    ATTACHED = "attached"
    DETACHED = "detached"
    INTERRUPTED = "interrupted"
    REATTACHED = "reattached"
    ENDED = "ended"


@attrs.define(eq=False)
class Link:
    """A producer's or consumer's link.

    A sender reads the attachment first and the state after it, without a lock: a link that is ATTACHED then took new
    messages by that attachment, or does not have it any more.
    """

    number: int
    spec: LinkSpec
    sink: LinkSink
    state: LinkState
    attachment: Attachment | None = None
    error: JMSException | None = None  #: why the broker has closed or refused it; None: it has not
    rules: Reconnect | None = None  #: of attaching it again on this connection, once the broker has closed it

    @property
    def browses(self) -> bool:
        """Whether it is the link of a browser."""
        return isinstance(self.spec, ReceiverSpec) and self.spec.browse


class LinkTable:
    """All links of a connection that are not closed.  See the module's theory of operation.

    Attributes:
        get: the link of a number, or None.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._links: dict[int, Link] = {}
        self._attached: dict[int, Link] = {}  #: by their numbers in the inner transport
        self._closed_early: dict[int, JMSException] = {}
        self.get = self._links.get

    def __len__(self) -> int:
        return len(self._links)

    def new_number(self) -> int:
        """A number that no link had."""
        return next(self._numbers)

    def is_registered(self, link: Link) -> bool:
        """Return whether a link is not closed."""
        return self._links.get(link.number) is link

    def of_session(self, session: int) -> list[Link]:
        """The links of a session."""
        return [each for each in self._links.values() if each.spec.session == session]

    def has_consumer(self, destination: Destination) -> bool:
        """Return whether a consumer's or browser's link comes from a destination."""
        return any(
            isinstance(each.spec, ReceiverSpec) and each.spec.destination == destination
            for each in self._links.values()
        )

    # Beginning and end.

    def add(self, link: Link) -> None:
        """A link is new, or is not closed after all."""
        self._links[link.number] = link
        if link.attachment is not None:
            self._attached[link.attachment[1]] = link

    def remove(self, links: Iterable[Link]) -> None:
        """These links are closed."""
        for link in links:
            self._links.pop(link.number, None)  # the handler of a signal may have closed it in the middle of this
            if link.attachment is not None:
                self._attached.pop(link.attachment[1], None)

    # With the connection.

    def detach_all(self) -> None:
        """The connection is lost or closed, or another attempt to restore it begins."""
        self._attached.clear()
        for link in self._links.values():
            link.state = LinkState.ENDED if link.browses else LinkState.DETACHED
            link.attachment = link.error = link.rules = None

    def detached(self) -> list[Link]:
        """The links that are to be attached to a new connection, in the order in which they were made."""
        return [each for each in self._links.values() if each.state is LinkState.DETACHED]

    def attach_restored(self) -> list[tuple[Link, JMSException]]:
        """The connection is restored; returns the links that the broker has closed or refused, with the reasons."""
        interrupted = []
        for link in self._links.values():
            if link.state is LinkState.REATTACHED:
                link.state = LinkState.ATTACHED
            elif link.error is not None:
                interrupted.append((link, link.error))
        return interrupted

    # By itself.

    def register(self, link: Link, attachment: Attachment) -> bool:
        """A link is attached again; returns False where it was closed meanwhile."""
        if self._links.get(link.number) is not link:
            return False
        link.attachment = attachment
        link.state = LinkState.REATTACHED
        self._attached[attachment[1]] = link
        return True

    def attach(self, link: Link) -> None:
        """A link takes new messages: all that is older was sent."""
        link.state = LinkState.ATTACHED
        link.error = None

    def interrupt(self, link: Link, error: JMSException) -> None:
        """The broker has closed or refused a link."""
        link.state = LinkState.INTERRUPTED
        link.error = error

    def detach(self, link: Link) -> int | None:
        """Take its attachment from a link; returns its number there, None where it has none."""
        attachment, link.attachment = link.attachment, None
        if attachment is None:
            return None
        self._attached.pop(attachment[1], None)
        return attachment[1]

    # What the broker closes.

    def closed_by_broker(self, number: int, error: JMSException) -> Link | None:
        """The broker has closed a link with this number in the inner transport.

        Returns:
            The link; None where it is not known yet: the error is remembered.
        """
        link = self._attached.get(number)
        if link is None and len(self._closed_early) < MAX_CLOSED_EARLY:
            self._closed_early[number] = error
        return link

    def take_closed_early(self, number: int) -> JMSException | None:
        """Why the broker has closed a link before its number was known; None: it has not."""
        return self._closed_early.pop(number, None)

    def clear_closed_early(self) -> None:
        """A new inner transport gives other numbers."""
        self._closed_early.clear()
