"""The consumers' and browsers' links of a client's connection, and how subscriptions are deleted; no I/O."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ack_modes import DeliveryTag
from broker_adapter.amqp.addresses import Addresses
from broker_adapter.amqp.client.batched_consumers import BatchedConsumers, Unsettled
from broker_adapter.amqp.client.brokers import BrokerTraits
from broker_adapter.amqp.client.callbacks import Done, ignore
from broker_adapter.amqp.client.drains import Drains, LeavingLink
from broker_adapter.amqp.client.links import Link, LinkTable, RequestedLink, refusal
from broker_adapter.amqp.client.sessions import OWN_SESSION, Sessions
from broker_adapter.amqp.client.subscriptions import Subscriptions
from broker_adapter.amqp.conditions import AmqpError, exception_for
from broker_adapter.amqp.events import (
    ACCEPTED_STATE,
    REJECTED,
    Dropped,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    State,
    Terminus,
    Transfers,
)
from broker_adapter.amqp.messages.batches import unpack_deliveries
from broker_adapter.amqp.messages.consumer_records import CONSUMER_NUMBER
from broker_adapter.amqp.messages.payloads import decode_received, placed, received
from broker_adapter.amqp.messages.values import Described, Symbol, ULong
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.amqp.wire import (
    DESTINATION_CAPABILITIES,
    EXCLUSIVE_CAPABILITY,
    KEEP_ORDER_CAPABILITY,
    NO_LOCAL_CODE,
    OUTCOMES,
    SELECTOR_CODE,
)
from broker_adapter.destination import Destination
from broker_adapter.envelope import Envelope
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    MessageFormatException,
    ProtocolException,
)
from broker_adapter.refusals import has_consumer, not_browsable, not_durable, of_other_kind, subscribed
from broker_adapter.transport import Delivery, ReceiverSpec, Sink

_DECODE_ERROR: Final = "amqp:decode-error"
_UNDECODABLE: Final = State(REJECTED, error=AmqpError(_DECODE_ERROR, "the message cannot be decoded"))
#: Transfers that the broker may send ahead on a link with batches.
_MOST_TRANSFERS: Final = 1_000_000
#: First octet of a message in standard AMQP.
_PLAIN: Final = b"\x00"
#: What a named tuple does, without the call of a function of Python.
_new: Final = tuple.__new__


class Consumers:
    """What a connection receives on."""

    def __init__(
        self,
        table: LinkTable,
        sessions: Sessions,
        drains: Drains,
        batched: BatchedConsumers,
        *,
        epoch: int,
        has_client_id: bool,
    ) -> None:
        """No consumers.

        Args:
            table: of all links.
            sessions: of the connection.
            drains: of the connection.
            batched: those that get batches.
            epoch: what the deliveries of this connection carry.
            has_client_id: whether the application chose a client id.
        """
        self._table = table
        self._peer = table.peer
        self._sessions = sessions
        self._drains = drains
        self._batched = batched
        self._epoch = epoch
        self._has_client_id = has_client_id
        self._subscriptions = Subscriptions(has_client_id=has_client_id)

    def attach(
        self,
        spec: ReceiverSpec,
        sink: Sink,
        traits: BrokerTraits,
        addresses: Addresses,
        done: Done,
        *,
        gets_batches: bool = False,
    ) -> None:
        """Attach a consumer's or browser's link; done with its number.

        Args:
            spec: what the application has asked for.
            sink: gets the deliveries.
            traits: of the broker.
            addresses: how destinations are addressed.
            done: told when the broker has answered.
            gets_batches: whether the broker is asked to deliver in batches.
        """
        refused = _unusable(spec) or traits.refusal_of(spec)
        if refused is not None:
            done(None, refused)
            return
        capabilities = [DESTINATION_CAPABILITIES[spec.destination.kind]]
        name = self._table.new_name("receiver", spec.destination)
        subscription = spec.subscription
        durable = subscription is not None and subscription.durable
        if subscription is not None:
            used = self._subscriptions.used(subscription.name)
            if not subscription.shared and used is not None:
                # A second link of the same name would end the connection, or take the first one's place.
                name = subscription.name
                done(None, of_other_kind(name, shared=True) if used.shared else has_consumer(name))
                return
            if subscription.shared:
                capabilities.append("shared")
                if not self._has_client_id:
                    capabilities.append("global")
            name = self._subscriptions.link_name(subscription)
        if spec.exclusive:
            capabilities.append(EXCLUSIVE_CAPABILITY)
        if spec.keep_order and traits.is_holdfast:
            capabilities.append(KEEP_ORDER_CAPABILITY)
        source = Terminus(
            addresses.of(spec.destination),
            durable=2 if durable else 0,
            expiry="never" if durable else "link-detach",
            copies=durable or spec.browse,
            filters=_filters(spec) or None,
            outcomes=OUTCOMES,
            capabilities=tuple(capabilities),
        )
        consumer = self._batched.new_number() if gets_batches else None
        number = self._peer.attach_receiver(
            self._sessions.of(spec.session),
            name,
            source,
            Terminus(),
            presettled=spec.presettled or spec.browse,
            properties=None if consumer is None else {CONSUMER_NUMBER: consumer},
        )
        kind = BrowserLink if spec.browse else ConsumerLink
        decode = _decoder(spec.destination, addresses)
        link = kind(
            *(self._table, number, spec, sink, decode, done, self._epoch),
            *(traits, self._drains, self._subscriptions),
        )
        if consumer is not None:
            link.get_batches(self._batched, consumer)
        if subscription is not None:
            self._subscriptions.add(subscription, number, source)

    def unsubscribe(self, name: str, traits: BrokerTraits, done: Done) -> None:
        """Delete a durable subscription: an attach that finds it by its link's name, then a detach for good."""
        subscriptions = self._subscriptions
        if subscriptions.used(name) is not None:
            done(None, subscribed(name))
            return
        refused = traits.refusal_of_durable(name)
        if refused is not None:
            done(None, refused)
            return
        # The reference client says with the attach's desired capabilities that the subscription is a shared one of
        # no client.  Our engine of AMQP cannot; where the source is known it says the same.
        source = None
        if not self._has_client_id and not traits.finds_subscriptions:
            source = subscriptions.source(name)
        session = self._sessions.of(OWN_SESSION)
        link = self._peer.attach_receiver(session, subscriptions.durable_link_name(name), source, Terminus())
        UnsubscribeLink(self._table, link, OWN_SESSION, done)
        subscriptions.remove_source(name)


