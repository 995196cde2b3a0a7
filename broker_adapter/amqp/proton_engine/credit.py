"""The credit of a peer's links: given, used up, drained, returned.

A drain of the peer is answered by a flow behind the last message, also where the messages have used up all credit (AMQP
1.0 section 2.6.7).
"""

from __future__ import annotations

from cproton_ffi import lib

from broker_adapter.amqp.events import Event, LinkFlow
from broker_adapter.amqp.proton_engine import frames
from broker_adapter.amqp.proton_engine.connection import ProtonConnection
from broker_adapter.amqp.proton_engine.endpoints import Endpoints, LinkEndpoint


class Credit:
    """How many messages may be sent on each link.

    Attributes:
        returning: links by number whose credit is returned once proton has written all of their messages.
    """

    def __init__(self, connection: ProtonConnection, endpoints: Endpoints, rules: frames.FrameRules) -> None:
        self._engine = connection.engine
        self._links = endpoints.links
        self._drains = rules.drains
        self.returning: dict[int, LinkEndpoint] = {}

    def credit(self, link: int, messages: int) -> None:
        """Let the peer send this many more messages on a receiver's link."""
        found = self._links.get(link)
        if found is not None and not found.closed:
            self._engine.pn_link_flow(found.pointer, messages)

    def remaining_credit(self, link: int) -> int:
        """Return how many messages the peer may still send, or we may; 0 for unknown links."""
        found = self._links.get(link)
        if found is None or link in self.returning:
            return 0
        credit: int = self._engine.pn_link_credit(found.pointer)
        return credit - len(found.later)

    def drain(self, link: int) -> bool:
        """Ask the peer to use up or return the credit of a receiver's link.

        Returns:
            whether there is an answer to wait for: a ``LinkFlow`` with credit 0.  False: there is no credit.
        """
        found = self._links.get(link)
        if found is None or found.closed or self._engine.pn_link_credit(found.pointer) <= 0:
            return False
        self._engine.pn_link_drain(found.pointer, 0)
        return True

    def drained(self, link: int) -> None:
        """Answer the drain of a sender's link, and return what credit it has: there is nothing more to send.

        The answer is written behind the messages that were sent before.
        """
        found = self._links.get(link)
        if found is not None and not found.closed:
            self.returning[link] = found

    def answer_drains(self) -> bool:
        """Answer the drains of the links whose messages are written; returns whether there is a flow to write."""
        engine = self._engine
        is_answered = False
        for number, link in list(self.returning.items()):
            if not link.closed and (link.later or engine.pn_link_queued(link.pointer)):
                continue
            del self.returning[number]
            if link.closed:
                continue
            if engine.pn_link_credit(link.pointer) == 0:
                # proton answers only where there is credit to return.  An assertion of it says that this is for
                # receivers; the build from PyPI, of the version that is pinned, has none.
                lib.pn_link_flow(link.pointer, 1)
            is_answered |= engine.pn_link_drained(link.pointer) > 0
            link.credit = engine.pn_link_credit(link.pointer)
        return is_answered

    def on_flow(self, link: LinkEndpoint, happened: list[Event]) -> None:
        """The credit of a link changed, or proton wrote a transfer."""
        credit = self._engine.pn_link_credit(link.pointer) - len(link.later)
        drain = bool(self._engine.pn_link_get_drain(link.pointer))
        is_asked = drain and link.peer_handle in self._drains
        if link.is_sender and credit == link.credit and drain == link.drain and not is_asked:
            return  # proton also tells of each transfer that it wrote
        self._drains.discard(link.peer_handle)
        self.returning.pop(link.number, None)  # what was to be returned is not all of it, or not wanted back
        link.credit = credit
        link.drain = drain
        flow = LinkFlow(link.number, credit, drain)
        if happened and type(happened[-1]) is LinkFlow and happened[-1].link == link.number:
            happened[-1] = flow
        else:
            happened.append(flow)
