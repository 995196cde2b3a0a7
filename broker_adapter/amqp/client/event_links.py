"""The link on which a client's connection gets the events of regions, from our own server; no I/O."""

from __future__ import annotations

from typing import Final

from broker_adapter.amqp.client.brokers import BrokerTraits
from broker_adapter.amqp.client.callbacks import Done, ignore
from broker_adapter.amqp.client.links import LinkTable, RequestedLink
from broker_adapter.amqp.client.sessions import Sessions
from broker_adapter.amqp.conditions import AmqpError, exception_for
from broker_adapter.amqp.events import Dropped, LinkRemoteOpen, Terminus, Transfers
from broker_adapter.amqp.messages.region_events import (
    EVENTS_ADDRESS,
    EVENTS_CAPABILITY,
    EventsRequest,
    as_properties,
    check,
    decode,
)
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    MessageFormatException,
    ProtocolException,
    UnsupportedOperationException,
)
from broker_adapter.refusals import needs_holdfast
from broker_adapter.transport import EventSink, EventsSpec

#: What a server is told that sends something else than events.
_UNDECODABLE: Final = "amqp:decode-error"


def attach_events(
    table: LinkTable, sessions: Sessions, spec: EventsSpec, sink: EventSink, traits: BrokerTraits, done: Done
) -> None:
    """Attach a link for events; done with its number.

    Args:
        table: of all links.
        sessions: of the connection.
        spec: what the application has asked for.
        sink: gets the events.
        traits: of the broker.
        done: told when the broker has answered.

    Raises:
        MessageFormatException: the window, the time-out or the conflation cannot be.
        UnsupportedOperationException: the broker has no regions.
    """
    if not traits.is_holdfast:
        raise needs_holdfast("a durable client", traits.product)
    request = EventsRequest(spec.timeout_ms, spec.window, spec.conflation)
    check(request)
    number = table.peer.attach_receiver(
        sessions.of(spec.session),
        table.new_name("events", None),
        Terminus(EVENTS_ADDRESS, expiry="link-detach", capabilities=(EVENTS_CAPABILITY,)),
        Terminus(),
        presettled=True,
        properties=as_properties(request),
    )
    table.peer.credit(number, spec.window)
    EventsLink(table, number, spec, sink, done)


class EventsLink(RequestedLink):
    """A link that we receive events on.

    Attributes:
        spec: what the application has asked for.
    """

    def __init__(self, table: LinkTable, number: int, spec: EventsSpec, sink: EventSink, attached: Done) -> None:
        """A link that was just attached.

        Args:
            table: the connection's.
            number: the peer's number of the link.
            spec: what the application has asked for.
            sink: gets the events.
            attached: told when the broker has answered.
        """
        super().__init__(table, number, spec.session, attached)
        self.spec = spec
        self._sink = sink
        self._last = 0  #: position of what came last

    def on_open(self, event: LinkRemoteOpen) -> None:
        source = event.source
        if source is None or self.attached is None:
            return  # a detach with the reason follows
        if EVENTS_CAPABILITY not in source.capabilities:
            self._refuse_answer(UnsupportedOperationException("the broker does not send the events of regions"))
            return
        attached, self.attached = self.attached, None
        if not attached(self.number, None):
            self.detach(ignore)

    def on_transfers(self, event: Transfers) -> None:
        found = []
        fault: MessageFormatException | None = None
        for _, payload, _ in event.deliveries:
            try:
                each = decode(payload)
                if each.position < self._last or (each.position == self._last and each.region is not None):
                    raise MessageFormatException(f"event {each.position} comes behind event {self._last}")
            except MessageFormatException as error:
                fault = error
                break
            self._last = each.position
            found.append(each)
        if found and self.attached is None:
            self._sink(found)
        if fault is None:
            self._peer.credit(self.number, len(event.deliveries))
        else:
            self._break(fault)

    def _break(self, fault: MessageFormatException) -> None:
        """What came is no event, or not the next one: the link is lost."""
        error = ProtocolException(f"the broker's event cannot be decoded: {fault.reason}", error_code=_UNDECODABLE)
        error.__cause__ = fault
        self._peer.close_link(self.number, AmqpError(_UNDECODABLE, fault.reason))
        self._lost_alone(error)

    def on_dropped(self, event: Dropped) -> None:
        if event.error is not None:
            self._lost_alone(exception_for(event.error, "the link was closed"))
        else:
            self._peer.credit(self.number, event.messages)

    def detach(self, done: Done) -> None:
        self.end(IllegalStateException("the link for events is closed"))
        self._table.close(self, done)

    def lost(self, error: JMSException) -> None:
        self.end(error)