class ConsumerLink(RequestedLink):
    """A link that we receive on.

    Attributes:
        spec: what the application has asked for.
    """

    def __init__(
        self,
        table: LinkTable,
        number: int,
        spec: ReceiverSpec,
        sink: Sink,
        decode: Callable[[bytes], Envelope],
        attached: Done,
        epoch: int,
        traits: BrokerTraits,
        drains: Drains,
        subscriptions: Subscriptions,
    ) -> None:
        """A link that was just attached.

        Args:
            table: the connection's.
            number: the peer's number of the link.
            spec: what the application has asked for.
            sink: gets the deliveries.
            decode: what their messages are decoded with.
            attached: told when the broker has answered.
            epoch: what the deliveries carry.
            traits: of the broker.
            drains: of the connection.
            subscriptions: of the connection.
        """
        super().__init__(table, number, spec.session, attached)
        self.spec = spec
        self._sink = sink
        self._decode = decode
        self._epoch = epoch
        self._traits = traits
        self._drains = drains
        self._subscriptions = subscriptions
        self._drained: list[Done] = []  # told when the drain under way is answered
        self._drained_next: list[Done] = []  # told when the one after it is answered
        self._is_behind_drain = False  # credit was given behind the drain under way
        self._batches: _Batches | None = None  # where the broker delivers in batches

    def get_batches(self, batched: BatchedConsumers, consumer: int) -> None:
        """The broker was asked to deliver in batches.

        Args:
            batched: the consumers of the connection that get batches.
            consumer: the number by which it was asked.
        """
        self._batches = _Batches(batched, consumer, batched.add(self.number, consumer, self.spec.session))

    def on_open(self, event: LinkRemoteOpen) -> None:
        source = event.source
        if source is None or self.attached is None:
            return
        error = self._objection(source)
        if error is not None:
            self._refuse_answer(error)
            return
        if self._batches is not None:
            if event.properties.get(CONSUMER_NUMBER) == self._batches.consumer:
                self._peer.credit(self.number, _MOST_TRANSFERS)  # the records say how many messages
            else:
                self._batches.batched.remove(self.number)
                self._batches = None
        attached, self.attached = self.attached, None
        if not attached(self.number, None):
            self.detach(ignore)

    def _objection(self, source: Terminus) -> JMSException | None:
        """Why this is not the source that was asked for."""
        offered = source.filters or {}
        for key, filter_ in _filters(self.spec).items():
            echoed = offered.get(key)
            if not isinstance(echoed, Described) or echoed.value != filter_.value:
                # Never consume unfiltered what was to be filtered.
                what = f"selector {self.spec.selector!r}" if key == "jms-selector" else "no-local filter"
                return InvalidSelectorException(f"the broker does not apply the {what}")
        return None

    def on_flow(self, event: LinkFlow) -> None:
        if self._batches is None:
            super().on_flow(event)

    def on_transfers(self, event: Transfers) -> None:
        if self._batches is not None:
            self._on_batches(self._batches, event)
            return
        link, epoch, decode = self.number, self._epoch, self._decode
        deliveries = []
        for number, payload, _ in event.deliveries:
            try:
                position, count = received(payload)
            except MessageFormatException:
                self._peer.settle(link, (number,), _UNDECODABLE)
                if not self._drained:
                    self._peer.credit(link, 1)
                continue
            tag = _new(DeliveryTag, (epoch, link, number))
            deliveries.append(Delivery(tag, payload, decode, count, position))
        if deliveries:
            self._sink(deliveries)
        if self._drained:
            self._table.maybe_drained[link] = None

    def _on_batches(self, batches: _Batches, event: Transfers) -> None:
        """Messages came in batches.  That they came is answered at once; how they end is told by records."""
        link, epoch, decode, held = self.number, self._epoch, self._decode, batches.unsettled.numbers
        deliveries: list[Delivery] = []
        numbers: list[int] = []
        is_drained = False
        for transfer, payload, _ in event.deliveries:
            try:
                first, messages, drained = unpack_deliveries(payload)
            except MessageFormatException as error:
                self._break(error)
                return
            if transfer:
                numbers.append(transfer)
                held.update(range(first, first + len(messages)))
            for number, (position, count, added, message) in enumerate(messages, first):
                if added or message[:1] == _PLAIN:  # a dead letter, or a message of another client
                    message = placed(position, count, added, message)
                deliveries.append(Delivery(_new(DeliveryTag, (epoch, link, number)), message, decode, count, position))
            is_drained = is_drained or drained
        if numbers:
            self._peer.settle(link, numbers, ACCEPTED_STATE)
        batches.count_transfers(self._peer, link, len(event.deliveries))
        if deliveries:
            self._sink(deliveries)
        if is_drained:
            self.on_drained()

    def _break(self, fault: MessageFormatException) -> None:
        """What came is no batch: the link is lost."""
        error = ProtocolException(f"the broker's batch cannot be decoded: {fault.reason}", error_code=_DECODE_ERROR)
        error.__cause__ = fault
        self._peer.close_link(self.number, AmqpError(_DECODE_ERROR, fault.reason))
        self._lost_alone(error)

    def credit(self, messages: int) -> None:
        """Let the broker send so many messages more."""
        self._is_behind_drain = True
        if self._batches is None:
            self._peer.credit(self.number, messages)
        else:
            self._batches.batched.credit(self._batches.consumer, messages)

    def on_dropped(self, event: Dropped) -> None:
        if event.error is not None:
            # The peer has closed the link; what came on it before may still be settled.
            self._lost_alone(exception_for(event.error, "the link was closed"))
        elif self._batches is not None:
            self._break(MessageFormatException("the broker has given up a batch in the middle"))
        elif self._drained:
            self._table.maybe_drained[self.number] = None
        else:
            self._peer.credit(self.number, event.messages)

    def on_drained(self) -> None:
        drained, self._drained, self._drained_next = self._drained, self._drained_next, []
        if self._drained:
            self._ask_for_drain()
        for done in drained:
            done(True, None)

    def drain(self, done: Done) -> None:
        """Done with True when the broker has sent what it can and the credit is gone.

        With False at once where the broker does not answer a drain.  The answer to one that is under way counts, unless
        credit was given behind it: that answer may be older than messages that come for the credit.
        """
        if not self._traits.answers_drains:
            done(False, None)
        elif self._drained and self._is_behind_drain and self._batches is not None:
            self._drained_next.append(done)
        elif (self._drained and not self._is_behind_drain) or self._ask_for_drain():
            self._drained.append(done)
        else:
            done(True, None)

    def detach(self, done: Done) -> None:
        closed = IllegalStateException("the consumer is closed")
        if not self._traits.ends_links_at_once and self._peer.unsettled(self.number):
            self._leave_later(closed, None)
            done(None, None)
        elif self._drains.is_awaited(self.number):
            self._leave_later(closed, done)
        else:
            subscription = self.spec.subscription
            self.end(closed)
            self._table.close(self, done, closed=subscription is None or not subscription.durable)

    def end(self, error: JMSException) -> None:
        self._subscriptions.remove(self.spec.subscription, self.number)
        self._stop(error)

    def lost(self, error: JMSException) -> None:
        self._stop(error)

    def _stop(self, error: JMSException) -> None:
        super().end(error)
        if self._batches is not None:
            self._batches.batched.remove(self.number)
        drained = self._drained + self._drained_next
        self._drained, self._drained_next = [], []
        for done in drained:
            done(None, error)

    def _leave_later(self, error: JMSException, done: Done | None) -> None:
        """Detach once everything is settled and the drain is answered; what still comes is released."""
        self._stop(error)
        subscription = self.spec.subscription
        LeavingLink(self._table, self.number, self.session, self._drains, self._subscriptions, subscription, done)
        if self._traits.answers_drains:
            self._ask_for_drain()

    def _ask_for_drain(self) -> bool:
        self._is_behind_drain = False
        if self._batches is not None:
            self._batches.batched.drain(self._batches.consumer)
            return True
        return self._drains.ask(self.number, is_awaited=not self._traits.ends_links_at_once)


