"""The credit of a peer's links: given, used up, drained, returned."""

from __future__ import annotations

from broker_adapter.amqp.events import Event, LinkFlow
from broker_adapter.amqp.proton_engine.connection import ProtonConnection
from broker_adapter.amqp.proton_engine.endpoints import Endpoints, LinkEndpoint


class Credit:
    """How many messages may be sent on each link."""

    def __init__(self, connection: ProtonConnection, endpoints: Endpoints) -> None:
        self._engine = connection.engine
        self._links = endpoints.links

    def credit(self, link: int, messages: int) -> None:
        """Let the peer send this many more messages on a receiver's link."""
        found = self._links.get(link)
        if found is not None and not found.closed:
            self._engine.pn_link_flow(found.pointer, messages)

    def remaining_credit(self, link: int) -> int:
        """How many messages the peer may still send, or we may; 0 for unknown links."""
        found = self._links.get(link)
        if found is None or found.drained_later:
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
        """Return the credit of a sender's link, as the peer asked for: there is nothing more to send."""
        found = self._links.get(link)
        if found is None or found.closed:
            return
        if found.later:
            found.drained_later = True
            return
        self._engine.pn_link_drained(found.pointer)
        found.credit = self._engine.pn_link_credit(found.pointer)

    def answer_later_drain(self, link: LinkEndpoint) -> None:
        """proton has got all messages of a link: return its credit, where that was to be done behind them."""
        if link.drained_later:
            link.drained_later = False
            self.drained(link.number)

    def on_flow(self, link: LinkEndpoint, happened: list[Event]) -> None:
        """The credit of a link changed, or proton wrote a transfer."""
        credit = self._engine.pn_link_credit(link.pointer) - len(link.later)
        drain = bool(self._engine.pn_link_get_drain(link.pointer))
        if link.is_sender and credit == link.credit and drain == link.drain:
            return  # proton also tells of each transfer that it wrote
        link.drained_later = False  # what was to be returned is not all of it any more, or not wanted back
        link.credit = credit
        link.drain = drain
        flow = LinkFlow(link.number, credit, drain)
        if happened and type(happened[-1]) is LinkFlow and happened[-1].link == link.number:
            happened[-1] = flow
        else:
            happened.append(flow)
