"""The links that the client of one connection receives messages on: their credit, their deliveries, their end.

A consumer's credit is passed on to the engine in slices of so many messages and so many bytes, and not at all while the
connection has more to send than it can or the client's session takes no more, so a slow client costs a bounded amount
of memory.  Deliveries that arrive when too much waits for the client already go back to the engine.

What the client has got stays unsettled until it settles it, or its session or connection ends (another client than
ours: its link).  What it has not got as a whole when its link ends goes back as it was: a failed delivery is counted
only for what the client may have seen.

A message that is stored in another form than the client reads is converted when it is sent.  After a slice of time the
rest of what the engine has handed out waits for the next turn of the loop, as if it had not arrived yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from ack_modes import Outcome
from broker_adapter.amqp.conditions import AmqpError, error_for
from broker_adapter.amqp.events import (
    TRANSACTIONAL,
    Dispositions,
    LinkFlow,
    LinkRemoteClose,
    LinkRemoteOpen,
    SessionRemoteClose,
    Terminus,
)
from broker_adapter.amqp.messages.consumer_records import CONSUMER_NUMBER
from broker_adapter.amqp.messages.payloads import as_amqp, with_place
from broker_adapter.amqp.messages.stored_message import undecodable, with_delivery
from broker_adapter.amqp.proton_engine.peer import Peer
from broker_adapter.amqp.wire import EXCLUSIVE_CAPABILITY, KEEP_ORDER_CAPABILITY, OUTCOMES
from broker_adapter.destination import Destination, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.envelope import AMQP_FORMAT
from broker_adapter.errors import InvalidDestinationException, JMSException, MessageFormatException
from broker_adapter.server.access import permissions
from broker_adapter.server.links.batched_consumers import BatchedConsumers
from broker_adapter.server.links.client import Client
from broker_adapter.server.links.consumer import Consumer
from broker_adapter.server.links.coordinator import Coordinator
from broker_adapter.server.links.engine_calls import EngineCalls
from broker_adapter.server.links.links import Links
from broker_adapter.server.links.outcomes import outcome_of
from broker_adapter.server.links.output import Output
from broker_adapter.server.links.set_aside import SetAside
from broker_adapter.server.links.termini import (
    browses,
    destination_of,
    filters_of,
    subscription_of,
    temporary_kind,
    temporary_terminus,
)
from broker_adapter.settings import KIB, ServerSettings

#: Most messages that a consumer's link may have on their way from the engine.
SLICE_MESSAGES: Final = 1000
#: Least bytes of messages that the engine may hand out to a link at once.
_LEAST_SLICE_BYTES: Final = 64 * 1024
#: Time that a connection's conversions of messages may take in a turn, in seconds; only the last one goes beyond it.
_CONVERTING_SECONDS: Final = 0.01
#: Bytes of messages that are converted between two readings of the clock.
_LOOK_BYTES: Final = 16 * 1024
#: What the server keeps for a delivery that the client has not settled, at most, in bytes; most take half of it.
IN_HAND_BYTES: Final = 4 * KIB
#: So many deliveries a consumer may have in hand in any case.
_LEAST_IN_HAND: Final = 16
#: Consumers whose deliveries cannot be given back that may wait for the engine's answer to a grant at once.
_GRANTS_AT_ONCE: Final = 8


class Consumers:
    """The consumers of one connection.

    Args:
        peer: the connection's AMQP.
        calls: to the engine.
        client: the client of the connection.
        links: which links are attached.
        output: says what waits for the client.
        coordinator: takes the settlements of transactions.
        batched: those that get batches.
        settings: the server's limits.
        clock: a steady one, in seconds.
        log: writes a warning, whose kind comes first, unless there were too many of that kind.
        authorize: see :class:`broker_adapter.server.protocol.ServerProtocol`.

    Attributes:
        postponed: links of consumers that were granted nothing because too much waits for the client, in turn.
    """

    def __init__(
        self,
        peer: Peer,
        calls: EngineCalls,
        client: Client,
        links: Links,
        output: Output,
        coordinator: Coordinator,
        batched: BatchedConsumers,
        settings: ServerSettings,
        log: Callable[..., None],
        clock: Callable[[], float],
        authorize: Callable[[str, Destination | None], None],
    ) -> None:
        self._peer = peer
        self._send = peer.send
        self._peer_bytes = peer.waiting_bytes
        self._calls = calls
        self._defer = calls.defer
        self._settle = calls.settle
        self._client = client
        self._links = links
        self._output = output
        self._coordinator = coordinator
        self._add_to_transaction = coordinator.add_settlements
        self._batched = batched
        batched.on_credit, batched.on_settled = self._grant, self._on_settled
        #: Deliveries that the connection may have in hand, and how many more it may be granted before they are counted.
        self._most_in_hand = max(SLICE_MESSAGES, settings.max_connection_bytes // IN_HAND_BYTES)
        self._room = self._most_in_hand
        self._is_full = False
        self._most_output_bytes = settings.max_output_bytes
        #: Bytes that wait for the client above which deliveries go back to the engine.
        self._most_waiting_bytes = settings.max_connection_bytes // 4
        self._set_aside = SetAside(calls, log)
        self._log = log
        self._clock = clock
        self._converted = 0  #: bytes of messages that were converted since the clock was last read
        self._turn = 0  #: in which something was converted
        self._converts_until = 0.0  #: by the clock: when that turn's time for it is over
        self._authorize = authorize
        self._consumers: dict[int, Consumer] = {}
        self._early_drains: set[int] = set()  #: links whose drain came ahead of the engine's consumer
        self._granting = 0  #: grants to consumers whose deliveries cannot be given back, not answered yet
        self.postponed: dict[int, None] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._consumers)

    def __repr__(self) -> str:
        return f"<Consumers {len(self)} postponed={len(self.postponed)}>"

    # The beginning of a link.

    def attach(self, event: LinkRemoteOpen) -> None:
        """The client attached a link: to a queue, a browser's, a subscription's, or to a new temporary destination.

        The JMS mapping tells a subscription by the link's name (behind a ``|`` stands what makes several links of a
        shared one differ) and the source's capabilities.  No source: the client wants to find the subscription of
        the link's name, to end it.

        Args:
            event: the attach.

        Raises:
            JMSException: why the link is refused.
        """
        source = event.source
        calls = self._calls
        name, _, suffix = event.name.partition("|")
        if source is None:
            of_client = not suffix.startswith("global")
            self._authorize(permissions.UNSUBSCRIBE, topic(name))
            reply = calls.reply(self._on_unsubscribed, event)
            self._defer(c.Unsubscribe(calls.known_client, name, of_client, reply))
            return
        if source.dynamic:
            kind = temporary_kind(source)
            self._authorize(permissions.CREATE_TEMPORARY, Destination("", kind))
            reply = calls.reply(self._on_temporary, event)
            self._defer(c.DeclareTemporary(calls.known_client, kind, None, reply))
            return
        if source.address is None:
            raise InvalidDestinationException("an attach of a receiver needs a source with an address")
        destination = destination_of(source)
        self._authorize(permissions.BROWSE if browses(source, destination) else permissions.CONSUME, destination)
        self._attach_to(event, source, destination, name)

    def _on_temporary(self, event: LinkRemoteOpen, result: Destination | JMSException) -> None:
        if self._links.refused(event, result):
            if isinstance(result, Destination):
                self._calls.end_temporary(result)
            return
        assert isinstance(result, Destination)
        self._attach_to(event, temporary_terminus(result), result, event.name, temporary=result)

    def _attach_to(
        self,
        event: LinkRemoteOpen,
        source: Terminus,
        destination: Destination,
        name: str,
        temporary: Destination | None = None,
    ) -> None:
        selector, no_local = filters_of(source)
        subscription, source = subscription_of(name, source) if destination.is_topic else (None, source)
        browse = browses(source, destination)
        link = event.link
        slice_bytes = max(self._most_output_bytes // len(self._links), _LEAST_SLICE_BYTES)
        # A message that turns out to be larger than the client takes must not be settled by then.
        settles = event.presettled and not browse and event.max_message_bytes is not None
        presettled = (event.presettled or browse) and not settles
        max_message_bytes = event.max_message_bytes or sys.maxsize
        consumer = Consumer(link, event.session, 0, presettled, slice_bytes, max_message_bytes, destination, settles)
        if subscription is not None and subscription.durable:
            consumer.subscription = (name, subscription.of_client)
        consumer.temporary = temporary
        consumer.browses = browse
        consumer.is_second = event.is_second
        consumer.batches = self._batched.number_of(event)

        output, calls, most_waiting = self._output, self._calls, self._most_waiting_bytes

        def sink(handouts: Sequence[c.Handout]) -> None:
            # In the engine's thread.  All consumers of a connection may be granted something at once, and each gets at
            # least one message, however large: what is too much goes back before the connection's thread sees it.
            if output.arrived_bytes - output.taken_bytes > most_waiting and not consumer.presettled:
                calls.add_callback(self._give_back, consumer, [handout.number for handout in handouts])
                return
            size = sum([len(handout.payload) for handout in handouts])
            output.arrived_bytes += size
            calls.add_callback(self._deliver, consumer, handouts, size)

        command = c.Attach(
            calls.known_client,
            destination,
            sink,
            subscription,
            selector,
            no_local,
            consumer.presettled,
            browse,
            slice_bytes,
            exclusive=EXCLUSIVE_CAPABILITY in source.capabilities,
            keep_order=KEEP_ORDER_CAPABILITY in source.capabilities,
            ended=calls.reply(self._on_ended, consumer),
            may_replace=(),
        )
        self._ask_engine(event, source, consumer, command)

    def _ask_engine(self, event: LinkRemoteOpen, source: Terminus, consumer: Consumer, command: c.Attach) -> None:
        reply = self._calls.reply(self._on_attached, event, source, consumer, command)
        self._defer(command._replace(reply=reply))

    def _replace(
        self, event: LinkRemoteOpen, source: Terminus, consumer: Consumer, command: c.Attach, subscription: int
    ) -> None:
        """Attach a consumer in place of a subscription with this number, if the user may end that one."""
        assert command.subscription is not None
        try:
            self._authorize(permissions.UNSUBSCRIBE, topic(command.subscription.name))
        except JMSException as error:
            self._peer.refuse_link(event.link, error_for(error))
            return
        self._ask_engine(event, source, consumer, command._replace(may_replace=(subscription,)))

    def _on_attached(
        self,
        event: LinkRemoteOpen,
        source: Terminus,
        consumer: Consumer,
        command: c.Attach,
        result: int | c.WouldReplace | JMSException,
    ) -> None:
        if self._links.refused(event, result):
            if isinstance(result, int):
                self._defer(c.Detach(result, give_back=True))
            self._calls.end_temporary(consumer.temporary)
            return
        if isinstance(result, c.WouldReplace):
            self._replace(event, source, consumer, command, result.subscription)
            return
        assert isinstance(result, int)
        consumer.number = result
        self._consumers[event.link] = consumer
        source = source._replace(outcomes=OUTCOMES)
        if consumer.batches is not None:
            self._batched.add(consumer)
            self._peer.accept_link(event.link, source, event.target, properties={CONSUMER_NUMBER: consumer.batches})
            return  # its credit comes by records
        self._peer.accept_link(event.link, source, event.target)
        consumer.credit = self._peer.remaining_credit(event.link)
        consumer.draining = event.link in self._early_drains
        self._early_drains.discard(event.link)
        self._grant(consumer)

    def _on_unsubscribed(self, event: LinkRemoteOpen, result: JMSException | None) -> None:
        """The subscription is gone already; the client closes the link that it wanted to find it with."""
        if not self._links.refused(event, result):
            self._peer.accept_link(event.link, Terminus(event.name.partition("|")[0]), event.target)

    # The end of a link.

    def _on_ended(self, consumer: Consumer, error: JMSException) -> None:
        """The engine has ended a consumer, because its queue was deleted."""
        if consumer.detached or self._client.has_ended:
            return
        consumer.detached = True
        consumer.unsettled.clear()
        self._remove_consumer(consumer)
        self._peer.abandon(consumer.link)
        self._peer.close_link(consumer.link, error_for(error))

    def on_link_close(self, event: LinkRemoteClose) -> bool:
        """The client detached a link.

        Returns:
            True where the answer waits for the engine, which is to detach the link's consumer.
        """
        link = event.link
        self._early_drains.discard(link)
        consumer = self._consumers.get(link)
        if consumer is None:
            return False
        if consumer.detached:  # the answer to our own detach
            if left := self._take_left(consumer):
                self._defer(c.Settle(consumer.number, left, Outcome.RELEASED))
            self._on_settled(consumer)
            return False
        consumer.detached = True
        calls = self._calls
        reply = calls.reply(self._on_detached, link, event.closed)
        never_delivered = set(self._take_left(consumer)), consumer.on_their_way()
        self._defer(c.Detach(consumer.number, never_delivered=never_delivered, reply=reply))
        if event.closed and consumer.subscription is not None and self._may_unsubscribe(consumer.subscription[0]):
            name, of_client = consumer.subscription
            self._defer(c.Unsubscribe(calls.known_client, name, of_client))
        calls.end_temporary(consumer.temporary)
        return True

    def _may_unsubscribe(self, name: str) -> bool:
        try:
            self._authorize(permissions.UNSUBSCRIBE, topic(name))
        except JMSException:
            return False  # the client has closed its link, and takes no other answer
        return True

    def _take_left(self, consumer: Consumer) -> list[int]:
        """The client has detached a link: what it can settle no more goes back to where it was (the engine's numbers).

        Sessions of our own client may acknowledge what a consumer has got that is closed; to others a link that is
        closed is the end of what came on it.
        """
        unsent = self._peer.withdraw(consumer.link)
        if not self._client.is_own:
            unsent = list(consumer.unsettled)
            self._peer.abandon(consumer.link)
        return consumer.take(unsent)

    def _on_detached(self, link: int, closed: bool, _result: Any) -> None:
        self._peer.close_link(link, closed=closed)
        consumer = self._consumers.get(link)
        if consumer is not None:
            self._on_settled(consumer)

    def _on_settled(self, consumer: Consumer) -> None:
        """Where the last delivery of a detached consumer is settled, nothing of it is kept any more."""
        if consumer.detached and not consumer.unsettled:
            self._remove_consumer(consumer)

    def _remove_consumer(self, consumer: Consumer) -> None:
        self._consumers.pop(consumer.link, None)
        self._batched.remove(consumer)

    def on_session_close(self, event: SessionRemoteClose) -> None:
        """The client ended a session, and with it these consumers."""
        for consumer in [each for each in self._consumers.values() if each.session == event.session]:
            self._remove_consumer(consumer)
            never_delivered = consumer.never_delivered(event.unsent.get(consumer.link, ()))
            self._defer(
                c.Detach(consumer.number, give_back=True, failed=self._client.is_own, never_delivered=never_delivered)
            )
            if not consumer.detached:
                consumer.detached = True  # what the engine has handed out already finds no link any more
                self._calls.end_temporary(consumer.temporary)

    def remove(self, link: int) -> None:
        """A link is gone with its session."""
        self._early_drains.discard(link)

    def never_delivered(self) -> dict[int, c.NeverDelivered]:
        """Return what the client never got, though its connection is over; by the engine's numbers of the consumers."""
        return {
            consumer.number: consumer.never_delivered(self._peer.withdraw(consumer.link))
            for consumer in self._consumers.values()
        }

    @property
    def unsettled(self) -> int:
        """How many deliveries the client has not settled, and batches that it has not answered."""
        return sum([each.in_hand for each in self._consumers.values()])

    def clear(self) -> None:
        """Drop everything."""
        self._consumers.clear()
        self._batched.clear()
        self._early_drains.clear()
        self.postponed.clear()

    # Credit.

    def on_flow(self, event: LinkFlow) -> bool:
        """The credit of a link changed; returns False where there is no consumer of it (yet)."""
        consumer = self._consumers.get(event.link)
        if consumer is None:
            return False
        if consumer.batches is not None:
            return True  # the records say what it may get
        consumer.credit = event.credit
        consumer.draining = event.drain
        if event.credit < 0:  # the client took credit back that messages were to use which wait
            unsent = self._peer.take_back(event.link, -event.credit)
            consumer.credit += len(unsent)
            if taken := consumer.take(unsent):
                self._release_some(consumer, taken)
        if event.credit < consumer.granted and not event.drain and not consumer.drain_sent:
            self._drain(consumer)  # the client took credit back: so do we
        self._grant(consumer)
        return True

    def expect_drain(self, link: int) -> None:
        """The client wants the credit of a link used up or back, whose consumer the engine has not made yet."""
        self._early_drains.add(link)

    def _grant(self, consumer: Consumer) -> None:
        """Let the engine have as much of a consumer's credit as the connection can take; answer a drain."""
        output = self._output
        if consumer.detached or consumer.drain_sent or output.is_paused:
            return
        wanted = max(0, min(consumer.credit, SLICE_MESSAGES) - consumer.granted)
        # A grant for each few messages would cost more than it brings.
        asks = (wanted and (consumer.granted <= SLICE_MESSAGES // 2 or consumer.draining)) or (
            consumer.slice_is_used_up and consumer.granted
        )
        if not asks and not consumer.draining:
            return
        if output.waiting_bytes >= self._most_output_bytes or (
            consumer.presettled and self._granting >= _GRANTS_AT_ONCE
        ):
            self.postponed[consumer.link] = None
            return
        if asks and wanted and not consumer.presettled:
            wanted = self._room_for(consumer, wanted)
            if not wanted:
                self.postponed[consumer.link] = None
                asks = False
                if consumer.draining and not consumer.granted:
                    self._end_drain(consumer)
        if asks:
            consumer.granted += wanted
            consumer.since_grant = 0
            reply: c.Reply | None = None
            if consumer.presettled:
                self._granting += 1
                reply = self._calls.reply(self._on_granted)
            self._defer(c.Credit(consumer.number, wanted, reply))
        if consumer.draining:
            self._drain(consumer)

    def _room_for(self, consumer: Consumer, wanted: int) -> int:
        """Return how many more deliveries a consumer may have in hand, up to so many; they are taken into account."""
        if self._room < wanted:
            # Counted only now and then: a count for each delivery would cost more.
            held = self.unsettled + self._coordinator.settlements
            self._room = max(0, self._most_in_hand - held - sum([each.granted for each in self._consumers.values()]))
            was_full, self._is_full = self._is_full, not self._room and 2 * held >= self._most_in_hand
            if self._is_full and not was_full:
                self._log("in hand", "! a client with %d unsettled messages gets few more (max_connection_bytes)", held)
            if not self._room:
                return max(0, min(wanted, _LEAST_IN_HAND - consumer.in_hand - consumer.granted))
        room = min(wanted, self._room)
        self._room -= room
        return room

    def _on_granted(self, _result: Any) -> None:
        self._granting -= 1
        self.grant_postponed()

    def grant_all(self) -> None:
        """Grant every consumer what it wants, after the client took nothing for a while."""
        for consumer in self._consumers.values():
            self._grant(consumer)
        self._calls.submit()

    def grant_postponed(self) -> None:
        """Grant something again, in turn, to consumers that were granted nothing, as far as there is room for it."""
        room = self._most_output_bytes - self._output.waiting_bytes
        calls, postponed, full = self._calls, self.postponed, False
        for link in list(postponed):
            if room <= 0:
                break
            consumer = self._consumers.get(link)
            if consumer is None:
                del postponed[link]
                continue
            is_bound = full and not (consumer.presettled or consumer.draining)
            if is_bound and consumer.in_hand + consumer.granted >= _LEAST_IN_HAND:
                continue  # without counting once more what all of them hold
            del postponed[link]
            deferred = len(calls.deferred)
            self._grant(consumer)
            full = full or (link in postponed and self._room <= 0)
            if len(calls.deferred) > deferred:
                room -= consumer.mean_bytes
        calls.submit()

    def _drain(self, consumer: Consumer) -> None:
        consumer.drain_sent = True
        consumer.since_grant = 0
        self._defer(c.Drain(consumer.number, self._calls.reply(self._on_drained, consumer)))

    def _on_drained(self, consumer: Consumer, result: Any) -> None:
        """The engine has used up or dropped what it was granted; or has failed, and the client is not to take that
        for the end of the queue.
        """
        if isinstance(result, JMSException):
            return
        left, consumer.granted = consumer.granted, 0
        consumer.drain_sent = consumer.gives_back = False
        if consumer.detached or self._client.has_ended:
            return
        # With nothing left over there may be more: the client's credit can exceed what the engine is granted at once.
        if consumer.draining and ((left and not consumer.slice_is_used_up) or consumer.credit <= 0):
            self._end_drain(consumer)
        else:
            self._grant(consumer)

    def _end_drain(self, consumer: Consumer) -> None:
        """Nothing more comes for the client's credit."""
        consumer.draining = False
        consumer.credit = 0
        if consumer.batches is None:
            self._peer.drained(consumer.link)
        else:
            self._batched.drained(consumer)

    # Deliveries.

    def _give_back(self, consumer: Consumer, numbers: Sequence[int]) -> None:
        """Deliveries go back to where they were, untouched: too much waits for the client already."""
        if self._client.has_ended:
            return
        consumer.handed = numbers[-1]
        self._release_some(consumer, numbers)
        if not consumer.detached:
            consumer.granted = max(0, consumer.granted - len(numbers))
            self.postponed[consumer.link] = None
            if not consumer.drain_sent:
                self._drain(consumer)  # else it would be handed the same again

    def _release_some(self, consumer: Consumer, numbers: Sequence[int]) -> None:
        """Deliveries go back, and what comes behind them as well until the engine has answered a drain."""
        consumer.gives_back = True
        self._defer(c.Settle(consumer.number, numbers, Outcome.RELEASED))

    def _deliver(self, consumer: Consumer, handouts: Sequence[c.Handout], size: int) -> None:
        self._output.taken_bytes += size
        consumer.handed = handouts[-1].number
        client = self._client
        if consumer.detached or client.has_ended:
            if not client.has_ended and not consumer.presettled:
                numbers = [handout.number for handout in handouts]
                self._defer(c.Settle(consumer.number, numbers, Outcome.RELEASED))
            return
        send, link, settled, unsettled = self._send, consumer.link, consumer.presettled, consumer.unsettled
        settles, most_bytes = settled or consumer.settles, consumer.max_message_bytes
        count = len(handouts)
        consumer.mean_bytes = size // count
        is_full = self._peer_bytes() > self._most_waiting_bytes
        if not settled and (is_full or consumer.gives_back):  # what comes behind it must not pass it
            self._give_back(consumer, [handout.number for handout in handouts])
            return
        consumer.since_grant += size
        is_cut = False
        if count > consumer.credit and not settled:  # the client took credit back meanwhile
            self._release_some(consumer, [handout.number for handout in handouts[consumer.credit :]])
            handouts = handouts[: consumer.credit]
            consumer.granted = max(0, consumer.granted - count + len(handouts))
            count = len(handouts)
            is_cut = True
        if consumer.batches is not None:
            too_large = self._batched.deliver(consumer, handouts)
            if too_large is not None:
                place, size = too_large
                self._end_before(consumer, [each.number for each in handouts[place:]], size)
                return
            handouts = ()
        is_own = client.envelope_version > 0
        if not is_own and self._turn != self._calls.turn:
            self._turn, self._converted = self._calls.turn, 0
            self._converts_until = self._clock() + _CONVERTING_SECONDS
        for number, position, failures, form, payload, added, _ in handouts:
            if is_own:
                data = with_place(position, failures, added, payload)
            else:
                if form != AMQP_FORMAT or failures or added:
                    if self._converted >= _LOOK_BYTES and self._has_converted_enough():
                        rest = [each for each in handouts if each.number >= number]
                        count -= len(rest)
                        self._postpone(consumer, rest, is_cut=is_cut)
                        break
                    self._converted += len(payload)
                try:
                    data = with_delivery(as_amqp(form, payload), failures, added)
                except MessageFormatException as error:
                    if not self._calls.settings_of(consumer.destination).takes_dead_letters:
                        self._set_aside.set_aside(consumer, number, form, payload, error)
                        consumer.credit += 1  # the engine used it, the client did not
                        continue
                    # It would come back here, ahead of all others, for ever.
                    data = with_delivery(undecodable(payload, error.reason), failures, added)
            if len(data) > most_bytes:
                self._end_before(consumer, [each.number for each in handouts if each.number >= number], len(data))
                return
            sent = send(link, data, settled=settles)
            if not settles:
                unsettled[sent] = number
            elif not settled:
                self._defer(c.Settle(consumer.number, (number,), Outcome.ACCEPTED))
        consumer.granted = max(0, consumer.granted - count)
        consumer.credit = max(0, consumer.credit - count)
        if consumer.granted < consumer.credit or consumer.slice_is_used_up:
            self._grant(consumer)

    def _has_converted_enough(self) -> bool:
        """Return whether the connection has used up its time of this turn for conversions."""
        self._converted = 0
        return self._clock() >= self._converts_until

    def _postpone(self, consumer: Consumer, handouts: Sequence[c.Handout], *, is_cut: bool) -> None:
        """The last of what was handed out waits for the next turn, as if it were on its way yet.

        Args:
            consumer: whose it is.
            handouts: these.
            is_cut: whether others behind them went back to the engine; then these go back as well, to keep the order.
        """
        if is_cut:
            last = consumer.handed
            self._give_back(consumer, [handout.number for handout in handouts])
            consumer.handed = last
            return
        size = sum([len(handout.payload) for handout in handouts])
        self._output.taken_bytes -= size
        consumer.since_grant -= size
        consumer.handed = handouts[0].number - 1
        self._calls.postpone(self._deliver, consumer, handouts, size)

    def _end_before(self, consumer: Consumer, numbers: Sequence[int], size: int) -> None:
        """Close a link ahead of these deliveries, the first of which is larger than its client takes."""
        link = consumer.link
        consumer.detached = True
        unsent = consumer.take(self._peer.withdraw(link, stays=True))
        self._defer(c.Detach(consumer.number, never_delivered=({*numbers, *unsent}, consumer.on_their_way())))
        reason = (
            f"a message of {size} bytes is larger than the {consumer.max_message_bytes} bytes that the receiver takes"
            " (max-message-size of its attach); attach with a larger limit"
        )
        self._peer.close_link(link, AmqpError("amqp:link:message-size-exceeded", reason))
        self._calls.end_temporary(consumer.temporary)

    def on_dispositions(self, event: Dispositions) -> None:
        """The client settled deliveries of a link, all alike."""
        consumer = self._consumers.get(event.link)
        if consumer is None:
            self._peer.settle_second(event.link, event.numbers)
            return
        if consumer.batches is not None:
            self._batched.on_answered(consumer, event)
            return
        take = consumer.unsettled.pop
        numbers = [number for number in [take(each, 0) for each in event.numbers] if number]
        state = event.state
        if state.code != TRANSACTIONAL:
            self._settle(consumer.number, numbers, outcome_of(state))
        elif not self._add_to_transaction(state, consumer.number, numbers):
            self._settle(consumer.number, numbers, Outcome.MODIFIED)
        if consumer.is_second:  # our settlement tells the client that its outcome is on disk
            reply = self._calls.reply(_settle_second, self._peer, event)
            self._defer(c.Settle(consumer.number, (), Outcome.ACCEPTED, reply))
        self._on_settled(consumer)


def _settle_second(peer: Peer, event: Dispositions, result: JMSException | None) -> None:
    """The engine has stored how these deliveries ended, or could not."""
    if result is None:
        peer.settle_second(event.link, event.numbers)