class _Batches:
    """What a link has to do with batches.

    Attributes:
        batched: the consumers of the connection that get them.
        consumer: the number of this one in records.
        unsettled: what it has got and not settled.
    """

    __slots__ = ("_transfers", "batched", "consumer", "unsettled")

    def __init__(self, batched: BatchedConsumers, consumer: int, unsettled: Unsettled) -> None:
        self.batched = batched
        self.consumer = consumer
        self.unsettled = unsettled
        self._transfers = 0

    def count_transfers(self, peer: Peer, link: int, transfers: int) -> None:
        """So many transfers came: the broker may always send more, since the records bound the messages."""
        self._transfers += transfers
        if self._transfers >= _MOST_TRANSFERS // 2:
            peer.credit(link, self._transfers)
            self._transfers = 0


class BrowserLink(ConsumerLink):
    """A link on which we receive copies."""

    def _objection(self, source: Terminus) -> JMSException | None:
        if not source.copies:
            return JMSException("the broker would deliver the messages and not only show them")
        return super()._objection(source)


class UnsubscribeLink(Link):
    """A link that is attached to delete a durable subscription."""

    def __init__(self, table: LinkTable, number: int, session: int, done: Done) -> None:
        super().__init__(table, number, session)
        self._done = done
        table.by_number[number] = self

    def on_open(self, event: LinkRemoteOpen) -> None:
        if event.source is not None:  # else a detach with the reason follows
            self._table.close(self, self._done, reports_errors=True)

    def on_close(self, event: LinkRemoteClose) -> None:
        self._peer.close_link(self.number, closed=event.closed)
        self.session_ended(refusal(event.error, refused=True))

    def session_ended(self, error: JMSException) -> None:
        self._leave_table()
        self._done(None, error)

    def lost(self, error: JMSException) -> None:
        self._done(None, error)


def _unusable(spec: ReceiverSpec) -> JMSException | None:
    """Why a receiver cannot be: what another broker might take for something else."""
    destination, subscription = spec.destination, spec.subscription
    if spec.browse and destination.is_topic:
        return not_browsable(destination)
    if subscription is None:
        return None
    if not destination.is_topic:
        return InvalidDestinationException(f"cannot subscribe to the queue {destination.name!r}")
    if destination.is_temporary and subscription.durable:
        return not_durable(destination)
    if "|" in subscription.name:
        return InvalidDestinationException(f"subscription name {subscription.name!r} has a '|'")
    return None


def _filters(spec: ReceiverSpec) -> dict[Any, Described]:
    filters: dict[Any, Described] = {}
    if spec.selector is not None:
        filters[Symbol("jms-selector")] = Described(ULong(SELECTOR_CODE), spec.selector)
    if spec.no_local:
        filters[Symbol("no-local")] = Described(ULong(NO_LOCAL_CODE), "NoLocalFilter{}")
    return filters


def _decoder(destination: Destination, addresses: Addresses) -> Callable[[bytes], Envelope]:
    """Return what decodes a message that came from a destination."""
    if not addresses:
        return partial(decode_received, destination=destination)
    address = destination._replace(name=addresses.of(destination))
    return lambda payload: addresses.inward(decode_received(payload, address))
